//! One end of a connection: posting, polling and the error state.
//!
//! `intake` takes what has arrived, `responder` executes what the peer asks for; this file is everything else.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;

use super::super::{
    Completion, Connection, Depth, Landings, Opcode, Operation, PostError, QueuePair,
    ReceiveRequest, Silence, State, Status, Transition, Unstaged, WorkId, WorkRequest,
};
use super::domain::{Span, Table};
use super::executed::Executed;
use super::frame::{Header, Kind, RIDER_BYTES, Rider, frame};
use super::inbox::Inbox;
use super::outgoing::{Frame, Outgoing, Payload};
use super::requests::{Answer, Culprit, Request, Requests};
use super::responder::Arriving;
use super::silence::Confirmations;
use crate::TransportError;
use crate::nics::Watched;

/// Operations and receives that a queue pair may be made for.
pub(super) const MAX_DEPTH: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct SoftQueuePair {
    pub(super) table: Arc<Table>,
    /// That of the device, if it is watched.
    nic: Option<Watched>,
    depth: Depth,
    pub(super) state: State,
    fault: Option<TransportError>,
    pub(super) stream: Option<TcpStream>,
    confirmations: Confirmations,
    /// Both addresses, for messages.
    path: String,
    pub(super) outgoing: Outgoing,
    /// The connection takes nothing more. What the peer sent before is still read.
    broken: Option<TransportError>,
    pub(super) inbox: Inbox,
    pub(super) arriving: Option<Arriving>,
    /// What arrives is executed, and nothing is believed of what it says.
    pub(super) is_fencing: bool,
    pub(super) requests: Requests,
    pub(super) receives: VecDeque<Receive>,
    pub(super) executed: Executed,
    /// Completed, not yet polled.
    pub(super) ready: Vec<Completion>,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: WorkId,
    pub(super) target: Option<Span>,
}

/// What takes a queue pair to the error state.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) culprit: Culprit,
    pub(super) status: Status,
    pub(super) cause: TransportError,
    /// What the peer is told as the last thing.
    pub(super) refusal: Option<Status>,
}

impl Fault {
    pub(super) fn lost(cause: TransportError) -> Self {
        let (culprit, status) = (Culprit::Oldest, Status::RetryExceeded);
        Self { culprit, status, cause, refusal: None }
    }
}

impl SoftQueuePair {
    /// A queue pair in `Reset`.
    ///
    /// # Panics
    /// It is to be deeper than [`MAX_DEPTH`].
    pub(super) fn new(table: Arc<Table>, nic: Option<Watched>, depth: Depth) -> Self {
        assert!(depth.sends.max(depth.receives) <= MAX_DEPTH, "{depth:?}");
        Self {
            table,
            nic,
            depth,
            state: State::Reset,
            fault: None,
            stream: None,
            confirmations: Confirmations::default(),
            path: "not connected".into(),
            outgoing: Outgoing::default(),
            broken: None,
            inbox: Inbox::new(),
            arriving: None,
            is_fencing: false,
            requests: Requests::default(),
            receives: VecDeque::with_capacity(depth.receives),
            executed: Executed::default(),
            ready: Vec::new(),
        }
    }

    fn transition(&mut self, transition: Transition) -> Result<(), PostError> {
        self.state = self.state.after(transition).ok_or(PostError::WrongState(self.state))?;
        Ok(())
    }

    /// Queues a frame behind what is queued. It tells the peer what was executed so far.
    pub(super) fn push(&mut self, mut header: Header, payload: Option<Span>) {
        header.acknowledged = self.executed.reported();
        self.outgoing.push(Frame { header: header.encode(), payload: Payload::of(payload) });
    }

    /// Queues an operation, and its frame if it can start. One that `follows` has another one of its list right
    /// before it.
    fn queue(&mut self, request: &WorkRequest, follows: bool) -> Result<(), PostError> {
        match self.state {
            State::Reset | State::Init | State::ReadyToReceive => {
                return Err(PostError::WrongState(self.state));
            }
            State::ReadyToSend | State::Error if self.requests.len() >= self.depth.sends => {
                return Err(PostError::QueueFull);
            }
            State::ReadyToSend | State::Error => {}
        }
        let WorkRequest { id, operation, signalled } = *request;
        let span = self.table.local(operation.segment());
        let (opcode, bytes) = (operation.opcode(), operation.segment().bytes);
        let answer = match (opcode, &span) {
            (Opcode::Read | Opcode::CompareAndSwap | Opcode::FetchAdd, Some(span)) => {
                Answer::Awaited(span.clone())
            }
            _ => Answer::None,
        };
        self.requests.push(Request { id, opcode, bytes, signalled, answer });
        match (self.state, span) {
            (State::ReadyToSend, Some(span)) if span_fits(&operation, &span) => {
                let rider = rider(&operation, &span).filter(|_| follows);
                if !rider.is_some_and(|rider| self.outgoing.mount(&rider)) {
                    let (header, payload) = frame(operation, span);
                    self.push(header, payload);
                }
            }
            (State::ReadyToSend, _) => self.break_down(local_protection(&self.path)),
            _ => self.flush(Culprit::None, Status::Flushed),
        }
        Ok(())
    }

