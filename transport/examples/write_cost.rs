//! What an evidence costs a write: processor time of both ends together, beside a plain queue pair.
//!
//! ```text
//! cargo run --release -p ccl-transport --example write_cost -- [BYTES] [ROUNDS]
//! ```
//!
//! One thread is both ends of queue pairs of software devices, with 64 writes on the way, and counts its own
//! processor time. So neither the scheduler nor whatever else runs on the machine is in the numbers, as they are in
//! the bandwidth of two processes that share few processors; but neither is what two ends do at the same time.
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

use std::net::TcpListener;
use std::sync::Arc;

use ccl_transport::verbs::soft::SoftDevice;
use ccl_transport::verbs::virtual_qp::{Evidence, VirtualDevice, VirtualSettings};
use ccl_transport::verbs::{
    Access, Completion, Connection, Depth, Device, Domain, Memory, MemoryRegion, Operation,
    QueuePair, WorkId, WorkRequest,
};
use rustix::time::{ClockId, clock_gettime};

const OUTSTANDING: usize = 64;
const WRITES: usize = 20_000;

/// A queue pair between two places of this process.
struct Pair {
    near: Box<dyn QueuePair>,
    far: Box<dyn QueuePair>,
    source: MemoryRegion,
    target: MemoryRegion,
    _domains: [Box<dyn Domain>; 2],
}

fn device(host: u8, rail: u8) -> Arc<dyn Device> {
    let address = [127, 2, host, rail];
    Arc::new(SoftDevice::new(format!("{host}.{rail}"), address.into()))
}

fn domain(host: u8, evidence: Option<Evidence>) -> Box<dyn Domain> {
    match evidence {
        None => device(host, 1).domain().unwrap(),
        Some(evidence) => {
            let settings = VirtualSettings::new(evidence, 1);
            VirtualDevice::new(vec![device(host, 1)], settings).domain().unwrap()
        }
    }
}

impl Pair {
    fn new(evidence: Option<Evidence>, bytes: usize) -> Self {
        let domains = [domain(15, evidence), domain(16, evidence)];
        let [source, target] = domains.each_ref().map(|domain| {
            let memory = Memory::allocate(OUTSTANDING * bytes).unwrap();
            domain.register(&memory, Access::ALL).unwrap()
        });
        let depth = Depth { sends: OUTSTANDING, receives: 1 };
        let [mut near, mut far] =
            domains.each_ref().map(|domain| domain.queue_pair(depth).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (end, stream) in [(&mut near, stream), (&mut far, listener.accept().unwrap().0)] {
            end.initialise().unwrap();
            end.connect(Connection::Stream(stream)).unwrap();
        }
        Self { near, far, source, target, _domains: domains }
    }

    /// Processor seconds of a write.
    fn run(&mut self, bytes: usize) -> f64 {
        let mut done: Vec<Completion> = Vec::new();
        let (mut posted, mut completed) = (0, 0);
        let start = processor_s();
        while completed < WRITES {
            while posted < WRITES && posted - completed < OUTSTANDING {
                let offset = posted % OUTSTANDING * bytes;
                let (source, target) =
                    (self.source.segment(offset, bytes), self.target.remote(offset));
                let operation = Operation::Write { source, target };
                let id = WorkId(posted as u64);
                self.near.post_send(WorkRequest { id, operation, signalled: true }).unwrap();
                posted += 1;
            }
            self.far.poll(&mut done);
            done.clear();
            self.near.poll(&mut done);
            completed += done.len();
        }
        (processor_s() - start) / WRITES as f64
    }
}

fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (bytes, rounds) = (arguments.next().unwrap_or(4096), arguments.next().unwrap_or(25));
    let evidences = [None, Some(Evidence::Resend), Some(Evidence::Handshake), Some(Evidence::Log)];
    let mut pairs = evidences.map(|evidence| Pair::new(evidence, bytes));
    let mut times = evidences.map(|_| Vec::new());
    for _ in 0..rounds {
        for (pair, times) in pairs.iter_mut().zip(&mut times) {
            times.push(pair.run(bytes));
        }
    }
    println!("# writes of {bytes} bytes, medians of {rounds} rounds of {WRITES}");
    println!("| | ns of processor time, both ends | beside off |\n|---|---|---|");
    for (evidence, column) in evidences.iter().zip(&times) {
        let shares = column.iter().zip(&times[0]).map(|(one, off)| one / off - 1.0).collect();
        let name = evidence.map_or("off", Evidence::name);
        let nanoseconds = 1e9 * median(column.clone());
        println!("| {name} | {nanoseconds:.0} | {:+.1} % |", 100.0 * median(shares));
    }
}
