//! Keepers with real sockets, over loopback addresses as NICs.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::failover::watch::Question;
use ccl_core::ids::Rank;
use socket2::Socket;

use super::super::RailAddress;
use super::super::events::{RailEvent, Witness};
use super::super::medium::{Media, Medium};
use super::super::meet::{Contact, Hello, PeerPlan};
use super::greeter::Verdict;
use super::rails::{Identity, Outside, RailKeeper};
use super::*;
use crate::alone::is_alone;
use crate::auth::{self, JobKey};
use crate::verbs::soft::socket::{self, Binding};
use crate::verbs::{Access, Depth, Memory, Operation, ReceiveRequest, State, WorkId, WorkRequest};
use crate::{TransportError, clock};

const COMMUNICATOR: u64 = 99;
const DEPTH: Depth = Depth { sends: 4, receives: 4 };

pub(super) fn soon() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn key() -> JobKey {
    JobKey::from_passphrase("the job of this test")
}

/// A rank before it knows its peer.
pub(super) struct Candidate {
    rank: u32,
    rails: Vec<RailAddress>,
    listeners: Vec<TcpListener>,
}

impl Candidate {
    pub(super) fn new(rank: u32, rails: Vec<RailAddress>) -> Self {
        let listeners = rails.iter().map(|rail| socket::listen(&binding(rail)).unwrap()).collect();
        Self { rank, rails, listeners }
    }

    /// With NICs on loopback.
    fn on_loopback(rank: u32, network: u8, rails: u8) -> Self {
        let rail = |index| RailAddress {
            name: format!("nic{index}"),
            address: IpAddr::from([127, 1, network, 1 + 10 * rank as u8 + index]),
            interface: Some("lo".into()),
            capacity: 1.0,
        };
        Self::new(rank, (0..rails).map(rail).collect())
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
    }

    /// Keeps the rails to the peer that listens at `addresses`.
    pub(super) fn keep(self, peer: u32, addresses: &[SocketAddr]) -> Kept {
        let contact = |(rail, address): (&RailAddress, &SocketAddr)| Contact {
            binding: binding(rail),
            address: *address,
            medium: Medium::Tcp,
            is_broken: false,
        };
        let connections = self.rails.iter().zip(addresses).map(contact).collect();
        let (dials, peer_rails) = (self.rank > peer, addresses.len());
        let plan = PeerPlan { rank: Rank(peer), dials, peer_rails, connections };
        let identity = Identity { me: Rank(self.rank), communicator: COMMUNICATOR, key: key() };
        let mut keeper = RailKeeper::new(identity, vec![plan], |_| DEPTH).unwrap();
        let directory = Directory::default();
        keeper.enter(&directory);
        let (mover, moves) = channel();
        let kept =
            Kept { keeper: keeper.keeper_for(Rank(peer)), news: Vec::new(), directory, moves };
        let media = Media::tcp(self.rails.len());
        let outside = Outside { media, witness: Arc::new(Mover(mover)), part: None };
        keeper.begin(self.rails, self.listeners, outside).unwrap();
        kept
    }
}

fn binding(rail: &RailAddress) -> Binding {
    Binding { address: rail.address, interface: rail.interface.clone() }
}

/// The link's end of a keeper.
pub(super) struct Kept {
    pub(super) keeper: Box<dyn Keeper>,
    news: Vec<News>,
    pub(super) directory: Directory,
    /// Where this end listens since a NIC has another address.
    pub(super) moves: Receiver<(usize, SocketAddr)>,
}

/// Hears of nothing but moves.
#[derive(Debug)]
struct Mover(Sender<(usize, SocketAddr)>);

impl Witness for Mover {
    fn witness(&self, _event: RailEvent) {}

    fn moved(&self, rail: usize, address: SocketAddr) {
        // Nobody may listen any more.
        let _ = self.0.send((rail, address));
    }
}

pub(super) type Connected = (usize, u32, Box<dyn Domain>, Box<dyn QueuePair>);

impl Kept {
    /// The next news.
    pub(super) fn hear(&mut self) -> News {
        let limit = soon();
        while self.news.is_empty() {
            assert!(clock::now() < limit, "no news");
            if self.keeper.has_news() {
                self.keeper.news(&mut self.news);
            }
            thread::yield_now();
        }
        self.news.remove(0)
    }

    pub(super) fn hear_connected(&mut self) -> Connected {
        match self.hear() {
            News::Connected { path, incarnation, domain, pair } => {
                assert_eq!(pair.state(), State::ReadyToSend);
                (path, incarnation, domain, pair)
            }
            other @ (News::Answered { .. }
            | News::Confirmed { .. }
            | News::Unreachable { .. }
            | News::Severed { .. }) => panic!("{other:?}"),
        }
    }

