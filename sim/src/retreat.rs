//! Calls whose plans do without some cards, so that some hosts have no rail in common, and plans go round these pairs.

use std::ops::Range;

use ccl_core::collective::Collective;
use ccl_core::ids::{Node, Rail};
use ccl_core::random::Random;
use ccl_core::topology::Topology;

use crate::scenario::{CallPlan, Fault, FaultKind, HostShape, LONGER_THAN_PATIENCE};

/// Which calls, and which cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retreat {
    /// The calls, by their numbers: all ranks change plans at the same one.
    pub calls: Range<usize>,
    /// Hosts and their cards.
    pub cards: Vec<(usize, usize)>,
    /// Whether nothing else goes wrong.
    pub is_all: bool,
}

impl Retreat {
    /// A retreat for some worlds with three hosts or more: two of the hosts keep cards of different rails. The cards that
    /// they lose fall silent, for less time than links wait for a path, or for more.
    pub(crate) fn draw(
        random: &mut Random,
        hosts: &[HostShape],
        calls: &mut [CallPlan],
        faults: &mut Vec<Fault>,
    ) -> Option<Self> {
        let rails = hosts[0].rails;
        let are_even = hosts.iter().all(|host| host.rails == rails);
        if hosts.len() < 3 || rails < 2 || !are_even || !random.percent(40) {
            return None;
        }
        let first = if random.percent(60) { 0 } else { random.index(calls.len()) };
        let range = match random.percent(60) {
            true => first..calls.len(),
            false => first..first + 1 + random.index(calls.len() - first),
        };
        for call in &mut calls[range.clone()] {
            prepare(random, call);
        }
        let is_all = random.percent(30);
        if is_all {
            faults.clear();
        }
        let cards = draw_cards(random, hosts.len(), rails);
        let packets = if first == 0 { 0 } else { random.magnitude(1, 400) - 1 };
        // Calls before and after need these cards.
        let is_long = random.percent(if range == (0..calls.len()) { 70 } else { 20 });
        for &(host, rail) in &cards {
            let kind = match random.percent(50) {
                true => FaultKind::Silent { outgoing: true, incoming: true },
                false => FaultKind::Carrier { told: Some(random.magnitude(1_000, 5_000_000)) },
            };
            let lasts = match is_long {
                true => LONGER_THAN_PATIENCE + random.below(LONGER_THAN_PATIENCE),
                false => random.magnitude(20_000_000, 1_000_000_000),
            };
            let delay = random.below(1_000_000);
            faults.push(Fault { packets, delay, lasts, host, rail, kind });
        }
        Some(Self { calls: range, cards, is_all })
    }

    /// What planners see of the topology for a call.
    pub(crate) fn seen(&self, call: usize, whole: Topology) -> Topology {
        if !self.calls.contains(&call) {
            return whole;
        }
        self.cards.iter().fold(whole, |topology, &(host, rail)| {
            let node = Node(u32::try_from(host).unwrap_or(u32::MAX));
            topology.with_rail(node, Rail(u8::try_from(rail).unwrap_or(u8::MAX)), false)
        })
    }

    /// The same when a call is left out of the world.
    pub(crate) fn without_call(&mut self, call: usize) {
        self.calls.start -= usize::from(call < self.calls.start);
        self.calls.end -= usize::from(call < self.calls.end);
    }
}

/// Two hosts lose a card of every rail between them, and each keeps one at least.
fn draw_cards(random: &mut Random, hosts: usize, rails: usize) -> Vec<(usize, usize)> {
    let one = random.index(hosts);
    let other = (one + 1 + random.index(hosts - 1)) % hosts;
    let turn = random.index(rails);
    let loser = |rail: usize, random: &mut Random| match (rail + turn) % rails {
        0 => one,
        1 => other,
        _ => random.pick(&[one, other]),
    };
    (0..rails).map(|rail| (loser(rail, random), rail)).collect()
}

/// Messages and AllToAllVs have no way round; the time between calls is at times longer than links wait for a path.
fn prepare(random: &mut Random, call: &mut CallPlan) {
    let others = [Collective::AllReduce, Collective::AllToAll, Collective::AllGather];
    if matches!(call.collective, Collective::AllToAllV | Collective::PointToPoint) {
        call.collective = random.pick(&others);
    }
    if random.percent(80) {
        call.algorithm = None;
    }
    if random.percent(20) {
        call.pause = random.magnitude(100_000_000, LONGER_THAN_PATIENCE);
    }
}
