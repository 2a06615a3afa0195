//! One end of a connection: posting and polling. How it is connected is in `connect`, how it ends in
//! `ending`.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use smallvec::SmallVec;

use super::super::{
    Completion, Connection, Depth, Landings, Opcode, Operation, PostError, QueuePair,
    ReceiveRequest, State, Status, Transition, WorkRequest,
};
use super::connect::Stage;
use super::domain::Shared;
use super::ending::Drain;
use super::hello::{Farewell, Message};
use super::parley::Parley;
use super::posted::{Handover, Queue, Sent, ring};
use super::sys::{Endpoint, Gid, LIST, Post, Reported, Source};
use super::watch::Mailbox;
use crate::TransportError;

/// Work of this kind is a receive.
pub(super) const RECEIVE: u64 = 1 << 63;
/// A queue pair that always finds completions looks so often whether something else has happened.
const POLLS_PER_LOOK: u32 = 64;

/// Of the descriptor of a device that is gone.
const GONE: epoll::EventFlags = epoll::EventFlags::ERR.union(epoll::EventFlags::HUP);

/// What is readable, in the set that the descriptor stands for.
pub(super) mod token {
    pub(in super::super) const COMPLETIONS: u64 = 0;
    pub(in super::super) const PARLEY: u64 = 1;
    pub(in super::super) const EVENTS: u64 = 2;
    pub(in super::super) const BELL: u64 = 3;
}

#[derive(Debug)]
pub(super) struct IbQueuePair {
    pub(super) domain: Arc<Shared>,
    pub(super) depth: Depth,
    /// It is for a spare: dynamic, where both ends can.
    pub(super) is_spare: bool,
    pub(super) state: State,
    pub(super) fault: Option<TransportError>,
    /// At the device; none when it has been destroyed, or could not be made.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    /// Why it could not be made.
    pub(super) refusal: Option<TransportError>,
    pub(super) mailbox: Arc<Mailbox>,
    readiness: OwnedFd,
    pub(super) parley: Option<Parley>,
    /// Both ends of the connection that it has or had, for messages.
    pub(super) path: Option<String>,
    /// The address that the peer was told, and its row.
    pub(super) address: Option<(u8, Gid)>,
    pub(super) stage: Stage,
    /// The peer stops for this reason. What this end's device says about it is waited for until then.
    pub(super) parting: Option<(Instant, Farewell)>,
    pub(super) drain: Option<Drain>,
    pub(super) sends: Queue<Sent>,
    pub(super) receives: Queue<ReceiveRequest>,
    /// Completed, not yet polled.
    pub(super) ready: Vec<Completion>,
    pub(super) reported: Vec<Reported>,
    polls: u32,
}

impl IbQueuePair {
    pub(super) fn new(
        domain: Arc<Shared>,
        depth: Depth,
        is_spare: bool,
    ) -> Result<Self, TransportError> {
        let failed = |cause| TransportError::system("watch a queue pair", cause);
        let mailbox = domain.watch.subscribe()?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let add = |descriptor, token| {
            let token = epoll::EventData::new_u64(token);
            epoll::add(&readiness, descriptor, token, epoll::EventFlags::IN).map_err(failed)
        };
        add(mailbox.bell(), token::BELL)?;
        add(domain.watch.descriptor(), token::EVENTS)?;
        let mut pair = Self {
            domain,
            depth,
            is_spare,
            state: State::Reset,
            fault: None,
            endpoint: None,
            refusal: None,
            mailbox,
            readiness,
            parley: None,
            path: None,
            address: None,
            stage: Stage::Idle,
            parting: None,
            drain: None,
            sends: Queue::new(depth.sends),
            receives: Queue::new(depth.receives),
            ready: Vec::new(),
            reported: Vec::new(),
            polls: 0,
        };
        pair.endpoint = Some(pair.make_endpoint()?);
        Ok(pair)
    }

    /// Lets the descriptor be readable when this one is. A descriptor that is closed leaves by itself.
    pub(super) fn watch(&self, descriptor: BorrowedFd<'_>, token: u64) -> rustix::io::Result<()> {
        let token = epoll::EventData::new_u64(token);
        epoll::add(&self.readiness, descriptor, token, epoll::EventFlags::IN)
    }

