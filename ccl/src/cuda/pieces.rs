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
