//! Links over loopback addresses as NICs, with real sockets.

use std::collections::BTreeSet;
use std::io::Write;
use std::thread::{self, JoinHandle};

use ccl_core::collective::{Collective, Signature};
use proptest::prelude::*;

use super::events::{RailEvent, RailEventKind, Witness};
use super::layout::{ANNOUNCEMENT_BYTES, Announcement, CREDIT_BYTES, TileHeader};
use super::*;
use crate::verbs::fault::{Faulty, Script};
use crate::verbs::{
    Access, Completion, Domain, Memory, MemoryRegion, Operation, ReceiveRequest, RemoteAddress,
    Status, WorkId, WorkRequest,
};
use crate::{HEADER_BYTES, Stamp, conformance};

pub(super) const SHAPE: LinkShape = LinkShape { tile_bytes: 4096, slots: 8 };
const LIMIT: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    clock::now() + LIMIT
}

pub(super) fn key() -> JobKey {
    JobKey::from_passphrase("the job of this test")
}

/// An endpoint with a NIC on loopback for every capacity.
fn endpoint(rank: u32, capacities: &[f64]) -> Endpoint {
    let rails = capacities.iter().enumerate().map(|(index, &capacity)| RailAddress {
        name: format!("nic{index}"),
        address: IpAddr::from([127, 0, 10 + rank as u8, 1 + index as u8]),
        interface: None,
        capacity,
    });
    Endpoint::bind(rails.collect(), key()).unwrap()
}

pub(super) fn announced(rank: u32, endpoint: &Endpoint) -> PeerAddresses {
    let capacities = endpoint.rails.iter().map(|rail| rail.capacity).collect();
    PeerAddresses { rank: Rank(rank), addresses: endpoint.addresses(), capacities }
}

fn script(script: Script) -> Instrument {
    Box::new(move |rail, pair, depth| {
        let seed = script.seed + rail as u64;
        Box::new(Faulty::new(pair, depth.sends, Script { seed, ..script }))
    })
}

type Outcome = Result<Vec<PeerLink>, TransportError>;

