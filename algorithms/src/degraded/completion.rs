//! The rest of an AllReduce that was interrupted.
//!
//! Where a call stopped, every host's copy of every piece holds the sum over some of the hosts. Any
//! copies that are disjoint and together hold everybody are enough to finish: they are summed at
//! one host, the hub, and the result is stored wherever it is missing. If a copy is complete, only
//! that remains to be done. What other copies hold is redundant and is overwritten. So it does not
//! matter which schedule was interrupted, nor whether the rest moves over the same rails.

use std::cmp::Reverse;
use std::sync::Arc;

use ccl_core::ids::Chunk;
use ccl_core::schedule::{Holdings, Mode, Transfer};

use super::{Between, Fabric, host_rank as rank};
use crate::combine::Listed;

/// The search for disjoint copies of a piece gives up after this many steps.
const SEARCH_STEPS: u32 = 10_000;

/// A schedule that makes `state`, which is of all hosts and of pieces with these weights, complete.
///
/// None if what the hosts hold of some piece cannot be put together to the whole with each
/// contribution once, or if a host that is needed cannot be reached.
#[must_use]
pub fn complete(state: &Holdings, weights: &[f64], fabric: &Fabric) -> Option<Between> {
    let busy = vec![0.0; fabric.hosts()];
    let mut plan = Plan { fabric, busy, sums: Vec::new(), stores: Vec::new() };
    for (chunk, weight) in (0..).map(Chunk).zip(weights) {
        plan.piece(state, chunk, *weight)?;
    }
    let hosts = u32::try_from(fabric.hosts()).unwrap_or(u32::MAX);
    let schedule = Arc::new(Listed::new(hosts, &[plan.sums, plan.stores].concat()));
    Some(Between { schedule, weights: weights.to_vec() })
}

/// The host next on the way to a source, and how many hops that is away.
type Way = Option<(usize, u32)>;

struct Plan<'a> {
    fabric: &'a Fabric,
    /// How long every host is busy with what is planned so far.
    busy: Vec<f64>,
    /// The rounds in which pieces are summed at their hubs, and those in which results are stored.
    sums: Vec<Vec<Transfer>>,
    stores: Vec<Vec<Transfer>>,
}

