//! The keeper's thread: sleeps until somebody orders, knocks, answers, or until an attempt is due.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use ccl_core::ids::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::super::RailAddress;
use super::super::detect::Knock;
use super::super::detect::confirmed::Connections;
use super::super::events::Witness;
use super::super::medium::{Choice, Media, Medium};
use super::super::meet::{Contact, HANDSHAKE_LIMIT, PeerPlan};
use super::super::rehearsal::Prompter;
use super::News;
use super::greeter::{Greeter, Greeting};
use super::mailbox::{Bell, Mailbox, Order, Vigil};
use super::rails::{Identity, Outside};
use super::redial::Redial;
use crate::nics::{Change, ChangeKind, LOOK_EVERY, LOOK_SELDOM, Look, Nics};
use crate::verbs::Depth;
use crate::verbs::soft::socket::{self, Binding};
use crate::visitors::{self, Visitors};
use crate::{TransportError, clock};

/// How the links reach the thread.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) orders: Receiver<Order>,
    pub(super) bell: Arc<Bell>,
    pub(super) vigil: Arc<Vigil>,
}

/// One NIC of this rank.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) address: RailAddress,
    pub(super) listener: TcpListener,
}

/// A link, as its keeper knows it.
#[derive(Debug)]
pub(super) struct KeptLink {
    pub(super) peer: Rank,
    /// Whether this end connects.
    pub(super) dials: bool,
    pub(super) mailbox: Arc<Mailbox>,
    depth: Depth,
    /// How many rails the peer has: its rail of a path is the number of the path modulo these.
    pub(super) peer_rails: usize,
    pub(super) paths: Vec<KeptPath>,
}

/// One of its paths.
#[derive(Debug)]
pub(super) struct KeptPath {
    pub(super) binding: Binding,
    pub(super) address: SocketAddr,
    pub(super) redial: Redial,
    pub(super) choice: Choice,
    /// What was confirmed between its NICs when it was last probed, in bytes.
    pub(super) confirmed: u64,
}

impl KeptLink {
    pub(super) fn new(plan: PeerPlan, mailbox: Arc<Mailbox>, depth: Depth) -> Self {
        let path = |Contact { binding, address, medium, .. }| KeptPath {
            binding,
            address,
            redial: Redial::new(),
            choice: Choice::new(medium),
            confirmed: 0,
        };
        let PeerPlan { rank: peer, dials, peer_rails, connections } = plan;
        let paths = connections.into_iter().map(path).collect();
        Self { peer, dials, mailbox, depth, peer_rails, paths }
    }
}

/// An attempt to reach the peer's kernel.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) knock: Knock,
    pub(super) link: usize,
    pub(super) path: usize,
    pub(super) purpose: Purpose,
}

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Probe,
    Connection,
}

/// Everything the thread owns. The helpers are dropped, and so joined, first.
pub(super) struct Worker {
    pub(super) greeter: Greeter,
    pub(super) identity: Identity,
    pub(super) rails: Vec<Rail>,
    /// By number; `None` once the link is gone.
    pub(super) links: Vec<Option<KeptLink>>,
    mail: Mail,
    media: Media,
    pub(super) witness: Arc<dyn Witness>,
    /// If faults are rehearsed.
    prompter: Option<Prompter>,
    nics: Nics,
    pub(super) connections: Connections,
    next_look: Instant,
    /// From the last look to the next.
    look_pause: Duration,
    pub(super) attempts: Vec<Attempt>,
    pub(super) visitors: Visitors<(SocketAddr, usize)>,
    /// When to accept again after the system ran out of something.
    pub(super) closed_until: Option<Instant>,
    pub(super) was_stranger_reported: bool,
}

impl Worker {
    pub(super) fn new(
        identity: Identity,
        rails: Vec<(RailAddress, TcpListener)>,
        links: Vec<KeptLink>,
        (mail, greeter): (Mail, Greeter),
        Outside { media, witness, part }: Outside,
    ) -> Result<Self, TransportError> {
        let prompter = part.map(|part| Prompter::new(part, rails.len()));
        let nics = Nics::watch(rails.iter().map(|(address, _)| binding(address)).collect())?;
        let rail = |(address, listener)| Rail { address, listener };
        Ok(Self {
            greeter,
            identity,
            rails: rails.into_iter().map(rail).collect(),
            links: links.into_iter().map(Some).collect(),
            mail,
            media,
            witness,
            prompter,
            nics,
            connections: Connections::default(),
            next_look: clock::now(),
            look_pause: LOOK_EVERY,
            attempts: Vec::new(),
            visitors: Visitors::new(visitors::FEW, HANDSHAKE_LIMIT),
            closed_until: None,
            was_stranger_reported: false,
        })
    }

