//! Virtual queue pairs whose backups are connected, and come back, by themselves.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

#[path = "support/bench.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod bench;
#[path = "support/shadows.rs"]
mod shadows;

use std::io::{ErrorKind, Read as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bench::{Pair, Place};
use ccl_transport::auth::JobKey;
use ccl_transport::verbs::virtual_qp::{
    Attempt, Connector, Evidence, Limits, Shadow, VirtualQp, VirtualSettings,
};
use ccl_transport::verbs::{Connection, Depth, Operation, Status};
use ccl_transport::{TransportError, clock};
use shadows::Exchange;

const RAILS: usize = 3;
const DEPTH: Depth = Depth { sends: 16, receives: 16 };
const LIMIT: Duration = Duration::from_secs(30);

/// Held for writing by the test that counts the threads of this process.
static THREADS: RwLock<()> = RwLock::new(());

fn describe(pair: &Pair) -> String {
    let end = |end: &VirtualQp| (end.is_running(), end.active(), end.footprint(), end.counters());
    format!("{:?} {:?}", end(&pair.near), end(&pair.far))
}

fn until(pairs: &mut [Pair], reached: impl Fn(&Pair) -> bool) {
    let deadline = clock::now() + LIMIT;
    while !pairs.iter().all(&reached) {
        let states = || pairs.iter().map(describe).collect::<Vec<_>>();
        assert!(clock::now() < deadline, "{:?}", states());
        for pair in &mut *pairs {
            pair.poll();
        }
        std::thread::yield_now();
    }
}

fn places() -> (Place, Place) {
    let patience_ns = LIMIT.as_nanos() as u64;
    let limits = Limits { patience_ns, retry_ns: 0, settle_ns: 0, ..Limits::default() };
    let settings = VirtualSettings { limits, ..VirtualSettings::new(Evidence::Log, RAILS) };
    (Place::new(&settings, 4096, 0), Place::new(&settings, 4096, 0))
}

/// A pair whose ends connect their backups by themselves.
fn shadowed(exchange: &Exchange, near: &Place, far: &Place) -> Pair {
    let mut pair = Pair::new(near, far, DEPTH);
    pair.near.set_shadow(Some(exchange.near("pair")));
    pair.far.set_shadow(Some(exchange.far("pair")));
    pair
}

fn is_complete(pair: &Pair) -> bool {
    let ends = [&pair.near, &pair.far];
    ends.iter().all(|end| end.is_running() && end.footprint().queue_pairs == RAILS)
}

/// Adds 5 to a word of the far end, which is to be `expected` afterwards.
fn add(pair: &mut Pair, (near, far): (&Place, &Place), expected: u64) {
    let (result, target) = (near.region.segment(8, 8), far.region.remote(8));
    pair.near_done.clear();
    pair.post(1, Operation::FetchAdd { result, target, addend: 5 });
    until(std::slice::from_mut(pair), |pair| pair.near_done.len() == 1);
    assert_eq!(pair.near_done[0].status, Status::Success, "{}", describe(pair));
    assert_eq!(far.memory().load(8), expected);
}

#[test]
fn backups_attach_by_themselves() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let (near, far) = places();
    let mut pair = shadowed(&exchange, &near, &far);
    until(std::slice::from_mut(&mut pair), is_complete);
    add(&mut pair, (&near, &far), 5);
    pair.near.set_shadow(None);
    pair.far.set_shadow(None);
    // What has been attached stays: each rail carries on for the one before.
    for rail in 0..RAILS {
        assert_eq!(pair.near.active(), rail);
        add(&mut pair, (&near, &far), 10 + 5 * rail as u64);
        if rail + 1 < RAILS {
            pair.near.suspect(rail);
            until(std::slice::from_mut(&mut pair), |pair| {
                pair.near.is_running() && pair.near.active() == rail + 1
            });
        }
    }
}

/// One end is ready long before the other, and each begins with the queue pairs that the other one
/// ends with.
#[test]
fn the_order_in_which_ends_begin_does_not_matter() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let (near, far) = places();
    let mut pairs: Vec<Pair> = (0..4).map(|_| Pair::new(&near, &far, DEPTH)).collect();
    let names: Vec<String> = (0..4).map(|pair| format!("pair {pair}")).collect();
    for index in 0..4 {
        pairs[index].near.set_shadow(Some(exchange.near(&names[index])));
        let last = 3 - index;
        pairs[last].far.set_shadow(Some(exchange.far(&names[last])));
        until(&mut pairs[index..=index], |pair| pair.near.is_running());
    }
    until(&mut pairs, is_complete);
    for (index, pair) in pairs.iter_mut().enumerate() {
        pair.near.suspect(0);
        add(pair, (&near, &far), 5 * (index as u64 + 1));
    }
}

/// Of one end no rail but the last can be connected before the one behind it is, of the other the first
/// before.
#[test]
fn rails_do_not_wait_for_each_other() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let (near, far) = places();
    let mut pair = Pair::new(&near, &far, DEPTH);
    let dialling = exchange.dialling("pair");
    let connected = Arc::new(AtomicUsize::new(RAILS));
    let backwards = move |rail: usize, attempt: &Attempt| {
        while connected.load(Ordering::Relaxed) > rail + 1 {
            if !attempt.is_wanted() {
                return Err(TransportError::TimedOut("the rail behind".into()));
            }
            std::thread::yield_now();
        }
        let connection = dialling.connect(rail, attempt)?;
        connected.store(rail, Ordering::Relaxed);
        Ok(connection)
    };
    pair.near.set_shadow(Some(Shadow::new(backwards)));
    pair.far.set_shadow(Some(exchange.far("pair")));
    until(std::slice::from_mut(&mut pair), is_complete);
}

