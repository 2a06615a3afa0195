//! A warp runs for a while.

use std::sync::atomic::{Ordering, fence};

use ccl_core::random::Random;

use super::pending::Unseen;
use super::warp::{Group, Mask, Warp, lanes};
use crate::arithmetic::Lanes;
use crate::error::Reason;
use crate::memory::Reach;
use crate::program::{Compute, Effect, Function, Instruction, Module, Motion, Operation, Place};

/// Why a warp stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// It ran for as long as it may.
    Budget,
    /// It asked to.
    Pause,
    /// None of its threads can go on.
    Blocked,
    /// These threads came to a barrier.
    Barrier(Place, Mask),
    /// These threads ended.
    Ended(Mask),
}

/// What one thread did wrong, and where.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) lane: usize,
    pub(crate) place: Place,
    pub(crate) reason: Reason,
}

/// What threads know of their block.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) number: u32,
    pub(crate) shared_bytes: usize,
    pub(crate) dynamic_shared: u64,
}

/// A warp with everything it needs to run.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) module: &'a Module,
    pub(crate) kernel: &'a Function,
    pub(crate) warp: &'a mut Warp,
    pub(crate) reach: Reach<'a>,
    pub(crate) surroundings: &'a Surroundings,
    /// Which warp of the block it is.
    pub(crate) number: u32,
    pub(crate) random: &'a mut Random,
    pub(crate) torn: bool,
    pub(crate) split: bool,
    /// Whether stores may arrive late, and those that have not arrived.
    pub(crate) weak: bool,
    pub(crate) unseen: Unseen<'a>,
    /// Instructions that were run, and after how many of them something changed.
    pub(crate) executed: u64,
    pub(crate) changed: u64,
}

/// What comes after an instruction.
enum Flow {
    Next,
    Jump(Place),
    /// The group is no longer together; everybody's place is noted.
    Parted,
    /// Everybody goes on behind the instruction, once the warp has stopped for this.
    Left(Stop),
}

