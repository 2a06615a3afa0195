//! Packets: how they leave, pass or are held, arrive and are executed.

use ccl_transport::verbs::{
    Access, Completion, Landings, Memory, Nowhere, Opcode, Operation, Place, RemoteAddress,
    Segment, State, Status, WorkId,
};
use ccl_transport::{HEADER_BYTES, TransportError};

use super::{EndId, Event, Network, REGION_STRIDE};
use crate::Nanos;
use crate::mutation::Mutation;
use crate::scenario::Execution;

/// What the headers of a packet add to it.
const OVERHEAD_BYTES: u64 = 40;

/// An operation on its way.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) departs: Nanos,
    pub(super) arrives: Nanos,
    pub(super) operation: Operation,
    /// Its bytes, if they are not in the sender's memory, or it may change: else they are read there.
    pub(super) bytes: Option<Vec<u8>>,
}

/// An operation that has reached the card.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) operation: Operation,
    bytes: Option<Vec<u8>>,
    /// Bytes behind the first that went elsewhere than the operation says.
    pub(super) elsewhere: usize,
    /// When those come of which a part has gone elsewhere.
    rest_at: Nanos,
}

/// What an end's peer has so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    pub(super) sent: Nanos,
    arrives: Nanos,
    heard: u64,
    pub(super) executed: u64,
    /// The next operation cannot be executed.
    refusal: Option<Status>,
}

impl Network {
    /// Memory of an end's own domain.
    pub(super) fn local(&self, end: EndId, segment: Segment) -> Option<&Memory> {
        let region = self.regions.get((segment.key.0 as usize).checked_sub(1)?)?;
        let inside = segment.offset.checked_add(segment.bytes)? <= region.memory.bytes();
        let known = region.registered && region.domain == self.ends[end].place.domain;
        (inside && known).then_some(&region.memory)
    }

    /// Memory that the peer of an end may write, and where in it an address is.
    pub(super) fn remote(
        &self,
        end: EndId,
        target: RemoteAddress,
        bytes: usize,
    ) -> Option<(&Memory, usize)> {
        let region = self.regions.get((target.key.0 as usize).checked_sub(1)?)?;
        let start = u64::from(target.key.0) * REGION_STRIDE;
        let offset = usize::try_from(target.address.checked_sub(start)?).ok()?;
        let inside = offset.checked_add(bytes)? <= region.memory.bytes();
        let known = region.registered && region.domain == self.ends[end].place.domain;
        let allowed = region.access.allows(Access::WRITE);
        (inside && known && allowed).then_some((&region.memory, offset))
    }

    /// Puts an operation on the wire, behind everything that its card has to send.
    pub(super) fn depart(&mut self, end: EndId, operation: Operation, snapshot: Option<Vec<u8>>) {
        let bytes = operation.segment().bytes as u64 + OVERHEAD_BYTES;
        let travel = self.travel();
        let nic = &mut self.nics[self.ends[end].place.nic];
        let departs = nic.free_at.max(self.now);
        let takes = bytes * 1000 / self.physics.bytes_per_microsecond * nic.slowness;
        nic.free_at = departs + takes.max(1);
        let this = &mut self.ends[end];
        let before = this.wire.back().map_or(0, |packet| packet.arrives);
        let arrives = before.max(departs + takes + travel);
        this.wire.push_back(Packet { departs, arrives, operation, bytes: snapshot });
        if this.wire.len() == 1 && !this.stalled {
            self.agenda.plan(arrives, Event::Arrive(end));
        }
    }

    /// The first packet of a wire reaches the other card, or is held because it cannot.
    pub(super) fn arrive(&mut self, end: EndId) {
        let Some(packet) = self.ends[end].wire.front() else { return };
        if packet.arrives > self.now {
            let at = packet.arrives;
            self.agenda.plan(at, Event::Arrive(end));
            return;
        }
        if self.is_blocked(end) {
            self.ends[end].stalled = true;
            self.expect_answer(end);
            return;
        }
        self.ends[end].stalled = false;
        let Some(packet) = self.ends[end].wire.pop_front() else { return };
        if let Some(next) = self.ends[end].wire.front() {
            let at = next.arrives.max(self.now);
            self.agenda.plan(at, Event::Arrive(end));
        }
        self.arrived += 1;
        self.trip();
        self.take_in(end, packet);
    }