    /// Works until no link is left.
    pub(super) fn run(mut self) {
        loop {
            self.mail.bell.damp();
            self.take_orders();
            if self.links.iter().all(Option::is_none) {
                return;
            }
            let now = clock::now();
            self.look_at_nics(now);
            self.rehearse(now);
            self.settle_attempts(now);
            self.receive(now);
            self.dial(now);
            self.sleep(clock::now());
        }
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.mail.orders.try_recv() {
            match order {
                Order::Probe { link, path, question } => self.probe(link, path, question),
                Order::Reconnect { link, path, incarnation } => {
                    if let Some(path) = self.path(link, path).filter(|(_, dials)| *dials) {
                        path.0.redial.ask(clock::now(), incarnation);
                    }
                }
                Order::Usable { link, path } => {
                    if let Some((path, _)) = self.path(link, path) {
                        path.choice.usable();
                    }
                }
                Order::Look => self.next_look = clock::now(),
                Order::Moved(news) => self.peer_moved(news, clock::now()),
                Order::Close { link } => self.close(link),
                Order::Greeted(greeted) => {
                    self.greeter.dismiss(greeted.number);
                    self.greeted(greeted.greeting);
                }
            }
        }
    }

    /// A path of a link that is still there, and whether this end connects it.
    pub(super) fn path(&mut self, link: usize, path: usize) -> Option<(&mut KeptPath, bool)> {
        let link = self.links.get_mut(link)?.as_mut()?;
        Some((link.paths.get_mut(path)?, link.dials))
    }

    fn close(&mut self, link: usize) {
        self.links[link] = None;
        self.attempts.retain(|attempt| attempt.link != link);
        self.greeter.interrupt(link);
    }

    fn greeted(&mut self, greeting: Greeting) {
        match greeting {
            Greeting::Dialled { dial, outcome } => self.dialled(dial, outcome),
            Greeting::Visited { rail, from, outcome } => self.visited(rail, from, outcome),
        }
    }

    /// Tells a link about one of its paths.
    pub(super) fn tell(&self, link: usize, news: News) {
        if let Some(link) = &self.links[link] {
            link.mailbox.deliver(news);
        }
    }

    fn look_at_nics(&mut self, now: Instant) {
        let was_told = self.nics.was_told();
        let is_due = self.nics.needs_looks() && now >= self.next_look;
        if !was_told && !is_due {
            return;
        }
        self.look(if was_told { Look::Thorough } else { Look::Quick }, now);
    }

    fn look(&mut self, look: Look, now: Instant) {
        for change in self.nics.changes(look) {
            self.changed(change, now);
        }
        let matters = self.mail.vigil.was_used() || self.nics.any_severed();
        self.look_pause = if matters { LOOK_EVERY } else { LOOK_SELDOM.min(2 * self.look_pause) };
        if !matters {
            self.mail.vigil.doze();
        }
        self.next_look = now + self.look_pause;
    }

    /// What a rehearsal does to the NICs.
    fn rehearse(&mut self, now: Instant) {
        let Some(prompter) = &mut self.prompter else { return };
        for change in prompter.changes(now) {
            self.changed(change, now);
        }
    }

    fn changed(&mut self, Change { rail, kind }: Change, now: Instant) {
        let name = &self.rails[rail].address.name;
        tracing::debug!(rank = self.identity.me.0, name, ?kind, "a NIC changed");
        match kind {
            ChangeKind::Severed(cause) => self.severed(rail, &cause),
            ChangeKind::Restored => self.hurry(rail, now),
            ChangeKind::Replaced => {
                self.listen_again(rail);
                self.hurry(rail, now);
            }
            ChangeKind::Moved(address) => self.relocate(rail, address, now),
        }
    }

    /// Whether nothing gets through a path, because that is rehearsed.
    pub(super) fn is_broken(&self, link: usize, path: usize) -> bool {
        let (Some(prompter), Some(kept)) = (&self.prompter, &self.links[link]) else {
            return false;
        };
        prompter.is_broken(path % self.rails.len(), kept.peer, path % kept.peer_rails)
    }

    /// A listener that was tied to an interface which is gone hears nothing from the new one. The peers
    /// know its port.
    fn listen_again(&mut self, rail: usize) {
        let Rail { address, listener } = &mut self.rails[rail];
        let binding = binding(address);
        let port = listener.local_addr().map_or(0, |known| known.port());
        match socket::listen_on(&binding, port) {
            Ok(another) => *listener = another,
            // Where sockets may not be tied to interfaces the old one hears everything, and is in the way.
            Err(cause) => tracing::debug!(name = address.name, %cause, "the listener stays"),
        }
    }

    fn severed(&self, rail: usize, cause: &str) {
        for link in self.links.iter().flatten() {
            for path in (rail..link.paths.len()).step_by(self.rails.len()) {
                link.mailbox.deliver(News::Severed { path, cause: cause.to_owned() });
            }
        }
    }

