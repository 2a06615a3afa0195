//! Small frames: values that are needed for a few instructions only share slots.
//!
//! Compilers give every value a register of its own, thousands in a kernel, of which a few hundred are
//! ever needed at once. A frame with all of them would take longer to make than many a kernel runs, and
//! would not stay in the cache.
//!
//! A slot is shared by registers that are mentioned in one *run* only, which are instructions that
//! are always executed one after the other, and that are written there before anything else. What is read
//! first has a slot of its own: it may have been written on another way, or never.

use crate::program::{
    Compute, Effect, Function, Instruction, Motion, Operation, Place, Slot, Vector,
};

/// What an instruction does with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Read,
    Written,
}

/// Between which instructions a slot is mentioned.
#[derive(Clone, Copy, Debug)]
struct Life {
    first: usize,
    last: usize,
    /// Nobody mentions it elsewhere.
    is_temporary: bool,
    /// Where it is in the small frame.
    slot: Option<Slot>,
}

/// Gives the slots of a function, whose code this is, new numbers.
pub(super) fn compact(code: &mut [Instruction], function: &mut Function) {
    let mut lives = lives(code, function);
    let mut slots = 0;
    let mut fresh = || {
        slots += 1;
        slots - 1
    };
    for (slot, _) in &mut function.specials {
        let own = fresh();
        if let Some(life) = &mut lives[*slot as usize] {
            life.slot = Some(own);
        }
        *slot = own;
    }
    let mut free: Vec<Slot> = Vec::new();
    for (index, instruction) in code.iter_mut().enumerate() {
        // An instruction may write some slots before it reads others: what ends here is free behind it.
        let mut ended = Vec::new();
        instruction.visit(&mut |slot, _| {
            let Some(life) = &mut lives[*slot as usize] else { return };
            let given = *life.slot.get_or_insert_with(|| {
                let shared = if life.is_temporary { free.pop() } else { None };
                shared.unwrap_or_else(&mut fresh)
            });
            if life.is_temporary && life.last == index && !ended.contains(&given) {
                ended.push(given);
            }
            *slot = given;
        });
        free.append(&mut ended);
    }
    function.slots = slots;
}

fn lives(code: &mut [Instruction], function: &Function) -> Vec<Option<Life>> {
    let runs = runs(code, function.start);
    let mut lives: Vec<Option<Life>> = vec![None; function.slots as usize];
    for (index, instruction) in code.iter_mut().enumerate() {
        let is_certain = instruction.guard.is_none();
        instruction.visit(&mut |slot, role| {
            let is_temporary = is_certain && role == Role::Written;
            let life = lives[*slot as usize].get_or_insert(Life {
                first: index,
                last: index,
                is_temporary,
                slot: None,
            });
            life.last = index;
            life.is_temporary &= runs[index] == runs[life.first];
        });
    }
    for (slot, _) in &function.specials {
        if let Some(life) = &mut lives[*slot as usize] {
            life.is_temporary = false;
        }
    }
    lives
}

/// The number of the run of every instruction.
fn runs(code: &[Instruction], start: Place) -> Vec<usize> {
    let mut begins = vec![false; code.len() + 1];
    for (index, instruction) in code.iter().enumerate() {
        let Operation::Motion(motion) = &instruction.operation else { continue };
        let targets = match motion {
            Motion::Branch(target) => std::slice::from_ref(target),
            Motion::Table { targets, .. } => targets,
            Motion::Return | Motion::Exit | Motion::Trap => &[],
            // The next instruction follows, sooner or later.
            Motion::Call(_) | Motion::Barrier(_) | Motion::Warp(_) | Motion::Pause => continue,
        };
        begins[index + 1] = true;
        targets.iter().for_each(|target| begins[(target - start) as usize] = true);
    }
    let count = |run: &mut usize, begins: &bool| {
        *run += usize::from(*begins);
        Some(*run)
    };
    begins.iter().scan(0, count).collect()
}

impl Instruction {
    /// Shows every slot that is mentioned, those that are read first.
    fn visit(&mut self, see: &mut impl FnMut(&mut Slot, Role)) {
        if let Some(guard) = &mut self.guard {
            see(&mut guard.predicate, Role::Read);
        }
        match &mut self.operation {
            Operation::Compute(compute) => compute.visit(see),
            Operation::Effect(effect) => effect.visit(see),
            Operation::Motion(motion) => motion.visit(see),
        }
    }
}

impl Compute {
    fn visit(&mut self, see: &mut impl FnMut(&mut Slot, Role)) {
        let (to, from) = match self {
            Self::Unary(_, to, from) => (to, std::slice::from_mut(from)),
            Self::Binary(_, to, from) | Self::Convert(_, to, from) => (to, from.as_mut_slice()),
            Self::Ternary(_, to, from) => (to, from.as_mut_slice()),
            Self::Quaternary(_, to, from) => (to, from.as_mut_slice()),
            Self::Pack { to, parts, .. } => (to, &mut **parts),
        };
        from.iter_mut().for_each(|slot| see(slot, Role::Read));
        see(to, Role::Written);
    }
}

impl Effect {
    fn visit(&mut self, see: &mut impl FnMut(&mut Slot, Role)) {
        match self {
            Self::Unpack { to, from, .. } => {
                see(from, Role::Read);
                to.iter_mut().flatten().for_each(|slot| see(slot, Role::Written));
            }
            Self::Load(vector) => vector.visit(Role::Written, see),
            Self::Store(vector) => vector.visit(Role::Read, see),
            Self::Atomic(atomic) => {
                see(&mut atomic.address.base, Role::Read);
                atomic.operands.iter_mut().for_each(|slot| see(slot, Role::Read));
                atomic.to.iter_mut().for_each(|slot| see(slot, Role::Written));
            }
            Self::Translate { to, from, .. } => {
                see(from, Role::Read);
                see(to, Role::Written);
            }
            Self::FrameAddress { to, .. } | Self::ActiveMask(to) | Self::Clock(to) => {
                see(to, Role::Written);
            }
            Self::Fence(_) | Self::Nothing => {}
        }
    }
}

impl Vector {
    fn visit(&mut self, elements: Role, see: &mut impl FnMut(&mut Slot, Role)) {
        see(&mut self.address.base, Role::Read);
        self.elements.iter_mut().flatten().for_each(|slot| see(slot, elements));
    }
}

impl Motion {
    fn visit(&mut self, see: &mut impl FnMut(&mut Slot, Role)) {
        match self {
            Self::Table { index, .. } => see(index, Role::Read),
            Self::Barrier(barrier) => {
                see(&mut barrier.number, Role::Read);
                barrier.threads.iter_mut().for_each(|slot| see(slot, Role::Read));
                see(&mut barrier.predicate, Role::Read);
                see(&mut barrier.to, Role::Written);
            }
            Self::Warp(wide) => {
                wide.operands.iter_mut().for_each(|slot| see(slot, Role::Read));
                see(&mut wide.members, Role::Read);
                see(&mut wide.to, Role::Written);
                see(&mut wide.valid, Role::Written);
            }
            Self::Branch(_)
            | Self::Call(_)
            | Self::Return
            | Self::Exit
            | Self::Pause
            | Self::Trap => {}
        }
    }
}
