//! A link whose other end is no link: peers that lie, and connections that never become one.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::failover::watch::Question;
use proptest::prelude::*;

use super::super::events::Evidence;
use super::super::keeper::{Keeper, News, NoKeeper};
use super::super::layout::{ANNOUNCEMENT_BYTES, Announcement, CREDIT_BYTES, Geometry, TileHeader};
use super::super::link::NetworkLink;
use super::super::{LinkShape, RailTraffic, Terms, Wire};
use super::{SHAPE, soon, stamp};
use crate::verbs::soft::SoftDevice;
use crate::verbs::{
    Access, Completion, Connection, Device, Domain, Memory, MemoryRegion, Operation, QueuePair,
    ReceiveRequest, RemoteAddress, RemoteKey, WorkId, WorkRequest,
};
use crate::{Link, TransportError, clock};

/// A link whose peer is played by the test, over one queue pair.
struct Impostor {
    link: NetworkLink,
    pair: Box<dyn QueuePair>,
    _domain: Box<dyn Domain>,
    region: MemoryRegion,
    block: RemoteAddress,
    done: Vec<Completion>,
}

fn device() -> SoftDevice {
    SoftDevice::new("nic0".into(), "127.0.0.1".parse().unwrap())
}

const GEOMETRY: Geometry = Geometry { rails: 1, shape: SHAPE };

impl Impostor {
    fn new() -> Self {
        Self::with(Box::new(NoKeeper), Terms::default())
    }

    fn with(keeper: Box<dyn Keeper>, terms: Terms) -> Self {
        let device = device();
        let connect = |domain: &dyn Domain, stream| {
            let mut pair = domain.queue_pair(GEOMETRY.depth()).unwrap();
            pair.initialise().unwrap();
            pair.connect(Connection::Stream(stream)).unwrap();
            pair
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let domain = device.domain().unwrap();
        let near = connect(&*domain, near);
        let traffic = Arc::new([RailTraffic::default()]);
        let wire = Wire { name: "rail 0".into(), rail: 0, capacity: 1.0, domain, pair: near };
        let mut link =
            NetworkLink::open(GEOMETRY, vec![Ok(wire)], &(traffic as _), terms, keeper).unwrap();
        let domain = device.domain().unwrap();
        let mut pair = connect(&*domain, far);
        let memory = Memory::allocate(GEOMETRY.bytes()).unwrap();
        let region = domain.register(&memory, Access::WRITE).unwrap();
        let target = Some(region.segment(0, ANNOUNCEMENT_BYTES));
        pair.post_receive(ReceiveRequest { id: WorkId(0), target }).unwrap();
        let mut done = Vec::new();
        let deadline = soon();
        while done.is_empty() {
            assert!(clock::now() < deadline);
            link.settle().unwrap();
            pair.poll(&mut done);
        }
        let mut bytes = [0; ANNOUNCEMENT_BYTES];
        memory.read(0, &mut bytes);
        let block = Announcement::decode(&bytes).unwrap().block;
        Self { link, pair, _domain: domain, region, block, done: Vec::new() }
    }

    fn post(&mut self, bytes: &[u8], operation: impl FnOnce(crate::verbs::Segment) -> Operation) {
        self.region.memory().write(0, bytes);
        let operation = operation(self.region.segment(0, bytes.len()));
        self.pair.post_send(WorkRequest { id: WorkId(1), operation, signalled: false }).unwrap();
    }

    fn announce(&mut self) {
        let announcement = Announcement { geometry: GEOMETRY, block: self.region.remote(0) };
        self.post(&announcement.encode(), |source| Operation::Send { source });
    }

    /// Writes a tile into a slot and announces it.
    fn tile(&mut self, bytes: &[u8], slot: u64, immediate: u32) {
        let address = self.block.address + GEOMETRY.slot(slot) as u64;
        let target = RemoteAddress { address, ..self.block };
        self.post(bytes, |source| Operation::WriteWithImmediate { source, target, immediate });
    }

    fn failure(&mut self) -> TransportError {
        let deadline = soon();
        loop {
            self.pair.poll(&mut self.done);
            if let Err(error) = self.link.progress() {
                return error;
            }
            assert!(clock::now() < deadline);
        }
    }
}

fn tile(sequence: u64, payload_bytes: usize) -> Vec<u8> {
    let header = TileHeader { stamp: stamp(0).encode(), sequence, payload_bytes, consumed: 0 };
    [&header.encode()[..], &vec![0; payload_bytes]].concat()
}

#[test]
fn a_peer_that_lies_is_an_error() {
    let good = tile(0, 16);
    let cut = good[..70].to_vec();
    let header =
        TileHeader { stamp: stamp(0).encode(), sequence: 0, payload_bytes: 0, consumed: 1 };
    let generous = header.encode().to_vec();
    let lies: Vec<(&str, Vec<u8>, u64, u32)> = vec![
        ("no header", vec![0xee; 80], 0, 0),
        ("another sequence", tile(1, 16), 0, 0),
        ("another slot", good.clone(), 1, 0),
        ("beyond the window", tile(8, 16), 0, 8),
        ("shorter than it says", cut, 0, 0),
        ("larger than a tile", tile(0, SHAPE.tile_bytes + 1), 0, 0),
        ("without a header", vec![], 0, 0),
        ("a credit for what was not sent", generous, 0, 0),
    ];
    for (name, bytes, slot, immediate) in lies {
        let mut impostor = Impostor::new();
        impostor.announce();
        impostor.tile(&bytes, slot, immediate);
        let error = impostor.failure();
        assert!(matches!(error, TransportError::Protocol(_)), "{name}: {error}");
        assert!(impostor.link.peek().is_none(), "{name}");
    }
}

#[test]
fn a_peer_that_lies_about_its_memory_is_an_error() {
    let block = RemoteAddress { address: 4096, key: RemoteKey(1) };
    let shape = LinkShape { slots: SHAPE.slots + 1, ..SHAPE };
    let other = Announcement { geometry: Geometry { shape, ..GEOMETRY }, block }.encode();
    let good = Announcement { geometry: GEOMETRY, block }.encode();
    let mut strange = good;
    strange[0] ^= 1;
    let lies: [(&str, &[u8]); 3] = [
        ("other slots", &other),
        ("another kind of peer", &strange),
        ("not all of it", &good[..ANNOUNCEMENT_BYTES - 1]),
    ];
    for (name, bytes) in lies {
        let mut impostor = Impostor::new();
        impostor.post(bytes, |source| Operation::Send { source });
        let error = impostor.failure();
        assert!(matches!(error, TransportError::Protocol(_)), "{name}: {error}");
    }
}

#[test]
fn a_credit_for_what_was_not_sent_is_an_error() {
    let mut impostor = Impostor::new();
    impostor.announce();
    let address = impostor.block.address + GEOMETRY.credit(0) as u64;
    let target = RemoteAddress { address, ..impostor.block };
    let credit = 1_u64.to_le_bytes();
    assert_eq!(credit.len(), CREDIT_BYTES);
    impostor.post(&credit, |source| Operation::Write { source, target });
    let error = impostor.failure();
    assert!(error.to_string().contains("1 tiles consumed of 0 sent"), "{error}");
}

#[test]
fn a_write_outside_of_the_ring_is_an_error() {
    let mut impostor = Impostor::new();
    impostor.announce();
    let address = impostor.block.address + GEOMETRY.bytes() as u64 - 4;
    let target = RemoteAddress { address, ..impostor.block };
    impostor.post(&[1; 8], |source| Operation::Write { source, target });
    let error = impostor.failure();
    assert!(matches!(error, TransportError::Protocol(_)), "{error}");
}

/// What a link has asked for: the path and the connection in whose place it wants another.
type Asked = Arc<Mutex<Vec<(usize, u32)>>>;

/// Answers the first request for a connection with one that cannot be used.
#[derive(Debug)]
struct Clumsy {
    asked: Asked,
    news: Vec<News>,
}

impl Keeper for Clumsy {
    fn probe(&mut self, _path: usize, _question: Question) {}

