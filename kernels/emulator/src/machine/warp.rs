//! The threads of a warp: where each of them is, and which of them go on together.
//!
//! Threads that are at the same instruction go together. Those that are behind go first, so that
//! threads that parted meet again; but not for ever: a thread that spins until another one of its
//! warp has done something gets out of the way after [`PATIENCE`] instructions.

use ccl_core::random::Random;

use crate::arithmetic::{Lanes, WIDTH};
use crate::memory::GARBAGE;
use crate::program::{Function, Place, Slot};

/// Instructions that some threads of a warp may run while others of it could.
const PATIENCE: u32 = 1024;

/// Where a called function returns to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) place: Place,
    pub(crate) base: u32,
    pub(crate) frame: u32,
    /// The function that was called.
    pub(crate) callee: u32,
}

/// One bit for every thread of a warp.
pub(crate) type Mask = u32;

#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) registers: Vec<Lanes>,
    /// Threads that can go on; that have ended; that wait for others of the warp; at a barrier.
    pub(crate) ready: Mask,
    pub(crate) ended: Mask,
    pub(crate) together: Mask,
    pub(crate) at_barrier: Mask,
    /// The next instruction of every thread, its first slot, and its frame in local memory.
    pub(crate) places: [Place; WIDTH],
    pub(crate) bases: [u32; WIDTH],
    pub(crate) frames: [u32; WIDTH],
    pub(crate) callers: [Vec<Caller>; WIDTH],
    /// Threads that move the pieces of a vector in the opposite order.
    pub(crate) swapped: Mask,
    /// Instructions since all ready threads were together.
    streak: u32,
    /// Where the search for threads that were passed over begins.
    turn: u32,
}

/// Threads that go on together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) mask: Mask,
    pub(crate) place: Place,
    pub(crate) base: u32,
    /// Where the next threads stand: they are waited for, or picked up.
    pub(crate) limit: Place,
}

impl Warp {
    /// A warp of so many threads at the beginning of a kernel.
    pub(crate) fn new(threads: usize, kernel: &Function) -> Self {
        let ready = if threads >= WIDTH { Mask::MAX } else { (1 << threads) - 1 };
        Self {
            registers: vec![[GARBAGE; WIDTH]; kernel.slots as usize],
            ready,
            ended: !ready,
            together: 0,
            at_barrier: 0,
            places: [kernel.start; WIDTH],
            bases: [0; WIDTH],
            frames: [0; WIDTH],
            callers: std::array::from_fn(|_| Vec::new()),
            swapped: 0,
            streak: 0,
            turn: 0,
        }
    }

    /// Who goes on next; `split`: at random, only some of those who could.
    pub(crate) fn pick(&mut self, split: Option<&mut Random>) -> Option<Group> {
        let first = self.behind(self.ready)?;
        let mut group = self.at(first);
        if group.mask == self.ready {
            self.streak = 0;
        } else if self.streak > PATIENCE {
            self.streak = 0;
            group = self.passed_over(group);
        } else {
            group.limit = self.limit(group);
        }
        if let Some(random) = split
            && random.percent(50)
        {
            let some = group.mask & random.number() as Mask;
            if some != 0 {
                (group.mask, group.limit) = (some, Place::MAX);
            }
        }
        Some(group)
    }

    /// The thread that must go on so that others may meet it: innermost, then furthest behind.
    fn behind(&self, of: Mask) -> Option<usize> {
        lanes(of).min_by_key(|&lane| (u32::MAX - self.bases[lane], self.places[lane]))
    }

    /// All ready threads that are where one of them is.
    fn at(&self, lane: usize) -> Group {
        let (place, base) = (self.places[lane], self.bases[lane]);
        let same = |other: &usize| self.places[*other] == place && self.bases[*other] == base;
        let mask = lanes(self.ready).filter(same).fold(0, |mask, lane| mask | 1 << lane);
        Group { mask, place, base, limit: Place::MAX }
    }

    fn limit(&self, group: Group) -> Place {
        let others = lanes(self.ready & !group.mask).filter(|&lane| self.bases[lane] == group.base);
        others.map(|lane| self.places[lane]).min().unwrap_or(Place::MAX)
    }

    fn passed_over(&mut self, group: Group) -> Group {
        let others = self.ready & !group.mask;
        let ahead = others.rotate_right(self.turn).trailing_zeros() + self.turn;
        let lane = (ahead % WIDTH as u32) as usize;
        self.turn = (ahead + 1) % WIDTH as u32;
        self.at(lane)
    }

    /// Notes where a group has come to, after so many instructions.
    pub(crate) fn put(&mut self, group: Group, instructions: u32) {
        for lane in lanes(group.mask) {
            self.places[lane] = group.place;
        }
        self.streak = self.streak.saturating_add(instructions);
    }

    /// The bits of a predicate.
    pub(crate) fn predicate(&self, slot: usize) -> Mask {
        let values = &self.registers[slot];
        let mut mask = 0;
        for (lane, value) in values.iter().enumerate() {
            mask |= ((value & 1) as Mask) << lane;
        }
        mask
    }

    /// Writes a register of some threads.
    #[inline]
    pub(crate) fn write(&mut self, slot: usize, values: &Lanes, mask: Mask) {
        let register = &mut self.registers[slot];
        if mask == Mask::MAX {
            *register = *values;
            return;
        }
        for lane in 0..WIDTH {
            if mask >> lane & 1 != 0 {
                register[lane] = values[lane];
            }
        }
    }

    /// The value of a thread in its frame.
    pub(crate) fn value(&self, lane: usize, slot: Slot) -> u64 {
        self.registers[(self.bases[lane] + slot) as usize][lane]
    }

    pub(crate) fn set(&mut self, lane: usize, slot: Slot, value: u64) {
        self.registers[(self.bases[lane] + slot) as usize][lane] = value;
    }
}

/// The threads of a mask, in order.
pub(crate) fn lanes(mask: Mask) -> impl DoubleEndedIterator<Item = usize> {
    (0..WIDTH).filter(move |lane| mask >> lane & 1 != 0)
}
