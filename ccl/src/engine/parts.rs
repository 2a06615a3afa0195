//! What each rank does where everybody reaches the memory of everybody.
//!
//! Every byte is read by one rank, once, and written by it to each place where it belongs; all ranks have equally much
//! to do.
//!
//! | collective | rank *i* |
//! |---|---|
//! | AllReduce, Reduce | combines slice *i* of all inputs, and puts it into all outputs or that of the root |
//! | ReduceScatter | combines block *i* of all inputs |
//! | Broadcast | copies slice *i* of the root's input into all outputs |
//! | AllGather, Gather | copies its input into all outputs or that of the root |
//!
//! In an AllToAll or a Scatter a byte has one reader and one place anyway: tiles that are lent do as well.

use std::ops::Range;

use ccl_core::collective::{Collective, Request};
use ccl_core::ids::Rank;

/// Slices begin at lines, so that no two ranks write the same one.
const LINE_BYTES: usize = 64;

/// Whose buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    All,
    One(Rank),
}

impl Of {
    /// Their indices among so many ranks.
    pub(super) fn indices(self, ranks: usize) -> Range<usize> {
        match self {
            Self::All => 0..ranks,
            Self::One(rank) => rank.index()..rank.index() + 1,
        }
    }
}

/// The bytes at one place of some inputs, of which the combination goes to one place of some outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: Of,
    /// Where they begin in each of these inputs.
    pub(super) source: usize,
    pub(super) to: Of,
    /// Where the result begins in each of these outputs.
    pub(super) target: usize,
    pub(super) bytes: usize,
}

impl Part {
    /// The bytes of each input.
    pub(super) fn read(&self) -> Range<usize> {
        self.source..self.source + self.bytes
    }

    /// The bytes of each output.
    pub(super) fn written(&self) -> Range<usize> {
        self.target..self.target + self.bytes
    }
}

/// What rank `me` does, if there is a way for the collective.
pub(super) fn part(request: &Request, me: Rank, ranks: usize) -> Option<Part> {
    use Of::{All, One};
    let (block, root) = (request.bytes(), request.root);
    let own = me.index() * block;
    let sliced = |from, to| {
        let slice = slice(block, me.index(), ranks);
        Some(Part { from, source: slice.start, to, target: slice.start, bytes: slice.len() })
    };
    let whole = |from, source, to, target| Some(Part { from, source, to, target, bytes: block });
    match request.collective {
        Collective::AllReduce => sliced(All, All),
        Collective::Reduce => sliced(All, One(root)),
        Collective::Broadcast => sliced(One(root), All),
        Collective::ReduceScatter => whole(All, own, One(me), 0),
        Collective::AllGather => whole(One(me), 0, All, own),
        Collective::Gather => whole(One(me), 0, One(root), own),
        Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Scatter
        | Collective::Barrier
        | Collective::PointToPoint => None,
    }
}

/// The bytes of the larger buffer that any of so many ranks has.
pub(super) fn largest_bytes(request: &Request, ranks: usize) -> usize {
    let is_whole = matches!(
        request.collective,
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast
    );
    request.bytes().saturating_mul(if is_whole { 1 } else { ranks })
}

/// Which bytes of so many rank number `index` combines or copies.
pub(super) fn slice(bytes: usize, index: usize, ranks: usize) -> Range<usize> {
    let each = bytes.div_ceil(ranks).next_multiple_of(LINE_BYTES);
    (index * each).min(bytes)..((index + 1) * each).min(bytes)
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "what has no part is not tested")]
mod tests {
    use ccl_core::datatype::DataType;

    use super::*;
    use crate::operation::Shapes;

    #[test]
    fn slices_are_lines_and_make_up_the_whole() {
        for (bytes, ranks) in [(1 << 20, 2), ((1 << 20) + 24, 3), (100, 7), (0, 2)] {
            let slices: Vec<_> = (0..ranks).map(|index| slice(bytes, index, ranks)).collect();
            assert_eq!(slices[0].start, 0);
            assert_eq!(slices[ranks - 1].end, bytes);
            assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(slices.iter().all(|slice| slice.is_empty() || slice.start % LINE_BYTES == 0));
        }
    }

    /// Every byte of every output is written once, by one rank, from where the definition has it.
    #[test]
    fn together_all_ranks_do_the_collective() {
        for collective in Collective::ALL {
            [1, 2, 3, 5].into_iter().for_each(|ranks| whole(collective, ranks));
        }
    }

    /// Bytes are numbered by their place in an input; a result is the set of those that went into it.
    fn whole(collective: Collective, ranks: u32) {
        let (count, root) = (200, Rank(ranks - 1));
        let request =
            Request { collective, count, root, datatype: DataType::Uint8, ..Request::BARRIER };
        if part(&request, Rank(0), ranks as usize).is_none() {
            return;
        }
        let shapes: Vec<_> =
            (0..ranks).map(|rank| Shapes::of(&request, Rank(rank), ranks).unwrap()).collect();
        let largest = shapes.iter().map(|shapes| shapes.input_bytes.max(shapes.output_bytes)).max();
        assert_eq!(Some(largest_bytes(&request, ranks as usize)), largest);
        let mut outputs: Vec<Vec<Option<(Of, usize)>>> =
            shapes.iter().map(|shapes| vec![None; shapes.output_bytes]).collect();
        for me in 0..ranks {
            let part = part(&request, Rank(me), ranks as usize).unwrap();
            for input in part.from.indices(ranks as usize) {
                assert!(part.source + part.bytes <= shapes[input].input_bytes, "{part:?}");
            }
            for output in part.to.indices(ranks as usize) {
                for at in 0..part.bytes {
                    let written = &mut outputs[output][part.target + at];
                    assert_eq!(*written, None, "twice");
                    *written = Some((part.from, part.source + at));
                }
            }
        }
        for (me, output) in (0..ranks).zip(outputs) {
            for (at, written) in output.into_iter().enumerate() {
                let own = me as usize * count;
                #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
                let from = Of::One(Rank((at / count) as u32));
                let expected = match collective {
                    Collective::AllReduce | Collective::Reduce => (Of::All, at),
                    Collective::ReduceScatter => (Of::All, own + at),
                    Collective::Broadcast => (Of::One(root), at),
                    _ => (from, at % count),
                };
                assert_eq!(written, Some(expected), "{collective:?}, byte {at} of rank {me}");
            }
        }
    }
}