/// Connects endpoints as ranks 0, 1, ... of a communicator, each in its thread.
fn gather(endpoints: Vec<Endpoint>, shapes: &[LinkShape], limit: Duration) -> Vec<Outcome> {
    let everybody: Vec<PeerAddresses> =
        (0..).zip(&endpoints).map(|(rank, endpoint)| announced(rank, endpoint)).collect();
    let deadline = clock::now() + limit;
    let connect = |(index, endpoint): (usize, Endpoint)| -> JoinHandle<Outcome> {
        let me = everybody[index].rank;
        let peers: Vec<_> = everybody.iter().filter(|peer| peer.rank != me).cloned().collect();
        let shape = shapes[index % shapes.len()];
        thread::spawn(move || endpoint.connect(me, 77, &peers, shape, deadline))
    };
    let threads: Vec<_> = endpoints.into_iter().enumerate().map(connect).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn pair(near: Endpoint, far: Endpoint) -> conformance::Pair {
    let mut links = gather(vec![near, far], &[SHAPE], LIMIT).into_iter();
    let mut only = || links.next().unwrap().unwrap().pop().unwrap().1;
    (only(), only())
}

fn stamp(sequence: u32) -> Stamp {
    let signature = Signature {
        collective: Collective::Broadcast,
        datatype: 1,
        reduction: 0,
        root: 0,
        count: 9,
        plan: 4,
    };
    Stamp { sequence, signature }
}

fn try_send(link: &mut dyn Link, sequence: u32, bytes: usize) -> bool {
    let Some(slot) = link.reserve().unwrap() else { return false };
    slot[..bytes].fill(sequence as u8);
    link.commit(&stamp(sequence), bytes).unwrap();
    true
}

fn try_take(link: &mut dyn Link, sequence: u32) -> bool {
    let Some(tile) = link.peek() else { return false };
    assert_eq!(*tile.stamp, stamp(sequence).encode());
    assert!(tile.payload.iter().all(|&byte| byte == sequence as u8));
    link.release().unwrap();
    true
}

/// Sends so many tiles one way.
pub(super) fn stream(from: &mut dyn Link, to: &mut dyn Link, tiles: u32, bytes: usize) {
    let (mut sent, mut taken) = (0, 0);
    let deadline = soon();
    while taken < tiles {
        assert!(clock::now() < deadline, "{taken} of {tiles} tiles: {from:?} / {to:?}");
        sent += u32::from(sent < tiles && try_send(from, sent, bytes));
        taken += u32::from(try_take(to, taken));
        if !(from.progress().unwrap() | to.progress().unwrap()) {
            thread::yield_now();
        }
    }
}

fn failure(link: &mut dyn Link) -> TransportError {
    let deadline = soon();
    loop {
        if let Err(failure) = link.progress() {
            return failure;
        }
        assert!(clock::now() < deadline, "{link:?} does not fail");
        thread::yield_now();
    }
}

#[test]
fn links_meet_the_contract_whatever_the_rails() {
    for (near, far) in [(1, 1), (2, 2), (5, 5), (1, 3), (3, 2)] {
        println!("{near} rails and {far}");
        conformance::check(&mut || {
            pair(endpoint(0, &vec![1.0; near]), endpoint(1, &vec![1.0; far]))
        });
    }
}

#[test]
fn links_meet_the_contract_under_benign_faults() {
    for seed in [1, 20, 300] {
        println!("seed {seed}");
        conformance::check(&mut || {
            let near = endpoint(0, &[1.0, 2.0, 1.0]).instrument(script(Script::benign(seed)));
            let far = endpoint(1, &[1.0, 1.0]).instrument(script(Script::benign(seed + 100)));
            pair(near, far)
        });
    }
}

#[test]
fn what_comes_twice_is_delivered_once() {
    let twice = Script { seed: 5, delay_polls: 3, duplicate_every: Some(3), ..Script::default() };
    conformance::check(&mut || {
        let near = endpoint(0, &[1.0, 1.0]).instrument(script(twice));
        pair(near, endpoint(1, &[1.0, 1.0]).instrument(script(twice)))
    });
}

/// One rail is so late that the tiles of the other always overtake.
#[test]
fn tiles_that_overtake_wait_for_their_turn() {
    let late: Instrument = Box::new(|rail, pair, depth| {
        let delay_polls = if rail == 0 { 50 } else { 0 };
        Box::new(Faulty::new(
            pair,
            depth.sends,
            Script { seed: 9, delay_polls, ..Script::default() },
        ))
    });
    let (mut near, mut far) =
        pair(endpoint(0, &[1.0, 1.0]), endpoint(1, &[1.0, 1.0]).instrument(late));
    stream(&mut *near, &mut *far, 500, 100);
}

#[test]
fn all_rails_carry_bytes_in_proportion_to_their_capacity() {
    let (near, far) = (endpoint(0, &[3.0, 1.0]), endpoint(1, &[3.0, 1.0]));
    let (sent, back) = (near.traffic(), far.traffic());
    let (mut near, mut far) = pair(near, far);
    stream(&mut *near, &mut *far, 4000, 1000);
    let bytes: Vec<u64> = sent.iter().map(RailTraffic::bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), 4000 * (1000 + HEADER_BYTES as u64));
    assert_eq!(sent.iter().map(RailTraffic::tiles).sum::<u64>(), 4000);
    let share = bytes[0] as f64 / (bytes[0] + bytes[1]) as f64;
    assert!((0.65..=0.85).contains(&share), "rail 0 carried {share} of {bytes:?}");
    assert!(back.iter().all(|rail| rail.tiles() == 0));
}

#[test]
fn many_ranks_meet_while_strangers_knock() {
    let capacities: [&[f64]; 5] = [&[1.0, 1.0], &[1.0], &[1.0, 1.0, 1.0], &[1.0], &[2.0, 1.0]];
    let endpoints: Vec<Endpoint> =
        (0..).zip(capacities).map(|(rank, capacities)| endpoint(20 + rank, capacities)).collect();
    let mut strangers = Vec::new();
    for address in endpoints.iter().flat_map(Endpoint::addresses) {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n........").unwrap();
        strangers.push((stranger, TcpStream::connect(address).unwrap()));
    }
    let outcomes = gather(endpoints, &[SHAPE], LIMIT);
    let mut ranks: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    for links in &mut ranks {
        assert_eq!(links.len(), 4);
        for (_, link) in links {
            assert!(try_send(&mut **link, 3, 10));
        }
    }
    let deadline = soon();
    for (_, link) in ranks.iter_mut().flatten() {
        while !try_take(&mut **link, 3) {
            assert!(clock::now() < deadline);
            link.progress().unwrap();
        }
    }
}

#[test]
fn who_does_not_come_is_named() {
    let (near, absent) = (endpoint(0, &[1.0]), endpoint(1, &[1.0, 1.0]));
    let peers = [announced(1, &absent)];
    let deadline = clock::now() + Duration::from_millis(100);
    let error = near.connect(Rank(0), 77, &peers, SHAPE, deadline).unwrap_err();
    assert!(matches!(error, TransportError::TimedOut(_)), "{error}");
    assert!(error.to_string().contains("rank 1 rails [0, 1]"), "{error}");
    // The other way round the listener is there, and nobody answers.
    let peers = [announced(0, &endpoint(0, &[1.0]))];
    let deadline = clock::now() + Duration::from_millis(100);
    let error = absent.connect(Rank(1), 77, &peers, SHAPE, deadline).unwrap_err();
    assert!(matches!(error, TransportError::TimedOut(_)), "{error}");
    assert!(error.to_string().contains("rank 0 rails [0, 1]"), "{error}");
}

