//! A software queue pair against a peer that is none.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::{
    Access, Completion, Connection, Depth, Device, Domain, Landings, Memory, MemoryRegion,
    Operation, Place, QueuePair, ReceiveRequest, RemoteAddress, State, Status, Unstaged, WorkId,
    WorkRequest,
};
use super::frame::{HEADER_BYTES, Header, Kind, Rider};
use super::*;
use crate::{Stretch, clock};

struct Bench {
    pair: Box<dyn QueuePair>,
    region: MemoryRegion,
    /// Not registered for the peer.
    private: MemoryRegion,
    _domain: Box<dyn Domain>,
    peer: TcpStream,
    done: Vec<Completion>,
}

fn soon() -> Instant {
    clock::now() + Duration::from_secs(30)
}

impl Bench {
    fn new() -> Self {
        Self::with_memory(4096)
    }

    fn with_memory(bytes: usize) -> Self {
        let device = SoftDevice::new("nic".into(), "127.0.0.1".parse().unwrap());
        let domain = device.domain().unwrap();
        let memory = || Memory::allocate(bytes).unwrap();
        let region = domain.register(&memory(), Access::ALL).unwrap();
        let private = domain.register(&memory(), Access::LOCAL).unwrap();
        let mut pair = domain.queue_pair(Depth { sends: 64, receives: 64 }).unwrap();
        pair.initialise().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        pair.connect(Connection::Stream(listener.accept().unwrap().0)).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { pair, region, private, _domain: domain, peer, done: Vec::new() }
    }

    fn say(&mut self, header: &Header) {
        self.peer.write_all(&header.encode()).unwrap();
    }

    /// What was said is in the socket of the queue pair.
    fn wait_until_it_has_come(&self) {
        let deadline = soon();
        while queue_pair::unconfirmed(&self.peer) != Some(0) {
            assert!(clock::now() < deadline);
        }
    }

    fn hear(&mut self) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        self.peer.read_exact(&mut bytes).unwrap();
        Header::decode(&bytes).unwrap()
    }

    fn until_error(&mut self) -> TransportError {
        let deadline = soon();
        while self.pair.state() != State::Error {
            self.pair.poll(&mut self.done);
            assert!(clock::now() < deadline);
        }
        while self.pair.needs_poll() {
            self.pair.poll(&mut self.done);
            assert!(clock::now() < deadline, "it is never over");
        }
        self.pair.fault().unwrap().clone()
    }

    fn write(&mut self, id: u64) {
        self.write_bytes(id, 8);
    }

    fn write_bytes(&mut self, id: u64, bytes: usize) {
        let target = RemoteAddress { address: 0, ..self.region.remote(0) };
        let operation = Operation::Write { source: self.region.segment(0, bytes), target };
        self.pair.post_send(WorkRequest { id: WorkId(id), operation, signalled: true }).unwrap();
    }
}

/// What makes a large operation leave.
type Uncork = fn(&mut Bench);

#[test]
fn large_operations_wait_for_others_or_for_a_poll() {
    const LARGE: usize = 64 << 10;
    let ways: [(&str, Uncork); 3] = [
        ("enough of them", |bench| bench.write_bytes(2, LARGE)),
        ("a small one", |bench| bench.write(2)),
        ("a poll", |bench| assert!(bench.pair.poll(&mut bench.done))),
    ];
    for (what, uncork) in ways {
        let mut bench = Bench::with_memory(LARGE);
        bench.pair.cork(2 * LARGE);
        bench.write_bytes(1, LARGE);
        assert!(!bench.pair.flushed() && bench.pair.needs_poll());
        bench.peer.set_nonblocking(true).unwrap();
        assert!(bench.peer.peek(&mut [0]).is_err(), "nothing has left");
        bench.peer.set_nonblocking(false).unwrap();
        uncork(&mut bench);
        let mut header = [0];
        assert_eq!(bench.peer.peek(&mut header).unwrap(), 1, "{what}");
    }
    let mut bench = Bench::with_memory(LARGE);
    bench.write_bytes(1, LARGE);
    assert_eq!(bench.hear().kind, Kind::Write, "without a cork");
}

