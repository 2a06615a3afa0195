//! Queue pairs between two ends in one process: what calls do, what they refuse, and event loops.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::{BorrowedFd, RawFd};
use std::thread;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Depth, Domain, DomainConfig, Error, EventKind, Evidence, Key, Limits,
    Listener, Meeting, MemoryRegion, Opcode, Operation, PeerRegion, QueuePair, ReceiveRequest,
    Side, State, Status, Terms, WorkId, WorkRequest,
};

const LIMIT: Duration = Duration::from_secs(60);
const HOSTS: [&str; 2] = ["127.4.1.1,127.4.1.2", "127.4.2.1,127.4.2.2"];

#[derive(Debug)]
struct End {
    region: MemoryRegion,
    theirs: PeerRegion,
    pair: QueuePair,
    meeting: Meeting,
    domain: Domain,
}

impl End {
    fn new(mut meeting: Meeting, terms: Terms, devices: &str) -> Result<Self, Error> {
        let config = DomainConfig { devices: devices.into(), ..DomainConfig::default() };
        let domain = Domain::open(&config, &key())?;
        let region = domain.allocate(4096, Access::ALL)?;
        let mut pair = domain.queue_pair(&terms)?;
        pair.connect(&mut meeting, LIMIT)?;
        let theirs = meeting.exchange_regions(&region, LIMIT)?;
        Ok(Self { region, theirs, pair, meeting, domain })
    }

    fn post(&mut self, id: u64, operation: Operation) {
        self.pair.post_send(WorkRequest { id: WorkId(id), operation, signalled: true }).unwrap();
    }

    fn write(&mut self, id: u64) {
        let (source, target) = (self.region.segment(0, 8), self.theirs.at(8));
        self.post(id, Operation::Write { source, target });
    }

    fn wait(&mut self) -> Completion {
        let mut completions = Vec::new();
        self.pair.wait(&mut completions, LIMIT).unwrap();
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions.pop().unwrap()
    }

    /// Waits until the shadow has connected the backup.
    fn connect_all(&mut self) {
        let mut id = 1 << 32;
        while self.pair.connected_rails() < self.pair.rails() {
            self.write(id);
            assert_eq!(self.wait().status, Status::Success);
            id += 1;
        }
    }

    /// Serves until the other end says that it is done.
    fn serve(mut self) -> Self {
        let mut completions = Vec::new();
        while !self.pair.serve(&mut completions, &self.meeting, LIMIT).unwrap() {}
        self.meeting.exchange(b"", LIMIT).unwrap();
        self
    }
}

fn key() -> Key {
    Key::from_passphrase("a test of queue pairs")
}

fn terms(evidence: Option<Evidence>) -> Terms {
    Terms { evidence, ..Terms::default() }
}

