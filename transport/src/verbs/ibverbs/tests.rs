//! What only a device of libibverbs does, on the network of the guest with soft-RoCE (docs/rdma.md).
//!
//! The tests change the network, so they run one after the other.

mod dynamic;
mod limits;
mod pool;
mod virtual_qp;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::super::{
    Access, Completion, Connection, Depth, Memory, MemoryRegion, Operation, QueuePair,
    ReceiveRequest, State, Status, WorkId, WorkRequest,
};
use super::*;
use crate::clock;

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 64 << 10;

static NETWORK: Mutex<()> = Mutex::new(());

/// Runs a test in the guest; elsewhere says that it does not. Where there are no devices at all, the
/// conformance suite says so for all tests.
fn in_the_guest(test: fn()) {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    match (devices(&HcaFilter::default()), Command::new("nic").output()) {
        (Ok(_), Ok(_)) => test(),
        (Ok(_), Err(_)) => {
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            let line = format!("skip: {name}: this is not the guest of tests/guest\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
        (Err(reason), _) => println!("{reason}"),
    }
}

/// Something done to a NIC, and undone at the end.
struct Trouble<'a>(&'a [&'a str]);

impl<'a> Trouble<'a> {
    fn make(does: &[&str], undoes: &'a [&'a str]) -> Self {
        nic(does);
        Self(undoes)
    }
}

impl Drop for Trouble<'_> {
    fn drop(&mut self) {
        nic(self.0);
    }
}

fn nic(arguments: &[&str]) {
    let done = Command::new("nic").args(arguments).output().unwrap();
    assert!(done.status.success(), "nic {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn device(name: &str) -> Result<IbDevice, TransportError> {
    let filter: HcaFilter = format!("={name}").parse().unwrap();
    devices(&filter).map(|mut found| found.swap_remove(0))
}

struct End {
    pair: Box<dyn QueuePair>,
    region: MemoryRegion,
    _domain: Box<dyn Domain>,
    done: Vec<Completion>,
}

impl End {
    fn new(domain: Box<dyn Domain>) -> Self {
        let region = domain.register(&Memory::allocate(BYTES).unwrap(), Access::ALL).unwrap();
        let pair = domain.queue_pair(Depth { sends: 16, receives: 16 }).unwrap();
        Self { pair, region, _domain: domain, done: Vec::new() }
    }

    fn on(name: &str) -> Self {
        Self::new(device(name).unwrap().domain().unwrap())
    }

    fn post(&mut self, id: u64, operation: Operation) {
        let request = WorkRequest { id: WorkId(id), operation, signalled: true };
        self.pair.post_send(request).unwrap();
    }

    fn receive(&mut self, id: u64) {
        let request = ReceiveRequest { id: WorkId(id), target: None };
        self.pair.post_receive(request).unwrap();
    }

    fn statuses(&self) -> Vec<(u64, Status)> {
        self.done.iter().map(|completion| (completion.id.0, completion.status)).collect()
    }
}

struct Bench {
    left: End,
    right: End,
}

impl Bench {
    fn new() -> Self {
        Self::between("rxe_h0n0", "rxe_h1n0")
    }

    fn between(left: &str, right: &str) -> Self {
        let mut bench = Self { left: End::on(left), right: End::on(right) };
        bench.connect();
        bench
    }

    fn connect(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        for (end, stream) in [(&mut self.left, near), (&mut self.right, far)] {
            end.pair.initialise().unwrap();
            end.pair.connect(Connection::Stream(stream)).unwrap();
        }
    }

    fn poll(&mut self) {
        let Self { left, right } = self;
        if !(left.pair.poll(&mut left.done) | right.pair.poll(&mut right.done)) {
            std::thread::yield_now();
        }
    }

    fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        let deadline = clock::now() + LIMIT;
        while !reached(self) {
            let ends = [&self.left, &self.right];
            let told = ends.map(|end| (end.pair.state(), end.pair.fault(), &end.done));
            assert!(clock::now() < deadline, "{told:?}");
            self.poll();
        }
    }

    fn write(&mut self, id: u64, bytes: usize) {
        let (source, target) = (self.left.region.segment(0, bytes), self.right.region.remote(0));
        self.left.post(id, Operation::Write { source, target });
    }

    /// A write gets through.
    fn works(&mut self) {
        let before = self.left.done.len();
        self.left.region.memory().write(0, b"through");
        self.write(77, 7);
        self.until(|bench| bench.left.done.len() > before);
        assert_eq!(
            self.left.statuses()[before..],
            [(77, Status::Success)],
            "{:?}",
            self.left.pair.fault()
        );
        let mut bytes = [0; 7];
        self.right.region.memory().read(0, &mut bytes);
        assert_eq!(&bytes, b"through");
    }

    /// Fails with two writes and a receive outstanding, so that the first write is to blame.
    fn dies(&mut self) {
        self.left.done.clear();
        self.left.receive(3);
        self.write(1, BYTES);
        self.write(2, BYTES);
        self.until(|bench| bench.left.done.len() == 3);
        let mut statuses = self.left.statuses();
        statuses.sort_by_key(|status| status.0);
        let lost = (1, Status::RetryExceeded);
        assert_eq!(statuses, [lost, (2, Status::Flushed), (3, Status::Flushed)]);
        assert_eq!(self.left.pair.state(), State::Error);
        self.until(|bench| bench.right.pair.state() == State::Error);
    }

    fn begin_anew(&mut self) {
        for end in [&mut self.left, &mut self.right] {
            end.pair.reset();
            end.done.clear();
        }
        self.connect();
    }
}

/// Ports take a moment to come back.
fn until_usable(names: [&str; 2]) {
    let deadline = clock::now() + LIMIT;
    while let Err(reason) = names.map(device).into_iter().collect::<Result<Vec<_>, _>>() {
        assert!(clock::now() < deadline, "{reason}");
        clock::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_nic_that_dies_is_an_error_and_works_again_when_it_is_back() {
    in_the_guest(|| {
        let mut bench = Bench::new();
        for (does, undoes) in [
            (["down", "h0n0"], ["up", "h0n0"]),
            (["down", "h1n0"], ["up", "h1n0"]),
            (["unplug", "h0n0"], ["plug", "h0n0"]),
            (["cut", "h1n0"], ["heal", "h1n0"]),
        ] {
            println!("{does:?}");
            bench.works();
            {
                let _trouble = Trouble::make(&does, &undoes);
                bench.dies();
            }
            until_usable(["rxe_h0n0", "rxe_h1n0"]);
            bench.begin_anew();
        }
        bench.works();
    });
}

#[test]
fn an_idle_queue_pair_is_told_that_its_port_has_no_link() {
    in_the_guest(|| {
        let mut bench = Bench::new();
        bench.works();
        let trouble = Trouble::make(&["down", "h0n0"], &["up", "h0n0"]);
        bench.until(|bench| bench.left.pair.state() == State::Error);
        let fault = bench.left.pair.fault().unwrap().to_string();
        assert_eq!(fault, "use rxe_h0n0: its port has no link any more");
        bench.until(|bench| bench.right.pair.state() == State::Error);
        let reason = device("rxe_h0n0").unwrap_err().to_string();
        assert!(reason.contains("port 1 of rxe_h0n0: it has no link"), "{reason}");
        drop(trouble);
        until_usable(["rxe_h0n0", "rxe_h1n0"]);
    });
}

#[test]
fn of_two_packet_sizes_the_smaller_is_used() {
    in_the_guest(|| {
        let _trouble = Trouble::make(&["mtu", "h1n0", "1500"], &["mtu", "h1n0", "9000"]);
        let mut bench = Bench::new();
        let pattern: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
        bench.left.region.memory().write(0, &pattern);
        bench.write(1, BYTES);
        bench.until(|bench| !bench.left.done.is_empty());
        assert_eq!(bench.left.statuses(), [(1, Status::Success)]);
        assert!(bench.right.region.memory().lock().bytes(0..BYTES) == pattern);
    });
}

#[test]
fn the_address_of_a_port_is_looked_up_each_time() {
    in_the_guest(|| {
        let is_now = |reached: fn(IpAddr) -> bool| {
            let deadline = clock::now() + LIMIT;
            while !reached(device("rxe_h1n1").unwrap().address()) {
                assert!(clock::now() < deadline);
            }
        };
        is_now(|address| address == IpAddr::from([10, 0, 1, 2]));
        {
            let _trouble =
                Trouble::make(&["unaddress", "h1n1"], &["address", "h1n1", "10.0.1.2/16"]);
            is_now(
                |address| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()),
            );
        }
        is_now(|address| address == IpAddr::from([10, 0, 1, 2]));
    });
}

/// A dma-buf of the kernel's, if it makes any for whoever asks (`CONFIG_UDMABUF`).
fn udmabuf(bytes: usize) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd as _;

    /// `struct udmabuf_create`.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let memory = rustix::fs::memfd_create("dmabuf", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&memory, rustix::fs::SealFlags::SHRINK).unwrap();
    let device = std::fs::File::options().read(true).write(true).open("/dev/udmabuf").ok()?;
    let memfd = memory.as_raw_fd().cast_unsigned();
    let create = Create { memfd, flags: 0, offset: 0, size: bytes as u64 };
    let number = rustix::ioctl::opcode::write::<Create>(b'u', 0x42);
    // SAFETY: the device is open, and reads a value of this type.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), number.into(), &raw const create) };
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    (made >= 0).then(|| unsafe { std::os::fd::FromRawFd::from_raw_fd(made) })
}

/// soft-RoCE has no code for it: what is tested is that it says so, and goes on.
#[test]
fn a_dmabuf_that_the_driver_does_not_take_is_an_error_that_says_so() {
    in_the_guest(|| {
        let descriptor = udmabuf(BYTES).unwrap_or_else(|| {
            println!("there is no /dev/udmabuf: with a file in memory");
            rustix::fs::memfd_create("none", rustix::fs::MemfdFlags::empty()).unwrap()
        });
        let memory = Memory::of_dmabuf(descriptor, 0, BYTES).unwrap();
        let domain = device("rxe_h0n0").unwrap().domain().unwrap();
        let error = domain.register(&memory, Access::ALL).unwrap_err().to_string();
        let begins = error.starts_with(&format!("register {BYTES} bytes with rxe_h0n0: "));
        assert!(begins && error.contains("a dma-buf: the driver"), "{error}");
        domain.register(&Memory::allocate(BYTES).unwrap(), Access::ALL).unwrap();
    });
}

#[test]
fn without_atomics_everything_else_works() {
    in_the_guest(|| {
        for has_atomics in [false, true] {
            let list = DeviceList::new(Library::load().unwrap()).unwrap();
            let context = Context::open(&list, "rxe_h0n0").unwrap();
            let limits = sys::DeviceLimits { has_atomics, ..context.limits().unwrap() };
            let left = End::new(Box::new(IbDomain::new(&context, 1, None, limits).unwrap()));
            let context = Context::open(&list, "rxe_h1n0").unwrap();
            let limits = sys::DeviceLimits { has_atomics: false, ..context.limits().unwrap() };
            let right = End::new(Box::new(IbDomain::new(&context, 1, None, limits).unwrap()));
            let mut bench = Bench { left, right };
            bench.connect();
            bench.works();
            bench.left.done.clear();
            let (result, target) = (bench.left.region.segment(0, 8), bench.right.region.remote(0));
            bench.left.post(1, Operation::FetchAdd { result, target, addend: 1 });
            bench.until(|bench| !bench.left.done.is_empty());
            assert_eq!(bench.left.statuses(), [(1, Status::RemoteInvalidRequest)]);
            let fault = bench.left.pair.fault().unwrap().to_string();
            let whose = if has_atomics { "the peer of rxe_h0n0" } else { "rxe_h0n0" };
            assert!(fault.ends_with(&format!("{whose} has no atomics")), "{fault}");
        }
    });
}

/// What is there of mlx5 without a device of it: its library, which is asked, and says no.
#[test]
fn soft_roce_is_not_of_mlx5_and_gets_reliable_queue_pairs() {
    in_the_guest(|| {
        let library = Library::load().unwrap();
        assert_eq!(library.lacks_mlx5(), None);
        let list = DeviceList::new(library).unwrap();
        assert!(!Context::open(&list, "rxe_h0n0").unwrap().is_mlx5());
        let [left, right] =
            ["rxe_h0n0", "rxe_h1n0"].map(|name| imitated::Spares(device(name).unwrap()));
        let [left, right] = [left, right].map(|device| End::new(device.domain().unwrap()));
        assert_eq!(left._domain.keep_ready(Depth { sends: 16, receives: 16 }, 2), 0);
        let mut bench = Bench { left, right };
        bench.connect();
        bench.works();
    });
}

#[test]
fn more_memory_than_may_be_locked_is_an_error_that_names_the_limit() {
    in_the_guest(|| {
        // Of this thread only: the one of a test ends with it.
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let before = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), ..before }).unwrap();
        let domain = device("rxe_h0n0").unwrap().domain().unwrap();
        let outcome = domain.register(&Memory::allocate(2 << 20).unwrap(), Access::ALL);
        setrlimit(Resource::Memlock, before).unwrap();
        let reason = outcome.map(|_| ()).unwrap_err().to_string();
        assert!(reason.starts_with("register 2097152 bytes with rxe_h0n0: "), "{reason}");
        assert!(reason.contains("ulimit -l: 1024 KiB; raise it"), "{reason}");
    });
}

