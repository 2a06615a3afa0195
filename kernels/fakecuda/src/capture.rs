//! Captures that go on, and what they forbid to threads: what another thread may undo, or wait for, in the middle of one.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::codes::{Code, Result};
use crate::graph::Graph;

/// Of a capture: to whom it forbids things. Of a thread: which captures it minds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All threads; all captures of this mode, and its own ones.
    Global,
    /// The thread that began it; its own captures.
    ThreadLocal,
    /// Nobody; none.
    Relaxed,
}

impl Mode {
    /// By the number of `CUstreamCaptureMode`.
    pub(crate) fn of(number: u32) -> Result<Self> {
        let all = [Self::Global, Self::ThreadLocal, Self::Relaxed];
        all.get(number as usize).copied().ok_or(Code::InvalidValue)
    }

    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// A capture that goes on, in one stream or in several.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) graph: Mutex<Graph>,
    /// The stream in which it began, where it must end.
    pub(crate) origin: usize,
    mode: Mode,
    /// Who began it.
    thread: ThreadId,
    /// Somebody has done what must not be done while it goes on.
    is_invalid: AtomicBool,
    has_ended: AtomicBool,
}

impl Capture {
    pub(crate) fn begin(origin: usize, mode: Mode) -> Arc<Self> {
        let (graph, thread) = (Mutex::default(), thread::current().id());
        let (is_invalid, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let capture = Arc::new(Self { graph, origin, mode, thread, is_invalid, has_ended });
        ongoing().push(Arc::clone(&capture));
        capture
    }

    /// It forbids nothing any more.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        ongoing().retain(|other| !std::ptr::eq(&raw const **other, self));
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Makes it come to nothing, because of this.
    pub(crate) fn invalidate(&self, code: Code) -> Code {
        self.is_invalid.store(true, Ordering::Relaxed);
        code
    }

    /// Whether this thread may end it.
    pub(crate) fn permit_end(&self) -> Result<()> {
        let may = self.mode == Mode::Relaxed || self.thread == thread::current().id();
        if may { Ok(()) } else { Err(Code::CaptureWrongThread) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let is_invalid = self.is_invalid.load(Ordering::Relaxed);
        if is_invalid { Err(Code::CaptureInvalidated) } else { Ok(()) }
    }

    /// Whether a thread that minds such captures must not do it.
    fn forbids(&self, mode: Mode) -> bool {
        let is_own = self.thread == thread::current().id() && self.mode != Mode::Relaxed;
        match mode {
            Mode::Global => is_own || self.mode == Mode::Global,
            Mode::ThreadLocal => is_own,
            Mode::Relaxed => false,
        }
    }
}

fn ongoing() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    static ONGOING: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
    ONGOING.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Gives this thread another mode; the one that it had.
pub(crate) fn exchange(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// What everything begins with that captures forbid: it is refused, and they come to nothing.
pub(crate) fn permit() -> Result<()> {
    let mode = MODE.get();
    let mut outcome = Ok(());
    for capture in ongoing().iter().filter(|capture| capture.forbids(mode)) {
        outcome = Err(capture.invalidate(Code::CaptureUnsupported));
    }
    outcome
}
