//! What a rank of a ring does with which tile, as values.
//!
//! A round is one tile of every part that goes round: in an AllReduce those of all slices, else one. A tile passes the
//! ranks in *rows*: in row 0 somebody begins with it, in every later row it has come one rank further. Rounds are walked
//! in groups: one row of all rounds of a group, then the next row. So as many tiles as a group has rounds are on the way
//! between two ranks at a time, and with twice as many slots nobody waits in a circle: whoever is behind all others
//! waits neither for a tile, because the rank before it has sent that in an earlier row, nor for a slot, because the
//! rank behind it has taken in an earlier row what lay there. The last row of a group, in which nobody sends, goes
//! together with the first of the next, in which nobody receives.

use ccl_core::collective::{Collective, Request};

/// Tiles begin at multiples of this in a slot, and in their part.
pub(super) const GRAIN: usize = 16;
/// A part is cut into so many tiles at least,
const LEAST_TILES: usize = 4;
/// but not into smaller ones than this.
const LEAST_TILE_BYTES: usize = 64 << 10;

/// What a rank does with one tile. Where it receives one and has something of its own, it combines both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) bytes: usize,
    /// The tile comes from the rank before this one, or is what this one has.
    pub(super) receives: bool,
    /// The result goes to the rank behind this one.
    pub(super) sends: bool,
    /// Where this rank's own part is in its input.
    pub(super) input: Option<usize>,
    /// Where the result goes in the output.
    pub(super) output: Option<usize>,
}

/// One collective of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Script {
    course: Course,
    me: usize,
    ranks: usize,
    root: usize,
    /// Bytes of a block.
    block: usize,
    /// Bytes from one block to the next in an output with the blocks of all ranks.
    pitch: usize,
    tile: usize,
    /// Rounds of a group.
    group: usize,
    rounds: usize,
}

/// Whether rings do such collectives.
pub(super) fn is_possible(collective: Collective) -> bool {
    Course::of(collective).is_some()
}

/// The collectives that rings do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
}

impl Course {
    fn of(collective: Collective) -> Option<Self> {
        match collective {
            Collective::AllReduce => Some(Self::AllReduce),
            Collective::ReduceScatter => Some(Self::ReduceScatter),
            Collective::AllGather => Some(Self::AllGather),
            Collective::Broadcast => Some(Self::Broadcast),
            Collective::Reduce => Some(Self::Reduce),
            Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => None,
        }
    }
}

impl Script {
    /// For rank `me` of so many, over so many slots of `slot_bytes`, a multiple of [`GRAIN`]; None if rings do not do it.
    /// The same on all ranks but for the rank.
    pub(super) fn new(
        request: &Request,
        (me, ranks): (usize, usize),
        (slots, slot_bytes): (usize, usize),
    ) -> Option<Self> {
        let Request { collective, root, .. } = *request;
        let course = Course::of(collective).filter(|_| ranks > 1)?;
        let (block, root) = (request.bytes(), root.index());
        let is_cut = course == Course::AllReduce;
        let part = if is_cut { block.div_ceil(ranks) } else { block };
        let most = part.div_ceil(LEAST_TILES).max(LEAST_TILE_BYTES).min(slot_bytes);
        // All as large as each other, so that no rank has more to do in the last round.
        let tile = part.div_ceil(part.div_ceil(most).max(1)).next_multiple_of(GRAIN).max(GRAIN);
        let rounds = part.div_ceil(tile);
        let group = (slots / 2).max(1);
        Some(Self { course, me, ranks, root, block, pitch: block, tile, group, rounds })
    }

    /// The same, where the blocks of an output with those of all ranks lie so far from each other.
    pub(super) fn spread(self, pitch: usize) -> Self {
        Self { pitch, ..self }
    }

    /// Everything that is to be done, in order.
    pub(super) fn acts(self) -> Acts {
        Acts { script: self, first: 0, row: 0, index: 0, is_tail: true }
    }

    /// Rows in which tiles are begun or sent on.
    fn rows(&self) -> usize {
        match self.course {
            Course::AllReduce => 2 * self.ranks - 2,
            Course::ReduceScatter | Course::AllGather => self.ranks - 1,
            // Ranks do not wait in a circle: every tile is done when it comes.
            Course::Broadcast | Course::Reduce => 1,
        }
    }

    /// Whether there is a row in which tiles are only received.
    fn has_tail(&self) -> bool {
        !matches!(self.course, Course::Broadcast | Course::Reduce)
    }

