//! Runs compiled CUDA kernels on the processor, so that they are checked where there is no GPU.
//!
//! A [`Module`] is loaded from PTX, the assembly language into which NVRTC, nvcc and clang translate
//! CUDA. A [`Machine`] runs its kernels: threads in warps of 32, blocks, barriers, and memory that
//! is the memory of this process, range by range as it is registered in a [`Memory`].
//!
//! What is checked that no GPU checks: every access must be inside of a registered range and
//! aligned; a deadlock is found and described; the order in which threads run is drawn from a seed,
//! so what fails fails again. See docs/cuda-emulator.md.

mod arithmetic;
mod decode;
mod error;
mod lexer;
mod machine;
mod memory;
mod parser;
mod program;
mod syntax;
mod types;

pub use error::{Access, Fault, LoadError, Reason};
pub use machine::{Launch, LaunchError, Machine, Options, Progress, Schedule};
pub use memory::{Buffer, Memory, Overlap, Rights};
pub use program::{Kernel, Module, Parameter, Variable};

use std::sync::Arc;

impl Module {
    /// Loads a PTX text. Its variables can be reached until the module is dropped.
    ///
    /// # Errors
    ///
    /// Something in the text is not understood; the error names its line.
    pub fn load(source: &str, memory: &Arc<Memory>) -> Result<Arc<Self>, LoadError> {
        decode::load(source, memory)
    }
}
