//! A text as it is run: instructions with registers, constants and branches resolved.
//!
//! Everything that an instruction reads is a *slot* of the frame of its function: registers, and
//! behind them constants and special registers, which are written when a frame is made.

use std::sync::Arc;

use crate::arithmetic::convert::Conversion;
use crate::arithmetic::{Binary, Quaternary, Ternary, Unary};
use crate::memory::{Memory, Words};

/// Index into a frame.
pub(crate) type Slot = u32;

/// Index of an instruction among those of all functions.
pub(crate) type Place = u32;

#[derive(Debug)]
pub(crate) struct Instruction {
    /// Only threads with this predicate, or without it, take part.
    pub(crate) guard: Option<Guard>,
    pub(crate) operation: Operation,
    pub(crate) line: u32,
    /// Nobody else runs between this and the next, unless stores may be torn.
    pub(crate) joined: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) predicate: Slot,
    pub(crate) negated: bool,
}

#[derive(Debug)]
pub(crate) enum Operation {
    Compute(Compute),
    Effect(Effect),
    Motion(Motion),
}

/// Computes one register from others.
#[derive(Debug)]
pub(crate) enum Compute {
    Unary(Unary, Slot, Slot),
    Binary(Binary, Slot, [Slot; 2]),
    Ternary(Ternary, Slot, [Slot; 3]),
    Quaternary(Quaternary, Slot, [Slot; 4]),
    Convert(Box<Conversion>, Slot, [Slot; 2]),
    /// The parts, each of so many bits, the first lowest.
    Pack {
        to: Slot,
        parts: Box<[Slot]>,
        bits: u32,
    },
}

/// Does something else; the next instruction follows.
#[derive(Debug)]
pub(crate) enum Effect {
    Unpack {
        to: Box<[Option<Slot>]>,
        from: Slot,
        bits: u32,
    },
    Load(Box<Vector>),
    Store(Box<Vector>),
    Atomic(Box<Atomic>),
    /// From an address in a window to a generic one, or back.
    Translate {
        to: Slot,
        from: Slot,
        window: Window,
        to_generic: bool,
    },
    /// Address of a variable in the frame of the thread, as an address of local memory.
    FrameAddress {
        to: Slot,
        offset: u64,
    },
    ActiveMask(Slot),
    Clock(Slot),
    /// Everything that was seen before is seen so far before what follows.
    Fence(Scope),
    Nothing,
}

/// After it threads may be elsewhere, or wait.
#[derive(Debug)]
pub(crate) enum Motion {
    Branch(Place),
    Table { index: Slot, targets: Box<[Place]> },
    Call(Box<Call>),
    Return,
    Exit,
    Barrier(Box<Barrier>),
    Warp(Box<WarpWide>),
    Pause,
    Trap,
}

impl From<Compute> for Operation {
    fn from(compute: Compute) -> Self {
        Self::Compute(compute)
    }
}

impl From<Effect> for Operation {
    fn from(effect: Effect) -> Self {
        Self::Effect(effect)
    }
}

impl From<Motion> for Operation {
    fn from(motion: Motion) -> Self {
        Self::Motion(motion)
    }
}

/// How far order reaches. Every stream of a machine is a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The block. Its threads see each other's stores at once, so it orders nothing.
    Block,
    /// The blocks of the device.
    Device,
    /// Everybody.
    System,
}

/// How addresses become generic ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// They are: global memory, constants, and addresses that were translated.
    Generic,
    /// Offsets into the shared memory of the block.
    Shared,
    /// Offsets into the memory of the thread.
    Local,
    /// Offsets into the frame of a function there.
    Frame,
    /// Offsets into the arguments of the kernel.
    Parameter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    pub(crate) offset: i64,
    pub(crate) window: Window,
}

/// A load or store of some elements side by side. Up to 8 bytes are one *piece*, which is atomic.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) address: Address,
    pub(crate) elements: Box<[Option<Slot>]>,
    pub(crate) element_bytes: u8,
    pub(crate) signed: bool,
    /// Who sees everything of the block before it, if anybody does.
    pub(crate) releases: Option<Scope>,
    pub(crate) piece_elements: u8,
    /// Which of the pieces this instruction moves; all of them if none is named.
    pub(crate) piece: Option<u8>,
}

impl Vector {
    pub(crate) fn bytes(&self) -> usize {
        self.elements.len() * usize::from(self.element_bytes)
    }

    pub(crate) fn pieces(&self) -> u8 {
        (self.elements.len() / usize::from(self.piece_elements)) as u8
    }
}

/// What an atomic does to the value in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A function of the old value and the operand.
    Apply(Binary),
    Exchange,
    CompareAndSwap,
    /// Up to the operand, then 0.
    Increment,
    /// Down to 0, then the operand.
    Decrement,
}

#[derive(Debug)]
pub(crate) struct Atomic {
    pub(crate) address: Address,
    pub(crate) change: Change,
    pub(crate) bytes: usize,
    /// Who sees everything of the block before it, if anybody does.
    pub(crate) releases: Option<Scope>,
    pub(crate) to: Option<Slot>,
    pub(crate) operands: [Slot; 2],
}