    /// The tile of a round that begins at `start` of a block; none behind the end.
    fn act(&self, row: usize, round: usize) -> Option<Act> {
        let slices = if self.course == Course::AllReduce { self.ranks } else { 1 };
        // Which part is at this rank in the row.
        let back = |steps: usize| (self.me + 2 * self.ranks - steps) % self.ranks;
        let slice = if slices > 1 { back(row) } else { 0 };
        let start = (round * slices + slice) * self.tile;
        let bytes = self.tile.min(self.block.saturating_sub(start));
        if bytes == 0 {
            return None;
        }
        let (last, receives, sends) = (self.ranks - 1, row > 0, row < self.rows());
        let ring = Act { bytes, receives, sends, input: None, output: None };
        Some(match self.course {
            Course::AllReduce => Act {
                input: (row <= last).then_some(start),
                output: (row >= last).then_some(start),
                ..ring
            },
            Course::ReduceScatter => Act {
                input: Some(back(row + 1) * self.block + start),
                output: (row == last).then_some(start),
                ..ring
            },
            Course::AllGather => Act {
                input: (row == 0).then_some(start),
                output: Some(back(row) * self.pitch + start),
                ..ring
            },
            Course::Reduce => {
                let place = self.place(self.root + 1);
                Act {
                    receives: place > 0,
                    sends: place < last,
                    input: Some(start),
                    output: (place == last).then_some(start),
                    ..ring
                }
            }
            Course::Broadcast => {
                let place = self.place(self.root);
                Act {
                    receives: place > 0,
                    sends: place < last,
                    input: (place == 0).then_some(start),
                    output: Some(start),
                    ..ring
                }
            }
        })
    }

    /// How many ranks a tile that begins at `first` has passed when it comes to this one.
    fn place(&self, first: usize) -> usize {
        (self.me + self.ranks - first % self.ranks) % self.ranks
    }
}

/// The acts of a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acts {
    script: Script,
    /// The first round of the group.
    first: usize,
    row: usize,
    /// In the group.
    index: usize,
    /// What comes next at this place is of the last row of the group before.
    is_tail: bool,
}

impl Acts {
    /// The next place, whether or not there is a tile: its row and round.
    fn place(&mut self) -> Option<(usize, usize)> {
        let Script { group, rounds, .. } = self.script;
        let rows = self.script.rows();
        loop {
            // Behind the last group there is its tail yet.
            let has_tail = self.row == 0 && self.first > 0 && self.first < rounds + group;
            if self.first >= rounds && !has_tail {
                return None;
            }
            if self.index == group {
                (self.index, self.row) = (0, self.row + 1);
                if self.row == rows {
                    (self.row, self.first) = (0, self.first + group);
                }
                continue;
            }
            if self.is_tail {
                self.is_tail = false;
                let is_due = self.row == 0 && self.script.has_tail();
                if let Some(before) = self.first.checked_sub(group).filter(|_| is_due)
                    && before + self.index < rounds
                {
                    return Some((rows, before + self.index));
                }
                continue;
            }
            let round = self.first + self.index;
            (self.index, self.is_tail) = (self.index + 1, true);
            if round < rounds {
                return Some((self.row, round));
            }
        }
    }
}

impl Iterator for Acts {
    type Item = Act;