#[test]
fn what_no_peer_says_is_an_error() {
    let acknowledged = 1;
    let lies = [
        ("too much", Header { acknowledged, ..Header::new(Kind::Acknowledge, 0) }),
        ("no read", Header::new(Kind::ReadResponse, 8)),
        ("no atomic", Header::new(Kind::AtomicResponse, 0)),
    ];
    for (name, lie) in lies {
        let mut bench = Bench::new();
        bench.say(&lie);
        let fault = bench.until_error();
        assert!(matches!(fault, TransportError::Protocol(_)), "{name}: {fault}");
    }
    let mut bench = Bench::new();
    bench.peer.write_all(&[0x47; HEADER_BYTES]).unwrap();
    assert!(matches!(bench.until_error(), TransportError::Protocol(_)));
}

#[test]
fn a_read_must_be_answered_in_full_and_before_it_is_acknowledged() {
    let lies = [
        Header::new(Kind::ReadResponse, 9),
        Header { acknowledged: 1, ..Header::new(Kind::Acknowledge, 0) },
    ];
    for lie in lies {
        let mut bench = Bench::new();
        let (target, source) = (bench.region.segment(0, 8), bench.region.remote(0));
        let operation = Operation::Read { target, source };
        let request = WorkRequest { id: WorkId(1), operation, signalled: true };
        bench.pair.post_send(request).unwrap();
        bench.say(&lie);
        assert!(matches!(bench.until_error(), TransportError::Protocol(_)), "{lie:?}");
    }
}

/// What it has executed and not yet told, and what it has learned last of its connection, keep nobody
/// waiting for one that has ended.
#[test]
fn one_that_has_ended_has_nothing_left_to_do() {
    let mut bench = Bench::new();
    bench.say(&Header { remote: bench.region.remote(0), ..Header::new(Kind::Write, 0) });
    bench.say(&Header::new(Kind::Refuse, 0));
    bench.until_error();
    let mut bench = Bench::new();
    bench.say(&Header::new(Kind::Refuse, 0));
    bench.peer.shutdown(Shutdown::Both).unwrap();
    // The first is answered by a reset, at which the kernel takes nothing of the second.
    bench.write(1);
    bench.write(2);
    bench.until_error();
}

/// The peer is told what was executed with the next frame that goes its way, or when nothing does.
#[test]
fn acknowledgements_ride_on_what_goes_the_other_way() {
    let mut bench = Bench::new();
    let write = Header { remote: bench.region.remote(0), ..Header::new(Kind::Write, 0) };
    bench.say(&write);
    let deadline = soon();
    while !bench.pair.poll(&mut bench.done) {
        assert!(clock::now() < deadline);
    }
    bench.write(1);
    let frame = bench.hear();
    assert_eq!((frame.kind, frame.acknowledged), (Kind::Write, 1));
    bench.peer.read_exact(&mut [0; 8]).unwrap();
    bench.say(&write);
    bench.say(&Header { acknowledged: 1, ..Header::new(Kind::Acknowledge, 0) });
    while bench.pair.needs_poll() || bench.done.is_empty() {
        bench.pair.poll(&mut bench.done);
        assert!(clock::now() < deadline);
    }
    let frame = bench.hear();
    assert_eq!((frame.kind, frame.acknowledged), (Kind::Acknowledge, 2));
    bench.say(&Header { acknowledged: 1, ..write });
    while !bench.pair.poll(&mut bench.done) {
        assert!(clock::now() < deadline);
    }
    bench.pair.acknowledge();
    let frame = bench.hear();
    assert_eq!((frame.kind, frame.acknowledged), (Kind::Acknowledge, 3), "at once if it has to be");
    bench.pair.acknowledge();
    bench.write(2);
    assert_eq!(bench.hear().kind, Kind::Write, "once");
}