/// The connecting end, and the accepting one in a thread that does `body`.
fn ends<R: Send + 'static>(
    near: (Terms, &'static str),
    far: (Terms, &'static str),
    body: impl FnOnce(Result<End, Error>) -> R + Send + 'static,
) -> (Result<End, Error>, thread::JoinHandle<R>) {
    let listener = Listener::bind("127.0.0.1:0", key()).unwrap();
    let address = listener.address().unwrap().to_string();
    let accepting = thread::spawn(move || {
        let meeting = listener.accept(LIMIT).unwrap();
        assert_eq!(meeting.side(), Side::Accepting);
        body(End::new(meeting, far.0, far.1))
    });
    let meeting = Meeting::connect(&address, &key(), LIMIT).unwrap();
    (End::new(meeting, near.0, near.1), accepting)
}

fn alike(evidence: Option<Evidence>) -> (End, thread::JoinHandle<End>) {
    let (near, far) = ((terms(evidence), HOSTS[0]), (terms(evidence), HOSTS[1]));
    let (near, accepting) = ends(near, far, |end| end.unwrap().serve());
    (near.unwrap(), accepting)
}

#[test]
fn every_operation_works_with_every_evidence() {
    for evidence in [None, Some(Evidence::Resend), Some(Evidence::Handshake), Some(Evidence::Log)] {
        let (near, far) = ((terms(evidence), HOSTS[0]), (terms(evidence), HOSTS[1]));
        let (near, accepting) = ends(near, far, |end| {
            let mut end = end.unwrap();
            for id in 0..2 {
                let target = Some(end.region.segment(1024, 8));
                end.pair.post_receive(ReceiveRequest { id: WorkId(id), target }).unwrap();
            }
            end.meeting.exchange(b"posted", LIMIT).unwrap();
            let mut received = Vec::new();
            while received.len() < 2 {
                end.pair.wait(&mut received, LIMIT).unwrap();
            }
            (end.serve(), received)
        });
        let mut near = near.unwrap();
        near.meeting.exchange(b"posted", LIMIT).unwrap();
        near.region.memory().store(0, 40);
        let (own, result) = (near.region.segment(0, 8), near.region.segment(16, 8));
        let (word, theirs) = (near.theirs.at(8), near.theirs);
        for operation in [
            Operation::Write { source: own, target: word },
            Operation::FetchAdd { result, target: word, addend: 2 },
            Operation::CompareAndSwap { result, target: word, expected: 42, new: 43 },
            Operation::Send { source: own },
            Operation::WriteWithImmediate { source: own, target: theirs.at(64), immediate: 7 },
            Operation::Read { target: near.region.segment(32, 8), source: word },
        ] {
            near.post(1, operation);
            let done = near.wait();
            assert_eq!((done.status, done.opcode), (Status::Success, operation.opcode()));
        }
        assert_eq!(near.region.memory().load(16), 42, "{evidence:?}");
        assert_eq!(near.region.memory().load(32), 43, "{evidence:?}");
        near.meeting.exchange(b"", LIMIT).unwrap();
        let (far, received) = accepting.join().unwrap();
        let [message, immediate] = received[..] else { panic!("{received:?}") };
        assert_eq!((message.opcode, message.bytes), (Opcode::Receive, 8));
        assert_eq!(immediate.opcode, Opcode::ReceiveWriteWithImmediate);
        assert_eq!((immediate.id, immediate.immediate), (WorkId(1), Some(7)));
        assert_eq!([8, 64, 1024].map(|at| far.region.memory().load(at)), [43, 40, 40]);
    }
}

#[test]
fn a_rail_that_is_suspected_is_left_and_taken_back() {
    let patient = terms(Some(Evidence::Log));
    // On a busy machine a rail may take its time to come back.
    let patience_ns = patient.limits.repair_ns;
    let limits = Limits { settle_ns: 0, retry_ns: 0, patience_ns, ..patient.limits };
    let hasty = Terms { limits, ..patient };
    let (near, accepting) = ends((hasty, HOSTS[0]), (hasty, HOSTS[1]), |end| end.unwrap().serve());
    let mut near = near.unwrap();
    assert_eq!((near.pair.rails(), near.pair.active_rail()), (2, 0));
    assert!(matches!(near.pair.suspect(2), Err(Error::InvalidArgument(_))));
    near.connect_all();
    near.pair.suspect(0).unwrap();
    near.write(1);
    assert_eq!(near.wait().status, Status::Success);
    assert!(near.pair.counters().repairs >= 1);
    // The shadow connects the first rail again, and requests go back there.
    let mut seen: Vec<EventKind> = Vec::new();
    let mut id = 2;
    while near.pair.active_rail() != 0 || seen.len() < 3 {
        near.write(id);
        assert_eq!(near.wait().status, Status::Success);
        seen.extend(near.pair.take_events().iter().map(|event| event.kind));
        id += 1;
    }
    assert_eq!(seen[..3], [EventKind::Interrupted, EventKind::Resumed, EventKind::Returned]);
    near.meeting.exchange(b"", LIMIT).unwrap();
    accepting.join().unwrap();
}

/// The word of the kernel is enough: nothing is polled unless the descriptor is readable.
#[test]
fn an_event_loop_sleeps_on_one_descriptor() {
    let (mut near, accepting) = alike(Some(Evidence::Handshake));
    let descriptor = near.pair.descriptor();
    for id in 0..20 {
        if id == 10 {
            near.pair.suspect(0).unwrap();
        }
        near.write(id);
        let mut completions = Vec::new();
        loop {
            near.pair.arm().unwrap();
            near.pair.poll(&mut completions);
            if !completions.is_empty() {
                break;
            }
            assert!(is_readable(descriptor), "nothing wakes the loop");
        }
        assert_eq!((completions[0].id, completions[0].status), (WorkId(id), Status::Success));
        assert_eq!(near.pair.descriptor(), descriptor);
    }
    near.meeting.exchange(b"", LIMIT).unwrap();
    accepting.join().unwrap();
}

fn is_readable(descriptor: RawFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: the queue pair whose descriptor it is lives longer than this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(borrowed, PollFlags::IN)], Some(&limit)) == Ok(1)
}

#[test]
fn ends_that_differ_are_told_so() {
    let log = terms(Some(Evidence::Log));
    let (near, far) = ((log, HOSTS[0]), (terms(None), HOSTS[1]));
    let (near, accepting) = ends(near, far, Result::err);
    let errors = [near.err().unwrap(), accepting.join().unwrap().unwrap()];
    for error in errors {
        assert!(matches!(error, Error::InvalidUsage(_)), "{error}");
        assert!(error.to_string().contains("evidence"), "{error}");
    }
    let (near, accepting) = ends((log, HOSTS[0]), (log, "127.4.2.1"), Result::err);
    let error = near.err().unwrap().to_string();
    assert!(error.contains("number of rails \"2\" here, \"1\" at the peer"), "{error}");
    assert!(accepting.join().unwrap().is_some());
}

