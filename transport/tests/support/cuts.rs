//! Batches of operations in mixed order, with rails that are cut in the middle and come back, and a
//! check of everything that comes out: every completion, every result, every byte.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl_transport::clock;
use ccl_transport::verbs::virtual_qp::{Counters, Evidence, Limits, VirtualSettings};
use ccl_transport::verbs::{
    Depth, Operation, QueuePair, ReceiveRequest, RemoteAddress, Segment, Status, WorkId,
};

use super::bench::{Pair, Place, Random};

pub(super) const RAILS: usize = 3;
const CLIENTS: usize = 2;
const BATCH: usize = 16;
const RECEIVES: usize = 32;
const DEPTH: Depth = Depth { sends: 24, receives: RECEIVES };
/// Memory of a client: results, then what it writes, then messages.
const RESULTS: usize = 0;
const READS: usize = 4 << 10;
const SOURCES: usize = 8 << 10;
const SLOT_BYTES: usize = 256;
const CLIENT_BYTES: usize = SOURCES + BATCH * SLOT_BYTES;
/// Memory of the server: words that all share, a constant, then for each client its words, what it
/// writes, and messages.
const COUNTER: usize = 0;
const CHAIN: usize = 8;
const CONSTANT: usize = 64;
const OWN: usize = 4 << 10;
const OWN_BYTES: usize = 8 << 10;
const WORDS: usize = 4;
const SLOTS: usize = 8;
const WRITTEN: usize = 64;
const INBOX: usize = 4 << 10;
const LIMIT: Duration = Duration::from_secs(60);

/// What was done, and what was wrong about it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) batches: usize,
    pub(super) operations: usize,
    pub(super) atomics: usize,
    pub(super) cuts: usize,
    pub(super) counters: Counters,
    pub(super) violations: Vec<String>,
}

/// Runs batches of what the evidence supports.
pub(super) fn run(evidence: Evidence, batches: usize, seed: u64) -> Tally {
    let mut arena = Arena::new(evidence, seed);
    for batch in 0..batches {
        arena.batch();
        arena.tally.batches += 1;
        if !arena.tally.violations.is_empty() {
            let first = format!("seed {seed}, batch {batch}, {}", evidence.name());
            arena.tally.violations.insert(0, first);
            break;
        }
    }
    arena.finish()
}

/// What an operation must give.
#[derive(Clone, Debug)]
enum Expected {
    Nothing,
    Word(u64),
    /// The shared counter: any number, but nobody else's.
    Count,
    /// The shared chain of values.
    Link {
        expected: u64,
        new: u64,
    },
    Bytes(usize),
}

struct Client {
    place: Place,
    pair: Pair,
    index: usize,
    /// The first of its words at the server.
    own: RemoteAddress,
    words: [u64; WORDS],
    written: Vec<u8>,
    posted: Vec<(u64, Expected)>,
    next_id: u64,
    sent: u64,
    received: u64,
}

struct Arena {
    random: Random,
    evidence: Evidence,
    server: Place,
    clients: Vec<Client>,
    counts: Vec<u64>,
    counted: u64,
    /// Each value of the chain, and the one it was replaced by.
    links: BTreeMap<u64, u64>,
    last_link: u64,
    tally: Tally,
}

fn settings(evidence: Evidence) -> VirtualSettings {
    let second = 1_000_000_000;
    let limits = Limits {
        answer_ns: 5 * second,
        repair_ns: 60 * second,
        patience_ns: 60 * second,
        retry_ns: 0,
        settle_ns: 0,
        drain_ns: second / 10,
    };
    VirtualSettings { limits, ..VirtualSettings::new(evidence, RAILS) }
}

