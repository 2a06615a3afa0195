//! Kernels for CUDA devices: their text, and what they are given.
//!
//! The [text](Module::source) is compiled for a GPU when a program runs, and for a processor by the
//! tests, which compare it with the scalar oracle bit for bit. What is here needs neither CUDA nor a
//! GPU; `gpu`, behind the feature `cuda`, opens devices. See docs/cuda.md.

#[cfg(feature = "cuda")]
pub mod gpu;
mod parameters;
mod text;

pub use parameters::{
    ARRIVAL_BYTES, Arithmetic, CopyParameters, LETTER_BYTES, LOW_LATENCY_THREADS,
    LowLatencyParameters, MOST_BLOCKS, MOST_RANKS, Operands, Parameters, PullParameters,
    PushParameters, QUARREL_NUMBERS, ReduceParameters, RelayParameters, Ring, State, slice,
};
pub use text::{Entry, Family, Module, Operation};
