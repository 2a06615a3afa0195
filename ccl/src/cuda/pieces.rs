//! How calls on memory of a device are cut into pieces that fit into staging memory.
//!
//! A piece of a collective is a collective on the same elements of all blocks, so pieces touch
//! different bytes, in place too. All ranks cut alike: where depends on the call, the number of ranks
//! and the size of the staging memory only. Messages are cut into pieces of one length, whatever is in
//! their group: the other side has other groups.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::DataType;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::Ragged;

use crate::operation::{OperationOn, Shapes, Span};

/// Pieces are multiples of so many elements or bytes, where they can be.
const GRAIN: usize = 64;

/// Bytes of a staging slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Span for Stretch {
    fn address(&self) -> usize {
        self.offset
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn part(&self, offset: usize, bytes: usize) -> Self {
        Self { offset: self.offset + offset, bytes }
    }
}

/// Bytes that are copied between a device and a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move<M> {
    pub(crate) device: M,
    pub(crate) slot: Stretch,
}

/// What happens in one slot: bytes come from the device, operations work on them, and the results go
/// back.
#[derive(Clone, Debug)]
pub(crate) struct Piece<M> {
    pub(crate) into: Vec<Move<M>>,
    pub(crate) operations: Vec<OperationOn<Stretch>>,
    pub(crate) out_of: Vec<Move<M>>,
}

impl<M> Piece<M> {
    fn new() -> Self {
        Self { into: Vec::new(), operations: Vec::new(), out_of: Vec::new() }
    }
}

/// Neighbouring messages go together; everything else by itself.
pub(crate) fn batches<M>(mut rest: &[OperationOn<M>]) -> Vec<&[OperationOn<M>]> {
    let is_message = |operation: &OperationOn<M>| {
        matches!(operation, OperationOn::Send { .. } | OperationOn::Receive { .. })
    };
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let messages = rest.iter().take_while(|operation| is_message(operation)).count();
        let (batch, others) = rest.split_at(messages.max(1));
        batches.push(batch);
        rest = others;
    }
    batches
}

/// Who cuts, for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutter {
    pub(crate) me: Rank,
    pub(crate) ranks: u32,
    pub(crate) slot_bytes: usize,
}

impl Cutter {
    /// How many pieces a batch of valid operations has.
    ///
    /// # Errors
    /// `InvalidArgument`: it cannot be cut into pieces that fit.
    pub(crate) fn count<M: Span>(&self, batch: &[OperationOn<M>]) -> Result<usize, Error> {
        match batch {
            [OperationOn::Collective { request, .. }] => {
                Ok(request.count.div_ceil(self.elements(request)?).max(1))
            }
            [OperationOn::AllToAllV { datatype, counts, .. }] => {
                let all = counts.send.iter().chain(&counts.receive);
                let elements: usize = all.map(|(count, _)| count).sum();
                self.fits("alltoallv", elements.saturating_mul(datatype.bytes()))?;
                Ok(1)
            }
            [OperationOn::Barrier] => Ok(1),
            messages => {
                let most = self.message_bytes()?;
                let sizes = || messages.iter().map(|message| message_span(message).bytes());
                self.fits("a group of messages", sizes().map(|bytes| bytes.min(most)).sum())?;
                Ok(sizes().map(|bytes| bytes.div_ceil(most)).max().unwrap_or(0).max(1))
            }
        }
    }

