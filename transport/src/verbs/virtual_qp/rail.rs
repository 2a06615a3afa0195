//! One end of one rail: a queue pair of a device, and the account of what was posted on it.

use std::collections::VecDeque;
use std::sync::Arc;

use ccl_core::failover::queue::{LogEntry, Message, Sequence, atomic::Step};

use super::super::{
    Access, Completion, Connection, Depth, Domain, LocalKey, Memory, MemoryRegion, Operation,
    PostError, QueuePair, ReceiveRequest, RemoteAddress, RemoteKey, Segment, WorkId, WorkRequest,
};
use super::control::{BODY_BYTES, HELLO_BYTES, Hello, Layout, WORD, store_words, write_mail};
use super::keys::{PeerKeys, TABLE_BYTES};
use super::{Shared, device_depth};
use crate::TransportError;

/// What a work request on a rail is for. Of a part nothing is heard unless it fails: something behind it in the
/// same list tells that it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    RequestPart(Sequence),
    Request(Sequence),
    Receive(Sequence),
    StepPart,
    Step,
    MailPart,
    Mail,
    Log,
    Table,
    HelloSent,
    HelloReceived,
}

const KIND_SHIFT: u32 = 56;

impl Tag {
    pub(super) fn encode(self) -> WorkId {
        let (kind, sequence) = match self {
            Self::RequestPart(sequence) => (0, sequence.0),
            Self::Request(sequence) => (1, sequence.0),
            Self::Receive(sequence) => (2, sequence.0),
            Self::StepPart => (3, 0),
            Self::Step => (4, 0),
            Self::MailPart => (5, 0),
            Self::Mail => (6, 0),
            Self::Log => (7, 0),
            Self::Table => (8, 0),
            Self::HelloSent => (9, 0),
            Self::HelloReceived => (10, 0),
        };
        assert!(sequence >> KIND_SHIFT == 0, "a queue ends before its sequence numbers do");
        WorkId(kind << KIND_SHIFT | sequence)
    }

    pub(super) fn decode(id: WorkId) -> Self {
        let sequence = Sequence(id.0 & ((1 << KIND_SHIFT) - 1));
        match id.0 >> KIND_SHIFT {
            0 => Self::RequestPart(sequence),
            1 => Self::Request(sequence),
            2 => Self::Receive(sequence),
            3 => Self::StepPart,
            4 => Self::Step,
            5 => Self::MailPart,
            6 => Self::Mail,
            7 => Self::Log,
            8 => Self::Table,
            9 => Self::HelloSent,
            10 => Self::HelloReceived,
            kind => panic!("work of kind {kind} was never posted"),
        }
    }

    /// Whether exactly one completion tells that it is over.
    fn is_counted(self) -> bool {
        !matches!(self, Self::RequestPart(_) | Self::StepPart | Self::MailPart)
    }
}

/// Something that waits to be posted, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    Request { sequence: Sequence, request: WorkRequest, entry: Option<LogEntry> },
    Step { sequence: Sequence, target: RemoteAddress, step: Step },
    ReadLog,
}

/// What this end knows of the peer's keys on this rail.
#[derive(Debug)]
pub(super) enum Table {
    Unread,
    Reading,
    Read(PeerKeys),
}

/// The mail on one rail, in both directions.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) unsent: VecDeque<Message>,
    in_flight: bool,
    sent: u64,
    pub(super) heard: u64,
}

/// One end of one rail.
#[derive(Debug)]
pub(super) struct RailEnd {
    pub(super) index: usize,
    shared: Arc<Shared>,
    /// Made when it is first needed.
    pub(super) pair: Option<Box<dyn QueuePair>>,
    /// It was made for a connection of a pool.
    is_spare: bool,
    /// The memory through which the two ends manage the queue pair, the same on all rails.
    pub(super) control: Memory,
    /// The same, registered, once it is needed.
    region: Option<MemoryRegion>,
    pub(super) layout: Layout,
    /// How the peer introduced itself.
    pub(super) hello: Option<Hello>,
    pub(super) table: Table,
    pub(super) mail: Mail,
    pub(super) pending: VecDeque<Pending>,
    /// To be posted as one list.
    gathered: Vec<WorkRequest>,
    /// Posted, counted, and not given back.
    outstanding: usize,
    pub(super) condition: Condition,
    /// The step that has no answer yet.
    pub(super) step: Option<Step>,
    /// The request for whose keys the table was read last.
    pub(super) looked_up: Option<Sequence>,
}

