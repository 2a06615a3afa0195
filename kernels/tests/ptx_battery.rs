//! The CUDA kernels as NVIDIA's compiler makes them, on an interpreter, against the oracle.

#[macro_use]
mod cuda;
mod inputs;
#[path = "cuda/interpreter.rs"]
mod interpreter;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;

use std::sync::Once;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::Module;

use cuda::battery::{self, Cases};
use inputs::skip;
use interpreter::Interpreter;

/// Processors that convert 8-bit floats, and such that do not.
const ARCHITECTURES: [u32; 2] = [90, 80];

/// The interpreter with these modules, or a report that they are not tested.
fn interpreter(modules: &[Module], architecture: u32) -> Option<Interpreter> {
    let interpreter = Interpreter::new(modules, architecture);
    if interpreter.is_none() {
        static REPORTED: Once = Once::new();
        REPORTED.call_once(|| skip("CUDA kernels on an interpreter: pip cannot install NVRTC"));
    }
    interpreter
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// All operations of a type, on all processors that have their own way with it: on the first one with
/// all alignments. Ends and alignments are the same text for both.
fn reduces(datatype: DataType) {
    let is_narrow = datatype.is_float() && datatype.bytes() < 4;
    let ways = [Cases::Every, Cases::Few];
    let processors = ARCHITECTURES.into_iter().zip(ways).take(if is_narrow { 2 } else { 1 });
    for (architecture, cases) in processors {
        let modules = [Module::Elements(datatype)];
        let Some(interpreter) = interpreter(&modules, architecture) else { return };
        assert!(right(battery::reduces(&interpreter, datatype, cases, 1)) > 0);
        if is_narrow {
            assert!(right(battery::pairs(&interpreter, datatype)) > 0);
        }
    }
}

test_every_type!(reduces);

#[test]
fn copies() {
    let Some(interpreter) = interpreter(&[Module::Copies], ARCHITECTURES[0]) else { return };
    assert!(right(battery::copies(&interpreter, Cases::Every, 1)) > 0);
}
