//! The eleven benchmarks.

mod all_gather;
mod all_reduce;
mod alltoall;
mod alltoallv;
mod broadcast;
mod gather;
mod hypercube;
mod reduce;
mod reduce_scatter;
mod scatter;
mod sendrecv;

pub use all_gather::ALL_GATHER;
pub use all_reduce::ALL_REDUCE;
pub use alltoall::ALLTOALL;
pub use alltoallv::ALLTOALLV;
pub use broadcast::BROADCAST;
pub use gather::GATHER;
pub use hypercube::HYPERCUBE;
pub use reduce::REDUCE;
pub use reduce_scatter::REDUCE_SCATTER;
pub use scatter::SCATTER;
pub use sendrecv::SENDRECV;

use ccl::Collective;

use crate::benchmark::{Call, Origin, Phase, Segment, Span};

/// One collective call.
fn one(collective: Collective, input: Option<Span>, output: Option<Span>) -> Vec<Phase> {
    vec![Phase::Calls(vec![Call::Collective { collective, input, output }])]
}

/// The block of `count` elements at `block` in the output, from the input of `rank`.
fn block_of(rank: usize, first: usize, block: usize, count: usize) -> Segment {
    Segment { offset: block * count, count, origin: Origin::Rank { rank, first } }
}

fn no_remark(_ranks: usize) -> Option<String> {
    None
}

#[cfg(test)]
mod tests;