    fn reconnect(&mut self, path: usize, incarnation: u32) {
        let mut asked = self.asked.lock().unwrap();
        asked.push((path, incarnation));
        if asked.len() == 1 {
            let domain = device().domain().unwrap();
            let pair = domain.queue_pair(GEOMETRY.depth()).unwrap();
            self.news.push(News::Connected { path, incarnation: incarnation + 1, domain, pair });
        }
    }

    fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn news(&mut self, into: &mut Vec<News>) {
        into.append(&mut self.news);
    }
}

#[test]
fn in_place_of_a_connection_that_cannot_be_used_another_is_asked_for() {
    let asked = Asked::default();
    let keeper = Clumsy { asked: Arc::clone(&asked), news: Vec::new() };
    let Impostor { mut link, pair, .. } = Impostor::with(Box::new(keeper), Terms::default());
    drop(pair);
    let deadline = soon();
    while asked.lock().unwrap().len() < 2 {
        assert!(clock::now() < deadline, "{asked:?}");
        // It has no path any more, which is an error sooner or later.
        let _ = link.progress();
    }
    assert_eq!(asked.lock().unwrap()[..2], [(0, 0), (0, 1)]);
}

/// A card without a carrier says nothing about the process behind it.
#[test]
fn only_a_peer_that_closed_all_rails_is_gone() {
    for (evidence, is_gone) in [(Evidence::Carrier, false), (Evidence::Closed, true)] {
        let terms = Terms { patience: Duration::ZERO, ..Terms::default() };
        let mut impostor = Impostor::with(Box::new(NoKeeper), terms);
        impostor.link.give_up(0, evidence, "nic0 is ill".into());
        let error = impostor.failure();
        assert_eq!(matches!(error, TransportError::PeerGone(_)), is_gone, "{error}");
        assert_eq!(matches!(error, TransportError::Severed(_)), !is_gone, "{error}");
        assert!(error.to_string().contains("rail 0: nic0 is ill"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever an impostor announces, nothing panics and nothing is delivered that is not a tile.
    #[test]
    fn noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), slot in 0u64..8, low: u32) {
        let mut impostor = Impostor::new();
        impostor.announce();
        impostor.tile(&bytes, slot, low);
        for _ in 0..50 {
            impostor.pair.poll(&mut impostor.done);
            if impostor.link.progress().is_err() {
                break;
            }
        }
        prop_assert!(impostor.link.peek().is_none());
    }
}
