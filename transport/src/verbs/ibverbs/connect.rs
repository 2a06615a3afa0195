//! How a queue pair is connected: greetings, the path to the peer, and when both are ready.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::{State, Status, Transition};
use super::ending::GRACE;
use super::hello::{Farewell, Hello, Message};
use super::parley::{Heard, Parley};
use super::posted::at_the_device;
use super::queue_pair::{IbQueuePair, token};
use super::sys::{Endpoint, Event, Path};
use super::watch::Mailbox;
use crate::{TransportError, clock};

/// How long the address of the peer may take to be resolved, behind a switch port that is just coming up.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
const RESOLVE_PAUSE: Duration = Duration::from_millis(20);

/// How far a queue pair is connected.
#[derive(Debug)]
pub(super) enum Stage {
    /// There is no peer.
    Idle,
    /// The peer has not introduced itself.
    Greeting { own: Hello, gid_index: Option<u8> },
    /// A thread tells the device about the peer, which may take a second.
    Resolving { thread: Resolver, peer: Hello, is_peer_ready: bool },
    /// The peer is not ready.
    Waiting { peer_has_atomics: bool },
    /// Both are.
    Open { peer_has_atomics: bool },
}

/// A thread that tells the device about the peer.
#[derive(Debug)]
pub(super) struct Resolver {
    thread: JoinHandle<Result<(), TransportError>>,
    is_done: Arc<AtomicBool>,
}

impl Resolver {
    fn start(
        endpoint: Arc<Endpoint>,
        path: Path,
        mailbox: Arc<Mailbox>,
    ) -> Result<Self, TransportError> {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Done { is_done: Arc::clone(&is_done), mailbox };
        let thread = std::thread::Builder::new().name("r2ccl-resolve".into());
        let thread = thread.spawn(move || {
            let _done = done;
            connect(&endpoint, &path)
        });
        let thread = thread.map_err(|cause| TransportError::system("start a thread", cause))?;
        Ok(Self { thread, is_done })
    }

    /// Whether it is about to end.
    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    fn outcome(self) -> Result<(), TransportError> {
        let panicked = || Err(TransportError::system("connect a queue pair", "a thread panicked"));
        self.thread.join().unwrap_or_else(|_| panicked())
    }
}

/// Rings when it is dropped, however the thread ends.
struct Done {
    is_done: Arc<AtomicBool>,
    mailbox: Arc<Mailbox>,
}

impl Drop for Done {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        self.mailbox.ring();
    }
}

impl IbQueuePair {
    /// What it has at the device, watched.
    pub(super) fn make_endpoint(&self) -> Result<Arc<Endpoint>, TransportError> {
        let depth = at_the_device(self.depth);
        let ready = if self.is_spare { self.domain.take_ready(depth) } else { None };
        match ready {
            Some(endpoint) => self.watched(endpoint),
            None => self.make_reliable(),
        }
    }

    /// A reliable one, watched.
    fn make_reliable(&self) -> Result<Arc<Endpoint>, TransportError> {
        self.watched(self.domain.endpoint(at_the_device(self.depth))?)
    }

    fn watched(&self, endpoint: Arc<Endpoint>) -> Result<Arc<Endpoint>, TransportError> {
        self.mailbox.assign(endpoint.numbers());
        let watched = self.watch(endpoint.descriptor(), token::COMPLETIONS);
        watched.map_err(|cause| TransportError::system("watch a queue pair", cause))?;
        endpoint.arm().map_err(|cause| TransportError::system("watch a queue pair", cause))?;
        Ok(endpoint)
    }

    /// The other end of the connection, for messages.
    pub(super) fn path(&self) -> String {
        let path = self.path.as_deref().unwrap_or("not connected");
        format!("{} ({path})", self.domain.name())
    }

    /// Introduces this end to the peer, and posts nothing before it is ready.
    pub(super) fn greet(&mut self, stream: TcpStream) -> Result<(), TransportError> {
        if let Some(reason) = &self.refusal {
            return Err(reason.clone());
        }
        let refused = |cause| TransportError::system("connect a queue pair", cause);
        let destroyed = || TransportError::system("connect a queue pair", "it was destroyed");
        if !self.domain.can_use(self.endpoint.as_ref().ok_or_else(destroyed)?)? {
            self.replace_endpoint(self.make_endpoint()?);
        }
        let endpoint = self.endpoint.as_ref().ok_or_else(destroyed)?;
        let (own, gid_index) = self.introduction(endpoint)?;
        let mut parley = Parley::new(stream)?;
        let watched = self.watch(parley.descriptor(), token::PARLEY);
        watched.map_err(|cause| TransportError::system("watch a connection", cause))?;
        self.transition(Transition::EnableReceive).map_err(refused)?;
        self.transition(Transition::EnableSend).map_err(refused)?;
        parley.say(&Message::Hello(own));
        self.path = Some(parley.path().to_owned());
        self.parley = Some(parley);
        self.address = gid_index.map(|index| (index, own.gid));
        self.stage = Stage::Greeting { own, gid_index };
        Ok(())
    }

