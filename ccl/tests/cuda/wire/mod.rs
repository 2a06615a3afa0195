//! Collectives that kernels and NICs do between hosts.
//!
//! The hosts are pretended, their rails are addresses of the loopback interface, and the NICs are software devices,
//! which map the memory of a device here as an RDMA device would reach it.

mod faults;
mod results;
mod ways;

use ccl::cuda::Paths;
use ccl::{Config, DataType, Settings, UniqueId};

pub(crate) use faults::{at_odds, repairs};
pub(crate) use ways::three_sums;

use super::direct::prepared;
use super::ranks::KERNELS;
use super::{Member, TIMEOUT};

/// Pinned memory: calls of up to a quarter go through the host.
const STAGING_BYTES: &str = "4096";
pub(crate) const SMALL_BYTES: usize = 1024;

/// A rank on a host of its own with two rails, and these settings besides.
pub(crate) fn member(rank: u32, size: u32, id: &UniqueId, more: &[(&str, &str)]) -> Member {
    Member::with(rank as usize % 2, (rank, size), id, &config(rank, more))
}

/// That of such a rank.
pub(crate) fn config(rank: u32, more: &[(&str, &str)]) -> Config {
    let host = format!("wire {rank}");
    let kernels = std::env::var(KERNELS).unwrap();
    let variables = [
        ("R2CCL_HOST_ID", host.as_str()),
        ("R2CCL_RAILS", "127.0.91.1,127.0.91.2"),
        ("R2CCL_NET", "tcp"),
        ("R2CCL_CUDA_STAGING_BYTES", STAGING_BYTES),
        ("R2CCL_CUDA_KERNELS", &kernels),
        ("R2CCL_CUDA_NETWORK", "1"),
    ];
    // What is said twice is said last by whoever asks for it.
    let is_new = |(name, _): &&(&str, &str)| !more.iter().any(|(other, _)| other == name);
    let variables = variables.iter().filter(is_new).chain(more);
    let mut settings = Settings::parse(variables.copied()).unwrap().settings;
    settings.bootstrap_timeout = TIMEOUT;
    Config { timeout: Some(TIMEOUT), settings, ..Config::default() }
}

/// One whose calls of these types go by kernels and NICs.
pub(crate) fn ready(rank: u32, size: u32, id: &UniqueId, datatypes: &[DataType]) -> Member {
    ready_with(rank, size, id, (datatypes, &[]))
}

pub(crate) fn ready_with(
    rank: u32,
    size: u32,
    id: &UniqueId,
    (datatypes, more): (&[DataType], &[(&str, &str)]),
) -> Member {
    prepared(member(rank, size, id, more), datatypes, &[])
}

/// All calls since then went by kernels and NICs, in memory of the device.
fn assert_wire(member: &Member, before: Paths) -> Paths {
    let (paths, reason) = member.cuda.paths();
    assert_eq!(paths.host, before.host, "{reason:?}: {paths:?}");
    assert!(paths.wire > before.wire, "{paths:?}");
    assert_eq!((paths.gpudirect, reason), (paths.wire, None), "{paths:?}");
    member.cuda.check().unwrap();
    paths
}
