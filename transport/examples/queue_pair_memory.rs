//! What many virtual queue pairs occupy with backups of their own, and with a pool of connections that all share.
//!
//! ```text
//! cargo run --release -p ccl-transport --example queue_pair_memory -- own|pool [PAIRS] [NEAR,NEAR FAR,FAR]
//! ```
//!
//! Both ends are in this process. Each queue pair writes once over its default rail. With a pool some of them lose
//! that rail afterwards, claim a connection, and write over it. What is told is half of what the process has: that of
//! an end; and what the whole machine has less than before, the kernel's part included.
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ccl_transport::clock;
use ccl_transport::verbs::soft::SoftDevice;
use ccl_transport::verbs::virtual_qp::{
    Evidence, Owner, SparePool, VirtualDevice, VirtualDomain, VirtualQp, VirtualSettings,
};
use ccl_transport::verbs::{
    Access, Completion, Connection, Depth, Device, Domain, Memory, MemoryRegion, Operation,
    QueuePair, Status, WorkId, WorkRequest,
};

const DEPTH: Depth = Depth { sends: 64, receives: 64 };
const RAILS: usize = 2;
const SPARES: usize = 64;
/// Queue pairs that lose their default rail where there is a pool.
const LOSERS: usize = 16;
const LIMIT: Duration = Duration::from_secs(300);
const DEVICES: [&str; 2] = ["127.2.13.1,127.2.13.2", "127.2.14.1,127.2.14.2"];

/// One host, as it were.
struct Place {
    domain: VirtualDomain,
    region: MemoryRegion,
}

impl Place {
    fn new(names: &str, pairs: usize) -> Self {
        let rails: Vec<Arc<dyn Device>> = names.split(',').map(device).collect();
        assert_eq!(rails.len(), RAILS, "{names}: two devices");
        let clients = 2 * pairs;
        let settings = VirtualSettings { clients, ..VirtualSettings::new(Evidence::Log, RAILS) };
        let domain = VirtualDevice::new(rails, settings).virtual_domain().unwrap();
        let region = domain.register(&Memory::allocate(4096).unwrap(), Access::ALL).unwrap();
        Self { domain, region }
    }
}

/// A software device on an address, or an RDMA device.
fn device(name: &str) -> Arc<dyn Device> {
    match name.parse::<IpAddr>() {
        Ok(address) => Arc::new(SoftDevice::new(name.to_owned(), address)),
        Err(_) => rdma_device(name),
    }
}

#[cfg(feature = "rdma")]
fn rdma_device(name: &str) -> Arc<dyn Device> {
    let filter = format!("={name}").parse().unwrap();
    let found = ccl_transport::verbs::ibverbs::devices(&filter).unwrap();
    Arc::new(found.into_iter().next().unwrap())
}

#[cfg(not(feature = "rdma"))]
fn rdma_device(name: &str) -> Arc<dyn Device> {
    panic!("{name}: not an address, and built without the feature rdma");
}

fn streams(listener: &TcpListener) -> (Connection, Connection) {
    let (one, other) = sockets(listener);
    (Connection::Stream(one), Connection::Stream(other))
}