#[test]
fn another_job_is_refused() {
    let (near, mut far) = (endpoint(0, &[1.0]), endpoint(1, &[1.0]));
    far.key = JobKey::from_passphrase("another job");
    let outcomes = gather(vec![near, far], &[SHAPE], Duration::from_secs(1));
    assert!(matches!(outcomes[0], Err(TransportError::TimedOut(_))), "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(TransportError::Refused(_))), "{outcomes:?}");
}

#[test]
fn both_ends_need_the_same_shape() {
    let shapes = [SHAPE, LinkShape { slots: 9, ..SHAPE }];
    let outcomes = gather(vec![endpoint(0, &[1.0]), endpoint(1, &[1.0])], &shapes, LIMIT);
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        let is_known = matches!(error, TransportError::Protocol(_) | TransportError::PeerGone(_));
        assert!(is_known, "{error}");
    }
}

#[test]
fn what_cannot_be_a_rail_is_named() {
    let rail = |address: &str, interface: Option<&str>, capacity| RailAddress {
        name: "mlx5_7".into(),
        address: address.parse().unwrap(),
        interface: interface.map(str::to_owned),
        capacity,
    };
    for (rail, name) in [
        (rail("203.0.113.9", None, 1.0), "203.0.113.9"),
        (rail("127.0.0.1", Some("nonesuch0"), 1.0), "nonesuch0"),
        (rail("127.0.0.1", None, 0.0), "0 bytes per second"),
        (rail("127.0.0.1", None, f64::NAN), "NaN"),
    ] {
        let error = Endpoint::bind(vec![rail], key()).unwrap_err();
        assert!(matches!(error, TransportError::System { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("mlx5_7"), "{text}");
    }
    assert!(Endpoint::bind(Vec::new(), key()).is_err());
}

#[test]
fn a_peer_that_has_left_is_still_heard() {
    for rails in [1, 3] {
        let (mut near, mut far) =
            pair(endpoint(0, &vec![1.0; rails]), endpoint(1, &vec![1.0; rails]));
        // Half a window is consumed, so a credit is on its way back when the sender leaves.
        for tile in 0..8 {
            assert!(try_send(&mut *near, tile, 4096));
        }
        let deadline = soon();
        for tile in 0..4 {
            while !try_take(&mut *far, tile) {
                assert!(clock::now() < deadline);
                far.progress().unwrap();
            }
        }
        drop(near);
        for tile in 4..8 {
            while !try_take(&mut *far, tile) {
                assert!(clock::now() < deadline);
                far.progress().unwrap();
            }
        }
        let error = failure(&mut *far);
        assert!(matches!(error, TransportError::PeerGone(_)), "{error}");
        assert!(error.to_string().contains("nic"), "{error}");
        assert_eq!(far.reserve().map(|_| ()), Err(error.clone()));
        assert_eq!(far.progress(), Err(error));
    }
}

#[test]
fn without_repair_the_rail_that_fails_is_named() {
    let broken: Instrument = Box::new(|rail, pair, depth| {
        let fail_after = (rail == 1).then_some((4, Status::RetryExceeded));
        Box::new(Faulty::new(pair, depth.sends, Script { fail_after, ..Script::default() }))
    });
    let terms = Terms { enabled: false, ..Terms::default() };
    let near = endpoint(0, &[1.0, 1.0]).instrument(broken).terms(terms.clone());
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]).terms(terms));
    let deadline = soon();
    let mut sent = 0;
    let error = loop {
        assert!(clock::now() < deadline);
        if let Ok(Some(_)) = near.reserve() {
            near.commit(&stamp(sent), 10).unwrap();
            sent += 1;
        }
        if let Err(error) = near.progress() {
            break error;
        }
        if far.progress().is_ok() && far.peek().is_some() {
            far.release().unwrap();
        }
    };
    assert!(error.to_string().contains("rail 1 (nic1) to rank 1"), "{error}");
    failure(&mut *far);
}

/// Remembers what happened.
#[derive(Debug, Default)]
struct Record(std::sync::Mutex<Vec<RailEvent>>);