    fn transmit(&mut self) -> bool {
        let Some(stream) = &self.stream else { return false };
        if self.broken.is_some() || self.outgoing.is_empty() {
            return false;
        }
        self.outgoing.transmit(stream).unwrap_or_else(|cause| {
            self.broken = Some(gone(&self.path, &cause));
            self.outgoing.clear();
            false
        })
    }

    /// Whether its NIC was found not to work, which has still to be acted on.
    fn is_cut(&self) -> bool {
        self.broken.is_none() && self.nic.as_ref().is_some_and(Watched::is_severed)
    }

    /// The NIC does not work: nothing more leaves.
    fn sever(&mut self) {
        if let Some(ailment) = self.nic.as_ref().and_then(Watched::ailment) {
            self.broken = Some(TransportError::system(format!("use {}", self.path), ailment));
            self.outgoing.clear();
        }
    }

    fn advance(&mut self, landings: &mut dyn Landings) -> bool {
        self.exchange(landings).unwrap_or_else(|fault| {
            self.break_down(fault);
            true
        })
    }

    fn exchange(&mut self, landings: &mut dyn Landings) -> Result<bool, Fault> {
        if self.is_cut() {
            self.sever();
        }
        let mut moved = self.transmit();
        moved |= self.receive(landings)?;
        if self.executed.is_due(moved) {
            self.push(Header::new(Kind::Acknowledge, 0), None);
        }
        moved |= self.transmit();
        match &self.broken {
            Some(cause) if !moved => Err(Fault::lost(cause.clone())),
            Some(_) | None => Ok(moved),
        }
    }

