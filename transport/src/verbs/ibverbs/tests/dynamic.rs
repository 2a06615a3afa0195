//! Dynamic ends, on devices that imitate those of mlx5.

use super::super::imitated::{self, Make, Network, Spares};
use super::*;

const DEPTH: Depth = Depth { sends: 16, receives: 16 };

/// Two ends over queue pairs for spares.
fn bench() -> (Network, Bench) {
    let (network, devices) = imitated::devices(2, Make::Mlx5);
    let [left, right] = both(devices).map(|device| End::new(Spares(device).domain().unwrap()));
    let mut bench = Bench { left, right };
    bench.connect();
    (network, bench)
}

fn both(devices: Vec<IbDevice>) -> [IbDevice; 2] {
    devices.try_into().unwrap()
}

#[test]
fn ends_are_dynamic_where_both_can_be() {
    let (network, mut bench) = bench();
    bench.works();
    assert_eq!(network.pairs(), [0, 2, 2]);
    bench.left.pair.fail();
    bench.until(|bench| bench.right.pair.state() == State::Error);
    network.allow_targets(false);
    bench.left.pair.reset();
    network.allow_targets(true);
    bench.right.pair.reset();
    bench.left.done.clear();
    bench.connect();
    bench.works();
    assert_eq!(network.pairs(), [2, 0, 0], "one end had to be reliable");
    drop(bench);
    assert_eq!(network.pairs(), [0; 3]);
}

#[test]
fn devices_without_atomics_have_them_too() {
    let (network, devices) = imitated::devices(2, Make::Mlx5);
    network.allow_atomics(false);
    let [left, right] = both(devices).map(|device| End::new(Spares(device).domain().unwrap()));
    assert_eq!(network.pairs(), [0, 2, 2]);
    let mut bench = Bench { left, right };
    bench.connect();
    bench.works();
}

#[test]
fn devices_that_are_not_of_mlx5_have_none() {
    let (network, devices) = imitated::devices(2, Make::Plain);
    let [left, right] = both(devices).map(|device| End::new(Spares(device).domain().unwrap()));
    let mut bench = Bench { left, right };
    bench.connect();
    bench.works();
    assert_eq!(network.pairs(), [2, 0, 0]);
    assert_eq!(bench.left._domain.keep_ready(DEPTH, 4), 0);
}

#[test]
fn what_is_ready_is_used_once_and_where_it_was_made_for() {
    let (network, devices) = imitated::devices(1, Make::Mlx5);
    let domain = devices[0].domain().unwrap();
    assert_eq!(domain.keep_ready(DEPTH, 3), 3);
    assert_eq!(domain.keep_ready(DEPTH, 2), 3);
    assert_eq!(network.pairs(), [0, 3, 3]);
    network.allow_targets(false);
    let pair = domain.spare_queue_pair(DEPTH).unwrap();
    assert_eq!((network.pairs(), domain.keep_ready(DEPTH, 3)), ([0, 3, 3], 2));
    drop(pair);
    assert_eq!(network.pairs(), [0, 2, 2], "nothing comes back");
    let deeper = domain.spare_queue_pair(Depth { sends: 40, receives: 40 }).unwrap();
    assert_eq!(network.pairs(), [1, 2, 2], "of another depth there is none");
    drop(deeper);
    network.move_to(0, "10.99.0.1".parse().unwrap());
    let moved = domain.spare_queue_pair(DEPTH).unwrap();
    assert_eq!(network.pairs(), [1, 0, 0], "they answer from an address that is gone");
    drop(moved);
    network.allow_targets(true);
    assert_eq!(domain.keep_ready(DEPTH, 1), 1);
    drop(domain);
    assert_eq!(network.pairs(), [0; 3]);
}

#[test]
fn ends_with_packets_of_different_sizes_are_reliable() {
    for smaller in [0, 1] {
        let (network, devices) = imitated::devices(2, Make::Mlx5);
        network.packets(smaller, 1);
        let [left, right] = both(devices).map(|device| End::new(Spares(device).domain().unwrap()));
        assert_eq!(network.pairs(), [0, 2, 2]);
        let mut bench = Bench { left, right };
        bench.connect();
        bench.works();
        assert_eq!(network.pairs(), [2, 0, 0]);
    }
}