    /// A packet has reached the card of the peer.
    fn take_in(&mut self, end: EndId, packet: Packet) {
        let peer = self.ends[end].peer;
        if self.ends[end].state != State::ReadyToSend {
            self.tally.stale_arrivals += 1;
        }
        if !self.takes(peer) {
            self.tell_peer(peer);
            return;
        }
        let Packet { operation, bytes, .. } = packet;
        self.ends[peer].inbox.push_back(Arrival { operation, bytes, elsewhere: 0, rest_at: 0 });
        self.falsify_order(peer);
        self.ends[peer].arrived += 1;
        let rank = self.ends[peer].place.rank;
        match self.physics.execution {
            Execution::AtArrival => {
                self.execute_inbox(peer, &mut Nowhere);
            }
            Execution::WhenPolled => {
                self.wake(rank);
                self.answer(peer, None);
            }
        }
    }

    /// Whether an end executes what arrives.
    fn takes(&self, end: EndId) -> bool {
        let state = self.ends[end].state;
        state == State::ReadyToSend
            || state == State::Error && self.is_mutant(Mutation::WritesAfterFailure)
    }

    /// Executes what has arrived, as far as there are receives for it.
    pub(super) fn execute_inbox(&mut self, end: EndId, landings: &mut dyn Landings) {
        let mut refusal = None;
        while refusal.is_none() && self.takes(end) {
            let Some(arrival) = self.ends[end].inbox.front() else { break };
            if needs_receive(&arrival.operation)
                && self.ends[end].receives.is_empty()
                && self.ends[end].state == State::ReadyToSend
            {
                break;
            }
            if !self.touch_down(end, landings) {
                break;
            }
            let Some(arrival) = self.ends[end].inbox.pop_front() else { break };
            refusal = self.execute(end, &arrival).err();
            self.ends[end].done += u64::from(refusal.is_none());
        }
        self.answer(end, refusal);
        if let Some(status) = refusal {
            let text = format!("{}: an operation ended with {status:?}", self.name(end));
            self.violate(text);
            let fault = TransportError::Protocol("the peer's operation was refused".into());
            self.stop(end, Status::Flushed, fault);
        }
    }

    /// Puts what has arrived first elsewhere than it says, if the owner wants that; not all of it at once as a rule. Tells
    /// whether that is done.
    fn touch_down(&mut self, end: EndId, landings: &mut dyn Landings) -> bool {
        let is_polled = self.physics.execution == Execution::WhenPolled && self.physics.unstaged;
        let Some(arrival) = self.ends[end].inbox.front() else { return true };
        let (Operation::WriteWithImmediate { immediate, .. }, true) =
            (arrival.operation, is_polled)
        else {
            return true;
        };
        let begun = arrival.elsewhere;
        if arrival.rest_at > self.now {
            return false;
        }
        let Some(content) = self.content(end, arrival) else { return true };
        let Some((head, rest)) = content.split_first_chunk() else { return true };
        match landings.place(immediate, head, content.len(), begun > 0) {
            Place::There => {
                self.tally.torn_landings += u64::from(begun > 0);
                true
            }
            Place::Later => {
                self.violate(format!(
                    "{}: a part has landed, and nobody knows where",
                    self.name(end)
                ));
                false
            }
            Place::At(place) => {
                let is_all = self.random.percent(30);
                let left = rest.len() - begun;
                let until = begun + if is_all { left } else { self.random.index(left + 1) };
                place[begun..until].copy_from_slice(&rest[begun..until]);
                let is_complete = until == rest.len();
                if is_complete {
                    landings.landed(immediate);
                    self.tally.landed_elsewhere += 1;
                }
                // The path may be slow, so that others overtake it.
                let is_late = self.random.percent(8);
                let late = if is_late { self.random.magnitude(1_000_000, 300_000_000) } else { 0 };
                let (rank, rest_at) = (self.ends[end].place.rank, self.now + late);
                if let Some(arrival) = self.ends[end].inbox.front_mut() {
                    (arrival.elsewhere, arrival.rest_at) = (until, rest_at);
                }
                if !is_complete {
                    self.delays.push((self.now, late));
                    self.agenda.plan(rest_at, Event::Wake(rank));
                }
                is_complete
            }
        }
    }

    /// The bytes of what has arrived at an end.
    fn content(&self, end: EndId, arrival: &Arrival) -> Option<Vec<u8>> {
        let Segment { offset, bytes, .. } = arrival.operation.segment();
        let read = || {
            let memory = self.local(self.ends[end].peer, arrival.operation.segment())?;
            Some(memory.lock().bytes(offset..offset + bytes).to_vec())
        };
        arrival.bytes.clone().or_else(read)
    }

