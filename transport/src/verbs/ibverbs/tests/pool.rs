//! Virtual queue pairs whose backups come from a pool, on devices that imitate those of mlx5.

use super::super::super::virtual_qp::{
    Claim, Evidence, Limits, Owner, SparePool, VirtualDevice, VirtualDomain, VirtualQp,
    VirtualSettings,
};
use super::super::imitated::{self, Make, Network};
use super::*;

const DEPTH: Depth = Depth { sends: 16, receives: 16 };

/// Patient, so that it does not matter how much else this machine does.
fn settings(evidence: Evidence) -> VirtualSettings {
    let minute = 60_000_000_000;
    let limits = Limits {
        answer_ns: minute,
        repair_ns: minute,
        patience_ns: minute,
        retry_ns: 0,
        settle_ns: 0,
        ..Limits::default()
    };
    VirtualSettings { limits, ..VirtualSettings::new(evidence, 2) }
}

/// Both hosts of a virtual queue pair, whose backup is a spare of a pool.
struct Hosts {
    network: Network,
    ends: [VirtualQp; 2],
    domains: [VirtualDomain; 2],
    regions: [MemoryRegion; 2],
    done: [Vec<Completion>; 2],
    pools: [SparePool; 2],
    /// Connections that the other host has claimed.
    claimed: [Option<(Claim, Connection)>; 2],
    listener: TcpListener,
}

impl Hosts {
    /// Devices 0 and 1 are the NICs of one host, 2 and 3 of the other. Each has two dynamic ends ready.
    fn new(evidence: Evidence) -> Self {
        let (network, mut left) = imitated::devices(4, Make::Mlx5);
        let right = left.split_off(2);
        let domains = [left, right].map(|rails| {
            let rails = rails.into_iter().map(|rail| Arc::new(rail) as Arc<dyn Device>).collect();
            VirtualDevice::new(rails, settings(evidence)).virtual_domain().unwrap()
        });
        let register = |domain: &VirtualDomain| {
            domain.register(&Memory::allocate(BYTES).unwrap(), Access::ALL).unwrap()
        };
        let regions = domains.each_ref().map(register);
        for domain in &domains {
            assert_eq!(domain.keep_ready(DEPTH, evidence, 2).unwrap(), 2);
        }
        let ends = domains.each_ref().map(|domain| domain.virtual_queue_pair(DEPTH).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pools = [SparePool::new(4), SparePool::new(4)];
        let (done, claimed) = ([Vec::new(), Vec::new()], [None, None]);
        let mut hosts = Self { network, ends, domains, regions, done, pools, claimed, listener };
        let connections = hosts.streams().map(Connection::Stream);
        for (end, connection) in hosts.ends.iter_mut().zip(connections) {
            end.initialise().unwrap();
            end.connect(connection).unwrap();
        }
        for owner in [Owner::Here, Owner::There, Owner::Here, Owner::There] {
            let [near, far] = hosts.streams();
            let other = if owner == Owner::Here { Owner::There } else { Owner::Here };
            hosts.pools[0].add(near, owner).unwrap();
            hosts.pools[1].add(far, other).unwrap();
        }
        hosts
    }

    fn streams(&self) -> [TcpStream; 2] {
        let near = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        [near, self.listener.accept().unwrap().0]
    }

    fn poll(&mut self) {
        let mut moved = false;
        let places = self.pools.iter_mut().zip(&mut self.claimed);
        for ((end, done), (pool, claimed)) in self.ends.iter_mut().zip(&mut self.done).zip(places) {
            moved |= end.poll(done);
            if !end.is_attached(0) {
                pool.claim(end, 1).unwrap();
            }
            *claimed = claimed.take().or_else(|| pool.claimed());
            if end.wants(1)
                && let Some((claim, connection)) = claimed.take()
            {
                assert_eq!((claim.identity, claim.rail), (end.identity(), 1));
                end.attach(claim.rail, connection).unwrap();
            }
        }
        if !moved {
            std::thread::yield_now();
        }
    }

    fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        let deadline = clock::now() + LIMIT;
        while !reached(self) {
            let told = self.ends.each_ref().map(|end| (end.fault(), end.active()));
            assert!(clock::now() < deadline, "{told:?} {:?}", self.done.each_ref().map(Vec::len));
            self.poll();
        }
    }

    /// Messages `from..to`, of which some are executed when `halfway` is called.
    fn exchange(&mut self, from: usize, to: usize, halfway: impl FnOnce(&mut Self)) {
        let (mut posted, mut receives, mut halfway) = (from, from, Some(halfway));
        let deadline = clock::now() + LIMIT;
        while self.done.iter().any(|done| done.len() < to) {
            while receives < to && receives < self.done[1].len() + 16 {
                let request = ReceiveRequest { id: WorkId(receives as u64), target: None };
                self.ends[1].post_receive(request).unwrap();
                receives += 1;
            }
            while posted < to && posted < self.done[0].len() + 12 {
                let request = self.request(posted);
                self.ends[0].post_send(request).unwrap();
                posted += 1;
            }
            if self.done[0].len() > (from + to) / 2
                && let Some(halfway) = halfway.take()
            {
                halfway(self);
            }
            self.poll();
            let told = self.ends.each_ref().map(|end| (end.fault(), end.active()));
            assert!(clock::now() < deadline, "{told:?} {:?}", self.done.each_ref().map(Vec::len));
        }
        let is_success = |done: &Completion| done.status == Status::Success;
        assert!(self.done.iter().flatten().all(is_success), "{:?}", self.ends[0].fault());
        let ids = self.done[0].iter().map(|done| done.id.0 as usize);
        assert!(ids.eq(0..to));
        let immediates = self.done[1].iter().filter_map(|done| done.immediate);
        assert!(immediates.eq(0..to as u32), "each message once, in order");
    }

