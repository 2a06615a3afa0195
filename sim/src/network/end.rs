//! Queue pairs: what their owners do with them.

use std::collections::VecDeque;

use ccl_transport::TransportError;
use ccl_transport::verbs::{
    Completion, Depth, Landings, Nowhere, Opcode, PostError, ReceiveRequest, Segment, State,
    Status, Unstaged, WorkId, WorkRequest,
};

use super::wire::{Acknowledgement, Arrival, Packet};
use super::{Event, Network};
use crate::Nanos;
use crate::mutation::Mutation;
use crate::scenario::Execution;

/// A queue pair, by its number.
pub(crate) type EndId = usize;

/// What a card remembers of an operation until it is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub(super) id: WorkId,
    pub(super) opcode: Opcode,
    pub(super) bytes: usize,
    pub(super) signalled: bool,
}

/// Where a queue pair belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Whose it is.
    pub(crate) rank: usize,
    /// Its card.
    pub(crate) nic: usize,
    /// What it may touch.
    pub(crate) domain: u32,
    /// Its link, which side of it, and which path.
    pub(crate) link: usize,
    pub(crate) side: usize,
    pub(crate) path: usize,
    /// Which connection of the path.
    pub(crate) incarnation: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct End {
    pub(super) place: Place,
    pub(super) peer: EndId,
    pub(super) depth: Depth,
    pub(super) state: State,
    pub(super) fault: Option<TransportError>,
    pub(super) sends: VecDeque<Outstanding>,
    pub(super) receives: VecDeque<ReceiveRequest>,
    pub(super) completions: VecDeque<(Nanos, Completion)>,
    /// Operations posted; those that the peer's host has; those that were executed.
    pub(super) posted: u64,
    pub(super) heard: u64,
    pub(super) executed: u64,
    /// Since when the peer's host has confirmed nothing.
    pub(super) unheard_since: Nanos,
    /// On the way to the peer.
    pub(super) wire: VecDeque<Packet>,
    /// The first packet could not pass.
    pub(super) stalled: bool,
    /// On the way back to this end.
    pub(super) acknowledgements: VecDeque<Acknowledgement>,
    pub(super) acknowledgements_stalled: bool,
    /// Arrived from the peer and not executed.
    pub(super) inbox: VecDeque<Arrival>,
    /// Operations of the peer that have arrived; those that were executed.
    pub(super) arrived: u64,
    pub(super) done: u64,
    /// Those of which the owner was told that something happened.
    shown: u64,
    /// The other end does not know yet that this one is gone.
    pub(super) owes_notice: bool,
}

impl Network {
    /// A pair of connected queue pairs, ready to send.
    pub(crate) fn connect(&mut self, places: [Place; 2], depth: Depth) -> [EndId; 2] {
        let first = self.ends.len();
        for (index, place) in places.into_iter().enumerate() {
            self.ends.push(End {
                place,
                peer: first + 1 - index,
                depth,
                state: State::ReadyToSend,
                fault: None,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                completions: VecDeque::new(),
                posted: 0,
                heard: 0,
                executed: 0,
                unheard_since: 0,
                wire: VecDeque::new(),
                stalled: false,
                acknowledgements: VecDeque::new(),
                acknowledgements_stalled: false,
                inbox: VecDeque::new(),
                arrived: 0,
                done: 0,
                shown: 0,
                owes_notice: false,
            });
        }
        [first, first + 1]
    }

    pub(crate) fn end(&self, end: EndId) -> (State, Option<&TransportError>) {
        (self.ends[end].state, self.ends[end].fault.as_ref())
    }

    pub(crate) fn post_send(&mut self, end: EndId, request: WorkRequest) -> Result<(), PostError> {
        self.post(end, request, None)
    }

