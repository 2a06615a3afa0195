//! Algorithms that the planner does not choose from: strategies for degraded hosts with any number of
//! slices, and a ring that goes the same way round twice.

use std::sync::Arc;

use ccl_algorithms::combine::{InSequence, Items, Reversed, Subgroup};
use ccl_algorithms::degraded::nested::nested_rings;
use ccl_algorithms::degraded::paper::recursive_literal;
use ccl_algorithms::degraded::rounds::hub_shares_in_rounds;
use ccl_algorithms::degraded::{Between, Fabric};
use ccl_algorithms::pattern::Pattern;
use ccl_algorithms::spread::AllGather;
use ccl_core::ids::Rank;
use ccl_core::schedule::Mode;
use ccl_core::topology::Topology;

/// The names, for people.
pub const NAMES: &str =
    "rounds:SLICES, rounds:SLICES:AHEAD, nested:SLICES, recursive_literal, one_way_ring";

/// The strategy called `name` between the hosts of `topology`. None if there is no such strategy, if it
/// does not apply to these hosts, or if a host has several ranks.
#[must_use]
pub fn strategy(name: &str, topology: &Topology) -> Option<Between> {
    if topology.ranks() != topology.nodes() {
        return None;
    }
    let fabric = Fabric::of(topology);
    let mut words = name.split(':');
    let kind = words.next()?;
    let numbers: Vec<u32> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    match (kind, numbers.as_slice()) {
        ("rounds", [slices]) => hub_shares_in_rounds(&fabric, *slices, 1),
        ("rounds", [slices, ahead]) => hub_shares_in_rounds(&fabric, *slices, *ahead),
        ("nested", [slices]) => nested_rings(&fabric, *slices),
        ("recursive_literal", []) => recursive_literal(&fabric),
        ("one_way_ring", []) => Some(one_way_ring(topology.ranks())),
        _ => None,
    }
}

/// A ring that gathers in the direction in which it reduces, so that every rank sends to one neighbour
/// only: what is gathered never competes with what is still being reduced.
fn one_way_ring(ranks: u32) -> Between {
    let all = AllGather { pattern: Pattern::Chain, positions: ranks, items: ranks };
    let reduced = Reversed { inner: Arc::new(all), mode: Mode::Accumulate };
    let backwards: Vec<Rank> = (0..ranks).rev().map(Rank).collect();
    let items = Items::listed(ranks as usize, |position| [backwards[position].0]);
    let gathered = Subgroup::new(Arc::new(all), ranks, backwards.clone(), items);
    let schedule = InSequence::new(vec![Arc::new(reduced), Arc::new(gathered)]);
    Between { schedule: Arc::new(schedule), weights: vec![1.0; ranks as usize] }
}
