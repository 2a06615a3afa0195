//! Algorithms that the planner does not choose from: strategies for degraded hosts with any number of
//! slices, and a ring that goes the same way round twice.

use std::sync::Arc;

use ccl_algorithms::combine::{InSequence, Items, Reversed, Shared, Subgroup};
use ccl_algorithms::degraded::hubs::{Hubs, hubs};
use ccl_algorithms::degraded::nested::nested_rings;
use ccl_algorithms::degraded::paper::recursive_literal;
use ccl_algorithms::degraded::rails::Division;
use ccl_algorithms::degraded::rounds::hub_shares_in_rounds;
use ccl_algorithms::degraded::{Between, Fabric};
use ccl_algorithms::pattern::Pattern;
use ccl_algorithms::spread::AllGather;
use ccl_algorithms::{Choice, choose};
use ccl_core::collective::Request;
use ccl_core::cost::CostModel;
use ccl_core::ids::Rank;
use ccl_core::layout::Partition;
use ccl_core::schedule::Mode;
use ccl_core::topology::Topology;

use super::Job;

/// The names, for people.
pub const NAMES: &str =
    "rounds:SLICES, rounds:SLICES:AHEAD, nested:SLICES, recursive_literal, one_way_ring";

/// What moves, how the data is cut for it, and which rails carry what.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What moves.
    pub schedule: Shared,
    /// How the data is cut.
    pub partition: Partition,
    /// Which rails carry what, if that is not by capacity.
    pub division: Option<Division>,
}

impl Planned {
    /// The algorithm called `name`: one that the planner knows, or one of [`NAMES`].
    ///
    /// # Errors
    /// There is no such algorithm, or it cannot work here. The library takes another one then, which must not go by
    /// this name.
    pub fn named(
        name: &str,
        request: &Request,
        topology: &Topology,
        model: &CostModel,
    ) -> Result<Self, String> {
        if let Some(Between { schedule, weights }) = strategy(name, topology) {
            let partition = Partition::weighted(request.count, request.datatype.bytes(), &weights);
            let hubs = hubs(&Fabric::of(topology)).filter(|_| name.starts_with("rounds"));
            let division = hubs.as_ref().and_then(Hubs::division).cloned();
            return Ok(Self { schedule, partition, division });
        }
        let choice = choose(request, topology, model, Some(name))
            .map_err(|error| format!("{error}; with one rank on every host also {NAMES}"))?;
        if choice.name != name {
            return Err(format!("the planner takes another algorithm: {}", choice.reason));
        }
        Ok(Self::from(choice))
    }

    /// To do this on `request`.
    #[must_use]
    pub fn job<'a>(&'a self, request: &'a Request, topology: &'a Topology) -> Job<'a> {
        Job {
            request,
            topology,
            schedule: &*self.schedule,
            partition: &self.partition,
            division: self.division.as_ref(),
        }
    }
}

impl From<Choice> for Planned {
    fn from(Choice { schedule, partition, division, .. }: Choice) -> Self {
        Self { schedule, partition, division }
    }
}

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
pub(crate) fn one_way_ring(ranks: u32) -> Between {
    let all = AllGather { pattern: Pattern::Chain, positions: ranks, items: ranks };
    let reduced = Reversed { inner: Arc::new(all), mode: Mode::Accumulate };
    let backwards: Vec<Rank> = (0..ranks).rev().map(Rank).collect();
    let items = Items::listed(ranks as usize, |position| [backwards[position].0]);
    let gathered = Subgroup::new(Arc::new(all), ranks, backwards.clone(), items);
    let schedule = InSequence::new(vec![Arc::new(reduced), Arc::new(gathered)]);
    Between { schedule: Arc::new(schedule), weights: vec![1.0; ranks as usize] }
}