impl<'a> Turn<'a> {
    /// Runs some instructions.
    pub(crate) fn run(&mut self, budget: u64) -> Result<Stop, Trouble> {
        let end = self.executed + budget;
        loop {
            let split = self.split.then_some(&mut *self.random);
            let Some(mut group) = self.warp.pick(split) else { return Ok(Stop::Blocked) };
            let stop = self.run_group(&mut group, end)?;
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }

    /// Some stores arrive at other blocks.
    pub(crate) fn drift(&mut self) {
        self.unseen.drift(&mut self.reach, self.random);
    }

    /// Until the group parts or meets others (`None`), or the warp must stop.
    fn run_group(&mut self, group: &mut Group, end: u64) -> Result<Option<Stop>, Trouble> {
        let module = self.module;
        let start = self.executed;
        let mut joined = false;
        loop {
            let out_of_time = self.executed >= end;
            if !joined && (out_of_time || group.place >= group.limit) {
                self.warp.put(*group, (self.executed - start) as u32);
                return Ok(out_of_time.then_some(Stop::Budget));
            }
            let instruction = &module.code[group.place as usize];
            joined = instruction.joined && !self.torn;
            self.executed += 1;
            let active = self.active(instruction, *group);
            if active == 0 {
                group.place += 1;
                continue;
            }
            let flow = match &instruction.operation {
                Operation::Compute(compute) => {
                    self.compute(compute, *group, active);
                    Flow::Next
                }
                Operation::Effect(effect) => {
                    self.act(effect, *group, active)?;
                    Flow::Next
                }
                Operation::Motion(motion) => self.go(motion, *group, active)?,
            };
            match flow {
                Flow::Next => group.place += 1,
                Flow::Jump(place) => group.place = place,
                Flow::Parted => return Ok(None),
                Flow::Left(stop) => {
                    // Whoever waits continues behind the instruction, too.
                    let behind = Group { place: group.place + 1, ..*group };
                    self.warp.put(behind, (self.executed - start) as u32);
                    return Ok(Some(stop));
                }
            }
        }
    }

    #[inline]
    fn active(&self, instruction: &Instruction, group: Group) -> Mask {
        match instruction.guard {
            None => group.mask,
            Some(guard) => {
                let holds = self.warp.predicate((group.base + guard.predicate) as usize);
                group.mask & if guard.negated { !holds } else { holds }
            }
        }
    }

    #[inline]
    fn compute(&mut self, compute: &Compute, group: Group, active: Mask) {
        let base = group.base as usize;
        let mut out: Lanes = [0; 32];
        let registers = &self.warp.registers;
        let register = |slot: &u32| &registers[base + *slot as usize];
        let to = match compute {
            Compute::Unary(apply, to, a) => {
                apply(&mut out, register(a));
                *to
            }
            Compute::Binary(apply, to, [a, b]) => {
                apply(&mut out, register(a), register(b));
                *to
            }
            Compute::Ternary(apply, to, [a, b, c]) => {
                apply(&mut out, register(a), register(b), register(c));
                *to
            }
            Compute::Quaternary(apply, to, [a, b, c, d]) => {
                apply(&mut out, register(a), register(b), register(c), register(d));
                *to
            }
            Compute::Convert(conversion, to, [a, b]) => {
                conversion.apply(&mut out, register(a), register(b));
                *to
            }
            Compute::Pack { to, parts, bits } => {
                let mask = (1u64 << bits) - 1;
                for (index, part) in parts.iter().enumerate() {
                    let part = register(part);
                    for (out, part) in out.iter_mut().zip(part) {
                        *out |= (part & mask) << (index as u32 * bits);
                    }
                }
                *to
            }
        };
        self.warp.write(base + to as usize, &out, active);
    }

    fn act(&mut self, effect: &Effect, group: Group, active: Mask) -> Result<(), Trouble> {
        match effect {
            Effect::Unpack { to, from, bits } => {
                let value = self.warp.registers[(group.base + from) as usize];
                for (index, to) in to.iter().enumerate() {
                    let Some(to) = to else { continue };
                    let shift = index as u32 * bits;
                    let part = value.map(|value| value >> shift & ((1 << bits) - 1));
                    self.warp.write((group.base + to) as usize, &part, active);
                }
            }
            Effect::Load(vector) => self.load(vector, group, active)?,
            Effect::Store(vector) => self.store(vector, group, active)?,
            Effect::Atomic(atomic) => self.atomic(atomic, group, active)?,
            Effect::Translate { to, from, window, to_generic } => {
                for lane in lanes(active) {
                    let value = self.warp.value(lane, *from);
                    let start = self.window(lane, *window);
                    let to_window = value.wrapping_sub(start);
                    let value = if *to_generic { value.wrapping_add(start) } else { to_window };
                    self.warp.set(lane, *to, value);
                }
            }
            Effect::FrameAddress { to, offset } => {
                for lane in lanes(active) {
                    let frame = u64::from(self.warp.frames[lane]);
                    self.warp.set(lane, *to, frame.wrapping_add(*offset));
                }
            }
            Effect::ActiveMask(to) => {
                lanes(active).for_each(|lane| self.warp.set(lane, *to, u64::from(active)));
            }
            Effect::Clock(to) => {
                lanes(active).for_each(|lane| self.warp.set(lane, *to, self.executed));
            }
            Effect::Fence(scope) => {
                self.unseen.order(&mut self.reach, *scope);
                fence(Ordering::SeqCst);
            }
            Effect::Nothing => {}
        }
        Ok(())
    }

    fn go(&mut self, motion: &'a Motion, group: Group, active: Mask) -> Result<Flow, Trouble> {
        match motion {
            Motion::Branch(target) if active == group.mask => return Ok(Flow::Jump(*target)),
            Motion::Branch(target) => self.part(group, active, |_, _| Ok(*target))?,
            Motion::Table { index, targets } => self.part(group, active, |warp, lane| {
                let index = warp.value(lane, *index) as u32;
                let target = targets.get(index as usize);
                target.copied().ok_or(Reason::OutOfRange(u64::from(index)))
            })?,
            Motion::Call(call) => self.call(call, group, active)?,
            Motion::Return => self.return_to_callers(group, active),
            Motion::Exit => {
                self.warp.ready &= !active;
                self.warp.ended |= active;
                self.changed = self.executed;
                self.settle()?;
                return Ok(Flow::Left(Stop::Ended(active)));
            }
            Motion::Barrier(_) => {
                self.warp.ready &= !active;
                self.warp.at_barrier |= active;
                return Ok(Flow::Left(Stop::Barrier(group.place, active)));
            }
            Motion::Pause => return Ok(Flow::Left(Stop::Pause)),
            Motion::Warp(_) => {
                // Those who wait stay there until all have come.
                self.part(group, active, |_, _| Ok(group.place))?;
                self.warp.ready &= !active;
                self.warp.together |= active;
                self.settle()?;
            }
            Motion::Trap => {
                let lane = active.trailing_zeros() as usize;
                return Err(Trouble { lane, place: group.place, reason: Reason::Trap });
            }
        }
        Ok(Flow::Parted)
    }

    /// Sends every active thread to a place of its own, and the others on.
    fn part(
        &mut self,
        group: Group,
        active: Mask,
        target: impl Fn(&Warp, usize) -> Result<Place, Reason>,
    ) -> Result<(), Trouble> {
        self.warp.put(Group { place: group.place + 1, ..group }, 1);
        for lane in lanes(active) {
            let trouble = |reason| Trouble { lane, place: group.place, reason };
            self.warp.places[lane] = target(self.warp, lane).map_err(trouble)?;
        }
        Ok(())
    }
}