    /// Message number `index`: a write of its own size that tells its number.
    fn request(&self, index: usize) -> WorkRequest {
        let [left, right] = &self.regions;
        let (source, target) = (left.segment(0, (index * 97) % 5000), right.remote(0));
        let immediate = index as u32;
        let operation = Operation::WriteWithImmediate { source, target, immediate };
        WorkRequest { id: WorkId(index as u64), operation, signalled: true }
    }

    /// The default rail is given a connection, and becomes the one in use.
    fn go_back(&mut self) {
        self.attach(0);
        self.until(|hosts| hosts.ends.iter().all(|end| end.active() == 0));
    }

    /// A rail is given a connection that is not one of the pool.
    fn attach(&mut self, rail: usize) {
        self.until(|hosts| hosts.ends.iter().all(|end| end.wants(rail)));
        let connections = self.streams().map(Connection::Stream);
        for (end, connection) in self.ends.iter_mut().zip(connections) {
            end.attach(rail, connection).unwrap();
        }
        self.until(|hosts| hosts.ends.iter().all(|end| end.is_attached(rail)));
    }
}

/// The default rail fails, a dynamic end that was ready takes over, and it goes back, twice.
#[test]
fn a_spare_takes_over_and_is_given_up_again() {
    for evidence in [Evidence::Handshake, Evidence::Log] {
        println!("{evidence:?}");
        let mut hosts = Hosts::new(evidence);
        assert_eq!(hosts.network.pairs(), [2, 4, 4]);
        // What is not ready now cannot be made.
        hosts.network.allow_targets(false);
        for (round, device) in [(0, 0), (1, 2)] {
            hosts.exchange(200 * round, 200 * round + 100, |hosts| {
                hosts.network.link(device, false)
            });
            assert_eq!(hosts.ends.each_ref().map(VirtualQp::active), [1, 1]);
            hosts.network.link(device, true);
            hosts.exchange(200 * round + 100, 200 * round + 200, Hosts::go_back);
            assert_eq!(hosts.network.pairs()[1..], [4 - 2 * (round + 1); 2].map(|left| left));
        }
    }
}

/// Of eight writes three were executed, of which the sender knows nothing, when the default rail is lost. The log,
/// which is read over the spare, says so.
#[test]
fn what_the_log_says_is_not_repeated_over_a_spare() {
    let expected = [(Evidence::Resend, 8, 0), (Evidence::Handshake, 8, 0), (Evidence::Log, 5, 3)];
    for (evidence, resent, spared) in expected {
        let mut hosts = Hosts::new(evidence);
        hosts.exchange(0, 10, |_| {});
        (0..1000).for_each(|_| hosts.poll());
        let [left, right] = hosts.regions.each_ref().map(MemoryRegion::memory);
        let pattern: Vec<u8> = (0..800).map(|index| (index % 251) as u8).collect();
        left.write(0, &pattern);
        right.write(0, &[0; 800]);
        hosts.network.hold(true);
        let requests: Vec<_> = (0..8)
            .map(|index| {
                let source = hosts.regions[0].segment(100 * index, 100);
                let target = hosts.regions[1].remote(100 * index);
                let operation = Operation::Write { source, target };
                WorkRequest { id: WorkId(100 + index as u64), operation, signalled: index == 7 }
            })
            .collect();
        hosts.ends[0].post_send_list(&requests).unwrap();
        // A write and its entry are two requests.
        hosts.network.release(if evidence == Evidence::Log { 6 } else { 3 });
        hosts.network.link(0, false);
        hosts.network.hold(false);
        hosts.until(|hosts| hosts.done[0].len() > 10);
        let done = hosts.done[0][10];
        assert_eq!((done.id, done.status), (WorkId(107), Status::Success));
        assert!(hosts.regions[1].memory().lock().bytes(0..800) == pattern);
        let counters = hosts.ends[0].counters();
        assert_eq!((counters.resent, counters.spared), (resent, spared), "{evidence:?}");
        assert_eq!(hosts.ends.each_ref().map(VirtualQp::active), [1, 1]);
        assert_eq!(hosts.network.pairs()[1..], [4, 4], "two are in use, two are ready");
    }
}

#[test]
fn a_connection_of_its_own_leaves_the_stock_alone() {
    let mut hosts = Hosts::new(Evidence::Handshake);
    hosts.exchange(0, 50, |hosts| hosts.network.link(0, false));
    hosts.network.link(0, true);
    hosts.exchange(50, 100, Hosts::go_back);
    hosts.attach(1);
    assert_eq!(hosts.network.pairs(), [4, 2, 2]);
    hosts.exchange(100, 150, |hosts| hosts.network.link(2, false));
    assert_eq!(hosts.ends.each_ref().map(VirtualQp::active), [1, 1]);
}

/// The spare is lost as well, with messages that are executed at the last moment.
#[test]
fn a_spare_that_fails_is_followed_by_another() {
    for evidence in [Evidence::Handshake, Evidence::Log] {
        for late in [1, 4, 7] {
            println!("{evidence:?}, {late}");
            let mut hosts = Hosts::new(evidence);
            hosts.exchange(0, 60, |hosts| hosts.network.link(0, false));
            assert_eq!(hosts.ends.each_ref().map(VirtualQp::active), [1, 1]);
            hosts.network.link(0, true);
            hosts.exchange(60, 160, |hosts| {
                hosts.network.hurry(late);
                hosts.ends[1].suspect(1);
            });
            let ready = hosts
                .domains
                .each_ref()
                .map(|domain| domain.keep_ready(DEPTH, evidence, 0).unwrap());
            assert_eq!(ready, [0, 0], "both that were ready have been used");
        }
    }
}