    /// Makes a queue pair of a new connection and hands it to its link.
    pub(super) fn hand_over(
        &mut self,
        (link, path): (usize, usize),
        incarnation: u32,
        (stream, medium): (TcpStream, Medium),
    ) -> Result<(), TransportError> {
        let rail = path % self.rails.len();
        if self.nics.is_severed(rail) {
            // While the NIC counts as severed its next fault would be no news.
            self.nics.prove(rail);
            self.look(Look::Thorough, clock::now());
        }
        let Some(kept) = &mut self.links[link] else { return Ok(()) };
        kept.paths[path].choice.begun(medium);
        let address = &self.rails[rail].address;
        let (domain, mut pair) =
            self.media.connect(address, (rail, kept.depth), (stream, medium))?;
        if let Some(prompter) = &self.prompter {
            let place = (rail, kept.peer, path % kept.peer_rails);
            pair = prompter.part().around(pair, place, kept.depth);
        }
        let rank = self.identity.me.0;
        tracing::debug!(rank, peer = kept.peer.0, path, incarnation, ?medium, "connected again");
        self.tell(link, News::Connected { path, incarnation, domain, pair });
        Ok(())
    }

    /// Waits for the next thing to do.
    fn sleep(&self, now: Instant) {
        let mut polled: SmallVec<[PollFd<'_>; 32]> = SmallVec::new();
        polled.push(PollFd::new(&self.mail.bell, PollFlags::IN));
        if let Some(events) = self.nics.descriptor() {
            polled.push(PollFd::from_borrowed_fd(events, PollFlags::IN));
        }
        if self.accepts() {
            polled.extend(self.rails.iter().map(|rail| PollFd::new(&rail.listener, PollFlags::IN)));
        }
        if self.greeter.room() > 0 {
            polled.extend(self.visitors.polled());
        }
        let attempts = self.attempts.iter();
        polled.extend(attempts.map(|attempt| PollFd::new(&attempt.knock, PollFlags::OUT)));
        let nap = self.alarm(now).map(|alarm| timespec(alarm.saturating_duration_since(now)));
        // Interrupted or not, everything is looked at afterwards.
        let _ = poll(&mut polled, nap.as_ref());
    }

    /// When there is something to do even if nothing happens.
    fn alarm(&self, now: Instant) -> Option<Instant> {
        let look = self.nics.needs_looks().then_some(self.next_look);
        let turn = self.prompter.as_ref().and_then(|prompter| prompter.alarm(now));
        // While nobody can be heard nobody is forgotten either.
        let visitors = self.visitors.deadline().filter(|_| self.greeter.room() > 0).into_iter();
        visitors.chain(look).chain(turn).chain(self.closed_until).chain(self.next_dial()).min()
    }
}

pub(super) fn binding(address: &RailAddress) -> Binding {
    Binding { address: address.address, interface: address.interface.clone() }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::channel;

    use super::super::super::events::Log;
    use super::*;
    use crate::auth::JobKey;

    /// A keeper without links that has not begun, and where it listens.
    fn worker() -> (Worker, SocketAddr) {
        let address = RailAddress {
            name: "nic0".into(),
            address: [127, 1, 12, 1].into(),
            interface: None,
            capacity: 1.0,
        };
        let listener = socket::listen(&binding(&address)).unwrap();
        let here = listener.local_addr().unwrap();
        let key = JobKey::from_passphrase("a test");
        let (sender, orders) = channel();
        let bell = Arc::new(Bell::new().unwrap());
        let greeter = Greeter::new(key.clone(), sender, Arc::clone(&bell));
        let mail = Mail { orders, bell, vigil: Arc::default() };
        let identity = Identity { me: Rank(0), communicator: 7, key };
        let outside = Outside { media: Media::tcp(1), witness: Arc::<Log>::default(), part: None };
        let rails = vec![(address, listener)];
        (Worker::new(identity, rails, Vec::new(), (mail, greeter), outside).unwrap(), here)
    }

    /// As many as can be heard have begun to speak and do not go on, and one says nothing for too long.
    #[test]
    fn a_keeper_that_can_hear_nobody_more_sleeps() {
        let (mut worker, here) = worker();
        let come = || TcpStream::connect(here).unwrap();
        let _silent = come();
        let mut guests: Vec<_> = (0..worker.greeter.room()).map(|_| come()).collect();
        guests.iter_mut().for_each(|guest| guest.write_all(b"r2cc").unwrap());
        let deadline = clock::now() + Duration::from_secs(60);
        while worker.greeter.room() > 0 {
            assert!(clock::now() < deadline);
            worker.receive(clock::now());
        }
        let late = clock::now() + 2 * HANDSHAKE_LIMIT;
        worker.next_look = late + LOOK_EVERY;
        guests.push(come());
        worker.receive(late);
        assert_eq!(worker.visitors.polled().count(), 1, "one more stays in the kernel");
        assert!(worker.alarm(late).is_none_or(|alarm| alarm > late));
    }
}