    pub(super) fn answer(&mut self, path: usize) -> String {
        self.keeper.probe(path, Question::First);
        format!("{:?}", self.hear())
    }
}

/// Ranks 0 and 1 with so many rails.
fn couple(network: u8, rails: u8) -> (Kept, Kept) {
    let near = Candidate::on_loopback(0, network, rails);
    let far = Candidate::on_loopback(1, network, rails);
    let addresses = (near.addresses(), far.addresses());
    (near.keep(1, &addresses.1), far.keep(0, &addresses.0))
}

/// Moves some bytes from one queue pair to the other.
pub(super) fn send(from: &mut Connected, to: &mut Connected) {
    let memories = [Memory::allocate(8).unwrap(), Memory::allocate(8).unwrap()];
    let source = from.2.register(&memories[0], Access::LOCAL).unwrap();
    let target = to.2.register(&memories[1], Access::LOCAL).unwrap();
    memories[0].write(0, b"ping");
    let receive = ReceiveRequest { id: WorkId(1), target: Some(target.segment(0, 8)) };
    to.3.post_receive(receive).unwrap();
    let operation = Operation::Send { source: source.segment(0, 8) };
    from.3.post_send(WorkRequest { id: WorkId(2), operation, signalled: true }).unwrap();
    let (mut completions, limit) = (Vec::new(), soon());
    while completions.len() < 2 {
        assert!(clock::now() < limit, "{completions:?}");
        from.3.poll(&mut completions);
        to.3.poll(&mut completions);
    }
    let mut bytes = [0; 8];
    memories[1].read(0, &mut bytes);
    assert_eq!(&bytes, b"ping\0\0\0\0");
}

/// Both ends ask for a new connection, and get the same one.
pub(super) fn replace(
    near: &mut Kept,
    far: &mut Kept,
    path: usize,
    given_up: u32,
) -> (Connected, Connected) {
    for end in [&mut *near, &mut *far] {
        end.keeper.reconnect(path, given_up);
        end.keeper.reconnect(path, given_up);
    }
    let (one, other) = (near.hear_connected(), far.hear_connected());
    assert_eq!((one.0, other.0), (path, path));
    assert_eq!(one.1, other.1);
    assert!(one.1 > given_up);
    (one, other)
}

#[test]
fn probes_are_answered_by_the_kernel() {
    let near = Candidate::on_loopback(0, 1, 2);
    let mut addresses = vec![socket::listen(&binding(&near.rails[0])).unwrap()];
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let listening = at(&addresses[0]);
    let unreachable = "224.0.0.1:9".parse().unwrap();
    let mut near = near.keep(1, &[listening, unreachable]);
    for _ in 0..3 {
        assert_eq!(near.answer(0), "Answered { path: 0 }");
        assert_eq!(near.answer(1), "Unreachable { path: 1 }");
    }
    addresses.clear();
    assert_eq!(near.answer(0), "Answered { path: 0 }");
}

/// A listener that answers nobody, because the one who has connected to it is not let in.
fn deaf(address: IpAddr) -> (Socket, TcpStream) {
    let listener = socket::bound(&Binding { address, interface: None }, 0).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    (listener, TcpStream::connect(address).unwrap())
}

#[test]
fn what_others_get_confirmed_answers_a_probe_that_is_repeated() {
    let near = Candidate::on_loopback(0, 10, 1);
    let home = near.rails[0].address;
    let (listener, _guest) = deaf(IpAddr::from([127, 1, 10, 99]));
    let there = listener.local_addr().unwrap().as_socket().unwrap();
    // Another connection between the two NICs.
    let other = TcpListener::bind((there.ip(), 0)).unwrap();
    let writer = socket::bound(&Binding { address: home, interface: None }, 0).unwrap();
    writer.connect(&other.local_addr().unwrap().into()).unwrap();
    let (mut writer, mut reader) = (TcpStream::from(writer), other.accept().unwrap().0);

    let mut near = near.keep(1, &[there]);
    let mut send = || {
        writer.write_all(&[1; 100]).unwrap();
        reader.read_exact(&mut [0; 100]).unwrap();
    };
    send();
    for question in [Question::First, Question::Again, Question::First, Question::Again] {
        near.keeper.probe(0, question);
        clock::sleep(Duration::from_millis(60));
        assert!(!near.keeper.has_news(), "nobody answers, and nothing was confirmed");
    }
    let limit = soon();
    while !near.keeper.has_news() {
        assert!(clock::now() < limit, "no answer");
        send();
        near.keeper.probe(0, Question::Again);
        clock::sleep(Duration::from_millis(10));
    }
    assert_eq!(format!("{:?}", near.hear()), "Confirmed { path: 0 }");
}

