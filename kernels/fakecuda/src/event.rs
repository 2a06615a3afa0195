//! Events: how often one was recorded, and to which records streams have come.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::bell;
use crate::codes::{Code, Result};
use crate::device::Device;
use crate::graph::Captured;
use crate::ipc::Handle;
use crate::outside::{self, Mapping};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

/// Records of an event that streams may not have come to.
const RECORDS: u64 = 1023;
/// The number of the last record; and where the numbers of records go that were reached, in turn.
const COUNTERS: usize = 1 + RECORDS as usize;
const COUNTER_BYTES: usize = COUNTERS * size_of::<AtomicU64>();

#[derive(Debug)]
enum Counters {
    Own(Box<[AtomicU64]>),
    /// In memory that other processes map.
    Shared(Mapping, OwnedFd),
}

#[derive(Debug)]
pub(crate) struct Event {
    /// On whose streams it is recorded.
    pub(crate) device: &'static Device,
    counters: Counters,
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
        let counters = if is_shared {
            let file = outside::file(COUNTER_BYTES)?;
            Counters::Shared(Mapping::file(&file, COUNTER_BYTES)?, file)
        } else {
            Counters::Own((0..COUNTERS).map(|_| AtomicU64::new(0)).collect())
        };
        Ok(Self::with(device, counters, flags & DISABLE_TIMING == 0))
    }

    /// The event of another process.
    pub(crate) fn open(device: &'static Device, handle: &Handle) -> Result<Self> {
        let file = handle.open()?;
        let counters = Counters::Shared(Mapping::file(&file, COUNTER_BYTES)?, file);
        Ok(Self::with(device, counters, false))
    }

    fn with(device: &'static Device, counters: Counters, has_time: bool) -> Self {
        let (reached_at, captured) = (Mutex::new(None), Mutex::new(None));
        Self { device, counters, has_time, reached_at, captured }
    }

    /// How other processes find it.
    pub(crate) fn handle(&self) -> Result<Handle> {
        match &self.counters {
            Counters::Shared(_, file) => Handle::of(file, file.as_raw_fd(), COUNTER_BYTES, 0),
            Counters::Own(_) => Err(Code::InvalidHandle),
        }
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        match &self.counters {
            Counters::Own(counters) => &counters[index],
            Counters::Shared(mapping, _) => mapping.counter(index),
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

    /// Counts a record, and gives its number. There must be room for what says that it was reached.
    pub(crate) fn record(&self) -> Result<u64> {
        let has_room = |last: u64| self.is_reached((last + 1).saturating_sub(RECORDS));
        let next = |last: u64| has_room(last).then_some(last + 1);
        let counted = self.counter(0).fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        counted.map(|last| last + 1).map_err(|_| {
            outside::say(&format!("{RECORDS} records of an event were not reached yet"));
            Code::OutOfMemory
        })
    }

    /// The number of the last record.
    pub(crate) fn recorded(&self) -> u64 {
        self.counter(0).load(Ordering::SeqCst)
    }

    /// A stream has come to a record. Others may be reached earlier or later, whenever they were counted.
    pub(crate) fn reach(&self, number: u64) {
        if let Ok(mut reached_at) = self.reached_at.lock()
            && reached_at.is_none_or(|(last, _)| last < number)
        {
            *reached_at = Some((number, crate::settings::now()));
        }
        self.reached(number).fetch_max(number, Ordering::SeqCst);
        bell::ring();
    }

    pub(crate) fn is_reached(&self, number: u64) -> bool {
        self.reached(number).load(Ordering::SeqCst) >= number
    }

    /// Where the number is written when it is reached.
    fn reached(&self, number: u64) -> &AtomicU64 {
        self.counter(1 + (number % RECORDS) as usize)
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
    fn records_that_nobody_comes_to_need_room() {
        let event = Event::new(&Device::all()[0], 0).expect("it can be made");
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
