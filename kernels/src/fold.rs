//! The reduction loops, written once for all types, operations and instruction sets.
//!
//! Up to [`WIDE`] operands that do not overlap the target are one loop. More operands go block by
//! block: accumulators that stay in the first-level cache take `WIDE` operands at a time, so each
//! operand is still read once and the target written once, and narrow floats are rounded once.
//! Operands that overlap the target take the same way, because it has read a block of every operand
//! before it writes that block of the target.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::machine::Task;
use crate::region::{Overlap, Source, Stored, Target};
use crate::step::{Operation, Step};

/// The most operands that one loop combines.
const WIDE: usize = 4;

/// Size of the accumulators of one block: small beside the first-level cache.
const BLOCK_BYTES: usize = 4096;

/// Room for the accumulators of one block.
#[repr(C, align(64))]
struct Block([MaybeUninit<u8>; BLOCK_BYTES]);

/// `target = reduce(operands)`; at least two operands, all of the target's length.
pub(crate) struct Reduce<'a, S, O> {
    operands: &'a [Source<'a>],
    target: Target<'a>,
    kernel: PhantomData<(S, O)>,
}

impl<'a, S: Step, O: Operation<S::Accumulator>> Reduce<'a, S, O> {
    /// The task for these operands.
    pub(crate) fn new(operands: &'a [Source<'a>], target: Target<'a>) -> Self {
        assert!(operands.len() >= 2);
        assert!(operands.iter().all(|operand| operand.bytes() == target.bytes()));
        Self { operands, target, kernel: PhantomData }
    }
}

impl<S: Step, O: Operation<S::Accumulator>> Task for Reduce<'_, S, O> {
    #[inline(always)]
    fn run(mut self) {
        let steps = self.target.bytes() / size_of::<S::Stored>();
        self.whole_steps(steps);
        self.rest(steps * size_of::<S::Stored>());
    }
}

impl<S: Step, O: Operation<S::Accumulator>> Reduce<'_, S, O> {
    #[inline(always)]
    fn whole_steps(&mut self, steps: usize) {
        let overlap = |index: usize| self.target.overlap(&self.operands[index]);
        let disjoint = |index: usize| overlap(index) == Overlap::Disjoint;
        let apart = (0..self.operands.len()).all(disjoint);
        match self.operands.len() {
            2 if overlap(0) == Overlap::Identical && disjoint(1) => self.onto(1, steps),
            2 if overlap(1) == Overlap::Identical && disjoint(0) => self.onto(0, steps),
            2 if apart => self.at_once::<2>(steps),
            3 if apart => self.at_once::<3>(steps),
            4 if apart => self.at_once::<4>(steps),
            _ => self.by_blocks(steps, apart),
        }
    }

    /// `N` operands, none of which overlaps the target.
    #[inline(always)]
    fn at_once<const N: usize>(&mut self, steps: usize) {
        let operands = self.operands_at::<N>(0, 0, steps);
        // SAFETY: no operand overlaps the target, and nobody else touches it during the call.
        let target = unsafe { self.target.values(0, steps) };
        fold::<S, O, N>(target, operands);
    }

    /// Two operands, of which one is the target and the `other` does not overlap it.
    #[inline(always)]
    fn onto(&mut self, other: usize, steps: usize) {
        // SAFETY: this operand does not overlap the target, the only thing written.
        let other = unsafe { self.operands[other].values(0, steps) };
        // SAFETY: as above; the operand that is the target is read through this slice.
        let target = unsafe { self.target.values(0, steps) };
        fold_onto::<S, O>(target, other);
    }

    /// Any number of operands; `apart` says that none overlaps the target.
    #[inline(always)]
    fn by_blocks(&mut self, steps: usize, apart: bool) {
        let mut block = Block([MaybeUninit::uninit(); BLOCK_BYTES]);
        let per_block = BLOCK_BYTES / size_of::<S::Accumulator>();
        let mut first = 0;
        while first < steps {
            let count = per_block.min(steps - first);
            self.one_block(block.room(count), first, apart);
            first += count;
        }
    }

    #[inline(always)]
    fn one_block(&mut self, room: &mut [MaybeUninit<S::Accumulator>], first: usize, apart: bool) {
        let (count, total) = (room.len(), self.operands.len());
        let (accumulators, mut done) = if total >= WIDE {
            (begin::<S, O, WIDE>(room, self.operands_at(0, first, count)), WIDE)
        } else {
            (begin::<S, O, 1>(room, self.operands_at(0, first, count)), 1)
        };
        // Operands apart from the target are left for the loop that writes it: 1 or `WIDE` of them.
        let kept = usize::from(apart);
        while total - done >= WIDE + kept {
            extend::<S, O, WIDE>(accumulators, self.operands_at(done, first, count));
            done += WIDE;
        }
        while total - done > kept && total - done < WIDE {
            extend::<S, O, 1>(accumulators, self.operands_at(done, first, count));
            done += 1;
        }
        self.finish_block(accumulators, done, first);
    }

    /// Writes the block; operands from `done` on, if any, do not overlap the target.
    #[inline(always)]
    fn finish_block(&mut self, accumulators: &[S::Accumulator], done: usize, first: usize) {
        let (count, left) = (accumulators.len(), self.operands.len() - done);
        if left == 0 {
            // SAFETY: no slice of an operand is in use, and nobody else touches the target.
            let target = unsafe { self.target.values(first, count) };
            finish::<S, O, 0>(target, accumulators, []);
        } else if left == WIDE {
            let operands = self.operands_at::<WIDE>(done, first, count);
            // SAFETY: these operands do not overlap the target.
            let target = unsafe { self.target.values(first, count) };
            finish::<S, O, WIDE>(target, accumulators, operands);
        } else {
            assert_eq!(left, 1);
            let operands = self.operands_at::<1>(done, first, count);
            // SAFETY: this operand does not overlap the target.
            let target = unsafe { self.target.values(first, count) };
            finish::<S, O, 1>(target, accumulators, operands);
        }
    }

    /// The elements behind the last whole step, which only a step of several elements leaves.
    #[inline(always)]
    fn rest(&mut self, offset: usize) {
        let bytes = self.target.bytes() - offset;
        if bytes == 0 {
            return;
        }
        let padded = |operand: &Source<'_>| {
            let mut stored = S::Stored::ZERO;
            operand.part(offset, bytes).read(&mut stored.bytes()[..bytes]);
            S::widen(stored)
        };
        let mut accumulator = padded(&self.operands[0]);
        for operand in &self.operands[1..] {
            accumulator = O::apply(accumulator, padded(operand));
        }
        let mut stored = S::narrow(accumulator);
        self.target.write(offset, Source::from(&stored.bytes()[..bytes]));
    }

    /// Steps `first..first + count` of the `N` operands from `index` on.
    #[inline(always)]
    fn operands_at<'b, const N: usize>(
        &self,
        index: usize,
        first: usize,
        count: usize,
    ) -> [&'b [S::Stored]; N]
    where
        Self: 'b,
    {
        // SAFETY: every caller uses the slices before it makes one of the target, unless the operand
        // does not overlap the target; nobody else writes an operand during the call.
        std::array::from_fn(|k| unsafe { self.operands[index + k].values(first, count) })
    }
}

