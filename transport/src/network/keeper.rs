//! What a link asks of whoever keeps its rails, and what it is told.
//!
//! A link is polled by the rank that waits for it and must not wait itself; making a connection
//! takes a handshake, and a NIC may die while no call is under way. So both are done elsewhere, and
//! the two talk through this narrow contract.

mod arrivals;
mod departures;
mod directory;
mod greeter;
mod mailbox;
mod moves;
#[cfg(test)]
mod namespaces;
pub(super) mod rails;
mod redial;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;

use ccl_core::failover::watch::Question;

use crate::verbs::{Domain, QueuePair};
pub use directory::Directory;

/// Keeps the rails of one link; asked by the link, which never waits for an answer.
///
/// Paths are counted as in [`super::Endpoint::connect`]. A path's *incarnation* counts its
/// connections: the first is 0, and each replacement has a higher one, the same at both ends.
pub trait Keeper: Send + fmt::Debug {
    /// Asks whether the network answers on a path, with something small that does not depend on the
    /// peer's process being scheduled. The answer, if there is one, is [`News::Answered`]; waiting
    /// for it has no end here, the link decides when it has waited enough. If it asks again, whatever was
    /// confirmed between the two NICs since it asked before is told as [`News::Confirmed`].
    fn probe(&mut self, path: usize, question: Question);

    /// Asks for a new connection in place of one that both ends have given up, again and again
    /// until there is one or the link is dropped. It comes as [`News::Connected`]. Asking twice is
    /// asking once. `incarnation` is the one that was given up.
    fn reconnect(&mut self, path: usize, incarnation: u32);

    /// Tiles can be sent over the connection of a path now.
    fn usable(&mut self, _path: usize) {}

    /// Something was sent or has arrived, so that it matters how soon the loss of a NIC is noticed.
    fn used(&mut self) {}

    /// Whether [`Self::news`] would bring something. Cheap enough to ask at every poll.
    fn has_news(&self) -> bool;

    /// Appends what has happened since the last call, in order.
    fn news(&mut self, into: &mut Vec<News>);
}

/// Keeps nothing: a path that is given up stays so.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKeeper;

impl Keeper for NoKeeper {
    fn probe(&mut self, _path: usize, _question: Question) {}

    fn reconnect(&mut self, _path: usize, _incarnation: u32) {}

    fn has_news(&self) -> bool {
        false
    }

    fn news(&mut self, _into: &mut Vec<News>) {}
}

/// Something a link must know about one of its paths.
#[derive(Debug)]
pub enum News {
    /// The network answered a probe.
    Answered {
        /// The path.
        path: usize,
    },
    /// Nobody has answered probes yet, but between the first and the last one the peer's host has confirmed
    /// something on other connections between the two NICs.
    Confirmed {
        /// The path.
        path: usize,
    },
    /// A probe came back with the answer that the path does not exist.
    Unreachable {
        /// The path.
        path: usize,
    },
    /// A NIC of this host lost its carrier, was switched off or removed.
    Severed {
        /// The path.
        path: usize,
        /// What was seen.
        cause: String,
    },
    /// A new connection, in `ReadyToSend`, over a new domain.
    Connected {
        /// The path.
        path: usize,
        /// Its number.
        incarnation: u32,
        /// What its memory is registered with.
        domain: Box<dyn Domain>,
        /// Its queue pair.
        pair: Box<dyn QueuePair>,
    },
}
