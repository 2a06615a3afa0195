//! Streams that wait for marks of other ranks: who has not written one, and how they go on when nobody will.
//!
//! A stream waits for marks call by call, so one word for all calls, which the kernels have, is not enough: whoever lets
//! a stream go writes the marks that it waits for to the words of its own rank, again and again until the call is over,
//! because ranks that are late write there too; and it does so call by call. A stream may come to a call long after the
//! communicator has failed, so that is the work of a thread that goes when no such call is left.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{BesideCaptures, Event, Exchange, Moment};
use ccl_transport::clock;

use super::watch::OnPanic;
use super::windows::Shared;
use crate::cuda::staging::Milestone;
use crate::driver::lock;

/// Between two attempts to let a stream go.
const PAUSE: Duration = Duration::from_millis(1);

/// A call in which a stream waits for marks. Dropping it before the call is over lets the stream go.
#[derive(Debug)]
pub(super) struct Hold(Arc<Held>);

/// What the stream needs until it has come past the call.
#[derive(Debug)]
struct Held {
    exchange: Arc<Exchange>,
    /// From where it copies.
    _window: Arc<Shared>,
    /// How many such calls there were, with this one.
    number: u64,
    marks: Marks,
    ended: Arc<Milestone>,
    /// The same moment, for those who may ask the driver: a driver that refuses the other may have taken this.
    end: Option<Arc<Event>>,
    releases: Arc<Releases>,
}

/// The mark of a call, and that of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) before: u32,
    pub(super) own: u32,
}

impl Hold {
    pub(super) fn new(
        (exchange, window): (Arc<Exchange>, Arc<Shared>),
        (number, marks): (u64, Marks),
        (ended, end): (Arc<Milestone>, Option<Arc<Event>>),
        releases: &Arc<Releases>,
    ) -> Self {
        let releases = Arc::clone(releases);
        Self(Arc::new(Held { exchange, _window: window, number, marks, ended, end, releases }))
    }

    /// Who has not come, after a look at the region.
    pub(super) fn awaited(&self) -> Absent {
        let Held { exchange, marks, .. } = &*self.0;
        let absent = marks.absent(&exchange.marks(Moment::Ready), &exchange.gone());
        if absent == Absent::default() {
            let taken = exchange.marks(Moment::Taken).into_iter();
            let slow = taken.filter(|(_, mark)| *mark != marks.own).map(|(place, _)| place);
            return Absent { slow: slow.collect(), ..absent };
        }
        absent
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.0.is_over() {
            Releases::add(&self.0);
        }
    }
}

impl Held {
    fn is_over(&self) -> bool {
        // On a device that has failed nothing waits, and nothing is written any more.
        self.ended.has_happened() || self.ended.broken().is_some()
    }

    /// As [`Self::is_over`], and also where the stream could not be made to tell it. It asks the driver.
    fn is_past(&self) -> bool {
        let has_happened = |end: &Arc<Event>| matches!(end.has_happened(), Ok(true));
        self.is_over() || self.end.as_ref().is_some_and(has_happened)
    }
}

impl Marks {
    /// Who has not written the mark of the call, of whom these were found, and whose streams were let go: they may have
    /// come to later calls, whatever they have called in this one.
    fn absent(self, found: &[(usize, u32)], gone: &[usize]) -> Absent {
        let places = |is_meant: &dyn Fn(usize, u32) -> bool| {
            let meant = found.iter().filter(|(place, mark)| is_meant(*place, *mark));
            meant.map(|(place, _)| *place).collect()
        };
        let is_other = |mark| mark != self.before && mark != self.own;
        Absent {
            late: places(&|_, mark| mark == self.before),
            astray: places(&|place, mark| is_other(mark) && !gone.contains(&place)),
            left: places(&|place, mark| is_other(mark) && gone.contains(&place)),
            slow: Vec::new(),
        }
    }
}

/// The ranks that a call waits for, by their places in the exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Absent {
    /// They have not come.
    pub(super) late: Vec<usize>,
    /// They have come to another call.
    pub(super) astray: Vec<usize>,
    /// They do not wait in it any more.
    pub(super) left: Vec<usize>,
    /// They have come, and still copy.
    pub(super) slow: Vec<usize>,
}