/// Whether a rail can be posted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It may be connected.
    Free,
    /// It is connected.
    Attached,
    /// It is in its error state, and what was posted is coming back.
    Fencing,
    /// Everything has come back.
    Fenced,
}

impl RailEnd {
    pub(super) fn new(index: usize, shared: Arc<Shared>, control: Memory, layout: Layout) -> Self {
        Self {
            index,
            shared,
            pair: None,
            is_spare: false,
            control,
            region: None,
            layout,
            hello: None,
            table: Table::Unread,
            mail: Mail::default(),
            pending: VecDeque::new(),
            gathered: Vec::new(),
            outstanding: 0,
            condition: Condition::Free,
            step: None,
            looked_up: None,
        }
    }

    /// Registers the control memory with the device, which is open.
    pub(super) fn register(&mut self) -> Result<(), TransportError> {
        if self.region.is_none() {
            let access = Access { remote_write: true, remote_read: true, remote_atomic: false };
            let domain = self.shared.opened(self.index).domain();
            self.region = Some(domain.register(&self.control, access)?);
        }
        Ok(())
    }

    /// The control memory, of a rail that is used.
    pub(super) fn region(&self) -> &MemoryRegion {
        self.region.as_ref().expect("a rail is registered before it is used")
    }

    fn segment(&self, offset: usize, bytes: usize) -> Segment {
        self.region().segment(offset, bytes)
    }

    /// Makes it ready for the receives of the application; the first one is for the hello.
    pub(super) fn initialise(
        &mut self,
        depth: Depth,
        is_spare: bool,
    ) -> Result<(), TransportError> {
        self.shared.open(self.index)?;
        self.register()?;
        if self.pair.is_none() || self.is_spare != is_spare {
            let domain = self.shared.opened(self.index).domain();
            let depth = device_depth(depth, self.layout.entries > 0);
            let make = if is_spare { Domain::spare_queue_pair } else { Domain::queue_pair };
            self.pair = Some(make(&**domain, depth)?);
            self.is_spare = is_spare;
        }
        let target = Some(self.segment(self.layout.hello_in(self.index), HELLO_BYTES));
        let Some(pair) = &mut self.pair else { return Ok(()) };
        let refused = |cause| TransportError::system("prepare a rail", cause);
        pair.initialise().map_err(refused)?;
        let request = ReceiveRequest { id: Tag::HelloReceived.encode(), target };
        pair.post_receive(request).map_err(refused)?;
        self.outstanding += 1;
        Ok(())
    }

    pub(super) fn connect(
        &mut self,
        connection: Connection,
        hello: &Hello,
    ) -> Result<(), TransportError> {
        let Some(pair) = &mut self.pair else {
            return Err(TransportError::system("connect a rail", "it is not initialised"));
        };
        pair.connect(connection)?;
        self.condition = Condition::Attached;
        let offset = self.layout.hello_out(self.index);
        store_words(&self.control, offset, &hello.encode());
        let source = self.segment(offset, HELLO_BYTES);
        self.post(Tag::HelloSent, Operation::Send { source });
        Ok(())
    }

    fn post(&mut self, tag: Tag, operation: Operation) {
        self.post_together([(tag, operation)]);
    }

    /// Posts what is for one thing, behind what was gathered, as one list.
    fn post_together<const N: usize>(&mut self, operations: [(Tag, Operation); N]) {
        for (tag, operation) in operations {
            self.gather(tag, operation);
        }
        self.post_gathered();
    }

    fn gather(&mut self, tag: Tag, operation: Operation) {
        let signalled = tag.is_counted();
        self.gathered.push(WorkRequest { id: tag.encode(), operation, signalled });
    }

    /// Posts what was gathered as one list. Its last operation is reported, whatever it is for, so that all of
    /// it is known to be over when that is.
    pub(super) fn post_gathered(&mut self) {
        let (Some(pair), Some(last)) = (&mut self.pair, self.gathered.last_mut()) else { return };
        if let Tag::RequestPart(sequence) = Tag::decode(last.id) {
            (last.id, last.signalled) = (Tag::Request(sequence).encode(), true);
        }
        self.outstanding += self.gathered.iter().filter(|request| request.signalled).count();
        if let Err((_, cause)) = pair.post_send_list(&self.gathered) {
            panic!("the rail is deep enough, and connected: {cause}");
        }
        self.gathered.clear();
    }

