//! Frames: what a function finds when it begins, calls and returns.

use super::turn::{Surroundings, Trouble, Turn};
use super::warp::{Caller, Group, Mask, lanes};
use crate::arithmetic::Lanes;
use crate::error::Reason;
use crate::memory::GARBAGE;
use crate::program::{Call, Function, Motion, Operation, Special};

impl<'a> Turn<'a> {
    pub(super) fn call(&mut self, call: &Call, group: Group, active: Mask) -> Result<(), Trouble> {
        let module = self.module;
        let callee = &module.functions[call.function as usize];
        let first = active.trailing_zeros() as usize;
        let wrong = |reason| Trouble { lane: first, place: group.place, reason };
        if !callee.is_defined {
            return Err(wrong(Reason::UndefinedFunction(callee.name.clone())));
        }
        let caller = self.current(first);
        let base = group.base + caller.slots;
        let slots = (base + callee.slots) as usize;
        if self.warp.registers.len() < slots {
            self.warp.registers.resize(slots, [GARBAGE; 32]);
        }
        let caller_frame_bytes = caller.frame_bytes as u32;
        self.warp.put(Group { place: group.place + 1, ..group }, 1);
        for lane in lanes(active) {
            let frame = self.warp.frames[lane];
            let callee_frame = (frame + caller_frame_bytes).next_multiple_of(16);
            if callee_frame as usize + callee.frame_bytes > self.reach.own.local_bytes {
                return Err(wrong(Reason::StackOverflow));
            }
            for [from, to, bytes] in &call.arguments {
                self.copy(lane, frame + from, callee_frame + to, *bytes);
            }
            self.warp.callers[lane].push(Caller {
                place: group.place + 1,
                base: group.base,
                frame,
                callee: call.function,
            });
            self.warp.frames[lane] = callee_frame;
            self.warp.bases[lane] = base;
            self.warp.places[lane] = callee.start;
        }
        self.fill(callee, base, active);
        Ok(())
    }

    /// The function that a thread is in.
    fn current(&self, lane: usize) -> &'a Function {
        match self.warp.callers[lane].last() {
            Some(caller) => &self.module.functions[caller.callee as usize],
            None => self.kernel,
        }
    }

    fn copy(&self, lane: usize, from: u32, to: u32, bytes: u32) {
        let own = lane * self.reach.own.local_bytes;
        self.reach.own.local.copy(own + from as usize, own + to as usize, bytes as usize);
    }

    pub(super) fn return_to_callers(&mut self, group: Group, active: Mask) {
        let module = self.module;
        self.warp.put(Group { place: group.place + 1, ..group }, 1);
        for lane in lanes(active) {
            let Some(caller) = self.warp.callers[lane].pop() else { continue };
            let frame = self.warp.frames[lane];
            if let Operation::Motion(Motion::Call(call)) =
                &module.code[caller.place as usize - 1].operation
            {
                for [to, from, bytes] in &call.results {
                    self.copy(lane, frame + from, caller.frame + to, *bytes);
                }
            }
            self.warp.frames[lane] = caller.frame;
            self.warp.bases[lane] = caller.base;
            self.warp.places[lane] = caller.place;
        }
    }

    /// Writes what a function finds in its frame from the beginning on.
    pub(crate) fn fill(&mut self, function: &Function, base: u32, mask: Mask) {
        for (slot, special) in &function.specials {
            let mut values: Lanes = [0; 32];
            for (lane, value) in values.iter_mut().enumerate() {
                *value = self.special(*special, lane as u32);
            }
            self.warp.write((base + slot) as usize, &values, mask);
        }
    }

    fn special(&self, special: Special, lane: u32) -> u64 {
        let Surroundings { grid, block, number, shared_bytes, dynamic_shared } = self.surroundings;
        let along = |index: u32, size: &[u32; 3], axis: u8| match axis {
            0 => index % size[0],
            1 => index / size[0] % size[1],
            _ => index / size[0] / size[1],
        };
        let thread = self.number * 32 + lane;
        u64::from(match special {
            Special::Constant(value) => return value,
            Special::DynamicShared => return *dynamic_shared,
            Special::SharedBytes => *shared_bytes as u32,
            Special::DynamicSharedBytes => *shared_bytes as u32 - *dynamic_shared as u32,
            Special::Thread(axis) => along(thread, block, axis),
            Special::BlockSize(axis) => block[usize::from(axis)],
            Special::Block(axis) => along(*number, grid, axis),
            Special::GridSize(axis) => grid[usize::from(axis)],
            Special::Lane => lane,
            Special::Warp => self.number,
            Special::Warps => block.iter().product::<u32>().div_ceil(32),
            Special::Multiprocessor => 0,
            Special::LaneMask(order, equal) => (0..32u32)
                .filter(|other| other.cmp(&lane) == order || equal && *other == lane)
                .fold(0, |mask, other| mask | 1 << other),
        })
    }
}
