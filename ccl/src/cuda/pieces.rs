//! How calls on memory of a device are cut into pieces that fit into staging memory.
//!
//! A piece of a collective is a collective on the same elements of all blocks, so pieces touch
//! different bytes, in place too. All ranks cut alike: where depends on the call, the number of ranks
//! and the size of the staging memory only. Messages are cut into pieces of one length, whatever is in
//! their group: the other side has other groups. An `AllToAllV` is a group of messages to and from all ranks, because
//! no rank knows how many pieces others make; before they move, all ranks compare their counts.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::DataType;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::Ragged;

use super::uneven::Census;
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
    /// What ranks compare before.
    pub(crate) census: Option<Census>,
    pub(crate) into: Vec<Move<M>>,
    pub(crate) operations: Vec<OperationOn<Stretch>>,
    pub(crate) out_of: Vec<Move<M>>,
}

impl<M> Piece<M> {
    fn new() -> Self {
        Self { census: None, into: Vec::new(), operations: Vec::new(), out_of: Vec::new() }
    }
}

/// What is done together, of calls in the order in which they are [done](crate::operation::as_done): all messages, and everything
/// else by itself.
pub(crate) fn batches<M>(calls: &[OperationOn<M>]) -> Vec<&[OperationOn<M>]> {
    let collectives = calls.partition_point(|call| !call.is_message());
    let (collectives, messages) = calls.split_at(collectives);
    let messages = (!messages.is_empty()).then_some(messages);
    collectives.chunks(1).chain(messages).collect()
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
                let longest = all.map(|(count, _)| *count).max().unwrap_or(0) * datatype.bytes();
                Ok(longest.div_ceil(self.message_bytes()?).max(1))
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
                let messages = messages_of(*datatype, counts, input, output);
                let census = (index == 0).then(|| Census::new(self.me, *datatype, counts));
                Ok(Piece { census, ..self.messages(&messages, index)? })
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
            census: None,
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

/// Blocks of different sizes as messages.
fn messages_of<M: Span>(
    datatype: DataType,
    counts: &Ragged,
    input: &M,
    output: &M,
) -> Vec<OperationOn<M>> {
    let size = datatype.bytes();
    // A block without elements may be anywhere.
    let block = |memory: &M, (count, displacement): (usize, usize)| {
        memory.part(if count > 0 { displacement * size } else { 0 }, count * size)
    };
    let sends = (0..)
        .zip(&counts.send)
        .map(|(peer, place)| OperationOn::Send { peer: Rank(peer), data: block(input, *place) });
    let receives = (0..).zip(&counts.receive).map(|(peer, place)| OperationOn::Receive {
        peer: Rank(peer),
        data: block(output, *place),
    });
    sends.chain(receives).collect()
}

#[cfg(test)]
mod tests {
    use ccl_core::datatype::{ReduceOp, Reduction};

    use super::*;
    use crate::operation::as_done;

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
    fn messages_go_together_behind_everything_else() {
        let data = Stretch { offset: 0, bytes: 8 };
        let message = |peer| OperationOn::Send { peer: Rank(peer), data };
        let group = [message(1), OperationOn::Barrier, message(2), OperationOn::Barrier];
        let in_order = as_done(&group);
        let names = |batch: &[OperationOn<Stretch>]| -> Vec<_> {
            batch.iter().map(OperationOn::name).collect()
        };
        let batches: Vec<_> = batches(&in_order).into_iter().map(names).collect();
        assert_eq!(batches, [vec!["barrier"], vec!["barrier"], vec!["send", "send"]]);
        assert!(matches!(in_order[2], OperationOn::Send { peer: Rank(1), .. }), "in order");
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

    /// What rank `me` of three does about blocks of `count(from, to)` elements of 8 bytes, with gaps between them.
    fn uneven(me: usize, count: impl Fn(usize, usize) -> usize) -> Vec<Piece<Stretch>> {
        let counts = Ragged {
            send: (0..3).map(|to| (count(me, to), 10_000 * to)).collect(),
            receive: (0..3).map(|from| (count(from, me), 10_000 * from)).collect(),
        };
        let memory = |offset| Stretch { offset, bytes: 1 << 20 };
        let (input, output) = (memory(0), memory(1 << 40));
        let batch = [OperationOn::AllToAllV { datatype: DataType::Int64, counts, input, output }];
        let cutter = Cutter { me: Rank(me as u32), ranks: 3, slot_bytes: 8192 };
        let pieces = 0..cutter.count(&batch).unwrap();
        pieces.map(|index| cutter.piece(&batch, index).unwrap()).collect()
    }

    #[test]
    fn blocks_that_differ_are_messages_in_pieces_of_one_length() {
        let count = |from: usize, to: usize| [0, 1, 150, 400, 1000][(from + 2 * to) % 5];
        let all: Vec<Vec<Piece<Stretch>>> = (0..3).map(|me| uneven(me, count)).collect();
        let lengths = |me: usize, wanted: &dyn Fn(&OperationOn<Stretch>) -> bool| -> Vec<usize> {
            let operations = all[me].iter().flat_map(|piece| &piece.operations);
            operations.filter(|o| wanted(o)).map(|o| message_span(o).bytes).collect()
        };
        for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
            let sends = |o: &_| matches!(o, OperationOn::Send { peer, .. } if peer.index() == to);
            let receives =
                |o: &_| matches!(o, OperationOn::Receive { peer, .. } if peer.index() == from);
            let sent = lengths(from, &sends);
            assert_eq!(sent.iter().sum::<usize>(), 8 * count(from, to), "{from} to {to}");
            assert_eq!(sent, lengths(to, &receives), "{from} to {to}");
        }
        for (me, pieces) in all.iter().enumerate() {
            let census = Census {
                me: Rank(me as u32),
                datatype: DataType::Int64,
                sent: (0..3).map(|to| count(me, to)).collect(),
                received: (0..3).map(|from| count(from, me)).collect(),
            };
            assert_eq!(pieces[0].census, Some(census), "counts come first");
            assert!(pieces[1..].iter().all(|piece| piece.census.is_none()), "once");
            let moves = || pieces.iter().flat_map(|piece| piece.into.iter().chain(&piece.out_of));
            assert!(moves().all(|moved| moved.slot.offset + moved.slot.bytes <= 8192));
        }
    }

    #[test]
    fn blocks_without_elements_may_be_anywhere() {
        let pieces = uneven(0, |_, _| 0);
        assert_eq!(pieces.len(), 1);
        let memory = Stretch { offset: 0, bytes: 8 };
        let counts = Ragged { send: vec![(0, 1 << 60)], receive: vec![(0, 7)] };
        let batch = [OperationOn::AllToAllV {
            datatype: DataType::Int64,
            counts,
            input: memory,
            output: memory,
        }];
        let cutter = Cutter { me: Rank(0), ranks: 1, slot_bytes: 4096 };
        assert_eq!(cutter.count(&batch).unwrap(), 1);
        assert!(cutter.piece(&batch, 0).unwrap().into.iter().all(|moved| moved.slot.bytes == 0));
    }
}
