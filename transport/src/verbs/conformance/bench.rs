//! Two connected queue pairs, with memory at each end.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::super::*;
use crate::clock;

pub(super) const DEPTH: Depth = Depth { sends: 64, receives: 64 };
pub(super) const REGION_BYTES: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) type Wrap = fn(Box<dyn QueuePair>) -> Box<dyn QueuePair>;

/// Two connected ends.
pub(super) struct Bench {
    pub(super) left: End,
    pub(super) right: End,
}

pub(super) struct End {
    pub(super) domain: Box<dyn Domain>,
    pub(super) region: MemoryRegion,
    pub(super) pair: Box<dyn QueuePair>,
    pub(super) done: Vec<Completion>,
}

impl End {
    pub(super) fn new(device: &dyn Device, wrap: Wrap) -> Self {
        let domain = device.domain().unwrap();
        let memory = Memory::allocate(REGION_BYTES).unwrap();
        let region = domain.register(&memory, Access::ALL).unwrap();
        let pair = wrap(domain.queue_pair(DEPTH).unwrap());
        Self { domain, region, pair, done: Vec::new() }
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.region.memory().write(offset, bytes);
    }

    pub(super) fn bytes(&self, offset: usize, count: usize) -> Vec<u8> {
        self.region.memory().lock().bytes(offset..offset + count).to_vec()
    }

    pub(super) fn post(&mut self, id: u64, operation: Operation) {
        let request = WorkRequest { id: WorkId(id), operation, signalled: true };
        self.pair.post_send(request).unwrap();
    }

    pub(super) fn receive(&mut self, id: u64, target: Option<(usize, usize)>) {
        let target = target.map(|(offset, bytes)| self.region.segment(offset, bytes));
        self.pair.post_receive(ReceiveRequest { id: WorkId(id), target }).unwrap();
    }

    pub(super) fn send(&mut self, id: u64, offset: usize, bytes: usize) {
        self.post(id, Operation::Send { source: self.region.segment(offset, bytes) });
    }

    pub(super) fn write(
        &mut self,
        id: u64,
        (offset, bytes): (usize, usize),
        target: RemoteAddress,
    ) {
        self.post(id, Operation::Write { source: self.region.segment(offset, bytes), target });
    }

    pub(super) fn statuses(&self) -> Vec<(u64, Status)> {
        self.done.iter().map(|completion| (completion.id.0, completion.status)).collect()
    }
}

impl Bench {
    pub(super) fn connect(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        for (end, stream) in [(&mut self.left, near), (&mut self.right, far)] {
            end.pair.initialise().unwrap();
            end.pair.connect(Connection::Stream(stream)).unwrap();
            assert_eq!(end.pair.state(), State::ReadyToSend);
        }
    }

    pub(super) fn poll(&mut self) {
        let moved =
            self.left.pair.poll(&mut self.left.done) | self.right.pair.poll(&mut self.right.done);
        if !moved {
            std::thread::yield_now();
        }
    }

    pub(super) fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        let deadline = clock::now() + LIMIT;
        while !reached(self) {
            assert!(clock::now() < deadline, "{:?} / {:?}", self.left.done, self.right.done);
            self.poll();
        }
    }

    /// Polls until both ends have so many completions, and a little longer, to see none too many.
    pub(super) fn settle(&mut self, left: usize, right: usize) {
        self.until(|bench| bench.left.done.len() >= left && bench.right.done.len() >= right);
        for _ in 0..100 {
            self.poll();
        }
        assert_eq!((self.left.done.len(), self.right.done.len()), (left, right), "{self:?}");
    }
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "left {:?}, right {:?}", self.left.done, self.right.done)
    }
}

pub(super) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + seed * 31 + (index >> 8)) as u8).collect()
}

pub(super) fn success(id: u64, opcode: Opcode, bytes: usize) -> Completion {
    Completion { id: WorkId(id), status: Status::Success, opcode, bytes, immediate: None }
}
