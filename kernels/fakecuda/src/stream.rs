//! Streams: work in order, each on a thread of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::bell;
use crate::codes::{Code, Result};
use crate::connection::{Connection, Place};
use crate::device::Device;
use crate::graph::Captured;
use crate::settings;
use crate::work::Work;

/// How far another stream must have come first.
pub(crate) type After = (Arc<Stream>, u64);

/// A piece of work, and what comes before it.
#[derive(Debug)]
struct Item {
    work: Work,
    after: Vec<After>,
    /// If the stream shares a connection with others.
    place: Option<Place>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Pieces of work that were ever put in, and that have ended.
    entered: u64,
    ended: u64,
    is_closed: bool,
    capture: Option<Captured>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: &'static Device,
    /// What it is called by; the default stream of a device has none.
    pub(crate) number: usize,
    /// Takes turns with the default stream of the device.
    pub(crate) is_blocking: bool,
    pub(crate) priority: i32,
    connection: Option<&'static Connection>,
    queue: Mutex<Queue>,
    /// Work was put in, or the stream was closed. Of hundreds of streams that a program has, few have work.
    filled: Condvar,
}

impl Stream {
    /// A stream, with its thread.
    pub(crate) fn start(
        device: &'static Device,
        number: usize,
        is_blocking: bool,
        priority: i32,
    ) -> Arc<Self> {
        let (queue, filled) = (Mutex::default(), Condvar::new());
        let connection = device.connections.next();
        let stream =
            Arc::new(Self { device, number, is_blocking, priority, connection, queue, filled });
        let own = Arc::clone(&stream);
        let named = thread::Builder::new().name("fakecuda-stream".to_owned());
        let started = named.spawn(move || own.work());
        assert!(started.is_ok(), "a thread can be started");
        stream
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread does until the stream is closed.
    fn work(&self) {
        while let Some(Item { work, after, place }) = self.next() {
            for (stream, entered) in after {
                bell::wait_until(|| stream.queue().ended >= entered);
            }
            let place = place.inspect(Place::come);
            // What runs has left; what waits does not until it has.
            let _place = place.filter(|_| work.only_waits());
            // Nothing runs on a device that has failed; but nobody waits for ever either.
            let outcome = match (self.device.error(), &work) {
                (Some(_), Work::Reach(..)) | (None, _) => work.run(self.device),
                (Some(_), _) => Ok(()),
            };
            if let Err(code) = outcome {
                self.device.fail(code);
            }
            self.queue().ended += 1;
            bell::ring();
        }
    }

    /// The next piece of work, once there is one; `None` where none will come.
    fn next(&self) -> Option<Item> {
        let is_empty = |queue: &mut Queue| queue.items.is_empty() && !queue.is_closed;
        let queue = self.filled.wait_while(self.queue(), is_empty);
        queue.unwrap_or_else(PoisonError::into_inner).items.pop_front()
    }

    /// Puts work at the end, behind what other streams have been given, or into the capture. If there is no room it waits.
    /// Gives how far the stream will have come when it is done; 0 in a capture.
    pub(crate) fn push(&self, work: Work, after: Vec<After>) -> Result<u64> {
        let mut queue = self.queue();
        while queue.capture.is_none() && queue.items.len() >= settings::most_queued() {
            drop(queue);
            bell::wait_until(|| self.queue().items.len() < settings::most_queued());
            queue = self.queue();
        }
        if let Some(capture) = &mut queue.capture {
            return capture.push(work).map(|()| 0);
        }
        let place = self.connection.map(Connection::enter);
        queue.items.push_back(Item { work, after, place });
        queue.entered += 1;
        let entered = queue.entered;
        drop(queue);
        self.filled.notify_one();
        Ok(entered)
    }

    /// How much was put in so far.
    pub(crate) fn entered(&self) -> u64 {
        self.queue().entered
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue();
        queue.ended == queue.entered
    }

    /// Waits until everything that is in it now has ended. Nobody may while it is captured.
    pub(crate) fn finish(&self) -> Result<()> {
        self.require_no_capture()?;
        self.drain()
    }

    /// Whatever must not be done to a stream that is captured begins with this: the capture comes to nothing.
    pub(crate) fn require_no_capture(&self) -> Result<()> {
        let refused =
            |captured: Captured| Err(captured.capture.invalidate(Code::CaptureUnsupported));
        self.captured().map_or(Ok(()), refused)
    }

    /// Waits until everything that is in it now has ended; what is captured is not in it.
    pub(crate) fn drain(&self) -> Result<()> {
        let entered = self.entered();
        bell::wait_until(|| self.queue().ended >= entered);
        self.device.check()
    }

    /// Ends the thread when its work is done.
    pub(crate) fn close(&self) {
        self.queue().is_closed = true;
        self.filled.notify_one();
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.queue().capture.is_some()
    }

    /// The place that a capture has come to in this stream.
    pub(crate) fn captured(&self) -> Option<Captured> {
        self.queue().capture.clone()
    }

    pub(crate) fn set_captured(&self, captured: Option<Captured>) {
        self.queue().capture = captured;
    }
}