impl Absent {
    /// In words, for these members of the exchange.
    pub(super) fn described(&self, members: &[Rank]) -> String {
        let told =
            |places: &[usize], one: &dyn Fn(&str) -> String, several: &dyn Fn(&str) -> String| {
                let names: Vec<String> =
                    places.iter().map(|place| format!("rank {}", members[*place])).collect();
                match names.as_slice() {
                    [] => None,
                    [name] => Some(one(name)),
                    names => Some(several(&names.join(", "))),
                }
            };
        let parts = [
            told(
                &self.late,
                &|name| format!("the device of {name} has not come to it"),
                &|names| format!("the devices of {names} have not come to it"),
            ),
            told(&self.astray, &|name| format!("{name} has called something else"), &|names| {
                format!("{names} have called something else")
            }),
            told(&self.left, &|name| format!("{name} has left it"), &|names| {
                format!("{names} have left it")
            }),
            told(
                &self.slow,
                &|name| format!("all ranks have come, and {name} has not finished"),
                &|names| format!("all ranks have come, and {names} have not finished"),
            ),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return "all ranks have come, and some have not finished".to_owned();
        }
        parts.join("; ")
    }
}

/// Calls whose streams are to go on.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<Waiting<Arc<Held>>>);

impl Releases {
    /// Lets the stream of one more call go on.
    fn add(held: &Arc<Held>) {
        let releases = Arc::clone(&held.releases);
        let mut waiting = lock(&releases.0);
        if !waiting.add(held.number, Arc::clone(held)) {
            let own = Arc::clone(&releases);
            let run = move || {
                let _guard = OnPanic(|| lock(&own.0).is_served = false);
                own.run();
            };
            let started = thread::Builder::new().name("r2ccl-release".into()).spawn(run);
            if let Err(cause) = started {
                // The next call tries again, as after a panic.
                waiting.is_served = false;
                tracing::error!(%cause, "a stream waits for ranks that do not come");
            }
        }
    }

    /// Until no call is left. Streams come to calls in their order.
    fn run(&self) {
        let _beside = BesideCaptures::begin();
        loop {
            let Some(held) = lock(&self.0).first() else { return };
            if held.is_past() {
                lock(&self.0).calls.remove(&held.number);
                continue;
            }
            if let Err(error) = held.exchange.let_go(held.marks.own) {
                tracing::debug!(%error, "a stream is not let go");
            }
            clock::sleep(PAUSE);
        }
    }
}

/// Calls by their numbers, and whether a thread is there for them.
#[derive(Debug)]
struct Waiting<T> {
    calls: BTreeMap<u64, T>,
    is_served: bool,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { calls: BTreeMap::new(), is_served: false }
    }
}

impl<T: Clone> Waiting<T> {
    /// Whether a thread was there for it. Else whoever adds it starts one, or says that there is none.
    fn add(&mut self, number: u64, call: T) -> bool {
        self.calls.insert(number, call);
        mem::replace(&mut self.is_served, true)
    }

    /// The first call. Where there is none, the thread that asks ends.
    fn first(&mut self) -> Option<T> {
        let first = self.calls.first_key_value().map(|(_, call)| call.clone());
        self.is_served = first.is_some();
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_wanted_until_there_is_one() {
        let mut waiting = Waiting::default();
        assert!(!waiting.add(2, "later"));
        // It could not be started.
        waiting.is_served = false;
        assert!(!waiting.add(1, "first"));
        assert!(waiting.add(3, "last"));
        for (number, call) in [(1, "first"), (2, "later"), (3, "last")] {
            assert_eq!(waiting.first(), Some(call));
            waiting.calls.remove(&number);
        }
        assert_eq!(waiting.first(), None);
        assert!(!waiting.add(4, "after it has ended"));
    }

    #[test]
    fn who_is_waited_for_is_named() {
        let marks = Marks { before: 7, own: 9 };
        let members = [4, 5, 6, 8].map(Rank);
        let told = |found: &[(usize, u32)]| marks.absent(found, &[]).described(&members);
        assert_eq!(told(&[(1, 7), (2, 9)]), "the device of rank 5 has not come to it");
        assert_eq!(
            told(&[(1, 7), (2, 7), (3, 3)]),
            "the devices of rank 5, rank 6 have not come to it; rank 8 has called something else"
        );
        let gone = marks.absent(&[(0, 9), (1, 7), (2, 3), (3, 3)], &[0, 2]).described(&members);
        let expected = [
            "the device of rank 5 has not come to it",
            "rank 8 has called something else",
            "rank 6 has left it",
        ];
        assert_eq!(gone, expected.join("; "));
        let slow = Absent { slow: vec![0], ..marks.absent(&[(1, 9)], &[]) };
        assert_eq!(slow.described(&members), "all ranks have come, and rank 4 has not finished");
    }
}