    pub(super) fn post_receive(
        &mut self,
        receive: Sequence,
        target: Option<Segment>,
    ) -> Result<(), PostError> {
        let Some(pair) = &mut self.pair else { return Ok(()) };
        pair.post_receive(ReceiveRequest { id: Tag::Receive(receive).encode(), target })?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes what has come back; tells whether anything moved.
    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>) -> bool {
        let Some(pair) = &mut self.pair else { return false };
        let before = completions.len();
        let moved = pair.poll(completions);
        for completion in &completions[before..] {
            let tag = Tag::decode(completion.id);
            self.outstanding -= usize::from(tag.is_counted());
            if tag == Tag::Mail {
                self.mail.in_flight = false;
            }
        }
        moved
    }

    pub(super) fn fence(&mut self) {
        if let Some(pair) = &mut self.pair {
            pair.fail();
        }
        self.condition = Condition::Fencing;
        self.forget_waiting();
        self.mail.unsent.clear();
    }

    /// What has not been posted never will be.
    pub(super) fn forget_waiting(&mut self) {
        self.pending.clear();
        self.gathered.clear();
    }

    /// Whether something is under way that only polls move: an introduction, mail, a table, a fence, or what the
    /// device itself has to do.
    pub(super) fn is_busy(&self) -> bool {
        let needs_poll = || self.pair.as_ref().is_some_and(|pair| pair.needs_poll());
        self.outstanding > 0 || self.condition == Condition::Fencing || needs_poll()
    }

    /// Whether the peer's writes are executed without polls of this end.
    pub(super) fn is_written_to_alone(&self) -> bool {
        self.pair.as_ref().is_some_and(|pair| pair.confirms_alone())
    }

