//! Collectives of several ranks on each of several hosts: by kernels inside them, by kernels and NICs between them.
//!
//! The hosts are pretended as those of [`super::wire`].

mod faults;
mod results;
mod ways;

use ccl::cuda::Paths;
use ccl::{DataType, UniqueId};

use super::Member;
use super::wire::{member, ready_with};

/// A rank of hosts with so many each, numbered host by host, whose calls of these types go by kernels and NICs.
pub(crate) fn ready(
    (rank, size, per_host): (u32, u32, u32),
    id: &UniqueId,
    (datatypes, more): (&[DataType], &[(&str, &str)]),
) -> Member {
    let host = host(rank, per_host);
    let more: Vec<_> =
        [("R2CCL_HOST_ID", host.as_str())].into_iter().chain(more.iter().copied()).collect();
    ready_with(rank, size, id, (datatypes, &more))
}

/// One that has met nobody.
fn stranger((rank, size, per_host): (u32, u32, u32), id: &UniqueId) -> Member {
    member(rank, size, id, &[("R2CCL_HOST_ID", &host(rank, per_host))])
}

fn host(rank: u32, per_host: u32) -> String {
    format!("columns {}", rank / per_host)
}

/// So many calls have gone that way since then, and none through the host.
fn assert_columns(member: &Member, before: Paths, calls: u64) {
    let (paths, reason) = member.cuda.paths();
    assert_eq!(paths.host, before.host, "{reason:?}: {paths:?}");
    assert_eq!(paths.columns, before.columns + calls, "{paths:?}");
    assert_eq!((paths.gpudirect, reason), (paths.columns, None), "{paths:?}");
    assert_eq!((paths.wire, paths.push, paths.low_latency), (0, 0, 0), "{paths:?}");
    member.cuda.check().unwrap();
}
