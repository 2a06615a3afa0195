//! Between a link and the keeper's thread: news one way, orders the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ccl_core::failover::watch::Question;
use rustix::event::{EventfdFlags, eventfd};

use super::directory::Move;
use super::greeter::Greeted;
use super::{Keeper, News};
use crate::TransportError;

/// What the keeper's thread is to do.
#[derive(Debug)]
pub(super) enum Order {
    Probe {
        link: usize,
        path: usize,
        question: Question,
    },
    Reconnect {
        link: usize,
        path: usize,
        incarnation: u32,
    },
    /// Tiles can be sent over the connection of a path.
    Usable {
        link: usize,
        path: usize,
    },
    /// Links that nobody used for a while are used again.
    Look,
    /// A peer listens elsewhere.
    Moved(Move),
    /// The link is gone.
    Close {
        link: usize,
    },
    /// A helper has finished.
    Greeted(Greeted),
}

/// Wakes the keeper's thread.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Self, TransportError> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|cause| TransportError::system("create an eventfd", cause))
    }

    pub(super) fn ring(&self) {
        // It fails only when it has been rung more often than it can count.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it silent until it is rung again.
    pub(super) fn damp(&self) {
        // It fails only when it is silent.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// News that a link has not collected.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<News>>,
    has_news: AtomicBool,
}

impl Mailbox {
    /// Delivers something, in place of older news of the same kind about the same path: so a link that
    /// nobody polls for hours has one connection per path, and not all that there have been.
    pub(super) fn deliver(&self, news: News) {
        let mut letters = self.letters();
        letters.retain(|letter| subject(letter) != subject(&news));
        letters.push(news);
        self.has_news.store(true, Ordering::Relaxed);
    }

    fn collect(&self, into: &mut Vec<News>) {
        let mut letters = self.letters();
        self.has_news.store(false, Ordering::Relaxed);
        into.append(&mut letters);
    }

    fn letters(&self) -> MutexGuard<'_, Vec<News>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path and the kind of news about it.
fn subject(news: &News) -> (usize, u8) {
    match news {
        News::Answered { path } => (*path, 0),
        News::Unreachable { path } => (*path, 1),
        News::Severed { path, .. } => (*path, 2),
        News::Connected { path, .. } => (*path, 3),
        News::Confirmed { path } => (*path, 4),
    }
}

/// Whether links are used, so that the keeper looks at its NICs as often as that is worth it.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    is_used: AtomicBool,
    is_dozing: AtomicBool,
}

impl Vigil {
    /// A link is used. Tells whether the keeper must hear of it.
    fn stir(&self) -> bool {
        // Looked at before they are changed, since that is felt where links share the line.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        self.is_dozing.load(Ordering::Relaxed) && self.is_dozing.swap(false, Ordering::Relaxed)
    }

    /// Whether a link was used since this was asked last.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    /// The keeper wants to hear of the next use.
    pub(super) fn doze(&self) {
        self.is_dozing.store(true, Ordering::Relaxed);
    }
}

/// What all links of one keeper share.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) orders: Sender<Order>,
    pub(super) bell: Arc<Bell>,
    pub(super) vigil: Arc<Vigil>,
    /// Links that have not been dropped.
    pub(super) links: AtomicUsize,
    /// Joined by whoever drops the last link.
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl Office {
    pub(super) fn order(&self, order: Order) {
        // Nobody takes orders when the keeper could not be started; then nothing is promised.
        let _ = self.orders.send(order);
        self.bell.ring();
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn employ(&self, thread: JoinHandle<()>) {
        *self.thread() = Some(thread);
    }
}

/// The keeper as one link sees it.
#[derive(Debug)]
pub(super) struct LinkKeeper {
    pub(super) link: usize,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) office: Arc<Office>,
}

impl Keeper for LinkKeeper {
    fn probe(&mut self, path: usize, question: Question) {
        self.office.order(Order::Probe { link: self.link, path, question });
    }

    fn reconnect(&mut self, path: usize, incarnation: u32) {
        self.office.order(Order::Reconnect { link: self.link, path, incarnation });
    }

    fn usable(&mut self, path: usize) {
        self.office.order(Order::Usable { link: self.link, path });
    }

    fn used(&mut self) {
        if self.office.vigil.stir() {
            self.office.order(Order::Look);
        }
    }

    fn has_news(&self) -> bool {
        self.mailbox.has_news.load(Ordering::Relaxed)
    }

    fn news(&mut self, into: &mut Vec<News>) {
        self.mailbox.collect(into);
    }
}

impl Drop for LinkKeeper {
    /// The last link ends the thread and waits for that: it waits for nothing itself.
    fn drop(&mut self) {
        self.office.order(Order::Close { link: self.link });
        if self.office.links.fetch_sub(1, Ordering::AcqRel) == 1 {
            let thread = self.office.thread().take();
            // A thread that panicked has said so.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dozing_keeper_hears_of_the_next_use_once() {
        let vigil = Vigil::default();
        assert!(!vigil.was_used() && !vigil.stir() && vigil.was_used() && !vigil.was_used());
        vigil.doze();
        assert!(vigil.stir() && !vigil.stir());
    }

    #[test]
    fn the_latest_news_of_a_kind_counts() {
        let mailbox = Mailbox::default();
        let severed = |path, cause: &str| News::Severed { path, cause: cause.to_owned() };
        for news in [
            severed(0, "a"),
            News::Answered { path: 0 },
            severed(1, "b"),
            severed(0, "c"),
            News::Unreachable { path: 0 },
        ] {
            mailbox.deliver(news);
        }
        assert!(mailbox.has_news.load(Ordering::Relaxed));
        let mut news = Vec::new();
        mailbox.collect(&mut news);
        let expected = [
            News::Answered { path: 0 },
            severed(1, "b"),
            severed(0, "c"),
            News::Unreachable { path: 0 },
        ];
        assert_eq!(format!("{news:?}"), format!("{expected:?}"));
        assert!(!mailbox.has_news.load(Ordering::Relaxed));
    }
}