/// Because its port has another address, or because the peer has no dynamic end.
#[test]
fn an_end_that_is_replaced_keeps_its_receives() {
    for (has_moved, made) in [(true, [0, 2, 2]), (false, [2, 0, 0])] {
        let (network, devices) = imitated::devices(2, Make::Mlx5);
        let [left, right] = both(devices).map(|device| Spares(device).domain().unwrap());
        let right = End::new(right);
        network.allow_targets(has_moved);
        let mut bench = Bench { left: End::new(left), right };
        bench.right.pair.initialise().unwrap();
        bench.right.receive(9);
        if has_moved {
            network.move_to(1, "10.99.0.2".parse().unwrap());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        bench.left.pair.initialise().unwrap();
        bench.left.pair.connect(Connection::Spare(near)).unwrap();
        bench.right.pair.connect(Connection::Spare(listener.accept().unwrap().0)).unwrap();
        bench.works();
        assert_eq!(network.pairs(), made);
        bench.left.post(1, Operation::Send { source: bench.left.region.segment(0, 0) });
        bench.until(|bench| !bench.right.done.is_empty());
        assert_eq!(bench.right.statuses(), [(9, Status::Success)]);
    }
}

/// A message is two requests at the device, both of which come back.
#[test]
fn a_message_that_fails_is_reported_once() {
    let network = Network::new("lonely", 1, Make::Mlx5);
    let context = Context::open(&network.list(), "lonely0").unwrap();
    let protection = sys::ProtectionDomain::new(&context).unwrap();
    let (_, gid) = look_up(&context, 1, None).unwrap();
    let gid = gid.unwrap();
    let place = sys::Place { port: 1, gid_index: Some(gid.index), gid: gid.gid, lid: 0, mtu: 3 };
    let endpoint = sys::Endpoint::dynamic(&protection, place, DEPTH, true).unwrap();
    let target = endpoint.target().map(|own| sys::TargetAddress { key: !own.key, ..own });
    let path = sys::Path {
        port: 1,
        gid_index: place.gid_index,
        gid: place.gid,
        lid: 0,
        number: 0,
        mtu: 3,
        peer_packet: 0,
        own_packet: 0,
        reads_answered: 1,
        reads_asked: 1,
        target,
    };
    endpoint.enable_receive(&path).unwrap();
    let target = sys::Target::default();
    let post = |id, is_reported| {
        let what = sys::What::WriteWithImmediate(7);
        sys::Post { id, is_reported, what, source: None, target }
    };
    let (posted, outcome) = endpoint.post_send(&[post(1, true), post(2, false), post(3, true)]);
    assert!(posted == 3 && outcome.is_ok());
    endpoint.fail().unwrap();
    let mut reported = Vec::new();
    endpoint.poll(&mut reported).unwrap();
    let reported = reported.iter().map(|one| (one.id, &one.outcome));
    assert!(reported.eq([1, 2, 3].map(|id| (id, &sys::Outcome::Flushed))));
}

/// Nothing is executed at a fenced end, not even by what is there later under the same number.
#[test]
fn late_packets_find_nobody() {
    let (network, mut bench) = bench();
    bench.works();
    network.hold(true);
    bench.left.region.memory().write(0, b"too late");
    bench.left.done.clear();
    bench.write(1, 8);
    bench.right.pair.fail();
    assert_eq!(network.pairs(), [0, 1, 1]);
    network.hold(false);
    // Only this end is polled, so that the other one does not hear of the fence: what it has posted is still
    // on its way.
    let poll = |bench: &mut Bench| {
        for _ in 0..100 {
            bench.right.pair.poll(&mut bench.right.done);
        }
        let mut bytes = [0; 7];
        bench.right.region.memory().read(0, &mut bytes);
        assert_eq!(&bytes, b"through");
    };
    poll(&mut bench);
    bench.right.pair.reset();
    assert_eq!(network.pairs(), [0, 2, 2], "the next target has the number of the one before it");
    bench.right.pair.initialise().unwrap();
    poll(&mut bench);
    assert!(bench.left.done.is_empty());
    bench.until(|bench| !bench.left.done.is_empty());
    assert_eq!(bench.left.statuses(), [(1, Status::RetryExceeded)]);
    poll(&mut bench);
}

/// Nothing that was posted leaves an end that is fenced.
#[test]
fn what_is_fenced_sends_nothing() {
    for make in [reliable_bench, bench] {
        let (network, mut bench) = make();
        bench.works();
        network.hold(true);
        bench.left.region.memory().write(0, b"too late");
        bench.left.done.clear();
        bench.write(1, 8);
        bench.left.pair.fail();
        network.hold(false);
        // The other end does not hear of it.
        let deadline = clock::now() + LIMIT;
        while bench.left.done.is_empty() {
            bench.left.pair.poll(&mut bench.left.done);
            assert!(clock::now() < deadline);
        }
        assert_eq!(bench.left.statuses(), [(1, Status::Flushed)]);
        let mut bytes = [0; 7];
        bench.right.region.memory().read(0, &mut bytes);
        assert_eq!(&bytes, b"through");
    }
}

/// However many requests are executed while a target is being destroyed: what the sender was told to be
/// executed the receiver has taken, each message once and in order.
#[test]
fn a_fence_loses_no_message() {
    let mut whole = 0;
    for (late, make) in
        (0..=14).flat_map(|late| [(late, reliable_bench as fn() -> _), (late, bench)])
    {
        for polled in [0, 3] {
            let (network, mut bench): (Network, Bench) = make();
            bench.works();
            bench.left.done.clear();
            network.hold(true);
            for id in 0..8 {
                let segment = bench.right.region.segment(1000 * id as usize, 1000);
                let request = ReceiveRequest { id: WorkId(id), target: Some(segment) };
                bench.right.pair.post_receive(request).unwrap();
            }
            let pattern: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
            bench.left.region.memory().write(0, &pattern);
            for id in 0..7 {
                bench.left.post(id, message(&bench, id));
            }
            if polled > 0 {
                network.release(polled);
                bench.right.pair.poll(&mut bench.right.done);
            }
            network.hurry(late.min(14 - polled));
            bench.right.pair.fail();
            network.hold(false);
            bench.until(|bench| bench.left.done.len() == 7 && bench.right.done.len() == 8);
            whole += check(&bench);
        }
    }
    assert!(whole > 50, "{whole}");
}

/// A ledger says what the peer wrote there: it need not be true.
#[test]
fn a_length_that_the_peer_made_up_reaches_nobody() {
    let (network, mut bench) = bench();
    bench.works();
    network.hold(true);
    network.forge();
    let target = Some(bench.right.region.segment(0, 64));
    bench.right.pair.post_receive(ReceiveRequest { id: WorkId(5), target }).unwrap();
    bench.left.post(1, Operation::Send { source: bench.left.region.segment(0, 64) });
    network.hurry(2);
    bench.right.pair.fail();
    network.hold(false);
    bench.until(|bench| !bench.right.done.is_empty());
    assert_eq!(bench.right.done, [Completion::flushed_receive(WorkId(5))]);
}

/// A message of a size and kind of its own.
fn message(bench: &Bench, id: u64) -> Operation {
    let bytes = 100 * id as usize;
    let source = bench.left.region.segment(id as usize, bytes);
    if id.is_multiple_of(2) {
        return Operation::Send { source };
    }
    let target = bench.right.region.remote(20_000 + 1000 * id as usize);
    Operation::WriteWithImmediate { source, target, immediate: id as u32 }
}

/// Returns how many messages were taken.
fn check(bench: &Bench) -> usize {
    let succeeded = |end: &End| {
        let is_success = |done: &&Completion| done.status == Status::Success;
        end.done.iter().take_while(is_success).count()
    };
    let (sent, taken) = (succeeded(&bench.left), succeeded(&bench.right));
    assert!(sent <= taken && taken <= 7, "{sent} were sent, {taken} were taken");
    for (id, done) in (0u64..).zip(&bench.right.done[..taken]) {
        let immediate = (!id.is_multiple_of(2)).then_some(id as u32);
        let bytes = 100 * id as usize;
        assert_eq!((done.id.0, done.bytes, done.immediate), (id, bytes, immediate));
        let place = if immediate.is_some() { 20_000 } else { 0 } + 1000 * id as usize;
        let (from, to) = (bench.left.region.memory(), bench.right.region.memory());
        let [mut sent, mut there] = [vec![0; bytes], vec![0; bytes]];
        from.read(id as usize, &mut sent);
        to.read(place, &mut there);
        assert!(sent == there, "message {id}");
    }
    let flushed = |(index, done): (usize, &Completion)| {
        assert_eq!((done.id.0 as usize, done.status), (index, Status::Flushed));
    };
    bench.right.done.iter().enumerate().skip(taken).for_each(flushed);
    taken
}

/// The same over reliable queue pairs.
fn reliable_bench() -> (Network, Bench) {
    let (network, devices) = imitated::devices(2, Make::Mlx5);
    let [left, right] = both(devices).map(|device| End::new(device.domain().unwrap()));
    let mut bench = Bench { left, right };
    bench.connect();
    (network, bench)
}

#[test]
fn a_cable_that_is_cut_ends_it() {
    for make in [reliable_bench, bench] {
        let (network, bench) = make();
        cable_is_cut(&network, bench);
    }
}

fn cable_is_cut(network: &Network, mut bench: Bench) {
    bench.works();
    network.cut(1, true);
    bench.dies();
    network.cut(1, false);
    bench.begin_anew();
    bench.works();
    network.link(0, false);
    bench.until(|bench| bench.left.pair.state() == State::Error);
    let fault = bench.left.pair.fault().unwrap().to_string();
    assert_eq!(fault, "use imitated0: its port has no link any more");
    bench.until(|bench| bench.right.pair.state() == State::Error);
}

#[test]
fn the_descriptor_announces_everything_here_too() {
    for make in [reliable_bench, bench] {
        announces_everything(make().1);
    }
}

fn announces_everything(mut bench: Bench) {
    bench.works();
    bench.right.receive(5);
    while bench.right.pair.poll(&mut bench.right.done) {}
    bench.left.post(1, Operation::Send { source: bench.left.region.segment(0, 0) });
    wait_for(&mut bench.right);
    assert_eq!(bench.right.statuses(), [(5, Status::Success)]);
    bench.left.pair.fail();
    wait_for(&mut bench.right);
    assert_eq!(bench.right.pair.state(), State::Error);
}

/// Nothing of it can be given back, and its descriptors announce that for ever: nobody may listen to them.
#[test]
fn a_device_that_is_removed_is_quiet() {
    for make in [reliable_bench, bench] {
        let (network, mut bench) = make();
        bench.works();
        bench.left.receive(5);
        network.remove(0);
        bench.until(|bench| !bench.left.pair.needs_poll() && bench.left.done.len() == 2);
        let fault = bench.left.pair.fault().unwrap().to_string();
        assert_eq!(fault, "use imitated0: the device is gone");
        assert_eq!(bench.left.statuses()[1], (5, Status::Flushed));
        while bench.left.pair.poll(&mut bench.left.done) {}
        assert!(!is_readable(&bench.left));
        bench.left.pair.reset();
        bench.left.pair.initialise().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let refusal = bench.left.pair.connect(Connection::Stream(stream)).unwrap_err().to_string();
        assert!(refusal.contains("imitated0: Input/output error"), "{refusal}");
        assert!(!is_readable(&bench.left));
    }
}

/// Its farewell and the end of the connection are heard at once.
#[test]
fn a_peer_that_has_parted_is_named() {
    for make in [reliable_bench, bench] {
        let (_, mut bench) = make();
        bench.works();
        bench.left.pair.fail();
        bench.until(|bench| bench.right.pair.state() == State::Error);
        let fault = bench.right.pair.fault().unwrap().to_string();
        assert!(
            fault.contains("imitated1 (127.0.0.1:")
                && fault.ends_with("): the peer has fenced its end"),
            "{fault}"
        );
    }
}
