//! The benchmark binaries.
#![allow(dead_code, reason = "every test executable uses another part")]

/// The first of them.
pub(crate) const ALL_REDUCE: &str = env!("CARGO_BIN_EXE_all_reduce_perf");

/// The others.
pub(crate) const OTHERS: [&str; 10] = [
    env!("CARGO_BIN_EXE_all_gather_perf"),
    env!("CARGO_BIN_EXE_reduce_scatter_perf"),
    env!("CARGO_BIN_EXE_broadcast_perf"),
    env!("CARGO_BIN_EXE_reduce_perf"),
    env!("CARGO_BIN_EXE_alltoall_perf"),
    env!("CARGO_BIN_EXE_alltoallv_perf"),
    env!("CARGO_BIN_EXE_gather_perf"),
    env!("CARGO_BIN_EXE_scatter_perf"),
    env!("CARGO_BIN_EXE_sendrecv_perf"),
    env!("CARGO_BIN_EXE_hypercube_perf"),
];
