//! Virtual queue pairs over rails that are cut, come back, fall silent or are shared.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/cuts.rs"]
mod cuts;
#[path = "support/resent.rs"]
mod resent;

use std::cmp::Reverse;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bench::{Pair, Place};
use ccl_transport::clock::simulation::VirtualTime;
use ccl_transport::place::Distance;
use ccl_transport::verbs::virtual_qp::{
    Evidence, Limits, Owner, SparePool, Standing, VirtualSettings,
};
use ccl_transport::verbs::{
    Access, Completion, Depth, Domain, Memory, Operation, QueuePair, ReceiveRequest, State, Status,
    WorkId,
};
use ccl_transport::{TransportError, clock};

const DEPTH: Depth = Depth { sends: 16, receives: 16 };
const LIMIT: Duration = Duration::from_secs(30);

fn until(pair: &mut Pair, reached: impl Fn(&Pair) -> bool) {
    let deadline = clock::now() + LIMIT;
    while !reached(pair) {
        assert!(clock::now() < deadline, "{pair:?}");
        pair.poll();
    }
}

fn settings(evidence: Evidence, rails: usize, patience: Duration) -> VirtualSettings {
    let patience_ns = patience.as_nanos() as u64;
    let limits = Limits { patience_ns, retry_ns: 0, settle_ns: 0, ..Limits::default() };
    VirtualSettings { limits, ..VirtualSettings::new(evidence, rails) }
}

fn places(settings: &VirtualSettings) -> (Place, Place) {
    (Place::new(settings, 4096, 0), Place::new(settings, 4096, 0))
}

fn write(near: &Place, far: &Place) -> Operation {
    let (source, target) = (near.region.segment(0, 8), far.region.remote(0));
    Operation::Write { source, target }
}

fn add(near: &Place, far: &Place) -> Operation {
    let (result, target) = (near.region.segment(8, 8), far.region.remote(8));
    Operation::FetchAdd { result, target, addend: 5 }
}

fn statuses(done: &[Completion]) -> Vec<(u64, Status)> {
    done.iter().map(|done| (done.id.0, done.status)).collect()
}

#[test]
fn everything_is_executed_once_however_often_rails_are_cut() {
    for (evidence, batches) in Evidence::ALL.into_iter().zip([100, 100, 300]) {
        let tally = cuts::run(evidence, batches, 7);
        println!("{}: {tally:#?}", evidence.name());
        assert!(tally.violations.is_empty(), "{:#?}", tally.violations);
        assert!(tally.batches == batches && tally.operations > tally.batches);
        let counters = tally.counters;
        assert!(tally.cuts > 0 && counters.repairs > 0 && counters.resent > 0);
        assert!(counters.returns > 0, "no queue pair went back to its default rail");
        let has_log = evidence == Evidence::Log;
        assert_eq!(counters.recovered > 0, has_log && tally.atomics > 0);
        assert_eq!(counters.spared > 0, evidence != Evidence::Resend);
    }
}

#[test]
fn evidence_spares_what_had_been_executed() {
    for before_cut in [0, resent::WRITES * 3 / 4, resent::WRITES] {
        let [all, handshake, log] = Evidence::ALL.map(|evidence| resent::run(evidence, before_cut));
        assert_eq!(all.bytes, (resent::WRITES * resent::BYTES) as u64);
        for spared in [handshake, log] {
            assert!(spared.executed >= before_cut);
            let left = (resent::WRITES - before_cut) as u64;
            assert!(spared.writes <= left, "{spared:?} of {left}");
            assert_eq!(spared.bytes, spared.writes * resent::BYTES as u64);
        }
    }
}

#[test]
fn when_every_rail_is_dead_everything_outstanding_fails_and_says_why() {
    for evidence in Evidence::ALL {
        let settings = settings(evidence, 3, Duration::from_millis(5));
        let (near, far) = places(&settings);
        let mut pair = Pair::new(&near, &far, DEPTH);
        pair.attach(1..3);
        until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
        pair.far.post_receive(ReceiveRequest { id: WorkId(9), target: None }).unwrap();
        for id in 0..3 {
            pair.post(id, write(&near, &far));
        }
        for rail in 0..3 {
            pair.near.suspect(rail);
        }
        until(&mut pair, |pair| pair.near_done.len() == 3 && pair.far_done.len() == 1);
        let lost = [(0, Status::RetryExceeded), (1, Status::Flushed), (2, Status::Flushed)];
        assert_eq!(statuses(&pair.near_done), lost);
        assert_eq!(statuses(&pair.far_done), [(9, Status::Flushed)]);
        for end in [&pair.near, &pair.far] {
            assert_eq!(end.state(), State::Error);
            let fault = end.fault().unwrap().to_string();
            assert!(fault.contains("every rail has failed"), "{fault}");
        }
    }
}

