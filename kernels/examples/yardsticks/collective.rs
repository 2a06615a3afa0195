//! What collectives cannot do without: which bytes they have to read, and where to write what becomes of them.
//!
//! Every byte of an input is read once, and every byte of an output is written once. Sizes are those of the perf programs:
//! BYTES is the larger of the two buffers of a rank, and where it is divided, blocks are whole multiples of 16 bytes.

use std::ops::Range;

use super::memory::{Memory, different, input_values};

const ELEMENT_BYTES: usize = size_of::<f32>();
/// Blocks are multiples of this, as in nccl-tests.
const UNIT_BYTES: usize = 16;
/// The shares of threads begin at whole lines of the caches.
const LINE_BYTES: usize = 64;

/// The bytes at one place of some inputs, of which the sum goes to the next place of some outputs.
struct Piece {
    from: Range<usize>,
    /// Where they begin in each of these inputs.
    first: usize,
    to: Range<usize>,
    bytes: usize,
    own: Own,
}

/// Which buffers are those of the rank that adds, or that sends what needs no sum.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    /// Counted from the first that the piece is from.
    pub(crate) source: usize,
    /// Counted from the first that the piece goes to, if it goes to that rank, too.
    pub(crate) target: Option<usize>,
}

/// The buffers of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) count: usize,
    /// Of each.
    pub(crate) bytes: usize,
}

/// What is read and written; the pieces fill all outputs from front to back.
pub(crate) struct Collective {
    pub(crate) inputs: Buffers,
    pub(crate) outputs: Buffers,
    pieces: Vec<Piece>,
}

/// What is read and written at a time.
pub(crate) struct Block<'a> {
    pub(crate) sources: Vec<&'a [u8]>,
    pub(crate) targets: Vec<&'a mut [u8]>,
    pub(crate) own: Own,
}

impl Collective {
    pub(crate) fn named(name: &str, ranks: usize, bytes: usize) -> Option<Self> {
        let whole = bytes / ELEMENT_BYTES * ELEMENT_BYTES;
        let block = bytes / ranks / UNIT_BYTES * UNIT_BYTES;
        let of = |count, bytes| Buffers { count, bytes };
        let one = |rank| rank..rank + 1;
        let first = |target| Own { source: 0, target };
        let gathered = |rank| Piece {
            from: one(rank),
            first: 0,
            to: 0..ranks,
            bytes: block,
            own: first(Some(rank)),
        };
        let reduced = |rank| {
            let own = Own { source: rank, target: Some(0) };
            Piece { from: 0..ranks, first: rank * block, to: one(rank), bytes: block, own }
        };
        let passed = |rank, peer: usize| {
            let own = first((rank == peer).then_some(0));
            Piece { from: one(rank), first: peer * block, to: one(peer), bytes: block, own }
        };
        let (inputs, outputs, pieces) = match name {
            "all_reduce" => {
                let all = 0..ranks;
                let own = first(Some(0));
                let piece = Piece { from: all.clone(), first: 0, to: all, bytes: whole, own };
                (of(ranks, whole), of(ranks, whole), vec![piece])
            }
            "all_gather" => {
                (of(ranks, block), of(ranks, block * ranks), (0..ranks).map(gathered).collect())
            }
            "reduce_scatter" => {
                (of(ranks, block * ranks), of(ranks, block), (0..ranks).map(reduced).collect())
            }
            // In place: what the root has stays where it is.
            "broadcast" => {
                let own = first(None);
                let piece = Piece { from: 0..1, first: 0, to: 0..ranks - 1, bytes: whole, own };
                (of(1, whole), of(ranks - 1, whole), vec![piece])
            }
            "alltoall" => (
                of(ranks, block * ranks),
                of(ranks, block * ranks),
                (0..ranks * ranks).map(|pair| passed(pair / ranks, pair % ranks)).collect(),
            ),
            _ => return None,
        };
        Some(Self { inputs, outputs, pieces })
    }

    /// The work of so many threads, equally much for each, in blocks of at most so many bytes.
    pub(crate) fn cut<'a>(
        &self,
        inputs: &'a [Memory],
        outputs: &'a mut [Memory],
        threads: usize,
        block_bytes: usize,
    ) -> Vec<Vec<Block<'a>>> {
        let total: usize = self.pieces.iter().map(|piece| piece.bytes).sum();
        let share = total.div_ceil(threads).next_multiple_of(LINE_BYTES);
        let mut shares: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        let mut rests: Vec<_> = outputs.iter_mut().map(Memory::bytes_mut).collect();
        let mut done = 0;
        for piece in &self.pieces {
            let end = done + piece.bytes;
            let mut first = piece.first;
            while done < end {
                let bytes = block_bytes.min(end - done).min(share - done % share);
                let sources = &inputs[piece.from.clone()];
                let sources =
                    sources.iter().map(|input| &input.bytes()[first..][..bytes]).collect();
                let targets = &mut rests[piece.to.clone()];
                let targets = targets.iter_mut().map(|rest| take(rest, bytes)).collect();
                shares[done / share].push(Block { sources, targets, own: piece.own });
                (done, first) = (done + bytes, first + bytes);
            }
        }
        shares
    }

    /// How many bytes of the outputs are wrong.
    pub(crate) fn wrong(&self, outputs: &[Memory]) -> usize {
        outputs.iter().enumerate().map(|(index, output)| self.wrong_of(index, output.bytes())).sum()
    }

    fn wrong_of(&self, index: usize, mut output: &[u8]) -> usize {
        let mut wrong = 0;
        for piece in self.pieces.iter().filter(|piece| piece.to.contains(&index)) {
            let written;
            (written, output) = output.split_at(piece.bytes);
            let expected = input_values(piece.from.clone(), piece.first);
            let parts = written.chunks(expected.len());
            wrong += parts.map(|part| different(part, &expected[..part.len()])).sum::<usize>();
        }
        wrong + output.len()
    }
}

/// The first bytes of what is left.
fn take<'a>(rest: &mut &'a mut [u8], bytes: usize) -> &'a mut [u8] {
    let (taken, behind) = std::mem::take(rest).split_at_mut(bytes);
    *rest = behind;
    taken
}