impl Arena {
    fn new(evidence: Evidence, seed: u64) -> Self {
        let settings = settings(evidence);
        let mut random = Random(seed);
        let bytes = OWN + CLIENTS * OWN_BYTES;
        let server = Place::new(&settings, bytes, 1 + random.below(1 << 40));
        server.memory().write(CONSTANT, &[0xc5; SLOT_BYTES]);
        let clients = (0..CLIENTS).map(|index| {
            let place = Place::new(&settings, CLIENT_BYTES, 1 + random.below(1 << 40));
            Client::new(index, place, &server)
        });
        let clients = clients.collect();
        Self {
            random,
            evidence,
            server,
            clients,
            counts: Vec::new(),
            counted: 0,
            links: BTreeMap::new(),
            last_link: 0,
            tally: Tally::default(),
        }
    }

    fn batch(&mut self) {
        for index in 0..CLIENTS {
            for _ in 0..1 + self.random.below(BATCH as u64) {
                self.post(index);
            }
        }
        let mut cuts: Vec<u64> =
            (0..self.random.below(4)).map(|_| 1 << self.random.below(8)).collect();
        for value in &mut cuts {
            *value = self.random.below(*value);
        }
        let deadline = clock::now() + LIMIT;
        let mut turn = 0;
        while self.clients.iter().any(|client| client.pair.near_done.len() < client.posted.len()) {
            for index in 0..CLIENTS {
                if cuts.contains(&turn) {
                    self.cut(index);
                }
                self.mend(index);
                self.clients[index].pair.poll();
            }
            turn += 1;
            if clock::now() > deadline || self.is_over() {
                let text = self.clients.iter().map(|client| format!("{:?}", client.pair));
                self.tally.violations.push(text.collect::<Vec<_>>().join("\n"));
                return;
            }
        }
        self.check();
    }

    fn is_over(&self) -> bool {
        self.clients.iter().any(|client| client.pair.near.fault().is_some())
    }

    /// Breaks the rail in use, or any, at one of its ends, without a last look at it.
    fn cut(&mut self, index: usize) {
        let rail = match self.random.below(3) {
            0 => self.random.below(RAILS as u64) as usize,
            _ => self.clients[index].pair.near.active(),
        };
        let pair = &mut self.clients[index].pair;
        let end = if self.random.below(2) == 0 { &mut pair.near } else { &mut pair.far };
        end.suspect(rail);
        self.tally.cuts += 1;
    }

    /// Now and then rails come back.
    fn mend(&mut self, index: usize) {
        let rail = self.random.below(4 * RAILS as u64) as usize;
        if rail < RAILS {
            self.clients[index].pair.attach(std::iter::once(rail));
        }
    }