#[test]
fn a_word_behind_an_operation_of_a_list_rides_on_it() {
    let mut bench = Bench::new();
    bench.region.memory().store(200, 77);
    let write = |id, offset, bytes| {
        let (source, target) = (bench.region.segment(offset, bytes), bench.region.remote(offset));
        let operation = Operation::Write { source, target };
        WorkRequest { id: WorkId(id), operation, signalled: true }
    };
    let list = [write(1, 0, 100), write(2, 200, 8), write(3, 208, 8)];
    bench.pair.post_send_list(&list).unwrap();
    let frame = bench.hear();
    let (target, word) = (bench.region.remote(200), 77u64.to_le_bytes());
    assert_eq!((frame.length, frame.rider()), (100, Some(Rider { target, word })));
    bench.peer.read_exact(&mut [0; 100]).unwrap();
    let frame = bench.hear();
    assert_eq!((frame.length, frame.rider()), (8, None), "only one rides");
    bench.peer.read_exact(&mut [0; 8]).unwrap();
    bench.say(&Header { acknowledged: 3, ..Header::new(Kind::Acknowledge, 0) });
    let deadline = soon();
    while bench.done.len() < 3 {
        bench.pair.poll(&mut bench.done);
        assert!(clock::now() < deadline);
    }
}

/// And counts as an operation of its own, also if it is refused.
#[test]
fn what_rides_is_executed_behind_what_it_rides_on() {
    let mut bench = Bench::new();
    let (allowed, forbidden) = (bench.region.remote(64), bench.private.remote(64));
    for (target, outcome) in [(allowed, Kind::Acknowledge), (forbidden, Kind::Refuse)] {
        let write = Header { remote: bench.region.remote(0), ..Header::new(Kind::Write, 0) };
        let mut header = write.encode();
        assert!(Rider { target, word: [5; 8] }.mount(&mut header));
        bench.peer.write_all(&header).unwrap();
        let deadline = soon();
        while !bench.pair.poll(&mut bench.done) || bench.pair.needs_poll() {
            assert!(clock::now() < deadline);
        }
        let frame = bench.hear();
        let executed = if outcome == Kind::Refuse { 3 } else { 2 };
        assert_eq!((frame.kind, frame.acknowledged), (outcome, executed));
    }
    assert_eq!(bench.region.memory().lock().bytes(64..72), [5; 8]);
    assert!(bench.private.memory().lock().bytes(0..4096).iter().all(|&byte| byte == 0));
}

/// As a NIC would have executed it when it arrived. Of the last write a part is missing.
#[test]
fn what_has_arrived_before_a_fence_is_executed() {
    let mut bench = Bench::new();
    let (target, payload) = (Some(bench.region.segment(0, 8)), 8);
    bench.pair.post_receive(ReceiveRequest { id: WorkId(7), target }).unwrap();
    for index in 0..3usize {
        let remote = bench.region.remote(1024 * index + 64);
        bench.say(&Header { remote, ..Header::new(Kind::Write, 1000) });
        let sent = if index < 2 { 1000 } else { 999 };
        bench.peer.write_all(&vec![index as u8 + 1; sent]).unwrap();
        if index == 1 {
            bench.say(&Header::new(Kind::Send, payload));
            bench.peer.write_all(&[9; 8]).unwrap();
        }
    }
    bench.wait_until_it_has_come();
    bench.pair.fail();
    bench.until_error();
    let memory = bench.region.memory().lock();
    for (start, byte) in [(64, 1), (1088, 2)] {
        assert!(memory.bytes(start..start + 1000).iter().all(|&found| found == byte), "{start}");
    }
    assert_eq!(memory.bytes(0..8), [9; 8]);
    let statuses: Vec<_> = bench.done.iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(statuses, [(WorkId(7), Status::Success)]);
}

