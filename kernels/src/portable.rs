//! The loops as the compiler makes them for the target it builds for: SSE2 on x86-64, NEON on
//! aarch64.

use crate::format::{Brain, Half};
use crate::machine::{Machine, Task};
use crate::step::{Element, Narrow};

/// Whatever the build's target has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Machine for Portable {
    type Plain = Self;
    type Single = Element<f32>;
    type Double = Element<f64>;
    type Long = Element<u64>;
    type Half = Narrow<Half>;
    type Brain = Narrow<Brain>;

    unsafe fn run<T: Task>(task: T) {
        task.run();
    }
}
