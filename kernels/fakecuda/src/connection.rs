//! Queues between the host and a device, which streams share where there are more streams than queues: what waits in one
//! stream holds up everything that was put into another one behind it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::bell;
use crate::settings;

/// One queue.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// Pieces of work that were ever put in, and that have left.
    entered: AtomicU64,
    left: AtomicU64,
}

/// The place of a piece of work in a queue, which it leaves when this is dropped. Whoever drops it has come first.
#[derive(Debug)]
pub(crate) struct Place {
    connection: &'static Connection,
    number: u64,
}

impl Connection {
    /// The last place.
    pub(crate) fn enter(&'static self) -> Place {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        Place { connection: self, number }
    }
}

impl Place {
    /// Waits until everything before it has left.
    pub(crate) fn come(&self) {
        bell::wait_until(|| self.connection.left.load(Ordering::Acquire) == self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connection.left.store(self.number + 1, Ordering::Release);
        bell::ring();
    }
}

/// Those of a device; none if every stream has one of its own.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: Vec<Connection>,
    given: AtomicUsize,
}

impl Connections {
    /// As many as the environment says.
    pub(crate) fn new() -> Self {
        let count = settings::connections();
        Self { all: (0..count).map(|_| Connection::default()).collect(), ..Self::default() }
    }

    /// That of one more stream: they take them in turn.
    pub(crate) fn next(&'static self) -> Option<&'static Connection> {
        let given = self.given.fetch_add(1, Ordering::Relaxed);
        self.all.get(given.checked_rem(self.all.len())?)
    }
}
