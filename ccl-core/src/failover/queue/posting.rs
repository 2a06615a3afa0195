//! Requests on their way: as they are, or step by step.

use super::atomic::{Answer, Atomic, Next, Request};
use super::repair::Phase;
use super::window::{Entry, Progress};
use super::{Cause, Evidence, Kind, LogEntry, Output, Queue, Sequence};

impl Queue {
    /// Posts what waits, in order, as far as the fence and the log allow. An atomic that goes step by
    /// step holds up what is behind it.
    pub(super) fn post_waiting(&mut self, out: &mut Vec<Output>) {
        while self.phase == Phase::Running && self.atomic_is_idle() && !self.withholds() {
            let Some((sequence, entry)) = self.window.waiting() else { return };
            if sequence.0 - self.window.base().0 >= self.log_entries {
                return;
            }
            if sequence > LogEntry::MAX_SEQUENCE {
                return self.die(Cause::NumbersUsedUp, out);
            }
            self.count(&entry);
            let posted = self.window.get(sequence).expect("it was just found there");
            (posted.progress, posted.was_posted) = (Progress::Posted, true);
            match self.stepwise(entry.descriptor.kind) {
                Some(request) => self.start_atomic(sequence, request, out),
                None => {
                    let is_logged =
                        self.evidence == Evidence::Log && entry.descriptor.kind != Kind::Read;
                    let entry = is_logged.then(|| LogEntry::new(self.epoch, sequence));
                    out.push(Output::Post { rail: self.active, sequence, entry });
                }
            }
        }
    }

    fn count(&mut self, entry: &Entry) {
        if entry.was_posted {
            self.counters.resent += 1;
            self.counters.resent_bytes += entry.descriptor.bytes;
        }
    }

    /// Whether no atomic goes step by step on the active rail.
    fn atomic_is_idle(&self) -> bool {
        self.atomic.as_ref().is_none_or(|atomic| atomic.is_interrupted)
    }

    /// What to do step by step instead of posting it.
    fn stepwise(&self, kind: Kind) -> Option<Request> {
        match kind {
            _ if self.evidence != Evidence::Log => None,
            Kind::CompareAndSwap { expected, new } => {
                Some(Request::CompareAndSwap { expected, new })
            }
            Kind::FetchAdd { addend } => Some(Request::FetchAdd { addend }),
            Kind::Send | Kind::Write | Kind::WriteWithImmediate | Kind::Read => None,
        }
    }

    fn start_atomic(&mut self, sequence: Sequence, request: Request, out: &mut Vec<Output>) {
        let next = if let Some(atomic) = &mut self.atomic {
            atomic.recover(&mut self.attempts)
        } else {
            let (atomic, next) = Atomic::start(sequence, request, self.client, &mut self.attempts);
            self.atomic = Some(atomic);
            next
        };
        self.follow(next, out);
    }

    pub(super) fn answered(&mut self, answer: Answer, out: &mut Vec<Output>) {
        let Some(atomic) = &mut self.atomic else { return };
        let next = atomic.answered(answer, &mut self.attempts);
        self.follow(next, out);
    }

    fn follow(&mut self, next: Next, out: &mut Vec<Output>) {
        let Some(atomic) = &self.atomic else { return };
        let sequence = atomic.sequence;
        match next {
            Next::Step(step) => out.push(Output::Step { rail: self.active, sequence, step }),
            Next::Done(word) => {
                self.counters.recovered += u64::from(atomic.was_recovered);
                self.atomic = None;
                self.executed(sequence, Some(word), out);
            }
            Next::Impossible => self.die(Cause::Refused(Some(sequence)), out),
        }
    }
}