#[derive(Debug)]
pub(crate) struct Call {
    /// Index among the functions.
    pub(crate) function: u32,
    /// Offset in the caller's frame, offset in the callee's, bytes.
    pub(crate) arguments: Vec<[u32; 3]>,
    pub(crate) results: Vec<[u32; 3]>,
}

/// What a barrier tells about all threads that came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tally {
    Nothing,
    Count,
    All,
    Any,
}

#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) number: Slot,
    pub(crate) threads: Option<Slot>,
    /// The threads of a warp come to it together, or not at all.
    pub(crate) is_aligned: bool,
    pub(crate) waits: bool,
    pub(crate) tally: Tally,
    pub(crate) to: Slot,
    /// The predicate that is tallied, and whether it is negated.
    pub(crate) predicate: Slot,
}

impl Barrier {
    /// Whether threads go on from it as soon as their warp has come.
    pub(crate) fn is_passed_together(&self) -> bool {
        self.is_aligned && !self.waits
    }
}

/// From whom a shuffled value comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Xor,
    Index,
}

/// What the threads of a warp tell each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exchange {
    Nothing,
    All,
    Any,
    Uniform,
    Ballot,
    Shuffle(Direction),
    Reduce(Binary),
    /// By these bits of the values.
    Match(u64),
    Elect,
}

impl Exchange {
    /// Whether threads of which one brings this and one that have come for the same.
    pub(crate) fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shuffle(own), Self::Shuffle(other)) => own == other,
            (Self::Reduce(own), Self::Reduce(other)) => std::ptr::fn_addr_eq(own, other),
            (Self::Match(own), Self::Match(other)) => own == other,
            (own, other) => std::mem::discriminant(&own) == std::mem::discriminant(&other),
        }
    }
}

/// An instruction for which the threads of a warp wait for each other.
#[derive(Debug)]
pub(crate) struct WarpWide {
    pub(crate) exchange: Exchange,
    pub(crate) to: Slot,
    /// Whether a shuffled value came from somewhere; who was elected.
    pub(crate) valid: Slot,
    pub(crate) operands: [Slot; 3],
    pub(crate) members: Slot,
}

/// What a frame holds that no instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Constant(u64),
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    Lane,
    Warp,
    Warps,
    Multiprocessor,
    /// Lanes that stand in this relation to the own one.
    LaneMask(std::cmp::Ordering, bool),
    DynamicSharedBytes,
    SharedBytes,
    /// Where shared memory begins whose size the launch decides.
    DynamicShared,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it lies among the arguments.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) is_defined: bool,
    pub(crate) start: Place,
    pub(crate) slots: u32,
    pub(crate) specials: Vec<(Slot, Special)>,
    pub(crate) frame_bytes: usize,
    pub(crate) has_calls: bool,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) results: Vec<Parameter>,
    pub(crate) shared_bytes: usize,
    pub(crate) maximum_threads: Option<u32>,
}

/// Memory of a thread for the frames of the functions that its kernel calls.
const STACK_BYTES: usize = 16 << 10;

impl Function {
    /// Memory that a thread needs for itself.
    pub(crate) fn local_bytes(&self) -> usize {
        let stack = if self.has_calls { STACK_BYTES } else { 0 };
        (self.frame_bytes + stack).next_multiple_of(16)
    }

    pub(crate) fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |last| last.offset + last.bytes)
    }
}

/// A variable of a module that the host can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the text.
    pub name: String,
    /// Where it lies.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
}

/// A loaded text.
#[derive(Debug)]
pub struct Module {
    pub(crate) lines: Vec<String>,
    pub(crate) version: (u32, u32),
    pub(crate) code: Vec<Instruction>,
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) storage: Words,
    pub(crate) memory: Arc<Memory>,
}

impl Module {
    /// The version of the instruction set that the text asks for.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The variables that the host can find by name.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The names of all kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|function| function.is_kernel).map(|it| it.name.as_str())
    }

    /// The kernel of that name.
    #[must_use]
    pub fn kernel(self: &Arc<Self>, name: &str) -> Option<Kernel> {
        let found = |function: &Function| function.is_kernel && function.name == name;
        let function = self.functions.iter().position(found)?;
        Some(Kernel { module: Arc::clone(self), function })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.storage.bytes() > 0 {
            self.memory.unregister(self.storage.start());
        }
    }
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) module: Arc<Module>,
    pub(crate) function: usize,
}

impl Kernel {
    pub(crate) fn function(&self) -> &Function {
        &self.module.functions[self.function]
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.function().name
    }

    /// What it takes, in the order of its declaration.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.function().parameters
    }

    /// Size of all arguments together.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.function().parameter_bytes()
    }

    /// Shared memory that every block has, whatever the launch says.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.function().shared_bytes
    }

    /// Memory that every thread has for itself.
    #[must_use]
    pub fn local_bytes(&self) -> usize {
        self.function().local_bytes()
    }

    /// How many threads a block may have, if the text says so.
    #[must_use]
    pub fn maximum_threads(&self) -> Option<u32> {
        self.function().maximum_threads
    }

    /// Registers of a thread.
    #[must_use]
    pub fn registers(&self) -> u32 {
        self.function().slots
    }
}
