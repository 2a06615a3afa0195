//! What happened to a queue pair, for those who want to know.

use std::collections::VecDeque;
use std::fmt;

use ccl_transport::clock;

/// Events that wait to be taken; the oldest is forgotten for one more.
const MOST_EVENTS: usize = 1024;

/// Something that happened to the rails of a queue pair. None of it needs an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was seen, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The rail: of an interruption the one that was left, otherwise the one in use.
    pub rail: usize,
    /// What it was.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The rail in use was lost: requests wait.
    Interrupted,
    /// Requests flow again.
    Resumed,
    /// Requests have moved back to the default rail, which is whole again.
    Returned,
    /// The queue pair has ended.
    Failed,
}

impl EventKind {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::Resumed => "resumed",
            Self::Returned => "returned",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on rail {}", self.kind.name(), self.rail)
    }
}

/// How a queue pair is, as far as events are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) is_running: bool,
    pub(super) has_failed: bool,
    /// Requests are held back for the return to the default rail.
    pub(super) is_returning: bool,
    pub(super) rail: usize,
    /// Times that requests began to flow again.
    pub(super) repairs: u64,
}

/// Makes events of snapshots.
#[derive(Debug, Default)]
pub(super) struct Chronicle {
    last: Snapshot,
    /// Requests do not flow; whether that is for a return.
    pause: Option<bool>,
    events: VecDeque<Event>,
}

impl Chronicle {
    /// Looks at what has changed.
    pub(super) fn look(&mut self, now: Snapshot) {
        if now == self.last {
            return;
        }
        let before = std::mem::replace(&mut self.last, now);
        let has_stopped = !now.is_running || now.repairs > before.repairs;
        if before.is_running && has_stopped && !now.has_failed {
            self.pause = Some(before.is_returning);
            if !before.is_returning {
                self.tell(EventKind::Interrupted, before.rail);
            }
        }
        if now.is_running
            && let Some(is_return) = self.pause.take()
        {
            let is_back = is_return && now.rail == 0;
            let kind = if is_back { EventKind::Returned } else { EventKind::Resumed };
            self.tell(kind, now.rail);
        }
        if now.has_failed && !before.has_failed {
            self.tell(EventKind::Failed, now.rail);
        }
    }

    fn tell(&mut self, kind: EventKind, rail: usize) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        let at_ns = clock::monotonic_ns(clock::now());
        tracing::debug!(rail, event = kind.name(), "a virtual queue pair");
        self.events.push_back(Event { at_ns, rail, kind });
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_a_return_and_the_end_are_told_once_each() {
        let running = Snapshot { is_running: true, ..Snapshot::default() };
        let stopped = Snapshot { is_running: false, ..running };
        let backup = Snapshot { rail: 1, repairs: 1, ..running };
        let returning = Snapshot { is_returning: true, ..backup };
        let back = Snapshot { repairs: 2, ..running };
        let again = Snapshot { rail: 2, repairs: 3, ..running };
        let failed = Snapshot { is_running: false, has_failed: true, ..again };
        let mut chronicle = Chronicle::default();
        for now in [running, stopped, backup, returning, back, again, failed, failed] {
            chronicle.look(now);
        }
        let told: Vec<_> = chronicle.take().iter().map(Event::to_string).collect();
        let expected = [
            "interrupted on rail 0",
            "resumed on rail 1",
            "returned on rail 0",
            "interrupted on rail 0",
            "resumed on rail 2",
            "failed on rail 2",
        ];
        assert_eq!(told, expected);
        assert!(chronicle.take().is_empty());
    }
}