    /// Gives back what it has at the device. Of a device that is gone nothing is taken back: descriptors stay open, and
    /// readable.
    pub(super) fn give_endpoint_back(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            ignore(&self.readiness, endpoint.descriptor());
        }
    }

    /// Says why it ends, and listens no more. The connection stays open: closed with bytes unread, the
    /// kernel would throw away what the peer has not received yet.
    pub(super) fn say_farewell(&mut self, reason: Farewell) {
        let Some(parley) = &mut self.parley else { return };
        parley.part(&Message::Farewell(reason));
        ignore(&self.readiness, parley.descriptor());
    }

    pub(super) fn transition(&mut self, transition: Transition) -> Result<(), PostError> {
        self.state = self.state.after(transition).ok_or(PostError::WrongState(self.state))?;
        Ok(())
    }

    /// Gives the device what waits here and has room there, once the peer can receive it, as lists. The last that
    /// it has is always reported, also if its ring is full in the middle of a list: so is everything before it then.
    /// And so is one in the middle of the ring, which makes room before the last.
    pub(super) fn post_waiting(&mut self) {
        let ring = ring(self.depth.sends);
        let reported_each = (ring / 2).max(1) as u64;
        while self.sends.posted < self.sends.len().min(ring)
            && self.state == State::ReadyToSend
            && let Stage::Open { peer_has_atomics } = self.stage
        {
            let mut list = SmallVec::<[Handover; LIST]>::new();
            let mut flaw = None;
            let room = LIST.min(ring - self.sends.posted);
            let posted = self.sends.posted;
            for (index, (number, sent)) in self.sends.waiting_mut().take(room).enumerate() {
                let fills_the_ring = posted + index + 1 == ring;
                sent.is_reported |= fills_the_ring || number.is_multiple_of(reported_each);
            }
            for (number, sent) in self.sends.waiting().take(room) {
                match self.handover(number, sent, peer_has_atomics) {
                    Ok(handover) => list.push(handover),
                    Err(reason) => {
                        flaw = Some(reason);
                        break;
                    }
                }
            }
            // What is in front of one that is refused is given to the device first.
            match flaw {
                Some((status, fault)) if list.is_empty() => self.refuse_next(status, fault),
                _ => self.hand_over(&list),
            }
        }
    }

    /// What the device is told of a request.
    fn handover(
        &self,
        number: u64,
        &Sent { request, is_reported, .. }: &Sent,
        peer_has_atomics: bool,
    ) -> Result<Handover, (Status, TransportError)> {
        if let Some(reason) = self.impossible(&request, peer_has_atomics) {
            return Err(reason);
        }
        let operation = request.operation;
        match self.domain.memory(operation.segment()) {
            Some(memory) => Ok(Handover { number, is_reported, operation, memory }),
            None => Err((Status::LocalProtection, local_protection(self.domain.name()))),
        }
    }

    /// Why neither end's device can do this.
    fn impossible(
        &self,
        request: &WorkRequest,
        peer_has_atomics: bool,
    ) -> Option<(Status, TransportError)> {
        let atomic =
            matches!(request.operation.opcode(), Opcode::CompareAndSwap | Opcode::FetchAdd);
        let name = self.domain.name();
        let lacking = match (self.domain.limits.has_atomics, peer_has_atomics) {
            _ if !atomic => return None,
            (true, true) => return None,
            (false, _) => format!("the RDMA device {name} has no atomics"),
            (true, false) => format!("the RDMA device of the peer of {name} has no atomics"),
        };
        Some((Status::RemoteInvalidRequest, TransportError::Refused(lacking)))
    }

    fn hand_over(&mut self, list: &[Handover]) {
        let Some(endpoint) = &self.endpoint else { return };
        let posts: SmallVec<[Post<'_>; LIST]> = list.iter().map(Handover::post).collect();
        let (taken, outcome) = endpoint.post_send(&posts);
        self.sends.posted += taken;
        if let Err(cause) = outcome {
            let call = format!("post an operation on {}", self.domain.name());
            self.refuse_next(Status::RetryExceeded, TransportError::system(call, cause));
        }
    }

    /// Queues an operation; who calls this has it posted.
    fn queue(&mut self, request: WorkRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset | State::Init | State::ReadyToReceive => {
                return Err(PostError::WrongState(self.state));
            }
            State::ReadyToSend if self.sends.len() >= self.depth.sends => {
                return Err(PostError::QueueFull);
            }
            State::ReadyToSend => {
                let flaw = self.flaw(&request.operation);
                let doomed = flaw.as_ref().map(|(status, _)| *status);
                self.sends.push(Sent { request, is_reported: request.signalled, doomed });
                if let Some((_, fault)) = flaw {
                    self.break_down(None, fault, Farewell::Lost);
                }
            }
            // A drain that is under way gives it back at its end.
            State::Error if self.drain.is_some() => {
                self.sends.push(Sent { request, is_reported: true, doomed: None });
            }
            State::Error => self.ready.push(Completion::of(&request, Status::Flushed)),
        }
        Ok(())
    }

    /// What is wrong with an operation before the device sees it.
    fn flaw(&self, operation: &Operation) -> Option<(Status, TransportError)> {
        let segment = operation.segment();
        let (name, longest) = (self.domain.name(), self.domain.longest);
        if segment.bytes > longest as usize {
            let call = format!("post an operation on {name}");
            let bytes = segment.bytes;
            let text =
                format!("it has {bytes} bytes, and its port takes {longest} at once: post several");
            return Some((Status::LocalLength, TransportError::system(call, text)));
        }
        let is_word =
            !matches!(operation, Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. })
                || segment.bytes == 8;
        let is_sound = is_word && self.domain.memory(segment).is_some();
        (!is_sound).then(|| (Status::LocalProtection, local_protection(name)))
    }

    pub(super) fn hand_over_receive(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let Some((number, &mut request)) = self.receives.unposted() else { return };
        let memory = request.target.and_then(|segment| self.domain.memory(segment));
        let source = request.target.zip(memory.as_ref()).map(|(segment, memory)| Source {
            key: segment.key.0,
            memory,
            offset: segment.offset,
            // No message is longer.
            bytes: u32::try_from(segment.bytes).unwrap_or(u32::MAX).min(self.domain.longest),
        });
        match endpoint.post_receive(RECEIVE | number, source.as_ref()) {
            Ok(()) => self.receives.posted += 1,
            Err(cause) => {
                let call = format!("post a receive on {}", self.domain.name());
                self.break_down(None, TransportError::system(call, cause), Farewell::Lost);
            }
        }
    }

    /// Looks whether anything else than completions has come.
    fn look_around(&mut self) -> bool {
        let nothing = epoll::EventData::new_u64(0);
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: nothing }; 4];
        let waited = epoll::wait(&self.readiness, &mut events, Some(&Timespec::default()));
        // If it was interrupted the next poll looks again.
        let Ok(count) = waited else { return false };
        let mut moved = false;
        for event in &events[..count] {
            let (data, flags) = (event.data, event.flags);
            moved |= match data.u64() {
                token::COMPLETIONS => self.announced(),
                token::PARLEY => self.listen(),
                token::EVENTS => {
                    self.domain.watch.gather();
                    if flags.intersects(GONE) {
                        ignore(&self.readiness, self.domain.watch.descriptor());
                    }
                    false
                }
                _ => self.read_mail(),
            };
        }
        moved
    }

    /// Completions were announced: asks to be told of the next, and takes what has come before that.
    fn announced(&mut self) -> bool {
        let Some(endpoint) = &self.endpoint else { return false };
        endpoint.take_announcement();
        if let Err(cause) = endpoint.arm() {
            let fault = TransportError::system(format!("watch {}", self.domain.name()), cause);
            self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
        }
        self.take_reports()
    }
}