    /// The network takes all bytes of some of these at once, and of the others none, or takes nothing so.
    pub(crate) fn post_unstaged(
        &mut self,
        end: EndId,
        operations: &[Unstaged<'_>],
    ) -> Option<usize> {
        let this = &self.ends[end];
        let fits = this.sends.len() + operations.len() <= this.depth.sends;
        if this.state != State::ReadyToSend || !fits || self.random.percent(10) {
            return None;
        }
        let taken = self.random.index(operations.len() + 1);
        for (index, Unstaged { request, rest }) in operations.iter().enumerate() {
            let Segment { offset, bytes, .. } = request.operation.segment();
            let mut lent = vec![0; rest.bytes()];
            rest.read_from(0, &mut lent);
            let memory = self.local(end, request.operation.segment())?;
            let head = offset..offset + bytes - lent.len();
            let snapshot = if index < taken {
                Some([memory.lock().bytes(head), &lent].concat())
            } else {
                memory.write(head.end, &lent);
                None
            };
            self.post(end, *request, snapshot).ok()?;
        }
        self.tally.unstaged += taken as u64;
        Some(taken)
    }

    fn post(
        &mut self,
        end: EndId,
        request: WorkRequest,
        snapshot: Option<Vec<u8>>,
    ) -> Result<(), PostError> {
        let now = self.now;
        let this = &mut self.ends[end];
        match this.state {
            State::ReadyToSend => {}
            State::Error => {
                let opcode = request.operation.opcode();
                let completion = flushed(request.id, opcode);
                this.completions.push_back((now, completion));
                return Ok(());
            }
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                return Err(PostError::WrongState(state));
            }
        }
        if this.sends.len() >= this.depth.sends {
            return Err(PostError::QueueFull);
        }
        let segment = request.operation.segment();
        if self.local(end, segment).is_none() {
            self.violate(format!("{}: memory that is not registered", self.name(end)));
            return Ok(());
        }
        let this = &mut self.ends[end];
        if this.posted == this.heard {
            this.unheard_since = now;
        }
        this.posted += 1;
        let WorkRequest { id, operation, signalled } = request;
        let (opcode, bytes) = (operation.opcode(), segment.bytes);
        this.sends.push_back(Outstanding { id, opcode, bytes, signalled });
        self.depart(end, operation, snapshot);
        Ok(())
    }

    pub(crate) fn post_receive(
        &mut self,
        end: EndId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let now = self.now;
        let this = &mut self.ends[end];
        match this.state {
            State::Reset => return Err(PostError::WrongState(State::Reset)),
            State::Error => {
                this.completions.push_back((now, flushed(request.id, Opcode::Receive)));
                return Ok(());
            }
            State::Init | State::ReadyToReceive | State::ReadyToSend => {}
        }
        if this.receives.len() >= this.depth.receives {
            return Err(PostError::QueueFull);
        }
        if self.loses_receive(end) {
            return Ok(());
        }
        self.ends[end].receives.push_back(request);
        if self.physics.execution == Execution::AtArrival && !self.ends[end].inbox.is_empty() {
            self.execute_inbox(end, &mut Nowhere);
        }
        Ok(())
    }

    /// Executes what the peer sent, if that is for the process to do, and hands out completions.
    pub(crate) fn poll(
        &mut self,
        end: EndId,
        into: &mut Vec<Completion>,
        landings: &mut dyn Landings,
    ) -> bool {
        if self.over {
            return false;
        }
        if self.physics.execution == Execution::WhenPolled && !self.ends[end].inbox.is_empty() {
            self.execute_inbox(end, landings);
        }
        let now = self.now;
        let is_mute = self.nics[self.ends[end].place.nic].mute > 0;
        let this = &mut self.ends[end];
        if is_mute && this.state == State::ReadyToSend {
            return false;
        }
        let before = into.len();
        while let Some((visible, completion)) = this.completions.front()
            && *visible <= now
        {
            into.push(*completion);
            this.completions.pop_front();
        }
        // What a NIC writes by itself leaves no trace but what was written.
        let shows = self.physics.execution == Execution::WhenPolled && this.shown != this.done;
        this.shown = this.done;
        into.len() > before || shows
    }

    /// The owner gives the queue pair up. What has arrived is executed first where that is for the process to do.
    pub(crate) fn fail(&mut self, end: EndId) {
        let Self { ends, physics, .. } = self;
        let is_ready = ends[end].state == State::ReadyToSend;
        // What has landed elsewhere in part ends there.
        let is_whole = ends[end].inbox.front().is_some_and(|arrival| arrival.elsewhere == 0);
        if is_ready && is_whole && physics.execution == Execution::WhenPolled {
            self.execute_inbox(end, &mut Nowhere);
        }
        self.discard(end);
    }

    /// The owner gives the queue pair up, and what has arrived.
    pub(crate) fn discard(&mut self, end: EndId) {
        if matches!(self.ends[end].state, State::Error | State::Reset) {
            return;
        }
        self.note(|network| format!("{} is failed by its owner", network.name(end)));
        self.tally.failed_by_owner += 1;
        let gone = TransportError::PeerGone("given up at this end".into());
        self.stop(end, Status::Flushed, gone);
        self.tell_peer(end);
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self, end: EndId) {
        self.discard(end);
        let this = &mut self.ends[end];
        this.state = State::Reset;
        this.fault = None;
        this.completions.clear();
    }

    /// The owner does not want it any more.
    pub(crate) fn drop_end(&mut self, end: EndId) {
        if self.over {
            return;
        }
        self.discard(end);
    }

    /// For how long the peer's host has confirmed nothing. Where processes execute what arrives, what they say of it is a
    /// message too.
    pub(crate) fn silence(&self, end: EndId) -> Option<Nanos> {
        let this = &self.ends[end];
        let peer = &self.ends[this.peer];
        let is_message = self.physics.execution == Execution::WhenPolled;
        let mut messages = peer.acknowledgements.iter().filter(|_| is_message);
        let told = messages.find(|told| told.executed > peer.executed).map(|told| told.sent);
        let posted = (this.posted > this.heard).then_some(this.unheard_since);
        let since = posted.into_iter().chain(told).min()?;
        (this.state == State::ReadyToSend).then(|| self.now - since.min(self.now))
    }