impl Plan<'_> {
    fn piece(&mut self, state: &Holdings, chunk: Chunk, weight: f64) -> Option<()> {
        let hosts = self.fabric.hosts();
        let copies: Vec<Copy> = (0..hosts).map(|host| Copy::new(state, host, chunk)).collect();
        let mut sources: Vec<usize> =
            (0..hosts).filter(|host| copies[*host].size == hosts).collect();
        if sources.is_empty() {
            let members = self.disjoint(&copies)?;
            let hub = self.hub(&members, weight);
            self.sum(chunk, weight, hub, &members)?;
            sources.push(hub);
        }
        self.store(chunk, weight, &sources)
    }

    /// Hosts whose copies are disjoint and hold everybody: large copies first, then fast hosts.
    fn disjoint(&self, copies: &[Copy]) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = (0..copies.len()).collect();
        let capacity = |host: usize| self.fabric.capacity(host);
        order.sort_by(|a, b| {
            let by_size = Reverse(copies[*a].size).cmp(&Reverse(copies[*b].size));
            by_size.then(capacity(*b).total_cmp(&capacity(*a)))
        });
        let mut search = Search { copies, order, members: Vec::new(), steps: SEARCH_STEPS };
        search.extend(&vec![0; copies.len().div_ceil(64)]).then_some(search.members)
    }

    /// The member that would be done first if the others sent it their copies.
    fn hub(&self, members: &[usize], weight: f64) -> usize {
        #[allow(clippy::cast_precision_loss, reason = "a number of hosts")]
        let received = weight * members.len() as f64;
        let done = |host: &usize| self.busy[*host] + received / self.fabric.capacity(*host);
        let first = members.iter().copied().min_by(|a, b| done(a).total_cmp(&done(b)));
        first.unwrap_or(0)
    }

    /// Sums the copies of `members` at `hub`, the farthest first. A host on the way whose own copy
    /// does not count takes the first one that arrives in its place.
    fn sum(&mut self, chunk: Chunk, weight: f64, hub: usize, members: &[usize]) -> Option<()> {
        let ways = self.ways(&[hub], weight);
        let mut counts = vec![false; ways.len()];
        for member in members {
            ways[*member]?;
            counts[*member] = true;
        }
        let farthest = ways.iter().flatten().map(|(_, hops)| *hops).max().unwrap_or(0);
        let mut round = 0;
        for hops in (1..=farthest).rev() {
            let before = counts.clone();
            let at = |host: &usize| ways[*host].filter(|way| before[*host] && way.1 == hops);
            let steps: Vec<(usize, usize)> = (0..ways.len())
                .filter_map(|host| at(&host).map(|(parent, _)| (host, parent)))
                .collect();
            let stores = steps.iter().any(|(_, parent)| !before[*parent]);
            for (host, parent) in &steps {
                let first = !std::mem::replace(&mut counts[*parent], true);
                let (mode, later) =
                    if first { (Mode::Store, 0) } else { (Mode::Accumulate, u32::from(stores)) };
                self.charge(*host, *parent, weight);
                push(&mut self.sums, round + later, transfer(chunk, *host, *parent, mode));
            }
            round += u32::from(!steps.is_empty()) + u32::from(stores);
        }
        Some(())
    }

    /// Stores the result wherever it is missing.
    fn store(&mut self, chunk: Chunk, weight: f64, sources: &[usize]) -> Option<()> {
        for (host, way) in self.ways(sources, weight).into_iter().enumerate() {
            let (parent, hops) = way?;
            if hops > 0 {
                self.charge(parent, host, weight);
                push(&mut self.stores, hops - 1, transfer(chunk, parent, host, Mode::Store));
            }
        }
        Some(())
    }

    /// For every host that can be reached the way to the nearest source; among these, to one that
    /// would be done early.
    fn ways(&self, sources: &[usize], weight: f64) -> Vec<Way> {
        let mut busy = self.busy.clone();
        let mut ways: Vec<Way> = vec![None; self.fabric.hosts()];
        for source in sources {
            ways[*source] = Some((*source, 0));
        }
        loop {
            let before = ways.clone();
            for (host, way) in ways.iter_mut().enumerate().filter(|(_, way)| way.is_none()) {
                let joined = |next: &usize| self.fabric.between(*next, host) > 0.0;
                let reached = (0..before.len()).filter(|next| before[*next].is_some());
                let next = reached.filter(joined).min_by(|a, b| busy[*a].total_cmp(&busy[*b]));
                if let Some((next, (_, hops))) = next.and_then(|next| Some((next, before[next]?))) {
                    busy[next] += weight / self.fabric.capacity(next);
                    *way = Some((next, hops + 1));
                }
            }
            if ways == before {
                return ways;
            }
        }
    }

    fn charge(&mut self, one: usize, other: usize, weight: f64) {
        for host in [one, other] {
            self.busy[host] += weight / self.fabric.capacity(host);
        }
    }
}

/// Whose contributions one host's copy of a piece holds, as bits.
struct Copy {
    words: Vec<u64>,
    size: usize,
}

impl Copy {
    fn new(state: &Holdings, host: usize, chunk: Chunk) -> Self {
        let held = state.held(rank(host), chunk);
        let mut words = Vec::new();
        for owner in &held {
            words.resize(words.len().max(owner.index() / 64 + 1), 0);
            words[owner.index() / 64] |= 1 << (owner.0 % 64);
        }
        Self { words, size: held.len() }
    }

    fn holds(&self, owner: usize) -> bool {
        self.words.get(owner / 64).is_some_and(|word| word >> (owner % 64) & 1 == 1)
    }
}

/// Looks for disjoint copies that hold everybody.
struct Search<'a> {
    copies: &'a [Copy],
    /// The hosts, those to be tried first in front.
    order: Vec<usize>,
    members: Vec<usize>,
    steps: u32,
}