impl QueuePair for IbQueuePair {
    fn state(&self) -> State {
        self.state
    }

    fn fault(&self) -> Option<&TransportError> {
        self.fault.as_ref()
    }

    fn initialise(&mut self) -> Result<(), PostError> {
        self.transition(Transition::Initialise)
    }

    fn connect(&mut self, connection: Connection) -> Result<(), TransportError> {
        self.greet(connection.into_stream())
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.post_send_list(&[request]).map_err(|(_, cause)| cause)
    }

    fn post_send_list(&mut self, requests: &[WorkRequest]) -> Result<(), (usize, PostError)> {
        let outcome = requests
            .iter()
            .enumerate()
            .try_for_each(|(index, request)| self.queue(*request).map_err(|cause| (index, cause)));
        // The last of a list is always reported. So it is known what is on its way, and the queue of the device
        // never fills with operations of which nobody hears.
        if let Some(last) = self.sends.newest() {
            last.is_reported = true;
        }
        self.post_waiting();
        outcome
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let is_registered =
            request.target.is_none_or(|segment| self.domain.memory(segment).is_some());
        match self.state {
            State::Reset => return Err(PostError::WrongState(self.state)),
            State::Error if self.drain.is_some() => self.receives.push(request),
            State::Error => self.ready.push(Completion::flushed_receive(request.id)),
            _ if self.receives.len() >= self.depth.receives => return Err(PostError::QueueFull),
            State::Init | State::ReadyToReceive | State::ReadyToSend if is_registered => {
                self.receives.push(request);
                self.hand_over_receive();
            }
            State::Init | State::ReadyToReceive | State::ReadyToSend => {
                let status = Status::LocalProtection;
                self.ready.push(Completion { status, ..Completion::flushed_receive(request.id) });
                self.break_down(None, local_protection(self.domain.name()), Farewell::Lost);
            }
        }
        Ok(())
    }