    pub(crate) fn in_flight(&self, end: EndId) -> bool {
        let this = &self.ends[end];
        !self.over && this.state == State::ReadyToSend && this.posted > this.heard
    }

    /// The connection is lost, as this end sees it.
    pub(super) fn lose(&mut self, end: EndId, fault: TransportError) {
        if self.ends[end].state != State::ReadyToSend {
            return;
        }
        self.note(|network| format!("{} goes to error: {fault}", network.name(end)));
        self.tally.broken += 1;
        self.stop(end, Status::RetryExceeded, fault);
        if !self.physics.loses_notices {
            self.tell_peer(end);
        }
    }

    /// The error state: the oldest operation ends with `status`, all others are flushed.
    pub(super) fn stop(&mut self, end: EndId, status: Status, fault: TransportError) {
        self.swallow(end);
        self.tear(end);
        let now = self.now;
        let is_off_by_one = self.is_mutant(Mutation::RewindOffByOne);
        let this = &mut self.ends[end];
        this.state = State::Error;
        this.fault = Some(fault);
        let mut status = Some(status);
        if is_off_by_one && this.heard > this.executed {
            status = Some(Status::Success);
        }
        while let Some(Outstanding { id, opcode, bytes: _, signalled: _ }) = this.sends.pop_front()
        {
            let mut completion = flushed(id, opcode);
            completion.status = status.take().unwrap_or(Status::Flushed);
            this.completions.push_back((now, completion));
        }
        while let Some(ReceiveRequest { id, .. }) = this.receives.pop_front() {
            this.completions.push_back((now, flushed(id, Opcode::Receive)));
        }
        this.inbox.clear();
        let rank = this.place.rank;
        self.abandon_wire(end);
        self.wake(rank);
    }

    /// Of completions that do not show yet, some are lost when the queue pair goes to error: the
    /// operation was executed, and nobody says so. What a process executed for the peer it reports in any case,
    /// because the peer may know already that it was executed; a NIC that dies does not.
    fn swallow(&mut self, end: EndId) {
        let is_mute = self.nics[self.ends[end].place.nic].mute > 0;
        let (now, is_lost) = (self.now, self.random.percent(50));
        let mut lost = 0;
        for (visible, completion) in &mut self.ends[end].completions {
            let is_hidden = *visible > now || is_mute;
            let is_own =
                !matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWriteWithImmediate);
            let is_fragile = is_own || self.physics.execution == Execution::AtArrival;
            if is_hidden && is_fragile && is_lost && completion.status == Status::Success {
                *completion = flushed(completion.id, completion.opcode);
                lost += 1;
            }
            *visible = now;
        }
        self.tally.completions_lost += lost;
    }

    /// Tells the other end that this one is gone, as soon as the network lets the message through;
    /// or never, where such a message is sent once only.
    pub(super) fn tell_peer(&mut self, end: EndId) {
        let peer = self.ends[end].peer;
        if self.ends[peer].state != State::ReadyToSend {
            return;
        }
        if !self.is_blocked(end) {
            let at = self.now + self.travel();
            self.agenda.plan(at, Event::Notice(peer));
        } else if !self.physics.loses_notices {
            self.ends[end].owes_notice = true;
        }
    }

    pub(super) fn notice(&mut self, end: EndId) {
        if self.ends[self.ends[end].peer].state != State::ReadyToSend {
            self.lose(end, TransportError::PeerGone("the other end is closed".into()));
        }
    }

    /// Adds a completion, which may show a little later.
    pub(super) fn complete(&mut self, end: EndId, completion: Completion) {
        let delay = match self.physics.completion_delay {
            0 => 0,
            most => self.random.below(most),
        };
        let last = self.ends[end].completions.back().map_or(0, |(visible, _)| *visible);
        let visible = last.max(self.now + delay);
        let rank = self.ends[end].place.rank;
        self.ends[end].completions.push_back((visible, completion));
        if visible > self.now {
            self.agenda.plan(visible, Event::Wake(rank));
        } else {
            self.wake(rank);
        }
    }

    pub(super) fn name(&self, end: EndId) -> String {
        let Place { rank, link, side, path, incarnation, .. } = self.ends[end].place;
        let other = self.links[link].ranks[1 - side];
        format!("queue pair {rank}->{other} path {path}.{incarnation}")
    }
}

/// The completion of something that was given up.
fn flushed(id: WorkId, opcode: Opcode) -> Completion {
    Completion { id, status: Status::Flushed, opcode, bytes: 0, immediate: None }
}