impl Witness for Record {
    fn witness(&self, event: RailEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// Breaks rails after so many operations, or lets them fall silent.
fn breaking(after: &'static [Option<u64>], silent: bool) -> Instrument {
    Box::new(move |rail, pair, depth| {
        let posted = after.get(rail).copied().flatten();
        let script = Script {
            seed: rail as u64,
            fail_after: posted.filter(|_| !silent).map(|posted| (posted, Status::RetryExceeded)),
            silent_after: posted.filter(|_| silent),
            ..Script::default()
        };
        Box::new(Faulty::new(pair, depth.sends, script))
    })
}

/// Tiles both ways while rails break at both ends; everything arrives once, in order.
#[test]
fn rails_that_break_are_survived_until_the_last() {
    let near = breaking(&[Some(37), None, Some(90), None], false);
    let far = breaking(&[None, Some(55), None, None], false);
    let record = Arc::new(Record::default());
    let terms = Terms { witness: Arc::clone(&record) as _, ..Terms::default() };
    let rails = [1.0; 4];
    let near = endpoint(0, &rails).instrument(near).terms(terms);
    let (mut near, mut far) = pair(near, endpoint(1, &rails).instrument(far));
    for _ in 0..4 {
        stream(&mut *near, &mut *far, 200, 1000);
        stream(&mut *far, &mut *near, 200, 1000);
    }
    let events = record.0.lock().unwrap();
    let lost = events.iter().filter(|event| matches!(event.kind, RailEventKind::GivenUp { .. }));
    assert_eq!(lost.map(|event| event.rail).collect::<BTreeSet<_>>(), [0, 1, 2].into());
    assert!(events.iter().any(|event| event.kind == RailEventKind::Resumed), "{events:?}");
}

/// A rail breaks, and carries tiles again over a new connection.
#[test]
fn a_rail_that_breaks_comes_back() {
    let record = Arc::new(Record::default());
    let terms = Terms { witness: Arc::clone(&record) as _, ..Terms::default() };
    let near = endpoint(0, &[1.0; 2]).instrument(breaking(&[Some(30), None], false)).terms(terms);
    let traffic = near.traffic();
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0; 2]));
    let deadline = soon();
    let returned = |event: &RailEvent| {
        (event.kind == RailEventKind::Returned).then_some((event.rail, event.incarnation))
    };
    let back = loop {
        assert!(clock::now() < deadline, "{record:?}");
        stream(&mut *near, &mut *far, 10, 1000);
        if let Some(back) = record.0.lock().unwrap().iter().find_map(returned) {
            break back;
        }
    };
    assert_eq!(back, (0, 1));
    let before = traffic[0].tiles();
    stream(&mut *near, &mut *far, 20, 1000);
    assert!(traffic[0].tiles() > before);
}

#[test]
fn without_a_rail_left_all_are_named() {
    let terms = Terms { patience: Duration::from_millis(50), ..Terms::default() };
    let near = endpoint(0, &[1.0, 1.0]).terms(terms.clone());
    let connected = std::sync::atomic::AtomicUsize::new(0);
    let broken: Instrument = Box::new(move |rail, pair, depth| {
        let is_first = connected.fetch_add(1, Ordering::Relaxed) < 2;
        let posted = if is_first { 20 + 10 * rail as u64 } else { 0 };
        let fail_after = Some((posted, Status::RetryExceeded));
        Box::new(Faulty::new(pair, depth.sends, Script { fail_after, ..Script::default() }))
    });
    let near = near.instrument(broken);
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]).terms(terms));
    let deadline = soon();
    let mut sent = 0;
    let error = loop {
        assert!(clock::now() < deadline);
        if near.reserve().is_ok_and(|slot| slot.is_some()) {
            near.commit(&stamp(sent), 10).unwrap();
            sent += 1;
        }
        if let Err(error) = near.progress() {
            break error;
        }
        if far.progress().is_ok() && far.peek().is_some() {
            far.release().unwrap();
        }
    };
    for name in ["rail 0 (nic0) to rank 1", "rail 1 (nic1) to rank 1"] {
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(failure(&mut *far).to_string().contains("rail 1 (nic1) to rank 0"));
}

/// A link whose peer is played by the test, over one queue pair.
struct Impostor {
    link: NetworkLink,
    pair: Box<dyn QueuePair>,
    _domain: Box<dyn Domain>,
    region: MemoryRegion,
    block: RemoteAddress,
    done: Vec<Completion>,
}

const GEOMETRY: Geometry = Geometry { rails: 1, shape: SHAPE };

impl Impostor {
    fn new() -> Self {
        let device = SoftDevice::new("nic0".into(), "127.0.0.1".parse().unwrap());
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
        let (terms, keeper) = (Terms::default(), Box::new(keeper::NoKeeper));
        let mut link =
            NetworkLink::open(GEOMETRY, vec![wire], &(traffic as _), terms, keeper).unwrap();
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