    /// What it says of itself, and the row of its address.
    fn introduction(&self, endpoint: &Endpoint) -> Result<(Hello, Option<u8>), TransportError> {
        let (own, place) = self.domain.describe(endpoint, first_packet()?)?;
        Ok((own, place.gid_index))
    }

    /// Takes what the peer says; tells whether it said anything.
    pub(super) fn listen(&mut self) -> bool {
        let mut moved = false;
        while self.state == State::ReadyToSend {
            let Some(parley) = &mut self.parley else { break };
            match parley.hear() {
                Heard::Nothing => break,
                Heard::Message(message) => self.heard(message),
                Heard::Closed(reason) => self.lost(&reason),
                Heard::Nonsense => self.broke_the_protocol("not a message"),
            }
            moved = true;
        }
        moved
    }

    fn lost(&mut self, reason: &str) {
        if self.parting.is_some() {
            // It said so. Until the device says why, there is nothing more to hear.
            self.parley = None;
            return;
        }
        let fault = TransportError::PeerGone(format!("{}: {reason}", self.path()));
        self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
    }

    pub(super) fn broke_the_protocol(&mut self, what: &str) {
        let fault = TransportError::Protocol(format!("{}: {what}", self.path()));
        self.break_down(Some(Status::RetryExceeded), fault, Farewell::Refused);
    }

    fn heard(&mut self, message: Message) {
        match (message, &mut self.stage) {
            (Message::Hello(peer), &mut Stage::Greeting { own, gid_index }) => {
                self.meet(&own, gid_index, peer);
            }
            (Message::Ready, Stage::Resolving { is_peer_ready, .. }) if !*is_peer_ready => {
                *is_peer_ready = true;
            }
            (Message::Ready, &mut Stage::Waiting { peer_has_atomics }) => {
                self.stage = Stage::Open { peer_has_atomics };
                self.post_waiting();
            }
            (Message::Farewell(reason), _) => self.heard_farewell(reason),
            (message, _) => self.broke_the_protocol(&format!("{message:?} at the wrong time")),
        }
    }

    fn heard_farewell(&mut self, reason: Farewell) {
        let is_explained = matches!(reason, Farewell::Fenced | Farewell::Lost);
        // What its device refused, this one is told too, and it knows what it was about.
        let grace = if is_explained || self.sends.posted == 0 { Duration::ZERO } else { GRACE };
        self.parting = Some((clock::now() + grace, reason));
    }

    /// Ends it when the peer has, and this end's device has had time to say why.
    pub(super) fn part_if_due(&mut self) -> bool {
        let Some((due, reason)) = self.parting else { return false };
        if self.state != State::ReadyToSend || clock::now() < due {
            return false;
        }
        let text = |what: &str| format!("{}: {what}", self.path());
        let fault = match reason {
            Farewell::Fenced => TransportError::PeerGone(text("the peer has fenced its end")),
            Farewell::Lost => TransportError::PeerGone(text("the peer has lost the connection")),
            Farewell::Unexplained => TransportError::PeerGone(text("the peer's end is in error")),
            Farewell::Refused => TransportError::Refused(text("the peer ended it with an error")),
        };
        self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
        true
    }

