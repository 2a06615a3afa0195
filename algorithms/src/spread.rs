//! Four uses of a [`Pattern`]: one or all positions have one item for all, or one for each.
//!
//! Items are numbered as chunks. [`combine`](crate::combine) turns these into everything else.

use ccl_core::ids::{Chunk, Rank};
use ccl_core::schedule::{Mode, Schedule, Transfer};

use crate::pattern::Pattern;

/// Position 0 has item 0 for all.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    /// How it spreads.
    pub pattern: Pattern,
    /// Number of positions.
    pub positions: u32,
}

/// Position `i` has item `i` for all; positions from `items` on have nothing.
#[derive(Clone, Copy, Debug)]
pub struct AllGather {
    /// How each item spreads.
    pub pattern: Pattern,
    /// Number of positions.
    pub positions: u32,
    /// Number of items, at most one for each position.
    pub items: u32,
}

/// Position 0 has item `j` for position `j`.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    /// How the items travel.
    pub pattern: Pattern,
    /// Number of positions.
    pub positions: u32,
}

/// Position `i` has item `i * n + j` for position `j`.
#[derive(Clone, Copy, Debug)]
pub struct AllToAll {
    /// How the items of each position travel.
    pub pattern: Pattern,
    /// Number of positions.
    pub positions: u32,
}

impl Schedule for Broadcast {
    fn ranks(&self) -> u32 {
        self.positions
    }

    fn rounds(&self) -> u32 {
        self.pattern.rounds(self.positions)
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let edges = self.pattern.edges(self.positions, round);
        let mine = edges.filter(|edge| edge.from == rank.0 || edge.to == rank.0);
        into.extend(mine.map(|edge| store(0, edge.from, edge.to)));
    }
}

impl Schedule for AllGather {
    fn ranks(&self) -> u32 {
        self.positions
    }

    fn rounds(&self) -> u32 {
        self.pattern.rounds(self.positions)
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let turn = Turn(self.positions);
        for edge in self.pattern.edges(self.positions, round) {
            for source in [turn.back(rank.0, edge.from), turn.back(rank.0, edge.to)] {
                if source < self.items {
                    let (from, to) = (turn.on(source, edge.from), turn.on(source, edge.to));
                    into.push(Transfer { turn: edge.turn(), ..store(source, from, to) });
                }
            }
        }
    }
}

impl Schedule for Scatter {
    fn ranks(&self) -> u32 {
        self.positions
    }

    fn rounds(&self) -> u32 {
        self.pattern.rounds(self.positions)
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let edges = self.pattern.edges(self.positions, round);
        for edge in edges.filter(|edge| edge.from == rank.0 || edge.to == rank.0) {
            into.extend(edge.reached().map(|item| store(item, edge.from, edge.to)));
        }
    }
}

impl Schedule for AllToAll {
    fn ranks(&self) -> u32 {
        self.positions
    }

    fn rounds(&self) -> u32 {
        self.pattern.rounds(self.positions)
    }

    fn transfers(&self, round: u32, rank: Rank, into: &mut Vec<Transfer>) {
        let turn = Turn(self.positions);
        for edge in self.pattern.edges(self.positions, round) {
            for source in [turn.back(rank.0, edge.from), turn.back(rank.0, edge.to)] {
                let (from, to) = (turn.on(source, edge.from), turn.on(source, edge.to));
                let item = |offset| source * self.positions + turn.on(source, offset);
                let store =
                    |offset| Transfer { turn: edge.turn(), ..store(item(offset), from, to) };
                into.extend(edge.reached().map(store));
            }
        }
    }
}

fn store(item: u32, source: u32, target: u32) -> Transfer {
    Transfer::new(Chunk(item), Rank(source), Rank(target), Mode::Store)
}

/// Arithmetic on a circle of positions; both arguments are on it.
#[derive(Clone, Copy)]
struct Turn(u32);

impl Turn {
    fn on(self, position: u32, offset: u32) -> u32 {
        let sum = position + offset;
        if sum < self.0 { sum } else { sum - self.0 }
    }

    fn back(self, position: u32, offset: u32) -> u32 {
        self.on(position, self.0 - offset)
    }
}
