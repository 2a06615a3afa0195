//! Devices: their memory, and what went wrong on them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ccl_emulator::Memory;

use crate::codes::{Code, Result};
use crate::connection::Connections;
use crate::settings;
use crate::stream::Stream;

/// Devices at most.
const MOST_DEVICES: u64 = 16;

/// A device with its primary context, the only one that it has.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// What its kernels may touch.
    pub(crate) memory: Arc<Memory>,
    /// What went wrong; every later call returns it.
    error: AtomicU32,
    default_stream: OnceLock<Arc<Stream>>,
    pub(crate) connections: Connections,
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            memory: Memory::new(),
            error: AtomicU32::new(0),
            default_stream: OnceLock::new(),
            connections: Connections::new(),
        }
    }

    /// All of them.
    pub(crate) fn all() -> &'static [Self] {
        static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
        DEVICES.get_or_init(|| {
            let count = settings::number(settings::DEVICES).unwrap_or(1).min(MOST_DEVICES);
            (0..count as usize).map(Self::new).collect()
        })
    }

    pub(crate) fn get(ordinal: i32) -> Result<&'static Self> {
        let ordinal = usize::try_from(ordinal).map_err(|_| Code::InvalidDevice)?;
        Self::all().get(ordinal).ok_or(Code::InvalidDevice)
    }

    /// What C calls its context.
    pub(crate) fn context(&self) -> usize {
        (self.ordinal + 1) << 8
    }

    pub(crate) fn of_context(context: usize) -> Result<&'static Self> {
        let found = Self::all().iter().find(|device| device.context() == context);
        found.ok_or(Code::InvalidContext)
    }

    /// The stream without a name.
    pub(crate) fn default_stream(&'static self) -> &'static Arc<Stream> {
        self.default_stream.get_or_init(|| Stream::start(self, 0, true, 0))
    }

    /// Notes what went wrong first.
    pub(crate) fn fail(&self, code: Code) {
        let relaxed = Ordering::Relaxed;
        // Somebody else may have been first.
        let _ = self.error.compare_exchange(0, code.number(), relaxed, relaxed);
    }

    pub(crate) fn error(&self) -> Option<Code> {
        Code::of(self.error.load(Ordering::Relaxed)).filter(|code| *code != Code::Success)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// Forgets what went wrong.
    pub(crate) fn reset(&self) {
        self.error.store(0, Ordering::Relaxed);
    }
}