    pub(super) fn protocol(&self, what: &str) -> Fault {
        Fault::lost(TransportError::Protocol(format!("{}: {what}", self.path)))
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn break_down(&mut self, fault: Fault) {
        self.state = State::Error;
        self.fault.get_or_insert(fault.cause);
        self.flush(fault.culprit, fault.status);
        match fault.refusal {
            Some(reason) => self.refuse(reason),
            None => self.disconnect(),
        }
    }

    /// Says why, as the last thing, and keeps the connection until that has left.
    fn refuse(&mut self, reason: Status) {
        self.outgoing.cut();
        let mut header = Header::new(Kind::Refuse, 0);
        header.operands[0] = u64::from(reason == Status::RemoteAccess);
        self.push(header, None);
        self.part();
    }

    fn part(&mut self) -> bool {
        let moved = self.transmit();
        if self.broken.is_some() {
            self.outgoing.clear();
        }
        if let (true, Some(stream)) = (self.outgoing.is_empty(), &self.stream) {
            // The socket stays open: closed with bytes unread, the kernel would throw away what the
            // peer has not received yet. `shutdown` fails only if the peer has closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        moved
    }

    fn flush(&mut self, culprit: Culprit, status: Status) {
        self.requests.flush(culprit, status, &mut self.ready);
        self.ready
            .extend(self.receives.drain(..).map(|receive| Completion::flushed_receive(receive.id)));
        self.arriving = None;
        self.inbox.clear();
    }

    /// Ends the connection at once. What the kernel holds is thrown away, so that nothing posted
    /// earlier leaves this host later.
    fn disconnect(&mut self) {
        self.outgoing.clear();
        if let Some(stream) = self.stream.take() {
            // It fails only on a socket that is dead already.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl QueuePair for SoftQueuePair {
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
        let stream = connection.into_stream();
        let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        prepared.map_err(|cause| TransportError::system("prepare a connection", cause))?;
        self.transition(Transition::EnableReceive)
            .map_err(|cause| TransportError::system("connect a queue pair", cause))?;
        self.path = path(&stream);
        self.stream = Some(stream);
        if let Some(nic) = &self.nic {
            nic.prove();
        }
        self.transition(Transition::EnableSend).expect("the state before it was just reached");
        Ok(())
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.post_send_list(&[request]).map_err(|(_, cause)| cause)
    }

    fn post_send_list(&mut self, requests: &[WorkRequest]) -> Result<(), (usize, PostError)> {
        // While other frames wait the kernel has no room, and the next poll tries again.
        let waiting = !self.outgoing.is_empty() && !self.outgoing.is_corked();
        let mut queued = requests.iter().enumerate();
        let outcome = queued.try_for_each(|(index, request)| {
            self.queue(request, index > 0).map_err(|cause| (index, cause))
        });
        if !waiting && !self.outgoing.is_corked() {
            self.transmit();
        }
        outcome
    }

    fn cork(&mut self, bytes: usize) {
        self.outgoing.cork(bytes);
    }

    fn sends_unstaged(&self) -> bool {
        true
    }

    fn post_unstaged(&mut self, operations: &[Unstaged<'_>]) -> Option<usize> {
        self.transmit();
        let fits = self.requests.len() + operations.len() <= self.depth.sends;
        let is_ready = self.state == State::ReadyToSend && self.broken.is_none();
        if !is_ready || !fits || !self.outgoing.takes_unstaged(operations) {
            return None;
        }
        for Unstaged { request, .. } in operations {
            self.queue(request, false).ok()?;
        }
        let Some(stream) = self.stream.as_ref().filter(|_| self.state == State::ReadyToSend) else {
            return Some(operations.len());
        };
        Some(self.outgoing.transmit_unstaged(stream, operations).unwrap_or_else(|cause| {
            self.broken = Some(gone(&self.path, &cause));
            self.outgoing.clear();
            operations.len()
        }))
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset => return Err(PostError::WrongState(self.state)),
            State::Error => self.ready.push(Completion::flushed_receive(request.id)),
            _ if self.receives.len() >= self.depth.receives => return Err(PostError::QueueFull),
            State::Init | State::ReadyToReceive | State::ReadyToSend => {
                let target = request.target.map(|segment| self.table.local(segment));
                match target {
                    None => self.receives.push_back(Receive { id: request.id, target: None }),
                    Some(Some(span)) => {
                        self.receives.push_back(Receive { id: request.id, target: Some(span) });
                    }
                    Some(None) => {
                        let status = Status::LocalProtection;
                        self.ready
                            .push(Completion { status, ..Completion::flushed_receive(request.id) });
                        let fault = local_protection(&self.path);
                        self.break_down(Fault { culprit: Culprit::None, ..fault });
                    }
                }
            }
        }
        Ok(())
    }

    fn poll_into(
        &mut self,
        completions: &mut Vec<Completion>,
        landings: &mut dyn Landings,
    ) -> bool {
        let moved = match self.state {
            State::ReadyToSend => self.advance(landings),
            State::Error => !self.outgoing.is_empty() && self.part(),
            State::Reset | State::Init | State::ReadyToReceive => false,
        };
        let completed = !self.ready.is_empty();
        completions.append(&mut self.ready);
        moved || completed
    }

    fn acknowledge(&mut self) {
        if self.state == State::ReadyToSend && !self.executed.is_reported() {
            self.push(Header::new(Kind::Acknowledge, 0), None);
            self.transmit();
        }
    }

    fn fail(&mut self) {
        self.take_what_has_arrived();
        self.discard();
    }

    fn discard(&mut self) {
        self.state = State::Error;
        let text = format!("{}: fenced by its owner", self.path);
        self.fault.get_or_insert(TransportError::PeerGone(text));
        self.flush(Culprit::None, Status::Flushed);
        self.disconnect();
    }

    fn reset(&mut self) {
        self.disconnect();
        *self = Self::new(Arc::clone(&self.table), self.nic.take(), self.depth);
    }

    fn flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    fn in_flight(&self) -> bool {
        let unsent = self.stream.as_ref().and_then(unconfirmed).unwrap_or(0);
        self.state == State::ReadyToSend && self.broken.is_none() && (unsent > 0 || !self.flushed())
    }

    fn silence(&self) -> Option<Silence> {
        let stream = self.stream.as_ref().filter(|_| self.state == State::ReadyToSend)?;
        self.confirmations.silence(stream)
    }

    fn look_at_nic(&self) {
        if let Some(nic) = &self.nic {
            nic.look();
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.stream.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn needs_poll(&self) -> bool {
        // After the end nothing is read, executed or found broken any more, whatever was left of it.
        let is_calm = self.inbox.is_empty() && self.broken.is_none() && self.executed.is_reported();
        let is_at_work = self.state == State::ReadyToSend && (!is_calm || self.is_cut());
        is_at_work || !self.ready.is_empty() || !self.outgoing.is_empty()
    }
}

/// A write that can travel with the operation before it.
fn rider(operation: &Operation, span: &Span) -> Option<Rider> {
    let Operation::Write { target, .. } = *operation else { return None };
    let mut word = [0; RIDER_BYTES];
    if span.bytes != word.len() {
        return None;
    }
    span.memory.read(span.offset, &mut word);
    Some(Rider { target, word })
}

/// The result of an atomic has eight bytes.
fn span_fits(operation: &Operation, span: &Span) -> bool {
    match operation {
        Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => span.bytes == 8,
        Operation::Send { .. }
        | Operation::Write { .. }
        | Operation::WriteWithImmediate { .. }
        | Operation::Read { .. } => true,
    }
}

fn local_protection(path: &str) -> Fault {
    Fault {
        culprit: Culprit::Newest,
        status: Status::LocalProtection,
        cause: TransportError::system(
            format!("post an operation on {path}"),
            "its memory is not registered with the domain of the queue pair",
        ),
        refusal: None,
    }
}

pub(super) fn gone(path: &str, cause: &std::io::Error) -> TransportError {
    TransportError::PeerGone(format!("{path}: {cause}"))
}

fn path(stream: &TcpStream) -> String {
    let name = |address: std::io::Result<std::net::SocketAddr>| {
        address.map_or("?".into(), |address| address.to_string())
    };
    format!("{} to {}", name(stream.local_addr()), name(stream.peer_addr()))
}

/// Bytes the kernel has and the peer's kernel has not confirmed.
pub(super) fn unconfirmed(stream: &TcpStream) -> Option<i32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and TIOCOUTQ writes one int where it is told.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then_some(bytes)
}
