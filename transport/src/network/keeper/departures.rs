//! What the keeper does towards its peers: it probes, and where its rank is the higher one it dials.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpStream;
use std::time::Instant;

use ccl_core::failover::watch::Question;

use super::super::detect::{Knock, Reply};
use super::super::meet::Hello;
use super::News;
use super::greeter::{Dial, Verdict};
use super::worker::{Attempt, Purpose, Worker};
use crate::{TransportError, clock};

/// Probes of one path whose answers are awaited; one more replaces the oldest.
const MAX_PROBES: usize = 4;
/// Attempts to connect, and connections made that are being authenticated, of each so many at the same
/// time. Others wait for their turn.
const MAX_DIALS: usize = 32;

impl Worker {
    pub(super) fn probe(&mut self, link: usize, path: usize, question: Question) {
        let is_broken = self.is_broken(link, path);
        let Some((kept, _)) = self.path(link, path).filter(|_| !is_broken) else { return };
        let (near, far) = (kept.binding.address, kept.address.ip());
        let knock = match Knock::probe(&kept.binding, kept.address) {
            Ok(knock) => knock,
            Err(reply) => return self.probed(link, path, reply),
        };
        let confirmed = self.connections.confirmed(clock::now(), near, far);
        let Some((kept, _)) = self.path(link, path) else { return };
        let before = std::mem::replace(&mut kept.confirmed, confirmed);
        self.make_room(link, path);
        self.attempts.push(Attempt { knock, link, path, purpose: Purpose::Probe });
        if question == Question::Again && confirmed > before {
            self.tell(link, News::Confirmed { path });
        }
    }

    /// Gives up the oldest probe of a path that has as many as there may be.
    fn make_room(&mut self, link: usize, path: usize) {
        let is_alike = |attempt: &Attempt| is_probe(attempt, link, path);
        if self.attempts.iter().filter(|attempt| is_alike(attempt)).count() >= MAX_PROBES {
            let oldest = self.attempts.iter().position(is_alike);
            oldest.map(|oldest| self.attempts.remove(oldest));
        }
    }

    fn probed(&mut self, link: usize, path: usize, reply: Reply) {
        match reply {
            Reply::Accepted | Reply::Refused => {
                self.attempts.retain(|attempt| !is_probe(attempt, link, path));
                self.tell(link, News::Answered { path });
            }
            Reply::Unreachable => self.tell(link, News::Unreachable { path }),
            Reply::None => {}
        }
    }

    /// Looks which attempts have ended, one way or another.
    pub(super) fn settle_attempts(&mut self, now: Instant) {
        for attempt in std::mem::take(&mut self.attempts) {
            let (link, path) = (attempt.link, attempt.path);
            match (attempt.purpose, attempt.knock.reply()) {
                (Purpose::Probe, Some(reply)) => self.probed(link, path, reply),
                (Purpose::Connection, Some(Reply::Accepted)) => {
                    self.introduce((link, path), attempt.knock.into_stream(), now);
                }
                (Purpose::Connection, Some(_)) => self.failed((link, path), now),
                (Purpose::Connection, None) if self.is_out_of_patience(link, path, now) => {
                    self.failed((link, path), now);
                }
                (Purpose::Probe | Purpose::Connection, None) => self.attempts.push(attempt),
            }
        }
    }

    fn is_out_of_patience(&mut self, link: usize, path: usize, now: Instant) -> bool {
        let patience = self.path(link, path).and_then(|(kept, _)| kept.redial.patience());
        patience.is_none_or(|until| now >= until)
    }

    /// Begins the attempts that are due.
    pub(super) fn dial(&mut self, now: Instant) {
        for link in 0..self.links.len() {
            let paths = self.links[link].as_ref().map_or(0, |kept| kept.paths.len());
            for path in 0..paths {
                if self.may_dial() && self.due(link, path).is_some_and(|due| due <= now) {
                    self.knock(link, path, now);
                }
            }
        }
    }

    fn may_dial(&self) -> bool {
        let dials = self.attempts.iter().filter(|attempt| attempt.purpose == Purpose::Connection);
        dials.count() < MAX_DIALS && self.greeter.dials() < MAX_DIALS
    }