    fn execute(&mut self, end: EndId, arrival: &Arrival) -> Result<(), Status> {
        let source = arrival.operation.segment();
        match arrival.operation {
            Operation::Send { .. } => {
                let request = self.ends[end].receives.pop_front();
                let target = request.and_then(|request| request.target);
                let fits = target.is_some_and(|target| source.bytes <= target.bytes);
                if let Some(target) = target.filter(|_| fits) {
                    let memory = self.local(end, target).ok_or(Status::LocalProtection)?;
                    self.copy(end, arrival, memory, target.offset)?;
                } else if source.bytes > 0 {
                    return Err(Status::RemoteInvalidRequest);
                }
                let id = request.map(|request| request.id);
                self.received(end, id, Opcode::Receive, source.bytes, None);
            }
            Operation::Write { .. } if self.forgets_credit(end) => {}
            Operation::Write { target, .. } => self.land(end, arrival, target)?,
            Operation::WriteWithImmediate { target, immediate, .. } => {
                let immediate = self.falsify_immediate(immediate);
                self.land(end, arrival, target)?;
                self.check_landing(end, immediate);
                let immediate = self.falsify_repeat(end, target, immediate);
                let id = self.ends[end].receives.pop_front().map(|request| request.id);
                let opcode = Opcode::ReceiveWriteWithImmediate;
                self.received(end, id, opcode, source.bytes, Some(immediate));
            }
            Operation::Read { .. }
            | Operation::CompareAndSwap { .. }
            | Operation::FetchAdd { .. } => return Err(Status::RemoteInvalidRequest),
        }
        Ok(())
    }

    fn received(
        &mut self,
        end: EndId,
        id: Option<WorkId>,
        opcode: Opcode,
        bytes: usize,
        immediate: Option<u32>,
    ) {
        if let Some(id) = id {
            let status = Status::Success;
            self.complete(end, Completion { id, status, opcode, bytes, immediate });
        }
    }

    fn land(&self, end: EndId, arrival: &Arrival, target: RemoteAddress) -> Result<(), Status> {
        let bytes = arrival.operation.segment().bytes;
        let (memory, offset) = self.remote(end, target, bytes).ok_or(Status::RemoteAccess)?;
        self.copy(end, arrival, memory, offset)
    }

    /// Moves the bytes of an operation into memory at its target.
    fn copy(
        &self,
        end: EndId,
        arrival: &Arrival,
        target: &Memory,
        offset: usize,
    ) -> Result<(), Status> {
        let content = self.content(end, arrival).ok_or(Status::LocalProtection)?;
        let head = HEADER_BYTES.min(content.len());
        let rest = head + arrival.elsewhere;
        target.write(offset, &content[..head]);
        target.write(offset + rest, &content[rest..]);
        Ok(())
    }

    /// Tells the peer of an end how far this end has come.
    fn answer(&mut self, end: EndId, refusal: Option<Status>) {
        let peer = self.ends[end].peer;
        if self.ends[peer].state != State::ReadyToSend {
            return;
        }
        let (sent, at) = (self.now, self.now + self.travel());
        let (heard, executed) = (self.ends[end].arrived, self.ends[end].done);
        let acknowledgements = &mut self.ends[peer].acknowledgements;
        let arrives = acknowledgements.back().map_or(at, |last| last.arrives.max(at));
        acknowledgements.push_back(Acknowledgement { sent, arrives, heard, executed, refusal });
        if acknowledgements.len() == 1 && !self.ends[peer].acknowledgements_stalled {
            self.agenda.plan(arrives, Event::Acknowledge(peer));
        }
    }

    /// The first acknowledgement for an end reaches it, or is held because it cannot.
    pub(super) fn acknowledge(&mut self, end: EndId) {
        let Some(first) = self.ends[end].acknowledgements.front() else { return };
        if first.arrives > self.now {
            let at = first.arrives;
            self.agenda.plan(at, Event::Acknowledge(end));
            return;
        }
        let peer = self.ends[end].peer;
        if self.is_blocked(peer) {
            self.ends[end].acknowledgements_stalled = true;
            self.expect_answer(end);
            self.expect_answer(peer);
            return;
        }
        self.ends[end].acknowledgements_stalled = false;
        let Some(first) = self.ends[end].acknowledgements.pop_front() else { return };
        if let Some(next) = self.ends[end].acknowledgements.front() {
            let at = next.arrives.max(self.now);
            self.agenda.plan(at, Event::Acknowledge(end));
        }
        if self.ends[end].state == State::ReadyToSend {
            self.hear(end, first);
        }
    }

