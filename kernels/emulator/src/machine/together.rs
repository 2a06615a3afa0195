//! Instructions for which the threads of a warp wait for each other.

use super::turn::{Trouble, Turn};
use super::warp::{Mask, lanes};
use crate::error::Reason;
use crate::program::{Direction, Exchange, Motion, Operation, Slot, WarpWide};

impl<'a> Turn<'a> {
    /// Lets all threads go on for which nobody is missing any more.
    pub(super) fn settle(&mut self) -> Result<(), Trouble> {
        let mut left = self.warp.together;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let members = self.members(first)?;
            let here = self.waiting_with(first, members, left)?;
            left &= !here;
            if members & !self.warp.ended & !here == 0 {
                self.exchange(here);
            }
        }
        Ok(())
    }

    fn instruction(&self, lane: usize) -> Option<&'a WarpWide> {
        let module = self.module;
        let operation = &module.code[self.warp.places[lane] as usize].operation;
        if let Operation::Motion(Motion::Warp(warp_wide)) = operation {
            Some(warp_wide)
        } else {
            None
        }
    }

    /// The threads for which one waits.
    fn members(&self, lane: usize) -> Result<Mask, Trouble> {
        let mask = |it: &WarpWide| self.warp.value(lane, it.members) as Mask;
        let members = self.instruction(lane).map_or(0, mask);
        if members >> lane & 1 == 0 {
            let place = self.warp.places[lane];
            return Err(Trouble { lane, place, reason: Reason::NotAMember });
        }
        Ok(members)
    }

    /// Those who wait for the same threads as the first, and for the same exchange.
    fn waiting_with(&self, first: usize, members: Mask, among: Mask) -> Result<Mask, Trouble> {
        let exchange = |lane| self.instruction(lane).map(|instruction| instruction.exchange);
        let is_same = |lane| match (exchange(first), exchange(lane)) {
            (Some(first), Some(own)) => own.is_same(first),
            _ => false,
        };
        let mut waiting = 0;
        for lane in lanes(among & members) {
            if self.members(lane)? == members && is_same(lane) {
                waiting |= 1 << lane;
            }
        }
        Ok(waiting)
    }

    /// Gives everybody what the others have brought.
    fn exchange(&mut self, here: Mask) {
        self.changed = self.executed;
        let mut results = Vec::new();
        for lane in lanes(here) {
            if let Some(instruction) = self.instruction(lane) {
                results.push((lane, instruction, self.result(instruction, lane, here)));
            }
        }
        for (lane, instruction, (value, valid)) in results {
            self.warp.set(lane, instruction.to, value);
            self.warp.set(lane, instruction.valid, u64::from(valid));
            self.warp.places[lane] += 1;
        }
        self.warp.together &= !here;
        self.warp.ready |= here;
    }

    /// What one of them gets.
    fn result(&self, instruction: &WarpWide, lane: usize, here: Mask) -> (u64, bool) {
        let brought = |other: usize| self.brought(other, 0);
        let predicates =
            lanes(here).fold(0, |mask, other| mask | ((brought(other) & 1) as Mask) << other);
        let all = predicates == here;
        let value = match instruction.exchange {
            Exchange::Nothing => 0,
            Exchange::All => u64::from(all),
            Exchange::Any => u64::from(predicates != 0),
            Exchange::Uniform => u64::from(all || predicates == 0),
            Exchange::Ballot => u64::from(predicates),
            Exchange::Shuffle(direction) => return self.shuffled(direction, lane, here),
            Exchange::Reduce(apply) => {
                let first = brought(here.trailing_zeros() as usize);
                lanes(here & (here - 1)).fold(first, |result, other| {
                    let mut out = [0; 32];
                    apply(&mut out, &[result; 32], &[brought(other); 32]);
                    out[0]
                })
            }
            Exchange::Match(bits) => {
                let own = brought(lane);
                let same = lanes(here).filter(|&other| (brought(other) ^ own) & bits == 0);
                same.fold(0, |mask, other| mask | 1 << other)
            }
            Exchange::Elect => {
                let leader = here.trailing_zeros();
                return (u64::from(leader), leader as usize == lane);
            }
        };
        (value, true)
    }

    /// An operand of a thread, in its own instruction.
    fn brought(&self, lane: usize, operand: usize) -> u64 {
        let value = |slot: Slot| self.warp.value(lane, slot);
        self.instruction(lane).map_or(0, |instruction| value(instruction.operands[operand]))
    }

    /// PTX ISA, `shfl.sync`: the third operand clamps the lane and divides the warp in segments.
    fn shuffled(&self, direction: Direction, lane: usize, here: Mask) -> (u64, bool) {
        let (distance, limits) = (self.brought(lane, 1) as i32 & 31, self.brought(lane, 2) as i32);
        let (clamp, segments, own) = (limits & 31, limits >> 8 & 31, lane as i32);
        let lowest = own & segments;
        let last = lowest | clamp & !segments;
        let (from, valid) = match direction {
            Direction::Up => (own - distance, own - distance >= last),
            Direction::Down => (own + distance, own + distance <= last),
            Direction::Xor => (own ^ distance, own ^ distance <= last),
            Direction::Index => {
                let from = lowest | distance & !segments;
                (from, from <= last)
            }
        };
        let from = if valid { from as usize & 31 } else { lane };
        // Of a thread that did not come nothing can be had; what is there then is unspecified.
        let value = if here >> from & 1 != 0 { self.brought(from, 0) } else { 0xa5a5_a5a5 };
        (value & 0xffff_ffff, valid)
    }
}