    fn poll_into(&mut self, completions: &mut Vec<Completion>, _: &mut dyn Landings) -> bool {
        let mut moved = self.take_reports();
        self.post_waiting();
        self.polls = self.polls.wrapping_add(1);
        if !moved || self.polls.is_multiple_of(POLLS_PER_LOOK) {
            moved |= self.look_around();
            moved |= self.continue_connecting();
            moved |= self.part_if_due();
        }
        if let Some(parley) = &mut self.parley {
            parley.flush();
        }
        moved |= self.continue_draining();
        // What comes back last is there only when the device does not execute anything any more.
        moved |= !self.ready.is_empty();
        completions.append(&mut self.ready);
        moved
    }

    fn fail(&mut self) {
        let text = format!("{}: fenced by its owner", self.path());
        self.break_down(None, TransportError::PeerGone(text), Farewell::Fenced);
        // If the device has nothing to give back, this is all.
        self.take_reports();
        self.continue_draining();
    }

    fn reset(&mut self) {
        if self.state == State::Reset && self.endpoint.is_some() {
            return;
        }
        (self.parley, self.path) = (None, None);
        self.give_endpoint_back();
        self.state = State::Reset;
        (self.fault, self.refusal) = (None, None);
        (self.parting, self.drain, self.address) = (None, None, None);
        self.stage = Stage::Idle;
        self.sends = Queue::new(self.depth.sends);
        self.receives = Queue::new(self.depth.receives);
        self.ready.clear();
        match self.make_endpoint() {
            Ok(endpoint) => self.endpoint = Some(endpoint),
            Err(reason) => self.refusal = Some(reason),
        }
    }

    fn flushed(&self) -> bool {
        let is_handed_over = self.sends.posted == self.sends.len();
        is_handed_over && self.parley.as_ref().is_none_or(Parley::is_flushed)
    }

    fn in_flight(&self) -> bool {
        self.state == State::ReadyToSend && self.sends.len() > 0
    }

    fn confirms_alone(&self) -> bool {
        true
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.readiness.as_raw_fd())
    }

    fn needs_poll(&self) -> bool {
        self.drain.is_some()
            || !self.ready.is_empty()
            || self.parting.is_some()
            || self.parley.as_ref().is_some_and(|parley| !parley.is_flushed())
    }
}

/// Listens no more to something.
fn ignore(readiness: &OwnedFd, descriptor: BorrowedFd<'_>) {
    if let Err(cause) = epoll::delete(readiness, descriptor) {
        tracing::debug!(%cause, "a descriptor that nobody listens to");
    }
}

pub(super) fn local_protection(device: &str) -> TransportError {
    TransportError::system(
        format!("post an operation on {device}"),
        "its memory is not registered with the domain of the queue pair",
    )
}