#[test]
fn both_ends_get_the_same_new_connections() {
    let (mut near, mut far) = couple(2, 2);
    let mut given_up = [0, 0];
    for round in 0..6 {
        let path = round % 2;
        let (mut one, mut other) = replace(&mut near, &mut far, path, given_up[path]);
        send(&mut one, &mut other);
        send(&mut other, &mut one);
        given_up[path] = one.1;
        one.3.fail();
        other.3.fail();
    }
}

/// The lower rank learns from the connection itself that the higher one gave up the last.
#[test]
fn the_higher_rank_alone_gets_a_new_connection() {
    let (mut near, mut far) = couple(3, 1);
    far.keeper.reconnect(0, 0);
    let (mut one, mut other) = (near.hear_connected(), far.hear_connected());
    assert_eq!((one.1, other.1), (1, 1));
    send(&mut one, &mut other);
}

#[test]
fn a_peer_that_comes_late_is_waited_for() {
    let near = Candidate::on_loopback(0, 4, 1);
    let far = Candidate::on_loopback(1, 4, 1);
    let addresses = (near.addresses(), far.addresses());
    let mut far = far.keep(0, &addresses.0);
    far.keeper.reconnect(0, 0);
    let (rails, address) = (near.rails.clone(), addresses.0[0]);
    drop(near);
    assert_eq!(far.answer(0), "Answered { path: 0 }");
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let near = Candidate { rank: 0, rails, listeners: vec![listener] };
    let mut near = near.keep(1, &addresses.1);
    let (mut one, mut other) = (near.hear_connected(), far.hear_connected());
    assert_eq!(one.1, other.1);
    send(&mut other, &mut one);
}

/// Connects to a keeper as rank 1, with a key and an incarnation of its choice.
fn intrude(address: SocketAddr, key: &JobKey, hello: Hello) -> Result<Verdict, TransportError> {
    let mut stream = TcpStream::connect(address).unwrap();
    auth::initiate(&stream, key, &hello.encode(), soon())?;
    let mut bytes = [0; 8];
    match stream.read_exact(&mut bytes) {
        Ok(()) => Ok(Verdict::decode(bytes).unwrap()),
        Err(_) => Err(TransportError::PeerGone(String::new())),
    }
}

#[test]
fn strangers_and_old_connections_are_refused() {
    let near = Candidate::on_loopback(0, 5, 1);
    let address = near.addresses()[0];
    let mut near = near.keep(1, &[address]);
    let hello = |incarnation| Hello {
        communicator: COMMUNICATOR,
        from: Rank(1),
        to: Rank(0),
        index: 0,
        incarnation,
        medium: Medium::Tcp,
    };
    let mut http = TcpStream::connect(address).unwrap();
    http.write_all(&[b'x'; 100]).unwrap();
    assert!(matches!(http.read(&mut [0]), Ok(0) | Err(_)));
    let stranger = intrude(address, &JobKey::from_passphrase("another"), hello(1));
    assert!(matches!(stranger, Err(TransportError::Refused(_))), "{stranger:?}");
    for other in [
        Hello { communicator: 98, ..hello(1) },
        Hello { from: Rank(2), ..hello(1) },
        Hello { to: Rank(1), ..hello(1) },
        Hello { index: 1, ..hello(1) },
        Hello { medium: Medium::Verbs, ..hello(1) },
        // As who is late for the meeting, and does not wait for a verdict.
        hello(0),
    ] {
        let outcome = intrude(address, &key(), other);
        assert!(matches!(outcome, Err(TransportError::PeerGone(_))), "{other:?}: {outcome:?}");
    }
    let offers = [3, 3, 2, 4];
    let verdicts = offers.map(|offer| intrude(address, &key(), hello(offer)).unwrap());
    let three = Verdict::Outdone(3);
    assert_eq!(verdicts, [Verdict::Welcome, three, three, Verdict::Welcome]);
    // Of the two that were taken the first is dead already, and need not have been heard of.
    let mut taken = near.hear_connected();
    while taken.1 < 4 {
        taken = near.hear_connected();
    }
    assert!(!near.keeper.has_news());
}

/// The higher rank offers a number that the lower one has had already.
#[test]
fn ends_that_disagree_on_the_number_find_one() {
    let near = Candidate::on_loopback(0, 6, 1);
    let far = Candidate::on_loopback(1, 6, 1);
    let addresses = (near.addresses(), far.addresses());
    let (address, medium) = (addresses.0[0], Medium::Tcp);
    let (communicator, from, to) = (COMMUNICATOR, Rank(1), Rank(0));
    let hello = Hello { communicator, from, to, index: 0, incarnation: 7, medium };
    let mut near = near.keep(1, &addresses.1);
    assert_eq!(intrude(address, &key(), hello).unwrap(), Verdict::Welcome);
    assert_eq!(near.hear_connected().1, 7);
    let mut far = far.keep(0, &addresses.0);
    let (mut one, mut other) = replace(&mut near, &mut far, 0, 0);
    assert_eq!(one.1, 8);
    send(&mut one, &mut other);
}