#[test]
fn a_rail_that_comes_back_in_time_is_taken() {
    let settings = settings(Evidence::Log, 2, LIMIT);
    let (near, far) = places(&settings);
    let mut pair = Pair::new(&near, &far, DEPTH);
    until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
    far.memory().store(8, 100);
    pair.post(1, add(&near, &far));
    pair.near.suspect(0);
    pair.post(2, add(&near, &far));
    until(&mut pair, |pair| pair.near.wants(0) && pair.far.wants(0));
    assert!(pair.near_done.is_empty());
    pair.attach(1..2);
    until(&mut pair, |pair| pair.near_done.len() == 2);
    assert_eq!(statuses(&pair.near_done), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!((near.memory().load(8), far.memory().load(8)), (105, 110));
    assert_eq!(pair.near.active(), 1);
}

#[test]
fn an_atomic_without_a_log_fails_with_its_rail() {
    for evidence in [Evidence::Resend, Evidence::Handshake] {
        let (near, far) = places(&settings(evidence, 2, LIMIT));
        let mut pair = Pair::new(&near, &far, DEPTH);
        pair.attach(1..2);
        until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
        pair.post(1, write(&near, &far));
        pair.post(2, add(&near, &far));
        pair.near.suspect(0);
        until(&mut pair, |pair| pair.near_done.len() == 2);
        let expected = [(1, Status::Flushed), (2, Status::RetryExceeded)];
        assert_eq!(statuses(&pair.near_done), expected);
        let fault = pair.near.fault().unwrap().to_string();
        assert!(fault.contains("atomic"), "{fault}");
    }
}

/// Regions that are registered while a backup is in use are found, and what is none is refused.
#[test]
fn keys_are_looked_up_on_a_backup() {
    let (near, far) = places(&settings(Evidence::Log, 2, LIMIT));
    let mut pair = Pair::new(&near, &far, DEPTH);
    pair.attach(1..2);
    pair.near.suspect(0);
    until(&mut pair, |pair| pair.near.is_running() && pair.near.active() == 1);
    // Keys of the default rail stop being those of the backup.
    let memory = Memory::allocate(64).unwrap();
    let others: Vec<_> =
        (0..3).map(|_| far.domain.register(&memory, Access::READ).unwrap()).collect();
    drop(others);
    let late = far.domain.register(&memory, Access::ALL).unwrap();
    near.memory().store(0, 77);
    let source = near.region.segment(0, 8);
    pair.post(1, Operation::Write { source, target: late.remote(16) });
    until(&mut pair, |pair| pair.near_done.len() == 1);
    assert_eq!((pair.near_done[0].status, memory.load(16)), (Status::Success, 77));
    let gone = late.remote(0);
    drop(late);
    let unknown = ccl_transport::verbs::RemoteAddress {
        key: ccl_transport::verbs::RemoteKey(gone.key.0 + 1000),
        ..gone
    };
    pair.post(2, Operation::Write { source, target: unknown });
    until(&mut pair, |pair| pair.near_done.len() == 2);
    assert_eq!(pair.near_done[1].status, Status::RemoteAccess);
    assert_eq!(memory.load(0), 0);
}

#[test]
fn a_rail_that_falls_silent_is_left() {
    let (near, far) = places(&settings(Evidence::Handshake, 2, LIMIT));
    let mut pair = Pair::new(&near, &far, DEPTH);
    pair.attach(1..2);
    until(&mut pair, |pair| pair.near.peer().is_some() && pair.far.is_running());
    for _ in 0..100 {
        pair.poll();
    }
    for place in [&near, &far] {
        place.weather.frozen.store(1, Ordering::Relaxed);
    }
    pair.post(1, write(&near, &far));
    until(&mut pair, |pair| pair.near_done.len() == 1);
    assert_eq!((pair.near_done[0].status, pair.near.active()), (Status::Success, 1));
}

/// A queue pair whose backup is connected and idle, in time that stands still.
fn at_rest(settings: &VirtualSettings) -> (Place, Place, Pair, VirtualTime) {
    let (near, far) = places(settings);
    let mut pair = Pair::new(&near, &far, DEPTH);
    until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
    let time = VirtualTime::begin();
    for end in [&mut pair.near, &mut pair.far] {
        end.look_around();
    }
    pair.poll();
    // From now on only what is under way there lets anybody look at it.
    pair.attach(1..2);
    let looks = || near.weather.polls(1) + far.weather.polls(1);
    eventually(&mut pair, |pair| {
        let before = looks();
        (0..100).all(|_| !pair.poll()) && looks() == before
    });
    (near, far, pair, time)
}

/// Polls until it is so, where no time passes.
fn eventually(pair: &mut Pair, reached: impl Fn(&mut Pair) -> bool) {
    let is_reached = (0..1_000_000).any(|_| {
        pair.poll();
        reached(pair)
    });
    assert!(is_reached, "{:?} and {:?}", pair.near.counters(), pair.far.counters());
}

/// How many of 100 polls of the near end look at its backup.
fn looks(pair: &mut Pair, near: &Place) -> u64 {
    let before = near.weather.polls(1);
    for _ in 0..100 {
        pair.near.poll(&mut pair.near_done);
    }
    near.weather.polls(1) - before
}

#[test]
fn an_idle_backup_is_looked_at_now_and_then() {
    let (near, far, mut pair, time) = at_rest(&settings(Evidence::Handshake, 2, LIMIT));
    let uses = near.weather.polls(0);
    for millisecond in 1..4 {
        assert_eq!(looks(&mut pair, &near), 0);
        time.set(Duration::from_millis(millisecond));
        assert_eq!(looks(&mut pair, &near), 1);
        pair.near.look_around();
        assert_eq!(looks(&mut pair, &near), 1);
    }
    assert_eq!(near.weather.polls(0) - uses, 900);
    near.weather.restless.store(1 << 1, Ordering::Relaxed);
    assert_eq!(looks(&mut pair, &near), 100);
    near.weather.restless.store(0, Ordering::Relaxed);

    // That it has ended is found out when it is looked at; what is under way there is not left to that.
    pair.poll();
    pair.far.suspect(1);
    eventually(&mut pair, |pair| pair.far.wants(1));
    assert!(pair.near.is_attached(1));
    time.set(Duration::from_millis(4));
    eventually(&mut pair, |pair| pair.near.wants(1));
    pair.attach(1..2);
    assert_eq!(looks(&mut pair, &near), 100);
    pair.near.suspect(0);
    pair.post(1, write(&near, &far));
    eventually(&mut pair, |pair| !pair.near_done.is_empty());
    assert_eq!(statuses(&pair.near_done), [(1, Status::Success)]);
    assert_eq!((pair.near.active(), pair.far.active()), (1, 1));
}

/// The old rail has not given everything back, so nobody can say yet what is next.
#[test]
fn during_a_repair_every_poll_looks_at_every_rail() {
    let (near, _far, mut pair, _time) = at_rest(&settings(Evidence::Handshake, 2, LIMIT));
    near.weather.is_kept.store(true, Ordering::Relaxed);
    pair.near.post_receive(ReceiveRequest { id: WorkId(3), target: None }).unwrap();
    pair.near.suspect(0);
    assert_eq!((looks(&mut pair, &near), pair.near.active()), (100, 0));
    near.weather.is_kept.store(false, Ordering::Relaxed);
    eventually(&mut pair, |pair| pair.near.is_running() && pair.near.active() == 1);
}

/// Whichever end leads. A backup counts as up when its peer has been heard on it.
#[test]
fn the_nearest_backup_is_taken_and_then_the_fastest() {
    let standing = |distance, capacity| Standing { distance, capacity: Reverse(capacity) };
    let standings = vec![
        standing(Distance::Loc, 1),
        standing(Distance::Sys, 400),
        standing(Distance::Pix, 1),
        standing(Distance::Pix, 2),
    ];
    let settings = VirtualSettings { standings, ..settings(Evidence::Handshake, 4, LIMIT) };
    let (near, far) = places(&settings);
    let mut pair = Pair::new(&near, &far, DEPTH);
    pair.attach(1..4);
    until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
    let quiet = (0..1000).filter(|_| !pair.poll()).count();
    assert!(quiet > 0);
    for (lost, next) in [(0, 3), (3, 2), (2, 1)] {
        pair.post(lost as u64, write(&near, &far));
        pair.near.suspect(lost);
        until(&mut pair, |pair| !pair.near_done.is_empty());
        assert_eq!(statuses(&pair.near_done), [(lost as u64, Status::Success)]);
        assert_eq!((pair.near.active(), pair.far.active()), (next, next));
        pair.near_done.clear();
    }
}

#[test]
fn ends_that_repair_differently_do_not_work_together() {
    let near = Place::new(&settings(Evidence::Log, 2, LIMIT), 4096, 0);
    let far = Place::new(&settings(Evidence::Handshake, 2, LIMIT), 4096, 0);
    let mut pair = Pair::new(&near, &far, DEPTH);
    until(&mut pair, |pair| pair.near.state() == State::Error);
    until(&mut pair, |pair| pair.far.state() == State::Error);
    assert!(
        matches!(pair.far.fault(), Some(TransportError::Protocol(_))),
        "{:?}",
        pair.far.fault()
    );
}

/// Until then memory may still be read and filled.
#[test]
fn nothing_is_given_back_before_the_devices_have_given_it_back() {
    let (near, far) = places(&settings(Evidence::Handshake, 2, LIMIT));
    let mut pair = Pair::new(&near, &far, DEPTH);
    until(&mut pair, |pair| pair.near.is_running() && pair.far.is_running());
    near.weather.is_kept.store(true, Ordering::Relaxed);
    pair.post(1, write(&near, &far));
    pair.near.post_receive(ReceiveRequest { id: WorkId(3), target: None }).unwrap();
    pair.near.fail();
    pair.post(2, write(&near, &far));
    for _ in 0..100 {
        pair.poll();
    }
    assert_eq!((pair.near.state(), &pair.near_done[..]), (State::Error, &[][..]));
    assert!(pair.near.needs_poll());
    near.weather.is_kept.store(false, Ordering::Relaxed);
    until(&mut pair, |pair| pair.near_done.len() == 3);
    assert_eq!(statuses(&pair.near_done), [1, 2, 3].map(|id| (id, Status::Flushed)));
}

/// Four queue pairs, and four spare connections for them: two for each end to claim.
#[test]
fn spares_are_for_whoever_needs_one() {
    let settings = settings(Evidence::Log, 2, LIMIT);
    let (near, far) = places(&settings);
    let mut pairs: Vec<Pair> = (0..4).map(|_| Pair::new(&near, &far, DEPTH)).collect();
    for pair in &mut pairs {
        until(pair, |pair| pair.near.is_running() && pair.far.is_running());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pools = [SparePool::new(4), SparePool::new(4)];
    while pools[0].room() > 0 {
        for owners in [[Owner::Here, Owner::There], [Owner::There, Owner::Here]] {
            let (one, other) = bench::streams(&listener);
            pools[0].add(one, owners[0]).unwrap();
            pools[1].add(other, owners[1]).unwrap();
        }
    }
    assert!(pools[0].add(bench::streams(&listener).0, Owner::Here).is_err());
    for index in [1, 3] {
        pairs[index].post(7, add(&near, &far));
        pairs[index].far.suspect(0);
    }
    let deadline = clock::now() + LIMIT;
    while pairs[1].near_done.is_empty() || pairs[3].near_done.is_empty() {
        assert!(clock::now() < deadline, "{pairs:?}");
        serve(&mut pools, &mut pairs);
    }
    assert_eq!(pairs.iter().map(|pair| pair.near.active()).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert_eq!((pools[0].room(), pools[1].room()), (2, 2));
    assert_eq!(far.memory().load(8), 10);
}

/// What a program with pools does now and then: of two ends the one that leads claims.
fn serve(pools: &mut [SparePool; 2], pairs: &mut [Pair]) {
    for pair in &mut *pairs {
        pair.poll();
        if !pair.near.is_running() {
            pools[0].claim(&mut pair.near, 1).unwrap();
        }
        if !pair.far.is_running() {
            pools[1].claim(&mut pair.far, 1).unwrap();
        }
    }
    for (index, pool) in pools.iter_mut().enumerate() {
        while let Some((claim, connection)) = pool.claimed() {
            let mut ends = pairs.iter_mut().map(|pair| match index {
                0 => &mut pair.near,
                _ => &mut pair.far,
            });
            let end = ends.find(|end| end.identity() == claim.identity).unwrap();
            end.attach(claim.rail, connection).unwrap();
        }
    }
}
