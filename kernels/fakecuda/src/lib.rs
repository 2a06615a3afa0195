//! A `libcuda.so.1` for tests: the driver of GPUs that are interpreters of PTX.
//!
//! A program that loads it, by its name and a library path, finds one device or several. Streams are
//! asynchronous, events, graphs and pinned memory work, memory and events can be opened by other
//! processes of the same user. It is not fast, and says nothing about how fast a GPU is.
//!
//! What it does not have returns `CUDA_ERROR_NOT_SUPPORTED` and says its name once on standard error.
//! See docs/cuda-emulator.md.

#![allow(non_snake_case, reason = "the names are those of cuda.h")]

mod allocations;
mod api;
mod bell;
mod capture;
mod codes;
mod connection;
mod device;
mod driver;
mod event;
mod failure;
mod folder;
mod graph;
mod ipc;
mod outside;
mod settings;
mod stream;
mod work;

pub use folder::install;
