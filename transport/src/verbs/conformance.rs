//! What every queue pair must do, whatever the device and whatever benign fault it is wrapped in.
//!
//! A new device adds a line to `VARIANTS`. The environment variable `R2CCL_TEST_VARIANTS` leaves only those
//! whose names contain its value; then there must be some that can be tested here.

mod bench;
#[cfg(feature = "rdma")]
mod ibverbs;
mod interruptions;
mod lists;
mod refusals;
mod unstaged;

use std::cell::Cell;
use std::sync::Arc;

use bench::{Bench, DEPTH, End, Wrap, pattern, success};

use super::fault::{Faulty, Interrupted, Loss, Lossy, Script};
#[cfg(feature = "rdma")]
use super::ibverbs::imitated::Make;
use super::soft::SoftDevice;
use super::virtual_qp::{Evidence, Limits, VirtualDevice, VirtualSettings};
use super::*;

const NONE: Script = Script {
    seed: 0,
    delay_polls: 0,
    bytes_per_poll: None,
    duplicate_every: None,
    fail_after: None,
    silent_after: None,
};

/// Devices of the two ends; none where the machine has none.
type Devices = Option<[Box<dyn Device>; 2]>;

/// Name, devices, wrapper.
type Variant = (&'static str, fn() -> Devices, Wrap);

const BOTH_SOFT: fn() -> Devices = || Some([soft(), soft()]);

const VARIANTS: &[Variant] = &[
    ("soft", BOTH_SOFT, |plain| plain),
    ("soft, delayed", BOTH_SOFT, |plain| wrap(plain, Script { seed: 3, delay_polls: 7, ..NONE })),
    ("soft, throttled", BOTH_SOFT, |plain| {
        wrap(plain, Script { bytes_per_poll: Some(100), ..NONE })
    }),
    ("soft, seed 1", BOTH_SOFT, |plain| wrap(plain, Script::benign(1))),
    ("soft, seed 2", BOTH_SOFT, |plain| wrap(plain, Script::benign(2))),
    ("soft, corked", BOTH_SOFT, |mut plain| {
        plain.cork(usize::MAX);
        plain
    }),
    ("soft, interrupted", BOTH_SOFT, |plain| over(plain, Flicker::default())),
    ("virtual, resend", || Some(virtual_soft(Evidence::Resend)), |plain| plain),
    ("virtual, handshake", || Some(virtual_soft(Evidence::Handshake)), |plain| plain),
    ("virtual, log", || Some(virtual_soft(Evidence::Log)), |plain| plain),
    #[cfg(feature = "rdma")]
    ("imitation", || Some(ibverbs::imitation(Make::Plain)), |plain| plain),
    #[cfg(feature = "rdma")]
    ("imitation of mlx5", || Some(ibverbs::imitation(Make::Mlx5)), |plain| plain),
    #[cfg(feature = "rdma")]
    (
        "imitation, seed 1",
        || Some(ibverbs::imitation(Make::Plain)),
        |plain| wrap(plain, Script::benign(1)),
    ),
    #[cfg(feature = "rdma")]
    ("imitation, unaligned", || Some(ibverbs::unaligned()), |plain| plain),
    #[cfg(feature = "rdma")]
    ("imitation, dynamic, unaligned", || Some(ibverbs::dynamic_unaligned()), |plain| plain),
    #[cfg(feature = "rdma")]
    ("imitation, dynamic", || Some(ibverbs::dynamic(Make::Mlx5)), |plain| plain),
    #[cfg(feature = "rdma")]
    ("imitation, dynamic at one end", || Some(ibverbs::dynamic(Make::Plain)), |plain| plain),
    #[cfg(feature = "rdma")]
    (
        "imitation, dynamic, seed 2",
        || Some(ibverbs::dynamic(Make::Mlx5)),
        |plain| wrap(plain, Script::benign(2)),
    ),
    #[cfg(feature = "rdma")]
    (
        "virtual over dynamic imitation, resend",
        || Some(ibverbs::dynamic_rails(Evidence::Resend)),
        |plain| plain,
    ),
    #[cfg(feature = "rdma")]
    (
        "virtual over dynamic imitation, log",
        || Some(ibverbs::dynamic_rails(Evidence::Log)),
        |plain| plain,
    ),
    #[cfg(feature = "rdma")]
    (
        "virtual over imitation, resend",
        || Some(ibverbs::imitated_rails(Evidence::Resend)),
        |plain| plain,
    ),
    #[cfg(feature = "rdma")]
    (
        "virtual over imitation, handshake",
        || Some(ibverbs::imitated_rails(Evidence::Handshake)),
        |plain| plain,
    ),
    #[cfg(feature = "rdma")]
    ("virtual over imitation, log", || Some(ibverbs::imitated_rails(Evidence::Log)), |plain| plain),
    #[cfg(feature = "rdma")]
    ("ibverbs", ibverbs::plain, |plain| plain),
    #[cfg(feature = "rdma")]
    ("ibverbs, seed 1", ibverbs::plain, |plain| wrap(plain, Script::benign(1))),
    #[cfg(feature = "rdma")]
    ("virtual over ibverbs, resend", || ibverbs::rails(Evidence::Resend), |plain| plain),
    #[cfg(feature = "rdma")]
    ("virtual over ibverbs, handshake", || ibverbs::rails(Evidence::Handshake), |plain| plain),
    #[cfg(feature = "rdma")]
    ("virtual over ibverbs, log", || ibverbs::rails(Evidence::Log), |plain| plain),
];

fn soft() -> Box<dyn Device> {
    Box::new(SoftDevice::new("loopback".into(), "127.0.0.1".parse().unwrap()))
}

fn virtual_soft(evidence: Evidence) -> [Box<dyn Device>; 2] {
    [(); 2].map(|()| virtual_over(vec![soft().into(), soft().into()], evidence))
}

/// Over several rails, of which only the default one is connected, and no hope for the others.
fn virtual_over(rails: Vec<Arc<dyn Device>>, evidence: Evidence) -> Box<dyn Device> {
    let mut settings = VirtualSettings::new(evidence, rails.len());
    settings.limits = Limits { patience_ns: 0, ..Limits::default() };
    Box::new(VirtualDevice::new(rails, settings))
}

fn wrap(plain: Box<dyn QueuePair>, script: Script) -> Box<dyn QueuePair> {
    Box::new(Faulty::new(plain, DEPTH.sends, script))
}

fn over(plain: Box<dyn QueuePair>, cable: impl Lossy + 'static) -> Box<dyn QueuePair> {
    Box::new(Interrupted::new(plain, DEPTH.sends, cable))
}

/// A cable that loses everything in one direction, in both and in the other, and is whole in between.
#[derive(Debug, Default)]
struct Flicker(Cell<u32>);

impl Lossy for Flicker {
    fn loss(&self) -> Loss {
        let asked = self.0.get();
        self.0.set(asked + 1);
        let [outgoing, incoming] = [asked % 20 > 9, asked % 28 > 13];
        Loss { outgoing, incoming }
    }
}

fn every_variant(check: fn(&mut Bench)) {
    let wanted = wanted_variants();
    let mut tested = 0;
    for (name, devices, wrap) in VARIANTS.iter().filter(|(name, ..)| name.contains(&wanted)) {
        let Some([left, right]) = devices() else { continue };
        println!("variant: {name}");
        let [left, right] = [left, right].map(|device| End::new(&*device, *wrap));
        let mut bench = Bench { left, right };
        bench.connect();
        check(&mut bench);
        tested += 1;
    }
    assert!(tested > 0, "no variant called {wanted:?} can be tested here");
}

#[expect(clippy::disallowed_methods, reason = "which variants a run is about")]
fn wanted_variants() -> String {
    std::env::var("R2CCL_TEST_VARIANTS").unwrap_or_default()
}

#[test]
fn messages_arrive_in_order() {
    every_variant(|bench| {
        for index in 0..40 {
            bench.right.receive(index, Some((index as usize * 1000, 1000)));
        }
        for index in 0..40 {
            let (offset, bytes) = (index as usize * 1000, index as usize * 25);
            bench.left.fill(offset, &pattern(index as usize, bytes));
            bench.left.send(100 + index, offset, bytes);
        }
        bench.settle(40, 40);
        for index in 0..40 {
            let bytes = index * 25;
            assert_eq!(bench.left.done[index], success(100 + index as u64, Opcode::Send, bytes));
            assert_eq!(bench.right.done[index], success(index as u64, Opcode::Receive, bytes));
            assert_eq!(bench.right.bytes(index * 1000, bytes), pattern(index, bytes));
        }
    });
}

#[test]
fn a_message_waits_for_a_receive() {
    every_variant(|bench| {
        bench.left.fill(0, b"early");
        bench.left.send(1, 0, 5);
        bench.settle(0, 0);
        bench.right.receive(2, Some((10, 8)));
        bench.settle(1, 1);
        assert_eq!(bench.right.bytes(10, 8), b"early\0\0\0");
    });
}

#[test]
fn a_completed_write_is_in_the_peers_memory() {
    every_variant(|bench| {
        bench.left.fill(0, &pattern(5, 30_000));
        bench.left.write(1, (0, 30_000), bench.right.region.remote(100));
        bench.until(|bench| !bench.left.done.is_empty());
        assert_eq!(bench.left.done, [success(1, Opcode::Write, 30_000)]);
        assert_eq!(bench.right.bytes(100, 30_000), pattern(5, 30_000));
        assert_eq!(bench.right.bytes(30_100, 1), [0]);
        assert!(bench.right.done.is_empty());
    });
}

#[test]
fn an_immediate_comes_after_all_writes_before_it() {
    every_variant(|bench| {
        bench.right.receive(9, None);
        bench.left.fill(0, &pattern(1, 5000));
        let target = bench.right.region.remote(0);
        bench.left.write(1, (0, 5000), target);
        let (source, target) = (bench.left.region.segment(0, 8), bench.right.region.remote(6000));
        let immediate = 0xfeed_beef;
        bench.left.post(2, Operation::WriteWithImmediate { source, target, immediate });
        bench.until(|bench| !bench.right.done.is_empty());
        let opcode = Opcode::ReceiveWriteWithImmediate;
        let expected = Completion { immediate: Some(immediate), ..success(9, opcode, 8) };
        assert_eq!(bench.right.done, [expected]);
        assert_eq!(bench.right.bytes(0, 5000), pattern(1, 5000));
        assert_eq!(bench.right.bytes(6000, 8), pattern(1, 8));
        bench.settle(2, 1);
    });
}

#[test]
fn reads_bring_the_peers_memory() {
    every_variant(|bench| {
        bench.right.fill(40, &pattern(3, 20_000));
        for (id, offset) in [(1, 0), (2, 10_000)] {
            let target = bench.left.region.segment(offset + 8, 10_000);
            let source = bench.right.region.remote(offset + 40);
            bench.left.post(id, Operation::Read { target, source });
        }
        bench.settle(2, 0);
        assert_eq!(bench.left.done[1], success(2, Opcode::Read, 10_000));
        assert_eq!(bench.left.bytes(8, 20_000), pattern(3, 20_000));
    });
}

#[test]
fn compare_and_swap_replaces_only_what_was_expected() {
    every_variant(|bench| {
        bench.right.region.memory().store(16, 41);
        for (id, expected) in [(1, 41), (2, 41)] {
            let result = bench.left.region.segment(8 * id as usize, 8);
            let target = bench.right.region.remote(16);
            let new = 100 + id;
            bench.left.post(id, Operation::CompareAndSwap { result, target, expected, new });
        }
        bench.settle(2, 0);
        assert_eq!(bench.left.done[0], success(1, Opcode::CompareAndSwap, 8));
        assert_eq!(bench.right.region.memory().load(16), 101);
        let results = [8, 16].map(|offset| bench.left.region.memory().load(offset));
        assert_eq!(results, [41, 101]);
    });
}

#[test]
fn fetch_and_add_counts_everything_once() {
    every_variant(|bench| {
        for id in 0..50 {
            let target = bench.right.region.remote(0);
            let result = bench.left.region.segment(8 * id as usize, 8);
            bench.left.post(id, Operation::FetchAdd { result, target, addend: 3 });
        }
        bench.settle(50, 0);
        assert_eq!(bench.right.region.memory().load(0), 150);
        for id in 0..50 {
            assert_eq!(bench.left.region.memory().load(8 * id), 3 * id as u64);
        }
    });
}

#[test]
fn nothing_is_too_short() {
    every_variant(|bench| {
        bench.right.receive(1, None);
        bench.right.receive(2, None);
        bench.left.send(1, 0, 0);
        let (source, target) = (bench.left.region.segment(0, 0), bench.right.region.remote(0));
        bench.left.post(2, Operation::Write { source, target });
        bench.left.post(3, Operation::WriteWithImmediate { source, target, immediate: 7 });
        bench.left.post(4, Operation::Read { target: source, source: target });
        bench.settle(4, 2);
        assert!(bench.left.done.iter().all(|done| done.status == Status::Success));
        assert_eq!(bench.right.done[1].immediate, Some(7));
    });
}

#[test]
fn what_exceeds_the_socket_buffers_gets_through_both_ways() {
    const BYTES: usize = 24 << 20;
    every_variant(|bench| {
        let big = |end: &End| {
            let memory = Memory::allocate(2 * BYTES).unwrap();
            end.domain.register(&memory, Access::WRITE).unwrap()
        };
        let (left, right) = (big(&bench.left), big(&bench.right));
        for (index, region) in [&left, &right].into_iter().enumerate() {
            region.memory().lock().bytes_mut(0..BYTES).copy_from_slice(&pattern(index, BYTES));
        }
        let (source, target) = (left.segment(0, BYTES), right.remote(BYTES));
        bench.left.post(1, Operation::Write { source, target });
        let (source, target) = (right.segment(0, BYTES), left.remote(BYTES));
        bench.right.post(2, Operation::Write { source, target });
        bench.settle(1, 1);
        for (region, seed) in [(&left, 1), (&right, 0)] {
            let locked = region.memory().lock();
            assert!(locked.bytes(BYTES..2 * BYTES) == pattern(seed, BYTES), "seed {seed}");
        }
    });
}

#[test]
fn a_full_queue_is_back_pressure() {
    every_variant(|bench| {
        let operation = Operation::Send { source: bench.left.region.segment(0, 1) };
        let request = |id| WorkRequest { id: WorkId(id), operation, signalled: true };
        let mut posted = 0;
        while bench.left.pair.post_send(request(posted)).is_ok() {
            posted += 1;
            assert!(posted <= DEPTH.sends as u64);
        }
        assert_eq!(bench.left.pair.post_send(request(posted)), Err(PostError::QueueFull));
        for id in 0..DEPTH.receives as u64 {
            bench.right.receive(id, Some((0, 1)));
        }
        let extra = ReceiveRequest { id: WorkId(0), target: None };
        assert_eq!(bench.right.pair.post_receive(extra), Err(PostError::QueueFull));
        bench.settle(posted as usize, posted as usize);
        bench.left.pair.post_send(request(posted)).unwrap();
    });
}

#[test]
fn posting_follows_the_state() {
    every_variant(|bench| {
        let pair = &mut bench.left.pair;
        pair.reset();
        let operation = Operation::Send { source: bench.left.region.segment(0, 1) };
        let request = WorkRequest { id: WorkId(0), operation, signalled: true };
        let receive = ReceiveRequest { id: WorkId(0), target: None };
        let reset = PostError::WrongState(State::Reset);
        assert_eq!((pair.post_send(request), pair.post_receive(receive)), (Err(reset), Err(reset)));
        pair.initialise().unwrap();
        let init = PostError::WrongState(State::Init);
        assert_eq!((pair.post_send(request), pair.post_receive(receive)), (Err(init), Ok(())));
        assert_eq!(pair.initialise(), Err(init));
    });
}

#[test]
fn everything_outstanding_is_flushed() {
    every_variant(|bench| {
        bench.left.receive(1, None);
        bench.left.receive(2, None);
        for id in [3, 4] {
            bench.left.send(id, 0, 1);
        }
        bench.poll();
        bench.left.pair.fail();
        assert_eq!(bench.left.pair.state(), State::Error);
        bench.until(|bench| bench.left.done.len() == 4);
        let mut statuses = bench.left.statuses();
        statuses.sort_by_key(|status| status.0);
        assert_eq!(statuses, [1, 2, 3, 4].map(|id| (id, Status::Flushed)));
        bench.left.done.clear();
        bench.left.send(5, 0, 1);
        bench.left.receive(6, None);
        bench.until(|bench| bench.left.done.len() == 2);
        let mut statuses = bench.left.statuses();
        statuses.sort_by_key(|status| status.0);
        assert_eq!(statuses, [5, 6].map(|id| (id, Status::Flushed)));
        bench.until(|bench| bench.right.pair.state() == State::Error);
    });
}

#[test]
fn a_peer_that_is_gone_fails_what_is_outstanding() {
    every_variant(|bench| {
        bench.left.receive(1, None);
        for id in [2, 3] {
            bench.left.send(id, 0, 1);
        }
        bench.poll();
        bench.right.pair.fail();
        bench.until(|bench| bench.left.done.len() == 3);
        let mut statuses = bench.left.statuses();
        statuses.sort_by_key(|status| status.0);
        let lost = (2, Status::RetryExceeded);
        assert_eq!(statuses, [(1, Status::Flushed), lost, (3, Status::Flushed)]);
        let fault = bench.left.pair.fault();
        assert!(matches!(fault, Some(TransportError::PeerGone(_))), "{fault:?}");
    });
}

#[test]
fn a_queue_pair_can_be_used_again() {
    every_variant(|bench| {
        bench.right.receive(1, Some((0, 100)));
        bench.left.fill(0, b"first");
        bench.left.send(1, 0, 5);
        bench.settle(1, 1);
        bench.left.send(2, 0, 5);
        bench.left.pair.fail();
        bench.until(|bench| bench.right.pair.state() == State::Error);
        for end in [&mut bench.left, &mut bench.right] {
            end.pair.reset();
            assert_eq!((end.pair.state(), end.pair.fault()), (State::Reset, None));
            end.done.clear();
        }
        bench.connect();
        bench.right.receive(3, Some((0, 100)));
        bench.left.fill(0, b"again");
        bench.left.send(4, 0, 5);
        bench.settle(1, 1);
        assert_eq!(bench.left.done, [success(4, Opcode::Send, 5)]);
        assert_eq!(bench.right.bytes(0, 5), b"again");
    });
}

/// Nothing outside of what is registered for it is touched, and both ends say why they stopped.
#[test]
fn a_script_breaks_the_connection_when_it_says() {
    let device = soft();
    let script = Script { fail_after: Some((2, Status::RetryExceeded)), ..NONE };
    let mut left = End::new(&*device, |plain| plain);
    left.pair = wrap(left.pair, script);
    let mut bench = Bench { left, right: End::new(&*device, |plain| plain) };
    bench.connect();
    for id in 0..2 {
        bench.right.receive(id, Some((0, 1)));
        bench.left.send(id, 0, 1);
    }
    bench.settle(2, 2);
    bench.right.receive(2, Some((0, 1)));
    bench.left.send(2, 0, 1);
    bench.left.send(3, 0, 1);
    bench.settle(4, 3);
    assert_eq!(bench.left.statuses()[2..], [(2, Status::RetryExceeded), (3, Status::Flushed)]);
    assert_eq!(bench.right.statuses()[2..], [(2, Status::Flushed)]);
}

#[test]
fn a_silent_fault_says_nothing() {
    let device = soft();
    let mut left = End::new(&*device, |plain| plain);
    let script = Script { silent_after: Some(1), ..NONE };
    left.pair = wrap(left.pair, script);
    let mut bench = Bench { left, right: End::new(&*device, |plain| plain) };
    bench.connect();
    for id in 0..2 {
        bench.right.receive(id, Some((0, 1)));
    }
    bench.left.send(0, 0, 1);
    bench.settle(1, 1);
    bench.left.send(1, 0, 1);
    bench.settle(1, 1);
    assert_eq!(bench.left.pair.state(), State::ReadyToSend);
}