    fn post(&mut self, index: usize) {
        let has_atomics = self.evidence == Evidence::Log;
        let has_messages = self.evidence != Evidence::Resend;
        let last_link = self.last_link;
        let (random, client) = (&mut self.random, &mut self.clients[index]);
        let (operation, expected) = match random.below(10) {
            0..2 if has_messages => client.send(),
            2 | 3 if has_atomics => client.add(random),
            4 | 5 if has_atomics => client.swap(random),
            6 if has_atomics => client.count(&self.server),
            7 if has_atomics => client.link(&self.server, last_link),
            8 => client.read(random, &self.server),
            _ => client.write(random, &self.server),
        };
        let is_atomic =
            matches!(operation, Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. });
        self.tally.operations += 1;
        self.tally.atomics += usize::from(is_atomic);
        client.pair.post(client.next_id, operation);
        client.posted.push((client.next_id, expected));
        client.next_id += 1;
    }

    fn check(&mut self) {
        for index in 0..CLIENTS {
            self.check_completions(index);
            self.check_memory(index);
            self.check_messages(index);
        }
        self.counts.sort_unstable();
        let total = self.counted + self.counts.len() as u64;
        if !self.counts.drain(..).eq(self.counted..total) {
            self.tally.violations.push("a count was given twice, or never".into());
        }
        self.counted = total;
        self.expect("the counter", self.server.memory().load(COUNTER), total);
        while let Some(next) = self.links.remove(&self.last_link) {
            self.last_link = next;
        }
        self.expect("the end of the chain", self.server.memory().load(CHAIN), self.last_link);
        if !self.links.is_empty() {
            self.tally.violations.push(format!("links without a chain: {:?}", self.links));
            self.links.clear();
        }
    }

    fn expect<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: T, should: T) {
        if is != should {
            self.tally.violations.push(format!("{what}: {is:?} and not {should:?}"));
        }
    }

    fn check_completions(&mut self, index: usize) {
        let posted = std::mem::take(&mut self.clients[index].posted);
        let done = std::mem::take(&mut self.clients[index].pair.near_done);
        let ids: Vec<_> = done.iter().map(|done| (done.id.0, done.status)).collect();
        let should: Vec<_> = posted.iter().map(|(id, _)| (*id, Status::Success)).collect();
        self.expect("completions", ids, should);
        for (id, expected) in posted {
            let memory = self.clients[index].place.memory();
            let word = memory.load(result(id));
            match expected {
                Expected::Nothing => {}
                Expected::Word(value) => self.expect("a result", word, value),
                Expected::Count => self.counts.push(word),
                Expected::Link { expected, new } if word == expected => {
                    if self.links.insert(expected, new).is_some() {
                        self.tally.violations.push(format!("{expected} was replaced twice"));
                    }
                }
                Expected::Link { .. } => {}
                Expected::Bytes(bytes) => {
                    let mut read = vec![0; bytes];
                    memory.read(read_slot(id), &mut read);
                    self.expect("bytes read", read, vec![0xc5; bytes]);
                }
            }
        }
    }

    fn check_memory(&mut self, index: usize) {
        let memory = self.server.memory();
        let base = own(index);
        let words: Vec<u64> = (0..WORDS).map(|word| memory.load(base + 8 * word)).collect();
        let mut written = vec![0; SLOTS * SLOT_BYTES];
        memory.read(base + WRITTEN, &mut written);
        let (model, bytes) = (self.clients[index].words, self.clients[index].written.clone());
        self.expect("own words", words, model.to_vec());
        self.expect("what was written", written, bytes);
    }

    /// Messages come in order, each once.
    fn check_messages(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let done = std::mem::take(&mut client.pair.far_done);
        let first = client.received;
        client.received += done.len() as u64;
        let base = own(index) + INBOX;
        let memory = self.server.memory();
        let messages: Vec<u64> =
            (first..client.received).map(|number| memory.load(base + inbox(number))).collect();
        for number in first..client.received {
            client.receive(&self.server, number + RECEIVES as u64);
        }
        let (received, sent) = (client.received, client.sent);
        self.expect("messages", messages, (first..received).collect());
        self.expect("messages taken", received, sent);
        if done.iter().any(|done| done.status != Status::Success) {
            self.tally.violations.push(format!("{done:?}"));
        }
    }

    fn finish(mut self) -> Tally {
        for client in &self.clients {
            for end in [&client.pair.near, &client.pair.far] {
                let (sum, more) = (&mut self.tally.counters, end.counters());
                sum.repairs += more.repairs;
                sum.resent += more.resent;
                sum.resent_bytes += more.resent_bytes;
                sum.spared += more.spared;
                sum.recovered += more.recovered;
                sum.returns += more.returns;
            }
        }
        self.tally
    }
}

fn own(client: usize) -> usize {
    OWN + client * OWN_BYTES
}

fn result(id: u64) -> usize {
    RESULTS + (id as usize % BATCH) * 8
}

fn read_slot(id: u64) -> usize {
    READS + (id as usize % BATCH) * SLOT_BYTES
}

fn source_slot(id: u64) -> usize {
    SOURCES + (id as usize % BATCH) * SLOT_BYTES
}

fn inbox(number: u64) -> usize {
    (number as usize % RECEIVES) * 8
}

