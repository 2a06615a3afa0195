//! What happens to the rails, for whoever wants to know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Something that happened to one path of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailEvent {
    /// When.
    pub at: Instant,
    /// The path, in words: both ends, with rank, rail and NIC.
    pub name: String,
    /// Its number among the paths of its link.
    pub path: usize,
    /// The rail of this rank that it uses.
    pub rail: usize,
    /// Which of its connections, counted from 0.
    pub incarnation: u32,
    /// What happened.
    pub kind: RailEventKind,
}

/// What happens to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RailEventKind {
    /// Silent for longer than a healthy path; it was probed.
    Suspected,
    /// Given up, and fenced at this end. What was on the way is sent again elsewhere.
    GivenUp {
        /// How it was found out.
        evidence: Evidence,
        /// What exactly was seen.
        cause: String,
        /// Tiles to send again, if the peer turns out not to have them.
        tiles: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// Tiles were handed to other paths again.
    Resent {
        /// How many.
        tiles: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The first tile since the path was given up came from the peer, or was confirmed by it.
    Resumed,
    /// In use again, over a new connection.
    Returned,
    /// It carries another part of its nominal capacity, beside the other paths of its link, than was
    /// told before; in percent, 100 at first.
    Measured {
        /// From 1 to 100.
        percent: u8,
    },
}

/// How it was found out that a path is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The device reported an error.
    Device,
    /// The connection was closed at the other end.
    Closed,
    /// The NIC of this host lost its link.
    Carrier,
    /// The peer gave it up.
    Peer,
    /// It answered nothing while others did.
    Silence,
}

impl Evidence {
    /// One word for logs and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Closed => "closed",
            Self::Carrier => "carrier",
            Self::Peer => "peer",
            Self::Silence => "silence",
        }
    }
}

/// Is told what happens to the rails. Called from whatever thread progresses the link, so it must be
/// quick and must not wait.
pub trait Witness: Send + Sync + fmt::Debug {
    /// Something happened.
    fn witness(&self, event: RailEvent);

    /// The NIC of a rail of this rank has another address, at which it listens now. The peers have to
    /// be [told](super::Directory::moved). Called from the thread that keeps the rails.
    fn moved(&self, rail: usize, address: SocketAddr) {
        let _ = (rail, address);
    }
}

/// Writes events to the log. Of the paths over one rail, which are as many as there are peers, only the first that is lost and
/// the last that returns are told at WARN.
#[derive(Debug, Default)]
pub struct Log {
    /// Paths out of use, by rail.
    lost: Mutex<BTreeMap<usize, BTreeSet<String>>>,
}

impl Log {
    /// Whether the rail was whole before.
    fn is_first(&self, rail: usize, name: &str) -> bool {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = lost.entry(rail).or_default();
        paths.insert(name.to_owned()) && paths.len() == 1
    }

    /// Whether the rail is whole again.
    fn is_last(&self, rail: usize, name: &str) -> bool {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_mut(&rail).is_some_and(|paths| paths.remove(name) && paths.is_empty())
    }
}

impl Witness for Log {
    fn witness(&self, event: RailEvent) {
        let RailEvent { name, rail, kind, incarnation, .. } = event;
        match kind {
            RailEventKind::GivenUp { evidence, cause, tiles, bytes } => {
                let evidence = evidence.name();
                if self.is_first(rail, &name) {
                    tracing::warn!(evidence, cause, tiles, bytes, incarnation, "{name}: given up");
                } else {
                    tracing::debug!(evidence, cause, tiles, bytes, incarnation, "{name}: given up");
                }
            }
            RailEventKind::Returned if self.is_last(rail, &name) => {
                tracing::warn!(
                    incarnation,
                    "{name}: in use again, as is all that was lost on this rail"
                );
            }
            RailEventKind::Returned => tracing::debug!(incarnation, "{name}: in use again"),
            RailEventKind::Suspected => tracing::debug!("{name}: silent, probed"),
            RailEventKind::Resent { tiles, bytes } => {
                tracing::debug!(tiles, bytes, "{name}: its tiles were sent again");
            }
            RailEventKind::Resumed => tracing::debug!("{name}: its traffic goes on elsewhere"),
            RailEventKind::Measured { percent } => {
                tracing::debug!(percent, "{name}: carries this part of its nominal capacity");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_on_a_rail_and_the_last_return_are_told() {
        let log = Log::default();
        assert!(log.is_first(0, "to rank 1") && !log.is_first(0, "to rank 2"));
        assert!(log.is_first(1, "to rank 1"), "another rail");
        assert!(!log.is_first(0, "to rank 1"), "it never came into use");
        assert!(!log.is_last(0, "to rank 2") && log.is_last(0, "to rank 1"));
        assert!(!log.is_last(0, "to rank 1"), "it was not lost");
        assert!(log.is_first(0, "to rank 2"));
    }
}
