//! Rings among some of the hosts, each for a share of the data, and how the hosts outside a ring take part
//! in its share.
//!
//! A ring of `m` hosts cuts its share into `m` pieces. Inside a level the hosts of the ring are positions
//! `0..m` in their order, and those outside follow.

use std::sync::Arc;

use ccl_core::ids::{Chunk, Rank};
use ccl_core::schedule::{Mode, Schedule, Transfer};

use crate::combine::{
    InSequence, Items, Reversed, Shared, Subgroup, Together, count, reduction, there_and_back,
};
use crate::degraded::{Between, host_rank as rank};
use crate::pattern::Pattern;
use crate::spread::AllGather;

/// A ring and its share of the data.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RingLevel {
    /// Its hosts, in order.
    pub(super) ring: Vec<usize>,
    /// All other hosts.
    pub(super) outside: Vec<usize>,
    /// Its fraction of the data.
    pub(super) share: f64,
}

/// How the hosts outside a ring take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// After the AllReduce of the ring, by [`Relay`].
    Relay,
    /// Between the two halves of the AllReduce of the ring, by [`Exchange`].
    Exchange,
}

/// The levels side by side in a group of `hosts`. Levels without a share are left out.
pub(super) fn together(hosts: usize, levels: &[RingLevel], completion: Completion) -> Between {
    let ranks = rank(hosts).0;
    let mut weights = Vec::new();
    let mut parts = Vec::new();
    for level in levels.iter().filter(|level| level.share > 0.0) {
        let (pieces, first) = (count(&level.ring), count(&weights));
        weights.extend(vec![level.share / f64::from(pieces); level.ring.len()]);
        let members = level.ring.iter().chain(&level.outside);
        let members = members.map(|host| rank(*host)).collect();
        let items = Items::listed(level.ring.len(), |piece| [first + rank(piece).0]);
        let schedule = level_of(pieces, count(&level.outside), completion);
        parts.push(Subgroup::new(schedule, ranks, members, items));
    }
    Between { schedule: Arc::new(Together::new(ranks, parts)), weights }
}

/// One ring of all hosts in this order.
pub(super) fn single(order: Vec<usize>) -> Between {
    let level = RingLevel { ring: order, outside: Vec::new(), share: 1.0 };
    together(level.ring.len(), &[level], Completion::Relay)
}

/// The AllReduce of one level, among all its positions.
fn level_of(ring: u32, outside: u32, completion: Completion) -> Shared {
    let gather: Shared =
        Arc::new(AllGather { pattern: Pattern::Chain, positions: ring, items: ring });
    if outside == 0 {
        return there_and_back(gather);
    }
    let members = (0..ring).map(Rank).collect();
    let gather: Shared = Arc::new(Subgroup::new(gather, ring + outside, members, Items::Same));
    Arc::new(InSequence::new(match completion {
        Completion::Relay => vec![there_and_back(gather), Arc::new(Relay { ring, outside })],
        Completion::Exchange => {
            let collect: Shared = Arc::new(Exchange { ring, outside });
            let deliver = Reversed { inner: Arc::clone(&collect), mode: Mode::Store };
            vec![reduction(Arc::clone(&gather)), collect, gather, Arc::new(deliver)]
        }
    }))
}

/// The tailored broadcast of §5.2. Before it the ring holds its own sum everywhere.
///
/// A transfer carries its source's copy of a piece. So the contribution of a host outside goes to the head
/// of the ring, which adds it to the sum and hands the new sum on along the ring, and at the end the last
/// one of the ring delivers it. On every link this is as much as if the contribution itself were handed on,
/// and everybody added it. One host outside after the other does this, which is what the paper's
/// broadcast amounts to when several are excluded (§6): all links between healthy hosts carry the share
/// once for each of them.
#[derive(Clone, Copy, Debug)]
struct Relay {
    ring: u32,
    outside: u32,
}

impl Relay {
    /// Who sends everything to whom in `round`.
    fn hops(self, round: u32) -> impl Iterator<Item = (u32, u32, Mode)> {
        let (pass, step) = (round / self.ring, round % self.ring);
        let passing = match step {
            _ if pass == self.outside => None,
            0 => Some((self.ring + pass, 0, Mode::Accumulate)),
            _ => Some((step - 1, step, Mode::Store)),
        };
        let delivered = if passing.is_some() { 0 } else { self.outside };
        let last = self.ring - 1;
        let deliveries = (0..delivered).map(move |host| (last, self.ring + host, Mode::Store));
        passing.into_iter().chain(deliveries)
    }
}

impl Schedule for Relay {
    fn ranks(&self) -> u32 {
        self.ring + self.outside
    }

    fn rounds(&self) -> u32 {
        self.ring * self.outside + 1
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let mine = |hop: &(u32, u32, Mode)| hop.0 == rank.0 || hop.1 == rank.0;
        for (source, target, mode) in self.hops(round).filter(mine) {
            into.extend((0..self.ring).map(|piece| transfer(piece, source, target, mode)));
        }
    }
}

/// Every host outside hands its contribution to each piece to the host of the ring that has reduced it.
/// Backwards, it gets the results from there.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    ring: u32,
    outside: u32,
}

impl Schedule for Exchange {
    fn ranks(&self) -> u32 {
        self.ring + self.outside
    }

    fn rounds(&self) -> u32 {
        1
    }

    fn transfers(&self, _round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let add = |host, piece| transfer(piece, host, piece, Mode::Accumulate);
        if rank.0 < self.ring {
            into.extend((self.ring..self.ranks()).map(|host| add(host, rank.0)));
        } else {
            into.extend((0..self.ring).map(|piece| add(rank.0, piece)));
        }
    }
}

fn transfer(piece: u32, source: u32, target: u32, mode: Mode) -> Transfer {
    Transfer::new(Chunk(piece), Rank(source), Rank(target), mode)
}