    fn hear(&mut self, end: EndId, acknowledgement: Acknowledgement) {
        let now = self.now;
        let this = &mut self.ends[end];
        if acknowledgement.heard > this.heard {
            this.heard = acknowledgement.heard;
            this.unheard_since = now;
        }
        while self.ends[end].executed < acknowledgement.executed {
            let this = &mut self.ends[end];
            this.executed += 1;
            let Some(done) = this.sends.pop_front() else { break };
            if done.signalled {
                let (id, opcode, bytes) = (done.id, done.opcode, done.bytes);
                let status = Status::Success;
                self.complete(end, Completion { id, status, opcode, bytes, immediate: None });
            }
        }
        if let Some(status) = acknowledgement.refusal {
            let fault = TransportError::Protocol("the peer refused an operation".into());
            self.stop(end, status, fault);
        }
    }

    /// A card that hears nothing gives up after a time, if it is one that does.
    fn expect_answer(&mut self, end: EndId) {
        if let Some(retry) = self.physics.retry
            && self.ends[end].state == State::ReadyToSend
        {
            self.agenda.plan(self.now + retry, Event::GiveUp(end));
        }
    }

    pub(super) fn give_up(&mut self, end: EndId) {
        let (Some(retry), Some(silence)) = (self.physics.retry, self.silence(end)) else { return };
        if silence >= retry {
            self.lose(end, TransportError::system("send", "nobody answers"));
        }
    }

    /// The sender stops: what has not left never will; what is on the way may be lost, or land, or
    /// land much later. Its bytes are those of now: the memory is the owner's again.
    pub(super) fn abandon_wire(&mut self, end: EndId) {
        let now = self.now;
        self.ends[end].wire.retain(|packet| packet.departs <= now);
        let (is_lost, is_late) = match self.random.below(10) {
            0..3 => (true, false),
            3..6 => (false, false),
            _ => (false, true),
        };
        if is_lost {
            self.ends[end].wire.clear();
        }
        let late = if is_late { self.random.magnitude(10_000, 300_000_000) } else { 0 };
        let mut wire = std::mem::take(&mut self.ends[end].wire);
        for packet in &mut wire {
            packet.arrives += late;
            if packet.bytes.is_none() {
                let segment = packet.operation.segment();
                let memory = self.local(end, segment);
                packet.bytes = memory.map(|memory| {
                    memory.lock().bytes(segment.offset..segment.offset + segment.bytes).to_vec()
                });
            }
        }
        wire.retain(|packet| packet.bytes.is_some());
        self.ends[end].wire = wire;
        let peer = self.ends[end].peer;
        let mut inbox = std::mem::take(&mut self.ends[peer].inbox);
        for arrival in inbox.iter_mut().filter(|arrival| arrival.bytes.is_none()) {
            let segment = arrival.operation.segment();
            arrival.bytes = self.local(end, segment).map(|memory| {
                memory.lock().bytes(segment.offset..segment.offset + segment.bytes).to_vec()
            });
        }
        self.ends[peer].inbox = inbox;
    }

    /// An end goes to error just when an operation of the peer arrives: its bytes may be in memory,
    /// and neither end hears of it.
    pub(super) fn tear(&mut self, end: EndId) {
        let peer = self.ends[end].peer;
        let now = self.now;
        let is_close = self.ends[peer].wire.front().is_some_and(|packet| packet.departs <= now);
        if !is_close || self.is_blocked(peer) || !self.random.percent(30) {
            return;
        }
        let Some(Packet { operation, bytes, .. }) = self.ends[peer].wire.pop_front() else {
            return;
        };
        let arrival = Arrival { operation, bytes, elsewhere: 0, rest_at: 0 };
        if let Operation::WriteWithImmediate { target, immediate, .. } = arrival.operation
            && self.ends[end].state == State::ReadyToSend
            && self.ends[end].inbox.is_empty()
            && self.land(end, &arrival, target).is_ok()
        {
            self.tally.torn += 1;
            self.check_landing(end, immediate);
        }
    }

    /// What was held at a path that works again goes on.
    pub(super) fn release(&mut self, end: EndId) {
        if self.is_blocked(end) {
            return;
        }
        let delay = self.random.magnitude(1_000, 5_000_000);
        if std::mem::take(&mut self.ends[end].stalled) {
            self.agenda.plan(self.now + delay, Event::Arrive(end));
        }
        let peer = self.ends[end].peer;
        if std::mem::take(&mut self.ends[end].owes_notice) {
            self.agenda.plan(self.now + delay, Event::Notice(peer));
        }
        if std::mem::take(&mut self.ends[peer].acknowledgements_stalled) {
            self.agenda.plan(self.now + delay, Event::Acknowledge(peer));
        }
    }
}

fn needs_receive(operation: &Operation) -> bool {
    matches!(operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. })
}