    fn next(&mut self) -> Option<Act> {
        loop {
            let (row, round) = self.place()?;
            if let Some(act) = self.script.act(row, round) {
                return Some(act);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use ccl_core::datatype::{DataType, ReduceOp, Reduction};
    use ccl_core::ids::Rank;

    use super::*;

    /// Whose bytes have come together, in order: rank and place in its input.
    type Sum = Vec<(usize, usize)>;

    /// Ranks that act one after the other as `random` says, with so many slots between two of them.
    fn run(request: &Request, ranks: usize, slots: usize, mut random: u64) -> Vec<Vec<Sum>> {
        let outputs = if request.collective == Collective::AllGather { ranks } else { 1 };
        let mut result = vec![vec![Sum::new(); outputs * request.bytes()]; ranks];
        let script = |me| Script::new(request, (me, ranks), (slots, 2 * GRAIN)).unwrap();
        let mut acts: Vec<_> = (0..ranks).map(|me| script(me).acts().peekable()).collect();
        let mut ways: Vec<VecDeque<Vec<Sum>>> = vec![VecDeque::new(); ranks];
        loop {
            let is_ready = |me: &usize, act: &Act| {
                let has_come = !act.receives || !ways[*me].is_empty();
                has_come && (!act.sends || ways[(me + 1) % ranks].len() < slots)
            };
            let ready: Vec<usize> = (0..ranks)
                .filter(|me| acts[*me].clone().peek().is_some_and(|act| is_ready(me, act)))
                .collect();
            if ready.is_empty() {
                break;
            }
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let me = ready[(random >> 33) as usize % ready.len()];
            let act = acts[me].next().unwrap();
            let come = if act.receives { ways[me].pop_front().unwrap() } else { Vec::new() };
            assert!(!act.receives || come.len() == act.bytes, "{act:?} of rank {me}");
            let tile: Vec<Sum> = (0..act.bytes)
                .map(|at| {
                    let before = if act.receives { come[at].clone() } else { Sum::new() };
                    before.into_iter().chain(act.input.map(|input| (me, input + at))).collect()
                })
                .collect();
            if let Some(output) = act.output {
                for (at, sum) in tile.iter().enumerate() {
                    let place = &mut result[me][output + at];
                    assert!(place.is_empty(), "written twice");
                    place.clone_from(sum);
                }
            }
            if act.sends {
                ways[(me + 1) % ranks].push_back(tile);
            }
        }
        assert!(acts.iter_mut().all(|acts| acts.peek().is_none()), "ranks wait in a circle");
        assert!(ways.iter().all(VecDeque::is_empty), "tiles that nobody takes");
        result
    }

    fn request(collective: Collective, count: usize, root: u32) -> Request {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        Request { collective, count, datatype: DataType::Uint8, reduction, root: Rank(root) }
    }

    /// From rank `first` on, once around.
    fn around(first: usize, ranks: usize, at: usize) -> Sum {
        (0..ranks).map(|step| ((first + step) % ranks, at)).collect()
    }

    fn expected(request: &Request, ranks: usize, me: usize, at: usize) -> Sum {
        let (block, root) = (request.count, request.root.index());
        let slice = |at: usize| at / tile(request, ranks) % ranks;
        match Course::of(request.collective).unwrap() {
            Course::AllReduce => around(slice(at), ranks, at),
            Course::ReduceScatter => around(me + 1, ranks, me * block + at),
            Course::AllGather => vec![(at / block, at % block)],
            Course::Broadcast => vec![(root, at)],
            Course::Reduce if me == root => around(root + 1, ranks, at),
            Course::Reduce => Sum::new(),
        }
    }

    fn tile(request: &Request, ranks: usize) -> usize {
        Script::new(request, (0, ranks), (2, 2 * GRAIN)).unwrap().tile
    }

    #[test]
    fn everybody_gets_everything_with_few_slots_and_in_any_order() {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        let mut seed = 1;
        for collective in [AllReduce, ReduceScatter, AllGather, Broadcast, Reduce] {
            for ranks in [2, 3, 5, 8] {
                for (count, slots) in
                    [(1, 2), (16, 2), (31, 2), (100, 2), (700, 4), (1000, 8), (333, 16)]
                {
                    let request = request(collective, count, 1);
                    let result = run(&request, ranks, slots, seed);
                    seed += 1;
                    for (me, output) in result.iter().enumerate() {
                        for (at, sum) in output.iter().enumerate() {
                            let expected = expected(&request, ranks, me, at);
                            assert_eq!(*sum, expected, "{request:?}, rank {me} of {ranks}: {at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_are_as_large_as_a_call_allows() {
        let tile = |count, slot_bytes| {
            let request = request(Collective::Broadcast, count, 0);
            Script::new(&request, (0, 2), (8, slot_bytes)).unwrap().tile
        };
        assert_eq!(tile(10, 1 << 20), 16);
        assert_eq!(tile(100_000, 1 << 20), 50_000);
        assert_eq!(tile(257, 256), 144);
        assert_eq!(tile(1 << 20, 1 << 20), 256 << 10);
        assert_eq!(tile(1 << 30, 1 << 20), 1 << 20);
        assert_eq!(tile(1 << 30, 256), 256);
    }

    #[test]
    fn what_rings_do_not_do_has_no_script() {
        let script = |collective, ranks| {
            Script::new(&request(collective, 10, 0), (0, ranks), (2, 64)).is_some()
        };
        assert!(script(Collective::AllReduce, 2) && !script(Collective::AllReduce, 1));
        assert!(!script(Collective::AllToAll, 2) && !script(Collective::Gather, 3));
    }
}