    fn due(&self, link: usize, path: usize) -> Option<Instant> {
        self.links[link].as_ref()?.paths[path].redial.due()
    }

    fn knock(&mut self, link: usize, path: usize, now: Instant) {
        let is_broken = self.is_broken(link, path);
        let Some((kept, _)) = self.path(link, path) else { return };
        kept.redial.knock(now);
        if is_broken {
            return self.failed((link, path), now);
        }
        match Knock::begin(&kept.binding, kept.address) {
            Ok(knock) => {
                let purpose = Purpose::Connection;
                self.attempts.push(Attempt { knock, link, path, purpose });
            }
            Err(_) => self.failed((link, path), now),
        }
    }

    /// The peer's kernel has answered: now its process is asked.
    fn introduce(&mut self, (link, path): (usize, usize), stream: TcpStream, now: Instant) {
        let (me, communicator) = (self.identity.me, self.identity.communicator);
        let Some(kept) = &mut self.links[link] else { return };
        let hello = Hello {
            communicator,
            from: me,
            to: kept.peer,
            index: u32::try_from(path).expect("there are few paths"),
            incarnation: kept.paths[path].redial.greet(),
            medium: kept.paths[path].choice.next(),
        };
        if self.greeter.initiate(stream, Dial { link, path, hello }).is_err() {
            self.failed((link, path), now);
        }
    }

    /// The peer's process has answered, or not.
    pub(super) fn dialled(
        &mut self,
        Dial { link, path, hello: Hello { incarnation, medium, .. } }: Dial,
        outcome: Result<(TcpStream, Verdict), TransportError>,
    ) {
        let Some((kept, _)) = self.path(link, path) else { return };
        let connected = match outcome {
            Ok((stream, Verdict::Welcome)) => {
                self.hand_over((link, path), incarnation, (stream, medium))
            }
            Ok((_, Verdict::Outdone(by))) => {
                kept.redial.outdone(by);
                let text = format!("the peer has connection {by} of path {path} already");
                Err(TransportError::Refused(text))
            }
            Err(cause) => Err(cause),
        };
        match connected {
            Ok(()) => {
                if let Some((kept, _)) = self.path(link, path) {
                    kept.redial.connected(incarnation);
                }
            }
            Err(reason) => {
                tracing::debug!(rank = self.identity.me.0, link, path, %reason, "no connection yet");
                self.failed((link, path), clock::now());
            }
        }
    }

    fn failed(&mut self, (link, path): (usize, usize), now: Instant) {
        let seed = (self.identity.me.0, self.identity.communicator, link, path, now);
        if let Some((kept, _)) = self.path(link, path) {
            kept.redial.failed(now, spread(&seed));
        }
    }

    /// The NIC of a rail works again: tries its paths at once.
    pub(super) fn hurry(&mut self, rail: usize, now: Instant) {
        let rails = self.rails.len();
        let mut pointless = Vec::new();
        for (number, link) in self.links.iter_mut().enumerate() {
            let paths = link.iter_mut().flat_map(|link| link.paths.iter_mut().enumerate());
            for (path, kept) in paths.filter(|(path, _)| path % rails == rail) {
                if kept.redial.hurry(now) {
                    pointless.push((number, path));
                }
            }
        }
        self.attempts.retain(|attempt| {
            let place = (attempt.link, attempt.path);
            attempt.purpose == Purpose::Probe || !pointless.contains(&place)
        });
    }

    /// When an attempt is due, or one that is under way is given up.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        let may_dial = self.may_dial();
        let paths = self.links.iter().flatten().flat_map(|link| &link.paths);
        let times = paths.flat_map(|path| {
            let due = path.redial.due().filter(|_| may_dial);
            [due, path.redial.patience()]
        });
        times.flatten().min()
    }
}

fn is_probe(attempt: &Attempt, link: usize, path: usize) -> bool {
    attempt.purpose == Purpose::Probe && (attempt.link, attempt.path) == (link, path)
}

/// A number between 0 and 1 that is another one for every seed.
fn spread(seed: &impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    f64::from(hasher.finish() as u32) / f64::from(u32::MAX)
}