impl Search<'_> {
    /// Adds members until nobody is missing in what is `held`; whether that was possible. Somebody
    /// holds the first contribution that is missing, so only such copies need to be tried.
    fn extend(&mut self, held: &[u64]) -> bool {
        let missing = |owner: &usize| held[owner / 64] >> (owner % 64) & 1 == 0;
        let Some(owner) = (0..self.copies.len()).find(missing) else { return true };
        for place in 0..self.order.len() {
            let host = self.order[place];
            let words = &self.copies[host].words;
            let disjoint = words.iter().zip(held).all(|(word, held)| word & held == 0);
            if self.steps == 0 || !disjoint || !self.copies[host].holds(owner) {
                continue;
            }
            self.steps -= 1;
            let mut more = held.to_vec();
            for (held, word) in more.iter_mut().zip(words) {
                *held |= word;
            }
            self.members.push(host);
            if self.extend(&more) {
                return true;
            }
            self.members.pop();
        }
        false
    }
}

fn push(rounds: &mut Vec<Vec<Transfer>>, round: u32, transfer: Transfer) {
    let round = round as usize;
    rounds.resize_with(rounds.len().max(round + 1), Vec::new);
    rounds[round].push(transfer);
}

fn transfer(chunk: Chunk, source: usize, target: usize, mode: Mode) -> Transfer {
    Transfer::new(chunk, rank(source), rank(target), mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degraded::Reach;
    use ccl_core::ids::Rank;
    use ccl_core::schedule::run;

    fn holdings(copies: &[&[u32]]) -> Holdings {
        let held = |rank: Rank, _| copies[rank.index()].iter().copied().map(Rank);
        Holdings::new(u32::try_from(copies.len()).unwrap(), 1, held)
    }

    fn fabric(rails: &[&[f64]], reach: Reach) -> Fabric {
        Fabric::new(rails.iter().map(|rails| rails.to_vec()).collect(), reach)
    }

    fn rounds(copies: &[&[u32]], fabric: &Fabric) -> Option<u32> {
        let state = holdings(copies);
        let rest = complete(&state, &[1.0], fabric)?;
        let everyone: Vec<u32> = (0..u32::try_from(copies.len()).unwrap()).collect();
        let all: Vec<&[u32]> = vec![&everyone; copies.len()];
        assert_eq!(run(&state, &*rest.schedule), Ok(holdings(&all)), "{copies:?}");
        Some(rest.schedule.rounds())
    }

    #[test]
    fn what_is_complete_is_only_stored_and_the_rest_is_summed_first() {
        let fabric = fabric(&[&[1.0][..]; 4], Reach::Switched);
        let all: &[u32] = &[0, 1, 2, 3];
        assert_eq!(rounds(&[all, all, all, all], &fabric), Some(0));
        assert_eq!(rounds(&[all, &[1], all, &[2, 3]], &fabric), Some(1));
        assert_eq!(rounds(&[&[0], &[1], &[2], &[3]], &fabric), Some(2));
        assert_eq!(rounds(&[&[0, 1], &[1], &[1, 2], &[2, 3]], &fabric), Some(2));
        // The largest copy does not fit to the others.
        assert_eq!(rounds(&[&[0, 1], &[1, 2, 3], &[2], &[3]], &fabric), Some(2));
    }

    #[test]
    fn contributions_that_nobody_has_alone_cannot_be_completed() {
        let fabric = fabric(&[&[1.0][..]; 3], Reach::Switched);
        assert_eq!(rounds(&[&[0, 1], &[1, 2], &[0, 2]], &fabric), None);
        assert_eq!(rounds(&[&[0, 1], &[1], &[]], &fabric), None);
    }

    #[test]
    fn copies_travel_through_hosts_between() {
        let chain = fabric(
            &[&[1.0, 0.0, 0.0], &[1.0, 1.0, 0.0], &[0.0, 1.0, 1.0], &[0.0, 0.0, 1.0]],
            Reach::RailOnly,
        );
        assert!(rounds(&[&[0], &[1], &[2], &[3]], &chain).is_some());
        // Only the ends count; what those between hold is redundant and makes way.
        assert!(rounds(&[&[0, 1, 2], &[1, 2], &[2], &[3]], &chain).is_some());
        let apart = fabric(&[&[1.0, 0.0], &[0.0, 1.0]], Reach::RailOnly);
        assert_eq!(rounds(&[&[0], &[1]], &apart), None);
        let dead = fabric(&[&[1.0], &[0.0]], Reach::Switched);
        assert_eq!(rounds(&[&[0], &[1]], &dead), None);
    }
}