    /// One of these pieces.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub(crate) fn piece<M: Span>(
        &self,
        batch: &[OperationOn<M>],
        index: usize,
    ) -> Result<Piece<M>, Error> {
        match batch {
            [OperationOn::Collective { request, input, output }] => {
                self.collective(request, (input.as_ref(), output.as_ref()), index)
            }
            [OperationOn::AllToAllV { datatype, counts, input, output }] => {
                Ok(ragged(*datatype, counts, input, output))
            }
            [OperationOn::Barrier] => {
                Ok(Piece { operations: vec![OperationOn::Barrier], ..Piece::new() })
            }
            messages => self.messages(messages, index),
        }
    }

    /// Elements of every block in a full piece.
    fn elements(&self, request: &Request) -> Result<usize, Error> {
        let (blocks, ..) = self.places(request.collective);
        let elements = self.slot_bytes / (blocks * request.datatype.bytes());
        self.fits(request.collective.name(), blocks * request.datatype.bytes())?;
        Ok(if elements > GRAIN { elements - elements % GRAIN } else { elements })
    }

    /// How many blocks a slot has, and at which the input and the output of this rank begin: in place
    /// where that saves a copy.
    fn places(&self, collective: Collective) -> (usize, usize, usize) {
        let (ranks, me) = (self.ranks as usize, self.me.index());
        match collective {
            Collective::AllGather | Collective::Gather => (ranks, me, 0),
            Collective::ReduceScatter | Collective::Scatter => (ranks, 0, me),
            Collective::AllToAll | Collective::AllToAllV => (2 * ranks, 0, ranks),
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::Barrier
            | Collective::PointToPoint => (1, 0, 0),
        }
    }

    fn collective<M: Span>(
        &self,
        request: &Request,
        (input, output): (Option<&M>, Option<&M>),
        index: usize,
    ) -> Result<Piece<M>, Error> {
        let most = self.elements(request)?;
        let first = index * most;
        let part = Request { count: most.min(request.count - first), ..*request };
        let (whole, shapes) =
            (Shapes::of(request, self.me, self.ranks)?, Shapes::of(&part, self.me, self.ranks)?);
        let (_, input_place, output_place) = self.places(request.collective);
        let bytes = part.bytes();
        let staged = |place: usize, bytes_there: usize| {
            (bytes_there > 0).then_some(Stretch { offset: place * bytes, bytes: bytes_there })
        };
        let moves = |memory: Option<&M>, all_bytes: usize, place: usize| -> Vec<Move<M>> {
            let (Some(memory), true) = (memory, bytes > 0) else { return Vec::new() };
            let block = |block: usize| Move {
                device: memory
                    .part(block * request.bytes() + first * request.datatype.bytes(), bytes),
                slot: Stretch { offset: (place + block) * bytes, bytes },
            };
            (0..all_bytes / request.bytes()).map(block).collect()
        };
        Ok(Piece {
            into: moves(input, whole.input_bytes, input_place),
            operations: vec![OperationOn::Collective {
                request: part,
                input: staged(input_place, shapes.input_bytes),
                output: staged(output_place, shapes.output_bytes),
            }],
            out_of: moves(output, whole.output_bytes, output_place),
        })
    }

    fn messages<M: Span>(
        &self,
        messages: &[OperationOn<M>],
        index: usize,
    ) -> Result<Piece<M>, Error> {
        let most = self.message_bytes()?;
        let (mut piece, mut offset) = (Piece::new(), 0);
        for message in messages {
            let data = message_span(message);
            let first = index * most;
            if first > data.bytes() || first == data.bytes() && index > 0 {
                continue;
            }
            let slot = Stretch { offset, bytes: most.min(data.bytes() - first) };
            offset += slot.bytes;
            let moved = Move { device: data.part(first, slot.bytes), slot };
            let (moves, operation) = match message {
                OperationOn::Send { peer, .. } => {
                    (&mut piece.into, OperationOn::Send { peer: *peer, data: slot })
                }
                OperationOn::Receive { peer, .. } => {
                    (&mut piece.out_of, OperationOn::Receive { peer: *peer, data: slot })
                }
                OperationOn::Collective { .. }
                | OperationOn::AllToAllV { .. }
                | OperationOn::Barrier => {
                    unreachable!("only messages go together")
                }
            };
            moves.push(moved);
            piece.operations.push(operation);
        }
        Ok(piece)
    }

    /// The longest piece of a message: one to and one from every rank fit into a slot.
    fn message_bytes(&self) -> Result<usize, Error> {
        let bytes = self.slot_bytes / (2 * self.ranks as usize);
        self.fits("a message", 2 * self.ranks as usize * GRAIN)?;
        Ok(bytes - bytes % GRAIN)
    }

    fn fits(&self, what: &str, bytes: usize) -> Result<(), Error> {
        if bytes <= self.slot_bytes {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "{what} needs {bytes} bytes of staging memory, and there are {}: raise \
             R2CCL_CUDA_STAGING_BYTES on all ranks",
            self.slot_bytes
        )))
    }
}

fn message_span<M: Span>(message: &OperationOn<M>) -> M {
    match message {
        OperationOn::Send { data, .. } | OperationOn::Receive { data, .. } => *data,
        OperationOn::Collective { .. } | OperationOn::AllToAllV { .. } | OperationOn::Barrier => {
            unreachable!("only messages go together")
        }
    }
}

/// All of it at once, without the gaps: who has how much for whom is not known to everybody, so nobody
/// knows how many pieces there were.
fn ragged<M: Span>(datatype: DataType, counts: &Ragged, input: &M, output: &M) -> Piece<M> {
    let size = datatype.bytes();
    let pack = |pairs: &[(usize, usize)], memory: &M, start: usize| {
        let (mut at, mut moves, mut packed) = (0, Vec::new(), Vec::new());
        for (count, displacement) in pairs.iter().copied() {
            packed.push((count, at));
            if count > 0 {
                let slot = Stretch { offset: start + at * size, bytes: count * size };
                moves.push(Move { device: memory.part(displacement * size, count * size), slot });
            }
            at += count;
        }
        (packed, moves, Stretch { offset: start, bytes: at * size })
    };
    let (send, into, staged_input) = pack(&counts.send, input, 0);
    let (receive, out_of, staged_output) = pack(&counts.receive, output, staged_input.bytes);
    let operation = OperationOn::AllToAllV {
        datatype,
        counts: Ragged { send, receive },
        input: staged_input,
        output: staged_output,
    };
    Piece { into, operations: vec![operation], out_of }
}

#[cfg(test)]
mod tests {
    use ccl_core::datatype::{ReduceOp, Reduction};

    use super::*;

