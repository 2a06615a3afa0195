//! The protocols of the CUDA kernels, compiled by NVIDIA's compiler, on an interpreter: ranks are
//! streams, and threads run in an order that is drawn.

mod cuda;
mod inputs;
#[path = "cuda/interpreter.rs"]
mod interpreter;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;

use std::sync::Once;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Family, Module, Operation};

use cuda::suite;
use inputs::skip;
use interpreter::Interpreter;

/// The interpreter with the copy and the kernels for some types, or a report that they are not
/// tested.
fn interpreter(datatypes: &[DataType]) -> Option<Interpreter> {
    let elements = datatypes.iter().map(|&datatype| Module::Elements(datatype));
    let modules: Vec<Module> = elements.chain([Module::Copies]).collect();
    let interpreter = Interpreter::new(&modules, 90);
    if interpreter.is_none() {
        static REPORTED: Once = Once::new();
        let missing = "protocols of CUDA kernels on an interpreter: pip cannot install NVRTC";
        REPORTED.call_once(|| skip(missing));
    }
    interpreter
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Types of every size, and every operation.
const COMBINATIONS: [(DataType, Operation); 8] = [
    (DataType::Float32, Operation::Sum),
    (DataType::Bfloat16, Operation::Scaled),
    (DataType::Float8E4m3, Operation::Sum),
    (DataType::Int8, Operation::Mean),
    (DataType::Float64, Operation::Max),
    (DataType::Uint64, Operation::Prod),
    (DataType::Float16, Operation::Min),
    (DataType::Int32, Operation::Mean),
];

fn all_reduces(family: Family) {
    for (seed, (datatype, operation)) in (0..).zip(COMBINATIONS) {
        let Some(interpreter) = interpreter(&[datatype]) else { return };
        let seeds = 6 * seed..6 * seed + 6;
        assert!(right(suite::all_reduces(&interpreter, family, datatype, operation, seeds)) > 0);
    }
}

#[test]
fn all_reduces_with_low_latency() {
    all_reduces(Family::LowLatency);
}

#[test]
fn all_reduces_by_pushing() {
    all_reduces(Family::Push);
}

#[test]
fn pushes_from_some_to_some() {
    let Some(interpreter) = interpreter(&[DataType::Int64]) else { return };
    assert!(right(suite::pushes_of_some(&interpreter, 0..6)) > 0);
    assert!(right(suite::pushes_in_pieces(&interpreter, 0..6)) > 0);
}

#[test]
fn messages_of_any_length() {
    let Some(interpreter) = interpreter(&[]) else { return };
    assert!(right(suite::pulls(&interpreter, 0..20)) > 0);
}

#[test]
fn messages_that_do_not_fit() {
    let Some(interpreter) = interpreter(&[]) else { return };
    right(suite::pulls_in_vain(&interpreter, 0..8));
}

#[test]
fn flags_return_without_harm() {
    let Some(interpreter) = interpreter(&[DataType::Float32]) else { return };
    right(suite::flags_return(&interpreter, 12));
}

#[test]
fn who_waits_in_vain_gives_up() {
    let Some(interpreter) = interpreter(&[DataType::Float32]) else { return };
    right(suite::all_give_up(&interpreter));
}

#[test]
fn relays_hand_on() {
    for (datatype, operation) in COMBINATIONS {
        let Some(interpreter) = interpreter(&[DataType::Uint8, datatype]) else { return };
        right(suite::relays(&interpreter, datatype, operation, 6));
    }
}
