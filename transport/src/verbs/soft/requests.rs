//! Operations posted at this end and not yet executed at the other.

use std::collections::VecDeque;

use super::super::{Completion, Opcode, Status, WorkId};
use super::domain::Span;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: WorkId,
    pub(super) opcode: Opcode,
    pub(super) bytes: usize,
    pub(super) signalled: bool,
    pub(super) answer: Answer,
}

/// What a request waits for besides its execution.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing.
    None,
    /// What was read, or the old value of an atomic, to go there.
    Awaited(Span),
    /// It has come.
    Received,
}

/// Which request an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    /// The first that the other end has not executed.
    Oldest,
    /// The one just posted.
    Newest,
    /// None of this end's.
    None,
}

/// The queue of requests. Request number `first` is the oldest.
#[derive(Debug, Default)]
pub(super) struct Requests {
    queue: VecDeque<Request>,
    first: u64,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, request: Request) {
        self.queue.push_back(request);
    }

    /// Where the answer to the oldest unanswered request goes, if that is an `atomic` one or not.
    pub(super) fn awaited(&mut self, atomic: bool) -> Option<&mut Request> {
        let request = self.queue.iter_mut().find(|request| request.answer.is_awaited())?;
        (request.opcode.is_atomic() == atomic).then_some(request)
    }

    /// Completes everything up to request number `executed`; `None` if that is not possible.
    pub(super) fn acknowledge(&mut self, executed: u64, into: &mut Vec<Completion>) -> Option<()> {
        let count = usize::try_from(executed.checked_sub(self.first)?).ok()?;
        if count > self.queue.len() {
            return None;
        }
        for request in self.queue.drain(..count) {
            if request.answer.is_awaited() {
                return None;
            }
            if request.signalled {
                into.push(request.complete(Status::Success));
            }
        }
        self.first = executed;
        Some(())
    }

    /// Ends everything: the culprit with `status`, the rest as flushed.
    pub(super) fn flush(&mut self, culprit: Culprit, status: Status, into: &mut Vec<Completion>) {
        let last = self.queue.len().saturating_sub(1);
        for (index, request) in self.queue.drain(..).enumerate() {
            let guilty = match culprit {
                Culprit::Oldest => index == 0,
                Culprit::Newest => index == last,
                Culprit::None => false,
            };
            into.push(request.complete(if guilty { status } else { Status::Flushed }));
        }
    }
}

impl Request {
    fn complete(&self, status: Status) -> Completion {
        Completion { id: self.id, status, opcode: self.opcode, bytes: self.bytes, immediate: None }
    }
}

impl Answer {
    fn is_awaited(&self) -> bool {
        matches!(self, Self::Awaited(_))
    }
}

impl Opcode {
    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAdd)
    }
}