    /// Whether everything posted has come back.
    pub(super) fn is_drained(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether everything posted before the fence has come back, for the first time.
    pub(super) fn finish_fence(&mut self) -> bool {
        let is_fenced = self.condition == Condition::Fencing && self.is_drained();
        if is_fenced {
            self.condition = Condition::Fenced;
        }
        is_fenced
    }

    /// As if it had never been used.
    pub(super) fn reset(&mut self) {
        // What is made for a spare is made when there is one.
        self.pair = self.pair.take().filter(|_| !self.is_spare);
        if let Some(pair) = &mut self.pair {
            pair.reset();
        }
        let stamp = self.layout.mail_in(self.index) + BODY_BYTES;
        self.control.store(stamp, 0);
        self.mail = Mail::default();
        self.forget_waiting();
        (self.step, self.looked_up) = (None, None);
        (self.hello, self.table, self.outstanding) = (None, Table::Unread, 0);
        self.condition = Condition::Free;
    }

    /// Sends the oldest message, when the one before it has arrived.
    pub(super) fn send_mail(&mut self) {
        let (Some(hello), false) = (self.hello, self.mail.in_flight) else { return };
        if self.condition != Condition::Attached {
            return;
        }
        let Some(message) = self.mail.unsent.pop_front() else { return };
        self.mail.sent += 1;
        self.mail.in_flight = true;
        let offset = self.layout.mail_out(self.index);
        write_mail(&self.control, offset, self.mail.sent, message);
        let body = self.segment(offset, BODY_BYTES);
        let stamp = self.segment(offset + BODY_BYTES, WORD);
        let target = |offset| remote(hello.key, hello.mail, offset);
        self.post_together([
            (Tag::MailPart, Operation::Write { source: body, target: target(0) }),
            (Tag::Mail, Operation::Write { source: stamp, target: target(BODY_BYTES) }),
        ]);
    }

    pub(super) fn read_table(&mut self) {
        let Some(hello) = self.hello else { return };
        self.table = Table::Reading;
        let target = self.segment(self.layout.table(self.index), TABLE_BYTES);
        let source = remote(hello.table_key, hello.table, 0);
        self.post(Tag::Table, Operation::Read { target, source });
    }

    pub(super) fn table_arrived(&mut self) {
        let mut keys = PeerKeys::default();
        keys.take(&self.control, self.layout.table(self.index));
        self.table = Table::Read(keys);
    }

    /// Entries of the log that this end uses at its peer.
    pub(super) fn log_entries(&self) -> usize {
        let theirs = self.hello.map_or(0, |hello| hello.log_entries);
        usize::try_from(theirs).unwrap_or(usize::MAX).min(self.layout.entries)
    }

    pub(super) fn read_log(&mut self) {
        let Some(hello) = self.hello else { return };
        let bytes = self.log_entries() * WORD;
        let target = self.segment(self.layout.log_read(), bytes);
        let source = remote(hello.key, hello.log, 0);
        self.post(Tag::Log, Operation::Read { target, source });
    }

    /// Gathers a request of the application, and behind it its entry in the log. Of one that is not signalled
    /// nothing is heard either where a list has something behind it.
    pub(super) fn gather_request(
        &mut self,
        sequence: Sequence,
        request: WorkRequest,
        entry: Option<LogEntry>,
    ) {
        let tag = match request.signalled {
            true => Tag::Request(sequence),
            false => Tag::RequestPart(sequence),
        };
        let (Some(entry), Some(hello)) = (entry, self.hello) else {
            return self.gather(tag, request.operation);
        };
        let entries = self.log_entries();
        let slot = LogEntry::slot(sequence, entries as u64) as usize;
        let offset = self.layout.entry_out(slot);
        self.control.store(offset, entry.0);
        let source = self.segment(offset, WORD);
        let target = remote(hello.key, hello.log, slot * WORD);
        self.gather(Tag::RequestPart(sequence), request.operation);
        self.gather(tag, Operation::Write { source, target });
    }

    pub(super) fn post_step(&mut self, target: RemoteAddress, step: Step) {
        let Some(hello) = self.hello else { return };
        self.step = Some(step);
        let layout = self.layout;
        let record = |client: u64| client as usize * 2 * WORD;
        let word = self.segment(layout.word_in(), WORD);
        let swap =
            |expected, new| Operation::CompareAndSwap { result: word, target, expected, new };
        match step {
            Step::Look => self.post(Tag::Step, swap(0, 0)),
            Step::Try { expected, token, value } => {
                let offset = layout.record_out();
                store_words(&self.control, offset, &[value, token]);
                let source = self.segment(offset, 2 * WORD);
                let target = remote(hello.records_key, hello.records, record(hello.client));
                let record = Operation::Write { source, target };
                self.post_together([(Tag::StepPart, record), (Tag::Step, swap(expected, token))]);
            }
            Step::ReadRecord { client } => {
                let target = self.segment(layout.record_in(), 2 * WORD);
                let source = remote(hello.records_key, hello.records, record(client));
                self.post(Tag::Step, Operation::Read { target, source });
            }
            Step::Settle { client, token, value } => {
                let result = self.segment(layout.status_in(), WORD);
                let status = remote(hello.records_key, hello.records, record(client) + WORD);
                let done = token | ccl_core::failover::queue::atomic::DONE;
                let mark = Operation::CompareAndSwap {
                    result,
                    target: status,
                    expected: token,
                    new: done,
                };
                self.post_together([(Tag::StepPart, mark), (Tag::Step, swap(token, value))]);
            }
        }
    }
}

/// A place in memory that the peer described in its hello, which has checked that keys fit.
fn remote(key: u64, address: u64, offset: usize) -> RemoteAddress {
    RemoteAddress { key: RemoteKey(key as u32), address: address.wrapping_add(offset as u64) }
}

/// The same operation under other keys.
pub(super) fn rename(
    operation: Operation,
    local: impl Fn(LocalKey) -> Option<LocalKey>,
    remote: impl Fn(RemoteAddress) -> Option<RemoteAddress>,
) -> Result<Operation, Unnamed> {
    let segment = |segment: Segment| {
        local(segment.key).map(|key| Segment { key, ..segment }).ok_or(Unnamed::Local)
    };
    let place = |target| remote(target).ok_or(Unnamed::Remote);
    Ok(match operation {
        Operation::Send { source } => Operation::Send { source: segment(source)? },
        Operation::Write { source, target } => {
            Operation::Write { source: segment(source)?, target: place(target)? }
        }
        Operation::WriteWithImmediate { source, target, immediate } => {
            let (source, target) = (segment(source)?, place(target)?);
            Operation::WriteWithImmediate { source, target, immediate }
        }
        Operation::Read { target, source } => {
            Operation::Read { target: segment(target)?, source: place(source)? }
        }
        Operation::CompareAndSwap { result, target, expected, new } => {
            let (result, target) = (segment(result)?, place(target)?);
            Operation::CompareAndSwap { result, target, expected, new }
        }
        Operation::FetchAdd { result, target, addend } => {
            Operation::FetchAdd { result: segment(result)?, target: place(target)?, addend }
        }
    })
}

/// A key that has no name on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unnamed {
    Local,
    Remote,
}
