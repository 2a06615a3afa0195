//! What can be wrong with a text, and with a program while it runs.

use std::fmt;

use thiserror::Error;

/// A PTX text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("PTX line {line}: {reason}")]
pub struct LoadError {
    /// Where, counting from 1; 0 if it is no place in the text.
    pub line: u32,
    /// What is not understood.
    pub reason: String,
}

impl LoadError {
    pub(crate) fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// What a thread did that no thread may do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "kernel {kernel}, block {block}, thread {thread}, PTX line {line} `{instruction}`: {reason}"
)]
pub struct Fault {
    /// The kernel that was launched.
    pub kernel: String,
    /// Number of the block in its grid, x first.
    pub block: u32,
    /// Number of the thread in its block, x first.
    pub thread: u32,
    /// Line of the instruction, counting from 1.
    pub line: u32,
    /// The instruction as the text has it.
    pub instruction: String,
    /// What was wrong.
    pub reason: Reason,
}

/// What was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// The bytes belong to no registered memory, or not to this thread.
    #[error("{access} of {bytes} bytes at {address:#x}, which is no memory that it may access so")]
    OutOfBounds {
        /// What was tried.
        access: Access,
        /// Where.
        address: u64,
        /// How many.
        bytes: usize,
    },
    /// The address is no multiple of the bytes accessed at once.
    #[error("{access} of {bytes} bytes at {address:#x}, which is misaligned")]
    Misaligned {
        /// What was tried.
        access: Access,
        /// Where.
        address: u64,
        /// How many.
        bytes: usize,
    },
    /// The kernel ended itself with `trap`.
    #[error("trap")]
    Trap,
    /// All threads wait, and nothing changes. Names some of them.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// A call to a function of which the text has the name only.
    #[error("{0} is not part of the text")]
    UndefinedFunction(String),
    /// Calls are nested more deeply than the stack of a thread allows.
    #[error("the stack of the thread is too small")]
    StackOverflow,
    /// The thread is not among those for which it waits.
    #[error("the thread is not in its own mask of members")]
    NotAMember,
    /// It came to a barrier to which its warp must come together, and another thread of the warp is elsewhere.
    #[error("thread {thread} of the same warp is at line {line}")]
    Apart {
        /// Number of the other thread in its block, x first.
        thread: u32,
        /// Line of the instruction at which that one is.
        line: u32,
    },
    /// An index into a table of branches that it does not have, or a number that is no barrier.
    #[error("{0} is out of range")]
    OutOfRange(u64),
}

/// A way to touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Does both at once.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Load => "a load",
            Self::Store => "a store",
            Self::Atomic => "an atomic",
        })
    }
}