fn sockets(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Both ends of a queue pair.
struct Pair {
    ends: [VirtualQp; 2],
    done: Vec<Completion>,
}

impl Pair {
    fn new(places: &[Place; 2], listener: &TcpListener) -> Self {
        let mut ends = places.each_ref().map(|place| {
            let mut end = place.domain.virtual_queue_pair(DEPTH).unwrap();
            end.initialise().unwrap();
            end
        });
        let (near, far) = streams(listener);
        ends[0].connect(near).unwrap();
        ends[1].connect(far).unwrap();
        let mut pair = Self { ends, done: Vec::new() };
        pair.until(|pair| pair.ends.iter().all(VirtualQp::is_running));
        pair
    }

    fn poll(&mut self) {
        let [near, far] = &mut self.ends;
        near.poll(&mut self.done);
        far.poll(&mut Vec::new());
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let deadline = clock::now() + LIMIT;
        while !is_so(self) {
            self.poll();
            assert!(clock::now() < deadline, "{:?}", self.ends);
            std::thread::yield_now();
        }
    }

    fn attach_backup(&mut self, listener: &TcpListener) {
        let (near, far) = streams(listener);
        self.ends[0].attach(1, near).unwrap();
        self.ends[1].attach(1, far).unwrap();
        self.until(|pair| pair.ends.iter().all(|end| end.is_attached(1)));
    }

    /// Writes a word, and waits for it.
    fn write(&mut self, places: &[Place; 2], word: u64) {
        let [near, far] = places;
        near.region.memory().store(0, word);
        let (source, target) = (near.region.segment(0, 8), far.region.remote(8));
        let operation = Operation::Write { source, target };
        let request = WorkRequest { id: WorkId(word), operation, signalled: true };
        self.ends[0].post_send(request).unwrap();
        self.finish(places, word);
    }

    fn finish(&mut self, places: &[Place; 2], word: u64) {
        self.until(|pair| !pair.done.is_empty());
        assert_eq!(self.done.remove(0).status, Status::Success);
        assert_eq!(places[1].region.memory().load(8), word);
    }
}

/// Some queue pairs lose their default rail and go on over a connection of the pool.
fn lose(pairs: &mut [Pair], places: &[Place; 2], pools: &mut [SparePool; 2]) {
    let (near, far) = (&places[0], &places[1]);
    for (word, pair) in (1_000_000..).zip(pairs) {
        near.region.memory().store(0, word);
        for end in &mut pair.ends {
            end.suspect(0);
        }
        let (source, target) = (near.region.segment(0, 8), far.region.remote(8));
        let operation = Operation::Write { source, target };
        let request = WorkRequest { id: WorkId(word), operation, signalled: true };
        pair.ends[0].post_send(request).unwrap();
        let deadline = clock::now() + LIMIT;
        while pair.done.is_empty() {
            pair.poll();
            for (end, pool) in pair.ends.iter_mut().zip(&mut *pools) {
                pool.claim(end, 1).unwrap();
                if let Some((claim, connection)) = pool.claimed() {
                    assert_eq!(claim.identity, end.identity());
                    end.attach(claim.rail, connection).unwrap();
                }
            }
            assert!(clock::now() < deadline, "{:?}", pair.ends);
        }
        pair.finish(places, word);
        assert_eq!(pair.ends[0].active(), 1);
    }
}

/// Resident memory of this process, what of it belongs to the drivers of RDMA devices, and what the machine has in
/// use, in KiB.
fn memory() -> [f64; 3] {
    let kib = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
    let number = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().find(|line| line.starts_with(name)).map(kib).unwrap()
    };
    let mut is_of_driver = false;
    let mut of_drivers = 0.0;
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        if line.starts_with("Rss:") && is_of_driver {
            of_drivers += kib(line);
        } else if !line.ends_with("kB") && !line.starts_with("VmFlags") {
            is_of_driver = line.contains("/dev/infiniband/");
        }
    }
    [
        number("/proc/self/status", "VmRSS:"),
        of_drivers,
        number("/proc/meminfo", "MemTotal:") - number("/proc/meminfo", "MemAvailable:"),
    ]
}

fn tell(what: &str, before: [f64; 3], ends: usize) {
    let now = memory();
    let [resident, of_drivers, machine] = [0, 1, 2].map(|index| now[index] - before[index]);
    println!(
        "{what}: {:.0} MiB for one end of each; for one {:.1} KiB, {:.1} of them of drivers; of the machine {:.1} KiB",
        resident / 2048.0,
        resident / ends as f64,
        of_drivers / ends as f64,
        machine / ends as f64,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let with_pool = match argument(0) {
        Some("pool") => true,
        Some("own") => false,
        _ => panic!("own or pool"),
    };
    let count = argument(1).map_or(4096, |text| text.parse().unwrap());
    let names = [0, 1].map(|side| argument(2 + side).unwrap_or(DEVICES[side]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let places = names.map(|names| Place::new(names, count));
    let before = memory();
    let mut pairs: Vec<Pair> = Vec::with_capacity(count);
    for word in 0..count {
        let mut pair = Pair::new(&places, &listener);
        if !with_pool {
            pair.attach_backup(&listener);
        }
        pair.write(&places, word as u64 + 1);
        pairs.push(pair);
    }
    if !with_pool {
        return tell(&format!("{count} queue pairs, own backups"), before, 2 * count);
    }
    let mut pools = [SparePool::new(SPARES), SparePool::new(SPARES)];
    for number in 0..SPARES {
        let (one, other) = sockets(&listener);
        // Either end may lead.
        let owners = [Owner::Here, Owner::There];
        pools[0].add(one, owners[number % 2]).unwrap();
        pools[1].add(other, owners[1 - number % 2]).unwrap();
    }
    tell(&format!("{count} queue pairs, a pool of {SPARES}"), before, 2 * count);
    let losers = LOSERS.min(count);
    lose(&mut pairs[..losers], &places, &mut pools);
    tell(&format!("{losers} of them over the pool"), before, 2 * count);
}