/// What both ends do with a pool, one after the other.
fn pools(mut meeting: Meeting, devices: &str) -> Vec<String> {
    let config = DomainConfig { devices: devices.into(), ..DomainConfig::default() };
    let [domain, other] = [0; 2].map(|_| Domain::open(&config, &key()).unwrap());
    let is_near = meeting.side() == Side::Connecting;
    let mut said = Vec::new();
    let mut refused = |outcome: Result<(), Error>| said.push(outcome.unwrap_err().to_string());
    for spares in [0, ccl::vqp::MAX_SPARES + 1] {
        refused(domain.pool(&mut meeting, spares, LIMIT).map(drop));
    }
    let single = DomainConfig { devices: "127.4.3.1".into(), ..DomainConfig::default() };
    let single = Domain::open(&single, &key()).unwrap();
    refused(single.pool(&mut meeting, 1, LIMIT).map(drop));
    refused(domain.pool(&mut meeting, if is_near { 1 } else { 2 }, LIMIT).map(drop));
    let pool = domain.pool(&mut meeting, 2, LIMIT).unwrap();
    let strange = other.queue_pair(&terms(Some(Evidence::Log))).unwrap();
    refused({ strange }.connect_pooled(&mut meeting, &pool, LIMIT));
    let plain = domain.queue_pair(&terms(None)).unwrap();
    refused({ plain }.connect_pooled(&mut meeting, &pool, LIMIT));
    let mut pair = domain.queue_pair(&terms(Some(Evidence::Log))).unwrap();
    refused(match is_near {
        true => pair.connect_pooled(&mut meeting, &pool, LIMIT),
        false => pair.connect(&mut meeting, LIMIT),
    });
    said
}

#[test]
fn pools_that_do_not_fit_are_refused_at_both_ends() {
    let listener = Listener::bind("127.0.0.1:0", key()).unwrap();
    let address = listener.address().unwrap().to_string();
    let accepting = thread::spawn(move || pools(listener.accept(LIMIT).unwrap(), HOSTS[1]));
    let near = pools(Meeting::connect(&address, &key(), LIMIT).unwrap(), HOSTS[0]);
    let named = [
        "a pool of 0 spares over 2 devices",
        "a pool of 4097 spares",
        "a pool of 1 spares over 1 devices",
        "the ends differ: spares",
        "the pool is of another domain",
        "a plain queue pair has no backups",
        "the ends differ: backups",
    ];
    for said in [near, accepting.join().unwrap()] {
        assert_eq!(said.len(), named.len());
        for (said, named) in said.iter().zip(named) {
            assert!(said.contains(named), "{said}");
        }
    }
}

#[test]
fn calls_in_the_wrong_order_or_with_wrong_arguments_are_refused() {
    let (mut near, accepting) = alike(Some(Evidence::Handshake));
    let again = near.pair.connect(&mut near.meeting, LIMIT);
    assert!(matches!(again, Err(Error::InvalidUsage(_))), "{again:?}");
    let mut fresh = near.domain.queue_pair(&terms(None)).unwrap();
    assert_eq!(fresh.state(), State::Init);
    let source = near.region.segment(0, 8);
    let request =
        WorkRequest { id: WorkId(0), operation: Operation::Send { source }, signalled: true };
    assert!(matches!(fresh.post_send(request), Err(Error::InvalidUsage(_))));
    for (sends, receives) in [(0, 1), (1 << 17, 1), (1, 1 << 17)] {
        let depth = Depth { sends, receives };
        let refused = near.domain.queue_pair(&Terms { depth, ..terms(None) });
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    }
    assert!(matches!(near.domain.allocate(0, Access::LOCAL), Err(Error::InvalidArgument(_))));
    // Memory that the peer has not registered is the end, and the reason is told.
    near.post(7, Operation::Write { source, target: near.theirs.at(4096) });
    assert_eq!(near.wait().status, Status::RemoteAccess);
    let mut completions = Vec::new();
    let over = near.pair.wait(&mut completions, LIMIT);
    assert!(matches!(over, Err(Error::PeerLost(_))), "{over:?}");
    assert_eq!(near.pair.state(), State::Error);
    assert!(near.pair.fault().is_some());
    drop(near);
    accepting.join().unwrap_err();
}

#[test]
fn a_full_queue_is_back_pressure() {
    let shallow = Terms { depth: Depth { sends: 2, receives: 1 }, ..terms(Some(Evidence::Resend)) };
    let (near, accepting) =
        ends((shallow, HOSTS[0]), (shallow, HOSTS[1]), |end| end.unwrap().serve());
    let mut near = near.unwrap();
    let (source, target) = (near.region.segment(0, 8), near.theirs.at(8));
    let operation = Operation::Write { source, target };
    let mut refused = 0;
    let mut done = 0;
    let mut completions = Vec::new();
    for id in 0..100 {
        let request = WorkRequest { id: WorkId(id), operation, signalled: true };
        while near.pair.post_send(request) == Err(Error::QueueFull) {
            refused += 1;
            near.pair.wait(&mut completions, LIMIT).unwrap();
            done += completions.drain(..).count();
        }
    }
    assert!(refused > 0 && done >= 98, "{refused} {done}");
    near.meeting.exchange(b"", LIMIT).unwrap();
    accepting.join().unwrap();
}
