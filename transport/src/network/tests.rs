//! Links over loopback addresses as NICs, with real sockets.

mod impostor;
mod landing;
mod large;
mod looks;
mod severed;
mod unmet;
mod unstaged;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ccl_core::collective::{Collective, Signature};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::events::{RailEvent, RailEventKind, Witness};
use super::*;
use crate::alone::is_alone;
use crate::verbs::Status;
use crate::verbs::fault::{Faulty, Script};
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
    let (addresses, verbs) = (endpoint.addresses(), endpoint.verbs());
    let broken = endpoint.broken.clone();
    PeerAddresses { rank: Rank(rank), addresses, capacities, verbs, broken }
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
    let Some(slot) = link.reserve(bytes).unwrap() else { return false };
    slot.fill(sequence as u8);
    link.commit(&stamp(sequence)).unwrap();
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

/// How `near` fails while it sends tiles to `far`.
fn failure_of_traffic(near: &mut dyn Link, far: &mut dyn Link) -> TransportError {
    let deadline = soon();
    let mut sent = 0;
    loop {
        assert!(clock::now() < deadline);
        if near.reserve(10).is_ok_and(|slot| slot.is_some()) {
            near.commit(&stamp(sent)).unwrap();
            sent += 1;
        }
        if let Err(error) = near.progress() {
            break error;
        }
        if far.progress().is_ok() && far.peek().is_some() {
            far.release().unwrap();
        }
    }
}

/// Why a link fails, once nothing is left to deliver.
fn failure(link: &mut dyn Link) -> TransportError {
    let deadline = soon();
    loop {
        while link.peek().is_some() {
            link.release().unwrap();
        }
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
    let silent = vec![endpoints[0].addresses()[0]; 70];
    let silent: Vec<_> = silent.into_iter().map(|at| TcpStream::connect(at).unwrap()).collect();
    for address in endpoints.iter().flat_map(Endpoint::addresses) {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n........").unwrap();
        strangers.push((stranger, TcpStream::connect(address).unwrap()));
    }
    // Sooner than a stranger is silent for too long.
    let outcomes = gather(endpoints, &[SHAPE], Duration::from_secs(4));
    drop(silent);
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

/// Limits the process, so it needs one of its own.
#[test]
fn a_meeting_without_threads_is_an_error() {
    if !is_alone("network::tests::a_meeting_without_threads_is_an_error") {
        return;
    }
    let (near, far) = (endpoint(0, &[1.0]), endpoint(1, &[1.0]));
    let peers = [announced(0, &near)];
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let bytes = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    // A stack needs more.
    let limit = Rlimit { current: Some(bytes + (1 << 20)), ..getrlimit(Resource::As) };
    setrlimit(Resource::As, limit).unwrap();
    let error = far.connect(Rank(1), 77, &peers, SHAPE, soon()).unwrap_err();
    assert!(error.to_string().contains("start a thread"), "{error}");
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
        assert_eq!(far.reserve(10).map(|_| ()), Err(error.clone()));
        assert_eq!(far.progress(), Err(error));
    }
}

/// A few tiles bring no credit of their own, nothing goes the other way, and who takes them looks no more.
#[test]
fn who_confirms_lets_the_peer_know_that_it_has_everything() {
    let (mut near, mut far) = pair(endpoint(0, &[1.0]), endpoint(1, &[1.0]));
    let deadline = soon();
    assert!(try_send(&mut *near, 0, 4096));
    while !try_take(&mut *far, 0) {
        assert!(clock::now() < deadline);
        near.progress().unwrap();
        far.progress().unwrap();
    }
    for _ in 0..1000 {
        near.progress().unwrap();
    }
    assert!(!near.settled(), "nobody has said so");
    far.confirm();
    while !near.settled() {
        assert!(clock::now() < deadline);
        near.progress().unwrap();
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
    let error = failure_of_traffic(&mut *near, &mut *far);
    // The other one works.
    let TransportError::Unrepaired(rails) = error else { panic!("{error}") };
    assert!(rails.contains("rail 1 (nic1) to rank 1"), "{rails}");
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