#[test]
fn a_rail_that_dies_comes_back_by_itself() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let (near, far) = places();
    let mut pair = shadowed(&exchange, &near, &far);
    for round in 0..20 {
        until(std::slice::from_mut(&mut pair), |pair| is_complete(pair) && pair.near.active() == 0);
        let rail = round % RAILS;
        if round % 2 == 0 {
            pair.near.suspect(rail)
        } else {
            pair.far.suspect(rail)
        }
        add(&mut pair, (&near, &far), 5 * (round as u64 + 1));
    }
    let returns = pair.near.counters().returns + pair.far.counters().returns;
    assert!(returns > 0, "{}", describe(&pair));
}

#[test]
fn a_connector_that_fails_leaves_the_default_rail_alone() {
    let _others = THREADS.read();
    let (near, far) = places();
    let mut pair = Pair::new(&near, &far, DEPTH);
    let fails = |_: usize, _: &Attempt| Err(TransportError::PeerGone("a test".into()));
    pair.near.set_shadow(Some(Shadow::new(fails)));
    pair.far.set_shadow(Some(Shadow::new(fails)));
    for sum in 1..=20 {
        add(&mut pair, (&near, &far), 5 * sum);
    }
    let failures = |pair: &Pair| pair.near.shadow().unwrap().failures();
    until(std::slice::from_mut(&mut pair), |pair| failures(pair) > 5);
    assert_eq!((pair.near.active(), pair.near.footprint().queue_pairs), (0, 1));
    assert_eq!(pair.near.counters().repairs, 0);
    add(&mut pair, (&near, &far), 105);
}

/// Who offers a connection has given up the one before, even if that could not be said.
#[test]
fn a_newer_connection_replaces_the_one_before() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let (near, far) = places();
    let mut pair = shadowed(&exchange, &near, &far);
    until(std::slice::from_mut(&mut pair), is_complete);
    let attempt = Attempt::new(clock::now() + LIMIT);
    let Ok(Connection::Stream(mut newer)) = exchange.dialling("pair").connect(1, &attempt) else {
        panic!("no connection")
    };
    newer.set_nonblocking(true).unwrap();
    let deadline = clock::now() + LIMIT;
    // The far end introduces itself on it, or closes it because the near end was fast and has made yet
    // another one.
    while newer.read(&mut [0]).is_err_and(|cause| cause.kind() == ErrorKind::WouldBlock) {
        assert!(clock::now() < deadline, "{}", describe(&pair));
        pair.poll();
    }
    // The near end had not given its own up, and makes another one.
    until(std::slice::from_mut(&mut pair), is_complete);
    for rail in [0, 1, 2] {
        pair.near.suspect(rail);
        add(&mut pair, (&near, &far), 5 * (rail as u64 + 1));
    }
}

#[test]
fn strangers_are_refused() {
    let _others = THREADS.read();
    let exchange = Exchange::new(RAILS);
    let far = exchange.accepting("pair");
    let second = || Attempt::new(clock::now() + Duration::from_secs(1));
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| far.connect(0, &second()));
        let stranger = exchange.stranger("pair", JobKey::from_passphrase("another"));
        assert!(stranger.connect(0, &second()).is_err());
        // Whoever has the key and means another queue pair is not taken for this one.
        let past = Attempt::new(clock::now());
        assert!(exchange.accepting("another").connect(0, &past).is_err());
        assert!(exchange.dialling("another").connect(0, &second()).is_ok());
        let outcome = accepted.join().unwrap();
        assert!(matches!(outcome, Err(TransportError::TimedOut(_))), "{outcome:?}");
    });
    assert!(far.connect(RAILS, &second()).is_err());
}

/// Threads of shadows in this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "r2ccl-shadow").count()
}

fn until_threads(count: usize) {
    let deadline = clock::now() + LIMIT;
    while threads() != count {
        assert!(clock::now() < deadline, "{} threads instead of {count}", threads());
        clock::sleep(Duration::from_millis(1));
    }
}

#[test]
fn no_thread_is_left() {
    let _alone = THREADS.write();
    let waits = |_: usize, attempt: &Attempt| {
        while attempt.is_wanted() {
            clock::sleep(Duration::from_millis(1));
        }
        Err(TransportError::TimedOut("a test".into()))
    };
    until_threads(0);
    let (near, far) = places();
    let mut pair = Pair::new(&near, &far, DEPTH);
    pair.near.set_shadow(Some(Shadow::new(waits)));
    until_threads(RAILS - 1);
    pair.near.set_shadow(None);
    until_threads(0);
    pair.near.set_shadow(Some(Shadow::new(waits)));
    pair.far.set_shadow(Some(Shadow::new(waits)));
    until_threads(2 * (RAILS - 1));
    drop(pair);
    until_threads(0);
    let exchange = Exchange::new(RAILS);
    let mut pair = shadowed(&exchange, &near, &far);
    until(std::slice::from_mut(&mut pair), is_complete);
    until_threads(0);
}
