//! Events: how often one was recorded, and to which records streams have come.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::bell;
use crate::codes::{Code, Result};
use crate::device::Device;
use crate::graph::Captured;
use crate::ipc::Handle;
use crate::outside::{self, Mapping};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

/// Records of an event of several processes that streams may not have come to.
const RECORDS: u64 = 1023;
/// The number of the last record; and where the numbers of records go that were reached, in turn.
const COUNTERS: usize = 1 + RECORDS as usize;
const COUNTER_BYTES: usize = COUNTERS * size_of::<AtomicU64>();

#[derive(Debug)]
enum Records {
    /// Of this process alone.
    Own(Mutex<Own>),
    /// In memory that other processes map.
    Shared(Shared, OwnedFd),
}

#[derive(Debug, Default)]
struct Own {
    /// The number of the last one.
    last: u64,
    /// Those to which streams have not come.
    open: BTreeSet<u64>,
}

impl Own {
    fn record(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last);
        self.last
    }
}

fn lock(own: &Mutex<Own>) -> MutexGuard<'_, Own> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shared(Mapping);

impl Shared {
    fn new(file: &OwnedFd) -> Result<Self> {
        Mapping::file(file, COUNTER_BYTES).map(Self)
    }

    /// The number of the last one.
    fn last(&self) -> &AtomicU64 {
        self.0.counter(0)
    }

    /// There must be room for what says that it was reached.
    fn record(&self) -> Result<u64> {
        let has_room = |last: u64| self.is_reached((last + 1).saturating_sub(RECORDS));
        let next = |last: u64| has_room(last).then_some(last + 1);
        let counted = self.last().fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        counted.map(|last| last + 1).map_err(|_| {
            outside::say(&format!("{RECORDS} records of an event were not reached yet"));
            Code::OutOfMemory
        })
    }

    fn is_reached(&self, number: u64) -> bool {
        self.reached(number).load(Ordering::SeqCst) >= number
    }

    /// Where the number is written when it is reached.
    fn reached(&self, number: u64) -> &AtomicU64 {
        self.0.counter(1 + (number % RECORDS) as usize)
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    /// On whose streams it is recorded.
    pub(crate) device: &'static Device,
    records: Records,
    has_time: bool,
    /// The last record that was reached, and when.
    reached_at: Mutex<Option<(u64, Instant)>>,
    /// Where in a capture it was recorded last.
    captured: Mutex<Option<Captured>>,
}

impl Event {
    pub(crate) fn new(device: &'static Device, flags: u32) -> Result<Self> {
        let is_shared = flags & INTERPROCESS != 0;
        if flags & !7 != 0 || is_shared && flags & DISABLE_TIMING == 0 {
            return Err(Code::InvalidValue);
        }
        let records = if is_shared {
            let file = outside::file(COUNTER_BYTES)?;
            Records::Shared(Shared::new(&file)?, file)
        } else {
            Records::Own(Mutex::default())
        };
        Ok(Self::with(device, records, flags & DISABLE_TIMING == 0))
    }

    /// The event of another process.
    pub(crate) fn open(device: &'static Device, handle: &Handle) -> Result<Self> {
        let file = handle.open()?;
        let records = Records::Shared(Shared::new(&file)?, file);
        Ok(Self::with(device, records, false))
    }

    fn with(device: &'static Device, records: Records, has_time: bool) -> Self {
        let (reached_at, captured) = (Mutex::new(None), Mutex::new(None));
        Self { device, records, has_time, reached_at, captured }
    }

    /// How other processes find it.
    pub(crate) fn handle(&self) -> Result<Handle> {
        match &self.records {
            Records::Shared(_, file) => Handle::of(file, file.as_raw_fd(), COUNTER_BYTES, 0),
            Records::Own(_) => Err(Code::InvalidHandle),
        }
    }

    /// The place in a capture in which it was recorded last, if it was in one.
    pub(crate) fn captured(&self) -> Result<Option<Captured>> {
        Ok(self.captured.lock().map_err(|_| Code::Unknown)?.clone())
    }

    pub(crate) fn set_captured(&self, captured: Option<Captured>) -> Result<()> {
        *self.captured.lock().map_err(|_| Code::Unknown)? = captured;
        Ok(())
    }

    /// Counts a record, and gives its number.
    pub(crate) fn record(&self) -> Result<u64> {
        match &self.records {
            Records::Own(own) => Ok(lock(own).record()),
            Records::Shared(shared, _) => shared.record(),
        }
    }

    /// The number of the last record.
    pub(crate) fn recorded(&self) -> u64 {
        match &self.records {
            Records::Own(own) => lock(own).last,
            Records::Shared(shared, _) => shared.last().load(Ordering::SeqCst),
        }
    }

    /// A stream has come to a record. Others may be reached earlier or later, whenever they were counted.
    pub(crate) fn reach(&self, number: u64) {
        if let Ok(mut reached_at) = self.reached_at.lock()
            && reached_at.is_none_or(|(last, _)| last < number)
        {
            *reached_at = Some((number, crate::settings::now()));
        }
        match &self.records {
            Records::Own(own) => drop(lock(own).open.remove(&number)),
            Records::Shared(shared, _) => {
                shared.reached(number).fetch_max(number, Ordering::SeqCst);
            }
        }
        bell::ring();
    }

    pub(crate) fn is_reached(&self, number: u64) -> bool {
        match &self.records {
            Records::Own(own) => !lock(own).open.contains(&number),
            Records::Shared(shared, _) => shared.is_reached(number),
        }
    }

    /// Milliseconds from one event to another.
    pub(crate) fn elapsed(&self, end: &Self) -> Result<f32> {
        let is_comparable =
            self.device.ordinal == end.device.ordinal && self.has_time && end.has_time;
        if !is_comparable || self.recorded() == 0 || end.recorded() == 0 {
            return Err(Code::InvalidHandle);
        }
        if !self.is_reached(self.recorded()) || !end.is_reached(end.recorded()) {
            return Err(Code::NotReady);
        }
        let time =
            |event: &Self| event.reached_at.lock().ok().and_then(|time| time.map(|last| last.1));
        let (Some(start), Some(end)) = (time(self), time(end)) else {
            return Err(Code::InvalidHandle);
        };
        let forward = end.saturating_duration_since(start).as_secs_f32();
        let backward = start.saturating_duration_since(end).as_secs_f32();
        Ok((forward - backward) * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_reached_one_by_one() {
        for flags in [0, INTERPROCESS | DISABLE_TIMING] {
            let event = Event::new(&Device::all()[0], flags).expect("it can be made");
            let numbers: Vec<u64> = (0..3).map(|_| event.record().expect("room")).collect();
            event.reach(numbers[2]);
            assert_eq!(
                [0, 1, 2].map(|index| event.is_reached(numbers[index])),
                [false, false, true]
            );
            event.reach(numbers[0]);
            assert!(event.is_reached(numbers[0]) && !event.is_reached(numbers[1]));
        }
    }

    #[test]
    fn records_that_nobody_comes_to_need_room_if_other_processes_look_at_them() {
        let own = Event::new(&Device::all()[0], 0).expect("it can be made");
        assert!((1..2 * RECORDS).all(|number| own.record() == Ok(number)));
        let flags = INTERPROCESS | DISABLE_TIMING;
        let event = Event::new(&Device::all()[0], flags).expect("it can be made");
        let first = event.record().expect("room");
        for _ in 1..RECORDS {
            let number = event.record().expect("room");
            event.reach(number);
        }
        assert_eq!(event.record(), Err(Code::OutOfMemory));
        event.reach(first);
        assert_eq!(event.record(), Ok(first + RECORDS));
    }
}