impl Block {
    /// The first `count` accumulators.
    #[inline(always)]
    fn room<A>(&mut self, count: usize) -> &mut [MaybeUninit<A>] {
        assert!(count <= BLOCK_BYTES / size_of::<A>() && align_of::<A>() <= align_of::<Self>());
        // SAFETY: the bytes are inside the block, aligned (asserted), and may be uninitialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// Element `i` of the combination of `N >= 1` operands.
#[inline(always)]
fn combined<S: Step, O: Operation<S::Accumulator>, const N: usize>(
    operands: &[&[S::Stored]; N],
    i: usize,
) -> S::Accumulator {
    let mut accumulator = S::widen(operands[0][i]);
    for operand in &operands[1..] {
        accumulator = O::apply(accumulator, S::widen(operand[i]));
    }
    accumulator
}

/// `accumulator`, combined with element `i` of each operand in turn.
#[inline(always)]
fn extended<S: Step, O: Operation<S::Accumulator>, const N: usize>(
    mut accumulator: S::Accumulator,
    operands: &[&[S::Stored]; N],
    i: usize,
) -> S::Accumulator {
    for operand in operands {
        accumulator = O::apply(accumulator, S::widen(operand[i]));
    }
    accumulator
}

/// `target = operands[0] ∘ operands[1] ∘ …`
#[inline(always)]
fn fold<S: Step, O: Operation<S::Accumulator>, const N: usize>(
    target: &mut [S::Stored],
    operands: [&[S::Stored]; N],
) {
    let operands = operands.map(|operand| &operand[..target.len()]);
    for (i, slot) in target.iter_mut().enumerate() {
        *slot = S::narrow(combined::<S, O, N>(&operands, i));
    }
}

/// `target = target ∘ other`
#[inline(always)]
fn fold_onto<S: Step, O: Operation<S::Accumulator>>(target: &mut [S::Stored], other: &[S::Stored]) {
    for (slot, other) in target.iter_mut().zip(other) {
        *slot = S::narrow(O::apply(S::widen(*slot), S::widen(*other)));
    }
}

/// `room = operands[0] ∘ operands[1] ∘ …`; returns it, now that it is initialised.
#[inline(always)]
fn begin<'a, S: Step, O: Operation<S::Accumulator>, const N: usize>(
    room: &'a mut [MaybeUninit<S::Accumulator>],
    operands: [&[S::Stored]; N],
) -> &'a mut [S::Accumulator] {
    let operands = operands.map(|operand| &operand[..room.len()]);
    for (i, slot) in room.iter_mut().enumerate() {
        slot.write(combined::<S, O, N>(&operands, i));
    }
    // SAFETY: the loop has written every slot.
    unsafe { room.assume_init_mut() }
}

/// `accumulators = accumulators ∘ operands[0] ∘ …`
#[inline(always)]
fn extend<S: Step, O: Operation<S::Accumulator>, const N: usize>(
    accumulators: &mut [S::Accumulator],
    operands: [&[S::Stored]; N],
) {
    let operands = operands.map(|operand| &operand[..accumulators.len()]);
    for (i, slot) in accumulators.iter_mut().enumerate() {
        *slot = extended::<S, O, N>(*slot, &operands, i);
    }
}

/// `target = accumulators ∘ operands[0] ∘ …`
#[inline(always)]
fn finish<S: Step, O: Operation<S::Accumulator>, const N: usize>(
    target: &mut [S::Stored],
    accumulators: &[S::Accumulator],
    operands: [&[S::Stored]; N],
) {
    let accumulators = &accumulators[..target.len()];
    let operands = operands.map(|operand| &operand[..target.len()]);
    for (i, slot) in target.iter_mut().enumerate() {
        *slot = S::narrow(extended::<S, O, N>(accumulators[i], &operands, i));
    }
}
