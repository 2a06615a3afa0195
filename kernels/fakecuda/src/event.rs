//! Events: how often one was recorded, and how often a stream has come to a record.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::bell;
use crate::codes::{Code, Result};
use crate::graph::Captured;
use crate::ipc::Handle;
use crate::outside::{self, Mapping};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

const COUNTERS: usize = 2;

#[derive(Debug)]
enum Counters {
    Own([AtomicU64; COUNTERS]),
    /// In memory that other processes map.
    Shared(Mapping, OwnedFd),
}

#[derive(Debug)]
pub(crate) struct Event {
    counters: Counters,
    has_time: bool,
    reached_at: Mutex<Option<Instant>>,
    /// Where in a capture it was recorded last.
    pub(crate) captured: Mutex<Option<Captured>>,
}

impl Event {
    pub(crate) fn new(flags: u32) -> Result<Self> {
        let is_shared = flags & INTERPROCESS != 0;
        if flags & !7 != 0 || is_shared && flags & DISABLE_TIMING == 0 {
            return Err(Code::InvalidValue);
        }
        let counters = if is_shared {
            let file = outside::file(COUNTERS * 8)?;
            Counters::Shared(Mapping::file(&file, COUNTERS * 8)?, file)
        } else {
            Counters::Own([AtomicU64::new(0), AtomicU64::new(0)])
        };
        Ok(Self::with(counters, flags & DISABLE_TIMING == 0))
    }

    /// The event of another process.
    pub(crate) fn open(handle: &Handle) -> Result<Self> {
        let file = handle.open()?;
        Ok(Self::with(Counters::Shared(Mapping::file(&file, COUNTERS * 8)?, file), false))
    }

    fn with(counters: Counters, has_time: bool) -> Self {
        Self { counters, has_time, reached_at: Mutex::new(None), captured: Mutex::new(None) }
    }

    /// How other processes find it.
    pub(crate) fn handle(&self) -> Result<Handle> {
        match &self.counters {
            Counters::Shared(_, file) => Handle::of(file, file.as_raw_fd(), COUNTERS * 8, 0),
            Counters::Own(_) => Err(Code::InvalidHandle),
        }
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        match &self.counters {
            Counters::Own(counters) => &counters[index],
            Counters::Shared(mapping, _) => mapping.counter(index),
        }
    }

    /// Counts a record, and gives its number.
    pub(crate) fn record(&self) -> u64 {
        self.counter(0).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The number of the last record.
    pub(crate) fn recorded(&self) -> u64 {
        self.counter(0).load(Ordering::SeqCst)
    }

    /// A stream has come to a record.
    pub(crate) fn reach(&self, number: u64) {
        if let Ok(mut reached_at) = self.reached_at.lock() {
            *reached_at = Some(crate::settings::now());
        }
        self.counter(1).fetch_max(number, Ordering::SeqCst);
        bell::ring();
    }

    pub(crate) fn is_reached(&self, number: u64) -> bool {
        self.counter(1).load(Ordering::SeqCst) >= number
    }

    /// Milliseconds from one event to another.
    pub(crate) fn elapsed(&self, end: &Self) -> Result<f32> {
        if !self.has_time || !end.has_time || self.recorded() == 0 || end.recorded() == 0 {
            return Err(Code::InvalidHandle);
        }
        if !self.is_reached(self.recorded()) || !end.is_reached(end.recorded()) {
            return Err(Code::NotReady);
        }
        let time = |event: &Self| event.reached_at.lock().ok().and_then(|time| *time);
        let (Some(start), Some(end)) = (time(self), time(end)) else {
            return Err(Code::InvalidHandle);
        };
        let forward = end.saturating_duration_since(start).as_secs_f32();
        let backward = start.saturating_duration_since(end).as_secs_f32();
        Ok((forward - backward) * 1e3)
    }
}