    fn operation(collective: Collective, count: usize) -> OperationOn<Stretch> {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        let datatype = DataType::Float32;
        let request = Request { collective, count, datatype, reduction, root: Rank(1) };
        // Large enough for every shape, and far from each other.
        let memory = |offset| Some(Stretch { offset, bytes: 1 << 30 });
        OperationOn::Collective { request, input: memory(0), output: memory(1 << 40) }
    }

    /// The bytes of the device that are moved, in order; each must be moved once.
    fn covered(mut moves: Vec<Move<Stretch>>) -> usize {
        moves.sort_by_key(|moved| moved.device.offset);
        for pair in moves.windows(2) {
            let end = pair[0].device.offset + pair[0].device.bytes;
            assert_eq!(end, pair[1].device.offset, "no gap, and nothing twice");
        }
        moves.iter().map(|moved| moved.device.bytes).sum()
    }

    #[test]
    fn pieces_are_all_of_a_collective_and_fit() {
        for collective in Collective::UNIFORM {
            for count in [0, 1, 1000, 12_345] {
                let batch = [operation(collective, count)];
                let mut cuts = Vec::new();
                for me in (0..3).map(Rank) {
                    let cutter = Cutter { me, ranks: 3, slot_bytes: 8192 };
                    let pieces: Vec<_> = (0..cutter.count(&batch).unwrap())
                        .map(|index| cutter.piece(&batch, index).unwrap())
                        .collect();
                    let moves =
                        || pieces.iter().flat_map(|piece| piece.into.iter().chain(&piece.out_of));
                    assert!(moves().all(|moved| moved.slot.bytes == moved.device.bytes));
                    assert!(moves().all(|moved| moved.slot.offset + moved.slot.bytes <= 8192));
                    let OperationOn::Collective { request, .. } = &batch[0] else { unreachable!() };
                    let shapes = Shapes::of(request, me, 3).unwrap();
                    let into = pieces.iter().flat_map(|piece| piece.into.clone()).collect();
                    let out_of = pieces.iter().flat_map(|piece| piece.out_of.clone()).collect();
                    assert_eq!(
                        covered(into),
                        shapes.input_bytes,
                        "{collective:?} of {count} at {me}"
                    );
                    assert_eq!(
                        covered(out_of),
                        shapes.output_bytes,
                        "{collective:?} of {count} at {me}"
                    );
                    for piece in &pieces {
                        piece.operations[0].validate(me, 3).unwrap();
                    }
                    cuts.push(pieces.len());
                }
                assert!(cuts.iter().all(|cut| *cut == cuts[0]), "{collective:?}: {cuts:?}");
            }
        }
    }

    #[test]
    fn messages_are_cut_alike_whoever_they_are_with() {
        let message =
            |bytes| OperationOn::Send { peer: Rank(1), data: Stretch { offset: 0, bytes } };
        let cutter = Cutter { me: Rank(0), ranks: 2, slot_bytes: 8192 };
        let sizes = |batch: &[OperationOn<Stretch>], which: usize| -> Vec<usize> {
            (0..cutter.count(batch).unwrap())
                .filter_map(|index| {
                    let piece = cutter.piece(batch, index).unwrap();
                    piece.into.get(which).map(|moved| moved.device.bytes)
                })
                .collect()
        };
        let expected = [2048, 2048, 1004];
        assert_eq!(sizes(&[message(5100)], 0), expected);
        assert_eq!(sizes(&[message(6000), message(5100)], 1), expected);
        let too_many = [(); 5].map(|()| message(5100));
        let error = cutter.count(&too_many).unwrap_err().to_string();
        assert!(error.contains("R2CCL_CUDA_STAGING_BYTES"), "{error}");
    }

    #[test]
    fn blocks_that_differ_are_packed_without_their_gaps() {
        let counts =
            Ragged { send: vec![(2, 0), (0, 7), (1, 9)], receive: vec![(1, 4), (1, 8), (3, 0)] };
        let memory = Stretch { offset: 0, bytes: 1000 };
        let operation = OperationOn::AllToAllV {
            datatype: DataType::Int64,
            counts,
            input: memory,
            output: memory,
        };
        let cutter = Cutter { me: Rank(0), ranks: 3, slot_bytes: 64 };
        assert_eq!(cutter.count(std::slice::from_ref(&operation)).unwrap(), 1);
        let piece = cutter.piece(std::slice::from_ref(&operation), 0).unwrap();
        let places = |moves: &[Move<Stretch>]| -> Vec<(usize, usize, usize)> {
            moves.iter().map(|m| (m.device.offset, m.slot.offset, m.slot.bytes)).collect()
        };
        assert_eq!(places(&piece.into), [(0, 0, 16), (72, 16, 8)]);
        assert_eq!(places(&piece.out_of), [(32, 24, 8), (64, 32, 8), (0, 40, 24)]);
        piece.operations[0].validate(Rank(0), 3).unwrap();
        let small = Cutter { slot_bytes: 63, ..cutter };
        assert!(small.count(&[operation]).is_err());
    }
}
