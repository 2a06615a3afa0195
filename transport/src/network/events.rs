//! What happens to the rails, for whoever wants to know.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Losses of paths over one rail that are found out in one way within this time have one cause.
const ONE_LOSS: Duration = Duration::from_secs(10);

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
    /// The NIC of the peer had none when the ranks met: it said so.
    PeerCarrier,
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
            Self::PeerCarrier => "peer-carrier",
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

/// Writes events to the log. A rail has as many paths as there are peers, and often loses all at once: only the first that is
/// lost is told at WARN, and those that are lost much later or are found out otherwise; and that they return, or that all have.
#[derive(Debug, Default)]
pub struct Log {
    rails: Mutex<BTreeMap<usize, Losses>>,
}

/// What one rail has lost.
#[derive(Debug, Default)]
struct Losses {
    /// The paths out of use, and whether that was told at WARN.
    paths: BTreeMap<String, bool>,
    /// When a loss was told last that was found out in this way.
    told: BTreeMap<&'static str, Instant>,
}

impl Losses {
    /// Whether the loss of a path is worth telling.
    fn lose(&mut self, name: &str, evidence: Evidence, at: Instant) -> bool {
        if self.paths.contains_key(name) {
            // It never came into use.
            return false;
        }
        let told = self.told.get(evidence.name());
        let is_new = told.is_none_or(|told| at.saturating_duration_since(*told) >= ONE_LOSS);
        let is_told = is_new || self.paths.is_empty();
        self.paths.insert(name.to_owned(), is_told);
        if is_told {
            self.told.insert(evidence.name(), at);
        }
        is_told
    }

    /// Whether it is worth telling that a path has returned: the rail is whole again, or its loss was told.
    fn regain(&mut self, name: &str) -> Option<Regained> {
        let was_told = self.paths.remove(name)?;
        match self.paths.is_empty() {
            true => Some(Regained::All),
            false => was_told.then_some(Regained::Path),
        }
    }
}

/// What is in use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Regained {
    /// A path, while others of its rail are not.
    Path,
    /// All of a rail.
    All,
}

impl Log {
    fn losses<T>(&self, rail: usize, note: impl FnOnce(&mut Losses) -> T) -> T {
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        note(rails.entry(rail).or_default())
    }
}

impl Witness for Log {
    fn witness(&self, event: RailEvent) {
        let RailEvent { at, name, rail, kind, incarnation, .. } = event;
        match kind {
            RailEventKind::GivenUp { evidence, cause, tiles, bytes } => {
                let is_told = self.losses(rail, |losses| losses.lose(&name, evidence, at));
                let evidence = evidence.name();
                if is_told {
                    tracing::warn!(evidence, cause, tiles, bytes, incarnation, "{name}: given up");
                } else {
                    tracing::debug!(evidence, cause, tiles, bytes, incarnation, "{name}: given up");
                }
            }
            RailEventKind::Returned => match self.losses(rail, |losses| losses.regain(&name)) {
                Some(Regained::All) => tracing::warn!(
                    incarnation,
                    "{name}: in use again, as is all that was lost on this rail"
                ),
                Some(Regained::Path) => {
                    tracing::warn!(incarnation, "{name}: in use again, but not all of this rail");
                }
                None => tracing::debug!(incarnation, "{name}: in use again"),
            },
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
    use crate::clock;

    #[test]
    fn the_first_loss_on_a_rail_and_the_last_return_are_told() {
        let (now, mut losses) = (clock::now(), Losses::default());
        let mut lose = |name: &str| losses.lose(name, Evidence::Silence, now);
        assert!(lose("to rank 1") && !lose("to rank 2"));
        assert!(!lose("to rank 1"), "it never came into use");
        assert_eq!(losses.regain("to rank 2"), None);
        assert_eq!(losses.regain("to rank 1"), Some(Regained::All));
        assert_eq!(losses.regain("to rank 1"), None, "it was not lost");
        assert!(losses.lose("to rank 2", Evidence::Silence, now), "the rail was whole");
    }

    #[test]
    fn a_path_that_never_returns_does_not_hide_other_losses() {
        let (start, mut losses) = (clock::now(), Losses::default());
        assert!(losses.lose("to rank 1", Evidence::Silence, start));
        for flap in 1..4 {
            let at = start + flap * ONE_LOSS;
            assert!(losses.lose("to rank 2", Evidence::Silence, at), "flap {flap}");
            assert!(!losses.lose("to rank 3", Evidence::Silence, at));
            assert_eq!(losses.regain("to rank 3"), None);
            assert_eq!(losses.regain("to rank 2"), Some(Regained::Path));
        }
        let mut cut = |name: &str| losses.lose(name, Evidence::Carrier, start + 3 * ONE_LOSS);
        assert!(cut("to rank 2"), "found out otherwise");
        assert!(!cut("to rank 3"), "with the same NIC");
    }
}