#[test]
fn what_the_peer_says_is_checked() {
    in_the_guest(|| {
        // Noise, and the right thing at the wrong time.
        for said in [[7; hello::MESSAGE_BYTES], hello::Message::Ready.encode()] {
            let mut end = End::on("rxe_h0n0");
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            end.pair.initialise().unwrap();
            end.pair.connect(Connection::Stream(listener.accept().unwrap().0)).unwrap();
            peer.write_all(&said).unwrap();
            let deadline = clock::now() + LIMIT;
            while end.pair.state() != State::Error {
                end.pair.poll(&mut end.done);
                assert!(clock::now() < deadline);
            }
            let fault = end.pair.fault().unwrap();
            assert!(matches!(fault, TransportError::Protocol(_)), "{fault}");
        }
    });
}

#[test]
fn the_descriptor_announces_everything() {
    in_the_guest(|| {
        let mut bench = Bench::new();
        bench.works();
        bench.right.receive(5);
        while bench.right.pair.poll(&mut bench.right.done) {}
        let operation = Operation::Send { source: bench.left.region.segment(0, 0) };
        bench.left.post(1, operation);
        wait_for(&mut bench.right);
        assert_eq!(bench.right.statuses(), [(5, Status::Success)]);
        bench.left.pair.fail();
        wait_for(&mut bench.right);
        assert_eq!(bench.right.pair.state(), State::Error);
    });
}

fn is_readable(end: &End) -> bool {
    waits_for(end, Duration::ZERO)
}

/// Whether its descriptor is readable before so long.
fn waits_for(end: &End, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: the queue pair lives longer than the borrow.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(end.pair.descriptor().unwrap()) };
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::try_from(limit).unwrap())).unwrap() > 0
}

/// Polls an end only when its descriptor or it itself says so, until there is something new.
fn wait_for(end: &mut End) {
    let (before, state) = (end.done.len(), end.pair.state());
    let deadline = clock::now() + LIMIT;
    while end.done.len() == before && end.pair.state() == state {
        assert!(clock::now() < deadline, "{:?}", end.pair);
        if waits_for(end, Duration::from_secs(1)) || end.pair.needs_poll() {
            end.pair.poll(&mut end.done);
        }
    }
}
