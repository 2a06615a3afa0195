//! What happens to a device, for all queue pairs of a domain.
//!
//! The device has one queue of events. Whoever finds it readable takes what is there and puts it into the
//! mailboxes of all, ringing their bells, so that nobody misses what another one has read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};

use super::sys::{Context, Event};
use crate::TransportError;

/// The events of a domain's device.
#[derive(Debug)]
pub(super) struct Watch {
    context: Arc<Context>,
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
}

/// What a queue pair has not looked at yet.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Numbers of what it has at the device.
    numbers: [AtomicU32; 2],
    bell: OwnedFd,
    events: Mutex<Vec<Event>>,
}

impl Watch {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, mailboxes: Mutex::default() }
    }

    /// Readable when somebody should call [`Self::gather`].
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.context.descriptor()
    }

    pub(super) fn subscribe(&self) -> Result<Arc<Mailbox>, TransportError> {
        let mailbox = Arc::new(Mailbox::new()?);
        let mut mailboxes = lock(&self.mailboxes);
        mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
        mailboxes.push(Arc::downgrade(&mailbox));
        Ok(mailbox)
    }

    /// Takes what the device has to say, and tells everybody.
    pub(super) fn gather(&self) {
        let mailboxes = lock(&self.mailboxes);
        while let Some(event) = self.context.next_event() {
            tracing::debug!(device = self.context.name(), ?event, "an event of an RDMA device");
            for mailbox in mailboxes.iter().filter_map(Weak::upgrade) {
                mailbox.put(&event);
            }
        }
    }
}

impl Mailbox {
    fn new() -> Result<Self, TransportError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|cause| TransportError::system("make an eventfd", cause))?;
        Ok(Self { numbers: Default::default(), bell, events: Mutex::default() })
    }

    /// From now on it is that of a queue pair with these numbers.
    pub(super) fn assign(&self, numbers: [u32; 2]) {
        for (own, number) in self.numbers.iter().zip(numbers) {
            own.store(number, Ordering::Relaxed);
        }
        lock(&self.events).clear();
    }

    /// An event that is there already adds nothing, so the mailbox of a queue pair that is not polled
    /// does not grow.
    fn put(&self, event: &Event) {
        let is_ours = match event {
            Event::QueuePair(number, _) => {
                self.numbers.iter().any(|own| own.load(Ordering::Relaxed) == *number)
            }
            Event::PortDown(_) | Event::Addresses(_) | Event::Fatal => true,
            Event::PortUp(_) | Event::Other => false,
        };
        let mut events = lock(&self.events);
        if is_ours && !events.contains(event) {
            events.push(event.clone());
            self.ring();
        }
    }

    pub(super) fn ring(&self) {
        // It fails only if it is ringing already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Empties it.
    pub(super) fn take(&self) -> Vec<Event> {
        // It fails only if it is not ringing.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.events))
    }

    /// Readable when it rings.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_keeps_what_concerns_its_queue_pair_once() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.assign([5, 7]);
        let pair = |number| Event::QueuePair(number, "fatal".into());
        let port = Event::PortDown(1);
        for event in [&port, &pair(4), &port, &Event::PortUp(1), &pair(5), &pair(7)] {
            mailbox.put(event);
        }
        assert_eq!(mailbox.take(), [port, pair(5), pair(7)]);
        assert_eq!(mailbox.take(), []);
        mailbox.put(&Event::Fatal);
        mailbox.assign([6, 6]);
        assert_eq!(mailbox.take(), []);
    }
}