    /// Finds out what both ends can use. An end that has offered a dynamic one, and hears that this is not what
    /// it will be, makes a reliable one and introduces itself again.
    fn meet(&mut self, own: &Hello, gid_index: Option<u8>, peer: Hello) {
        match agree(own, &peer) {
            Agreement::Reached => self.resolve(own, gid_index, peer),
            Agreement::Later => {}
            Agreement::Otherwise => match self.become_reliable() {
                Ok((own, gid_index)) => {
                    self.address = gid_index.map(|index| (index, own.gid));
                    self.stage = Stage::Greeting { own, gid_index };
                    self.meet(&own, gid_index, peer);
                }
                Err(fault) => self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost),
            },
        }
    }

    fn become_reliable(&mut self) -> Result<(Hello, Option<u8>), TransportError> {
        let endpoint = self.make_reliable()?;
        let (own, gid_index) = self.introduction(&endpoint)?;
        self.replace_endpoint(endpoint);
        if let Some(parley) = &mut self.parley {
            parley.say(&Message::Hello(own));
        }
        Ok((own, gid_index))
    }

    /// Before anything is sent or could arrive.
    fn replace_endpoint(&mut self, endpoint: Arc<Endpoint>) {
        self.give_endpoint_back();
        self.endpoint = Some(endpoint);
        self.receives.posted = 0;
        for _ in 0..self.receives.len() {
            self.hand_over_receive();
        }
    }

    /// Has the device told about the peer, by a thread: it may wait for an address to be resolved.
    fn resolve(&mut self, own: &Hello, gid_index: Option<u8>, peer: Hello) {
        if own.is_ethernet != peer.is_ethernet {
            return self.broke_the_protocol("one end is on Ethernet, the other on InfiniBand");
        }
        if own.mtu != peer.mtu {
            let (path, own, peer) = (self.path(), mtu_bytes(own.mtu), mtu_bytes(peer.mtu));
            tracing::warn!(
                path,
                own,
                peer,
                "the MTUs of the ends differ, and the smaller one is used"
            );
        }
        let Some(endpoint) = self.endpoint.clone() else { return };
        let path = path_to(self.domain.port, own, gid_index, &peer);
        match Resolver::start(endpoint, path, Arc::clone(&self.mailbox)) {
            Ok(thread) => {
                self.stage = Stage::Resolving { thread, peer, is_peer_ready: false };
            }
            Err(fault) => self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost),
        }
    }

    /// Goes on when the thread is through.
    pub(super) fn continue_connecting(&mut self) -> bool {
        if !matches!(&self.stage, Stage::Resolving { thread, .. } if thread.is_done()) {
            return false;
        }
        let Stage::Resolving { thread, peer, is_peer_ready } =
            std::mem::replace(&mut self.stage, Stage::Idle)
        else {
            return false;
        };
        let outcome = thread.outcome();
        if self.state != State::ReadyToSend {
            return true;
        }
        match outcome {
            Ok(()) => self.connected(&peer, is_peer_ready),
            Err(fault) => self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost),
        }
        true
    }

    fn connected(&mut self, peer: &Hello, is_peer_ready: bool) {
        if let Some(parley) = &mut self.parley {
            parley.say(&Message::Ready);
        }
        let peer_has_atomics = peer.has_atomics;
        self.stage = if is_peer_ready {
            Stage::Open { peer_has_atomics }
        } else {
            Stage::Waiting { peer_has_atomics }
        };
        self.post_waiting();
    }

    /// Takes what has happened to the device.
    pub(super) fn read_mail(&mut self) -> bool {
        let events = self.mailbox.take();
        let happened = !events.is_empty();
        for event in events {
            self.happened(&event);
        }
        happened
    }

    fn happened(&mut self, event: &Event) {
        let (name, port) = (self.domain.name().to_owned(), self.domain.port);
        let reason = match event {
            Event::PortDown(number) if *number == port && !self.domain.has_link() => {
                "its port has no link any more".into()
            }
            Event::Addresses(number) if *number == port && !self.has_its_address() => {
                "the address of its port is another one".into()
            }
            Event::Fatal => "the device is gone".into(),
            Event::QueuePair(_, what) => what.clone(),
            Event::PortDown(_) | Event::PortUp(_) | Event::Addresses(_) | Event::Other => return,
        };
        if self.state == State::ReadyToSend {
            let fault = TransportError::system(format!("use {name}"), reason);
            self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
        }
    }
}

/// What two introductions amount to.
enum Agreement {
    /// Both ends know what they need.
    Reached,
    /// The peer will introduce itself again.
    Later,
    /// This end has to be another one.
    Otherwise,
}

/// Dynamic ends need one another, and packets of the same size: those of an initiator were set when it was made.
fn agree(own: &Hello, peer: &Hello) -> Agreement {
    match (own.target, peer.target) {
        (Some(_), Some(_)) if own.mtu == peer.mtu => Agreement::Reached,
        (Some(_), _) => Agreement::Otherwise,
        (None, _) if peer.number == 0 => Agreement::Later,
        (None, _) => Agreement::Reached,
    }
}

/// A random number, so that packets of an earlier connection are not taken for those of this one.
fn first_packet() -> Result<u32, TransportError> {
    let mut bytes = [0; 4];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    drawn.map_err(|cause| TransportError::system("draw a random number", cause))?;
    Ok(u32::from_le_bytes(bytes) & 0xff_ffff)
}

/// Bytes of the packets that a number of the header stands for.
fn mtu_bytes(mtu: u8) -> u32 {
    128 << mtu
}

fn path_to(port: u8, own: &Hello, gid_index: Option<u8>, peer: &Hello) -> Path {
    Path {
        port,
        gid_index,
        gid: peer.gid,
        lid: peer.lid,
        number: peer.number,
        mtu: own.mtu.min(peer.mtu),
        peer_packet: peer.packet,
        own_packet: own.packet,
        reads_answered: own.reads_answered.min(peer.reads_asked),
        reads_asked: own.reads_asked.min(peer.reads_answered),
        target: own.target.and(peer.target),
    }
}

fn connect(endpoint: &Endpoint, path: &Path) -> Result<(), TransportError> {
    let limit = clock::now() + RESOLVE_LIMIT;
    let received = loop {
        match endpoint.enable_receive(path) {
            Err(TransportError::TimedOut(_)) if clock::now() < limit => {
                clock::sleep(RESOLVE_PAUSE);
            }
            outcome => break outcome,
        }
    };
    received.and_then(|()| endpoint.enable_send(path))
}