impl Client {
    fn new(index: usize, place: Place, server: &Place) -> Self {
        let pair = Pair::new(&place, server, DEPTH);
        let mut client = Self {
            place,
            pair,
            index,
            own: server.region.remote(own(index)),
            words: [0; WORDS],
            written: vec![0; SLOTS * SLOT_BYTES],
            posted: Vec::new(),
            next_id: 0,
            sent: 0,
            received: 0,
        };
        for number in 0..RECEIVES as u64 {
            client.receive(server, number);
        }
        client
    }

    fn receive(&mut self, server: &Place, number: u64) {
        let offset = own(self.index) + INBOX + inbox(number);
        let target = Some(server.region.segment(offset, 8));
        self.pair.far.post_receive(ReceiveRequest { id: WorkId(number), target }).unwrap();
    }

    fn result(&self) -> Segment {
        self.place.region.segment(result(self.next_id), 8)
    }

    fn send(&mut self) -> (Operation, Expected) {
        let offset = source_slot(self.next_id);
        self.place.memory().store(offset, self.sent);
        self.sent += 1;
        (Operation::Send { source: self.place.region.segment(offset, 8) }, Expected::Nothing)
    }

    fn write(&mut self, random: &mut Random, server: &Place) -> (Operation, Expected) {
        let bytes = 1 + random.below(SLOT_BYTES as u64) as usize;
        let slot = random.below(SLOTS as u64) as usize * SLOT_BYTES;
        let value = vec![random.next() as u8; bytes];
        let offset = source_slot(self.next_id);
        self.place.memory().write(offset, &value);
        self.written[slot..slot + bytes].copy_from_slice(&value);
        let source = self.place.region.segment(offset, bytes);
        let target = server.region.remote(own(self.index) + WRITTEN + slot);
        (Operation::Write { source, target }, Expected::Nothing)
    }

    fn read(&mut self, random: &mut Random, server: &Place) -> (Operation, Expected) {
        let bytes = 1 + random.below(SLOT_BYTES as u64) as usize;
        let target = self.place.region.segment(read_slot(self.next_id), bytes);
        let source = server.region.remote(CONSTANT);
        (Operation::Read { target, source }, Expected::Bytes(bytes))
    }

    fn add(&mut self, random: &mut Random) -> (Operation, Expected) {
        let (word, addend) = (random.below(WORDS as u64) as usize, random.below(1000));
        let old = self.words[word];
        self.words[word] = old.wrapping_add(addend);
        let target = self.own_word(word);
        (Operation::FetchAdd { result: self.result(), target, addend }, Expected::Word(old))
    }

    fn swap(&mut self, random: &mut Random) -> (Operation, Expected) {
        let (word, new) = (random.below(WORDS as u64) as usize, random.below(1000));
        let old = self.words[word];
        let expected = if random.below(4) == 0 { old + 1 } else { old };
        if expected == old {
            self.words[word] = new;
        }
        let (result, target) = (self.result(), self.own_word(word));
        let operation = Operation::CompareAndSwap { result, target, expected, new };
        (operation, Expected::Word(old))
    }

    fn count(&mut self, server: &Place) -> (Operation, Expected) {
        let target = server.region.remote(COUNTER);
        (Operation::FetchAdd { result: self.result(), target, addend: 1 }, Expected::Count)
    }

    /// Both clients try to append to the same chain of values, none of which comes twice.
    fn link(&mut self, server: &Place, last: u64) -> (Operation, Expected) {
        let new = (self.index as u64 + 1) << 40 | (self.next_id + 1);
        let (result, target) = (self.result(), server.region.remote(CHAIN));
        let operation = Operation::CompareAndSwap { result, target, expected: last, new };
        (operation, Expected::Link { expected: last, new })
    }

    fn own_word(&self, word: usize) -> RemoteAddress {
        RemoteAddress { address: self.own.address + 8 * word as u64, ..self.own }
    }
}