/// What the peer has given up may have come again elsewhere, and what replaces it.
#[test]
fn what_has_arrived_before_the_peer_fenced_it_is_not_executed() {
    let mut bench = Bench::new();
    let remote = bench.region.remote(64);
    bench.say(&Header { remote, ..Header::new(Kind::Write, 1000) });
    bench.peer.write_all(&[1; 1000]).unwrap();
    bench.wait_until_it_has_come();
    bench.pair.discard();
    bench.until_error();
    let memory = bench.region.memory().lock();
    assert!(memory.bytes(0..4096).iter().all(|&found| found == 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Frames with arbitrary fields: nothing panics, and memory that is not the peer's keeps its bytes.
    #[test]
    fn arbitrary_frames_touch_nothing_private(
        frames in prop::collection::vec(
            (1u8..11, 0u8..2, 0u32..64, 0u32..4, 0u64..5000, 0u64..3),
            1..20,
        ),
        noise in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bench = Bench::new();
        for id in 0..4 {
            let target = Some(bench.region.segment(0, 32));
            bench.pair.post_receive(ReceiveRequest { id: WorkId(id), target }).unwrap();
            bench.write(id);
        }
        let mut bytes = Vec::new();
        for (kind, rides, length, key, address, acknowledged) in frames {
            let mut header = Header::new(Kind::Acknowledge, length as usize);
            header.remote = RemoteAddress { key: super::super::RemoteKey(key), address };
            header.acknowledged = acknowledged;
            (header.immediate, header.operands) = (key, [address, u64::MAX]);
            let mut header = header.encode();
            (header[1], header[2]) = (kind, rides);
            bytes.extend(header);
            bytes.extend(vec![0xff; length as usize]);
        }
        bytes.extend(noise);
        bench.peer.write_all(&bytes).unwrap();
        for _ in 0..40 {
            bench.pair.poll(&mut bench.done);
        }
        let private = bench.private.memory().lock();
        prop_assert!(private.bytes(0..4096).iter().all(|&byte| byte == 0));
    }
}

/// Where the test wants what comes with immediate 1; what comes with others goes where it says.
struct Runway {
    memory: Vec<u8>,
    is_open: bool,
    is_known: bool,
    landed: usize,
}

impl Landings for Runway {
    fn place(
        &mut self,
        immediate: u32,
        head: &[u8; crate::HEADER_BYTES],
        bytes: usize,
        is_begun: bool,
    ) -> Place<'_> {
        assert!(head.iter().all(|byte| *byte == 5) && bytes == 1000, "what the peer has sent");
        match immediate == 1 && !self.is_known {
            true if self.is_open => Place::At(&mut self.memory[..bytes - head.len()]),
            true if is_begun => Place::Later,
            _ => Place::There,
        }
    }

    fn landed(&mut self, immediate: u32) {
        assert_eq!(immediate, 1);
        self.landed += 1;
    }
}

impl Bench {
    /// The peer writes so many bytes of what is all 5 with this immediate, from a byte of the frame on.
    fn say_part(&mut self, immediate: u32, part: std::ops::Range<usize>) {
        let kind = Kind::WriteWithImmediate;
        let remote = RemoteAddress { address: 0, ..self.region.remote(0) };
        let header = Header { remote, immediate, ..Header::new(kind, 1000) };
        let frame = [&header.encode()[..], &[5; 1000]].concat();
        self.peer.write_all(&frame[part]).unwrap();
    }

    /// Polls until what has come is taken.
    fn take(&mut self, runway: &mut Runway) -> Vec<u32> {
        clock::sleep(Duration::from_millis(20));
        for _ in 0..20 {
            self.pair.poll_into(&mut self.done, runway);
        }
        self.done.drain(..).filter_map(|completion| completion.immediate).collect()
    }
}

#[test]
fn what_lands_elsewhere_waits_until_its_place_is_told_again() {
    let mut bench = Bench::new();
    for id in 0..9 {
        bench.pair.post_receive(ReceiveRequest { id: WorkId(id), target: None }).unwrap();
    }
    let start = Runway { memory: vec![0; 936], is_open: true, is_known: false, landed: 0 };
    let fives = |runway: &Runway| runway.memory.iter().filter(|byte| **byte == 5).count();
    let there = |bench: &Bench| {
        bench.region.memory().lock().bytes(0..1000).iter().filter(|byte| **byte == 5).count()
    };
    let clear = |bench: &Bench| bench.region.memory().write(0, &[0; 1000]);

    // In three pieces, of which the first is not even all of what tells where it goes.
    let mut runway = start;
    bench.say_part(1, 0..60);
    assert_eq!((bench.take(&mut runway), fives(&runway), there(&bench)), (vec![], 0, 12));
    bench.say_part(1, 60..500);
    assert_eq!((bench.take(&mut runway), fives(&runway), there(&bench)), (vec![], 388, 64));
    // Nobody says where it goes, so it waits, and so does what is behind it.
    runway.is_open = false;
    bench.say_part(1, 500..1048);
    bench.say_part(2, 0..1048);
    assert_eq!((bench.take(&mut runway), fives(&runway)), (vec![], 388));
    bench.pair.poll(&mut bench.done);
    assert_eq!((fives(&runway), bench.done.len()), (388, 0), "a plain poll knows no place");
    runway.is_open = true;
    assert_eq!((bench.take(&mut runway), fives(&runway), there(&bench)), (vec![1, 2], 936, 1000));
    assert_eq!(runway.landed, 1, "the other went where it says");

    // Meanwhile the same has come another way: the rest goes where nobody looks.
    clear(&bench);
    runway = Runway { memory: vec![0; 936], ..runway };
    bench.say_part(1, 0..500);
    assert_eq!((bench.take(&mut runway), fives(&runway), there(&bench)), (vec![], 388, 64));
    runway.is_known = true;
    bench.say_part(1, 500..1048);
    assert_eq!((bench.take(&mut runway), fives(&runway)), (vec![1], 388));
    assert_eq!((runway.landed, there(&bench)), (1, 64 + 548), "it has not landed as a whole");

    // Without a place when it begins it goes where it says, whatever is told later.
    clear(&bench);
    (runway.is_open, runway.is_known) = (false, false);
    bench.say_part(1, 0..500);
    assert_eq!((bench.take(&mut runway), there(&bench)), (vec![], 452));
    runway.is_open = true;
    bench.say_part(1, 500..1048);
    assert_eq!((bench.take(&mut runway), there(&bench), fives(&runway)), (vec![1], 1000, 388));
    assert_eq!(runway.landed, 1);
}

/// The peer reads nothing at first, so the kernel has no room for all of it.
#[test]
fn what_the_network_does_not_take_at_once_is_in_memory_afterwards() {
    const BYTES: usize = 12 << 20;
    const HEAD: usize = 64;
    let mut bench = Bench::with_memory(2 * BYTES);
    let mut content: Vec<u8> = (0..BYTES - HEAD).map(|at| (at * 7 + at / 251) as u8).collect();
    let expected = content.clone();
    let lent = &content[..];
    let operation = |place: usize| {
        let source = bench.region.segment(place * BYTES, BYTES);
        let operation = Operation::Write { source, target: bench.region.remote(0) };
        let request = WorkRequest { id: WorkId(place as u64), operation, signalled: true };
        Unstaged { request, rest: Stretch::new(&lent, 0..lent.len()) }
    };
    let operations = [0, 1].map(operation);
    assert_eq!(bench.pair.post_unstaged(&operations), Some(1), "the first has left in part");
    assert_eq!(bench.pair.post_unstaged(&operations), None, "others are waiting");
    content.fill(0);
    let memory = bench.region.memory().clone();
    let staged = |place: usize, offset: usize| {
        let bytes = memory.lock().bytes((place * BYTES + offset)..(place + 1) * BYTES).to_vec();
        bytes == expected[offset - HEAD..]
    };
    assert!(staged(1, HEAD), "nothing of the second has left");
    assert!(!staged(0, HEAD) && staged(0, BYTES - (64 << 10)), "only the end of the first");
    let mut peer = bench.peer.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        [(); 2].map(|()| {
            let (mut header, mut bytes) = ([0; HEADER_BYTES], vec![0; BYTES]);
            peer.read_exact(&mut header).unwrap();
            peer.read_exact(&mut bytes).unwrap();
            (Header::decode(&header).unwrap().length as usize, bytes)
        })
    });
    while !reader.is_finished() {
        bench.pair.poll(&mut bench.done);
    }
    for (length, bytes) in reader.join().unwrap() {
        assert!(length == BYTES && bytes[..HEAD] == [0; HEAD] && bytes[HEAD..] == expected);
    }
}
