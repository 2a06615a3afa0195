//! What happens to rails while nobody calls: a thread of the library looks after them.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ccl::{Communicator, Config, RailRecord, ReduceOp, Settings, UniqueId};
use ccl_transport::clock;
use rustix::net::{Shutdown, getpeername, getsockname, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// The second rail of every rank of this test, and of no other.
const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 77, 2);

/// A rank on a host of its own with two rails.
fn config(rank: u32) -> Config {
    let host = format!("idle host {rank}");
    let rails = format!("127.0.77.1,{VICTIM}");
    let variables = [("R2CCL_HOST_ID", host.as_str()), ("R2CCL_RAILS", rails.as_str())];
    let settings = Settings::parse(variables).unwrap().settings;
    Config { timeout: Some(DEADLINE), settings, ..Config::default() }
}

/// Ends all connections of this process from an address. Returns how many ends there were.
fn cut(address: Ipv4Addr) -> usize {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number: i32| {
        // Another test may have closed it meanwhile.
        pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).ok()
    });
    let is_victim = |copy: &rustix::fd::OwnedFd| {
        let local = getsockname(copy).ok().and_then(|local| SocketAddr::try_from(local).ok());
        local.is_some_and(|local| local.ip() == IpAddr::V4(address)) && getpeername(copy).is_ok()
    };
    copies.filter(is_victim).filter(|copy| shutdown(copy, Shutdown::Both).is_ok()).count()
}

/// Waits for events on the second rail, in this order, without calling anything.
fn wait_for(communicator: &Communicator, events: &[&str]) {
    let end = clock::now() + DEADLINE;
    let mut seen: Vec<RailRecord> = Vec::new();
    loop {
        seen.extend(communicator.rail_records());
        let mut course = seen.iter().filter(|record| record.rail == 1).map(|record| record.event);
        if events.iter().all(|event| course.any(|seen| seen == *event)) {
            return;
        }
        assert!(clock::now() < end, "{events:?} did not happen: {seen:?}");
        clock::sleep(PAUSE);
    }
}

#[test]
fn a_rail_that_dies_between_calls_is_given_up_and_returns() {
    let id = UniqueId::create(&config(0).settings).unwrap();
    let (sender, receiver) = mpsc::channel();
    for rank in 0..2 {
        let sender = sender.clone();
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, 2, &config(rank)).unwrap();
            let mut sum = vec![1_i64; 1000];
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            if rank == 0 {
                assert!(cut(VICTIM) > 0, "there is nothing to cut");
            }
            wait_for(&communicator, &["given-up", "returned"]);
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            sender.send(sum.iter().all(|value| *value == 4)).unwrap();
        });
    }
    for _ in 0..2 {
        assert!(receiver.recv_timeout(DEADLINE).unwrap(), "wrong results");
    }
}