/// They begin to speak, and do not go on.
#[test]
fn strangers_do_not_keep_peers_from_connecting_again() {
    let near = Candidate::on_loopback(0, 11, 1);
    let far = Candidate::on_loopback(1, 11, 1);
    let addresses = (near.addresses(), far.addresses());
    let slow = |at: SocketAddr| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"r2cc").unwrap();
        stream
    };
    // More than are heard one after the other before the peer must be there.
    let all: Vec<_> = (0..100).flat_map(|_| [slow(addresses.0[0]), slow(addresses.1[0])]).collect();
    let (mut near, mut far) = (near.keep(1, &addresses.1), far.keep(0, &addresses.0));
    let (mut one, mut other) = replace(&mut near, &mut far, 0, 0);
    send(&mut one, &mut other);
    drop(all);
}

/// Conversations that hang are ended when the last link is dropped, and the listeners are closed.
#[test]
fn nothing_holds_a_keeper_without_links() {
    let near = Candidate::on_loopback(0, 7, 1);
    let deaf = TcpListener::bind("127.1.7.50:0").unwrap();
    let far = Candidate::on_loopback(1, 7, 1);
    let addresses = (near.addresses()[0], far.addresses()[0]);
    let near = near.keep(1, &[addresses.1]);
    let mut far = far.keep(0, &[deaf.local_addr().unwrap()]);
    let mut silent = TcpStream::connect(addresses.0).unwrap();
    let mut slow = TcpStream::connect(addresses.0).unwrap();
    slow.write_all(b"r2cc").unwrap();
    far.keeper.reconnect(0, 0);
    let (mut dialled, _) = deaf.accept().unwrap();
    dialled.read_exact(&mut [0; 8]).unwrap();
    drop((near, far));
    for stream in [&mut silent, &mut slow, &mut dialled] {
        let mut rest = Vec::new();
        // A connection may end with a reset.
        let _ = stream.read_to_end(&mut rest);
    }
    for address in [addresses.0, addresses.1] {
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

/// Descriptors and threads of this process.
fn possessions() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|path| std::fs::read_dir(path).unwrap().count())
}

/// Counts what belongs to the process, so it needs one of its own.
#[test]
fn a_hundred_connections_leave_nothing_behind() {
    if !is_alone("network::keeper::tests::a_hundred_connections_leave_nothing_behind") {
        return;
    }
    let before = possessions();
    let (mut near, mut far) = couple(8, 1);
    let mut given_up = 0;
    let mut early = None;
    for round in 0..100 {
        given_up = replace(&mut near, &mut far, 0, given_up).0.1;
        assert_eq!(near.answer(0), "Answered { path: 0 }");
        if round == 4 {
            early = Some(possessions());
        }
    }
    let late = possessions();
    // A probe that the other side has not accepted yet may still be open.
    assert!(late[0] <= early.unwrap()[0] + 4 && late[1] <= early.unwrap()[1] + 2, "{late:?}");
    drop((near, far));
    assert_eq!(possessions(), before);
}

/// The higher rank waits between two attempts to reach an address at which nobody is.
#[test]
fn a_peer_that_moves_is_dialled_at_its_new_address() {
    let near = Candidate::on_loopback(0, 9, 2);
    let far = Candidate::on_loopback(1, 9, 2);
    let addresses = (near.addresses(), far.addresses());
    let nowhere = TcpListener::bind("127.1.9.50:0").unwrap().local_addr().unwrap();
    let mut near = near.keep(1, &addresses.1);
    let mut far = far.keep(0, &[nowhere, addresses.0[1]]);
    far.keeper.reconnect(0, 0);
    assert_eq!(far.answer(0), "Answered { path: 0 }");
    for (peer, rail) in [(1, 0), (0, 2), (2, 0)] {
        far.directory.moved(Rank(peer), rail, addresses.1[1]);
    }
    assert!(!near.keeper.has_news());
    far.directory.moved(Rank(0), 0, addresses.0[0]);
    let (mut one, mut other) = (near.hear_connected(), far.hear_connected());
    assert_eq!((one.0, other.0), (0, 0));
    send(&mut one, &mut other);
    drop(far.keeper);
    far.directory.moved(Rank(0), 0, nowhere);
}
