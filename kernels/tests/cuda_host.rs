//! The CUDA kernels on this processor: the text that a GPU compiles, behind a port of C++.

#[macro_use]
mod cuda;
#[path = "cuda/host.rs"]
mod host;
mod inputs;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Family, Module, Operation};

use cuda::battery::{self, Cases};
use cuda::suite;
use host::Host;
use inputs::skip;

/// The processor with these modules, or a report that they are not tested.
fn processor(modules: &[Module]) -> Option<Host> {
    let host = Host::new(modules);
    if host.is_none() {
        skip("CUDA kernels on a processor: there is no g++");
    }
    host
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// All operations of a type.
fn reduces(datatype: DataType) {
    let Some(host) = processor(&[Module::Elements(datatype)]) else { return };
    assert!(right(battery::reduces(&host, datatype, Cases::Every, 1)) > 0);
    if datatype.is_float() && datatype.bytes() < 4 {
        assert!(right(battery::pairs(&host, datatype)) > 0);
    }
}

test_every_type!(reduces);

#[test]
fn copies() {
    let Some(host) = processor(&[Module::Copies]) else { return };
    assert!(right(battery::copies(&host, Cases::Every, 2)) > 0);
}

/// Every type with one operation, and every operation with some types.
fn combinations() -> Vec<(DataType, Operation)> {
    let types = DataType::ALL.map(|datatype| (datatype, Operation::Sum));
    let some = [DataType::Int8, DataType::Bfloat16, DataType::Float64];
    let operations = |datatype: DataType| Operation::ALL[1..].iter().map(move |&o| (datatype, o));
    let of_types = some.into_iter().flat_map(operations).filter(|(d, o)| o.is_of(*d));
    types.into_iter().chain(of_types).collect()
}

fn all_reduces(family: Family) {
    for (seed, (datatype, operation)) in (0..).zip(combinations()) {
        let modules = [Module::Copies, Module::Elements(datatype)];
        let Some(host) = processor(&modules) else { return };
        let seeds = 4 * seed..4 * seed + 4;
        assert!(right(suite::all_reduces(&host, family, datatype, operation, seeds)) > 0);
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
    let modules = [Module::Copies, Module::Elements(DataType::Int64)];
    let Some(host) = processor(&modules) else { return };
    assert!(right(suite::pushes_of_some(&host, 0..20)) > 0);
    assert!(right(suite::pushes_in_pieces(&host, 0..20)) > 0);
}

#[test]
fn messages_of_any_length() {
    let Some(host) = processor(&[Module::Copies]) else { return };
    assert!(right(suite::pulls(&host, 0..60)) > 0);
}

#[test]
fn messages_that_do_not_fit() {
    let Some(host) = processor(&[Module::Copies]) else { return };
    right(suite::pulls_in_vain(&host, 0..20));
}

#[test]
fn flags_return_without_harm() {
    let modules = [Module::Copies, Module::Elements(DataType::Float32)];
    let Some(host) = processor(&modules) else { return };
    right(suite::flags_return(&host, 12));
}

#[test]
fn who_waits_in_vain_gives_up() {
    let Some(host) = processor(&[Module::Elements(DataType::Float32)]) else { return };
    right(suite::all_give_up(&host));
}

#[test]
fn relays_hand_on() {
    for (datatype, operation) in combinations() {
        let modules =
            [DataType::Uint8, datatype].map(Module::Elements).into_iter().chain([Module::Copies]);
        let Some(host) = processor(&modules.collect::<Vec<_>>()) else { return };
        right(suite::relays(&host, datatype, operation, 6));
    }
}
