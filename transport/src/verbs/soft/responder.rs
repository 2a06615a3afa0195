//! Executes what the peer asks for, after checking it.

use super::super::{Access, Completion, Landings, Opcode, Place, RemoteAddress, Status};
use super::domain::Span;
use super::frame::{Header, Kind};
use super::queue_pair::{Fault, MAX_DEPTH, SoftQueuePair};
use super::requests::{Answer, Culprit};
use crate::{HEADER_BYTES, TransportError};

/// A correct peer has at most `MAX_DEPTH` requests outstanding, and so has this end.
const MAX_WAITING_FRAMES: usize = 2 * MAX_DEPTH + 2;

/// A frame whose header has been taken.
#[derive(Debug)]
pub(super) struct Arriving {
    header: Header,
    /// Where its payload goes, as it says.
    target: Option<Span>,
    /// Bytes of the payload that are there.
    done: usize,
    goes: Goes,
}

/// Where the payload goes behind its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// That has still to be asked.
    Open,
    /// To its target.
    There,
    /// Elsewhere, as far as it has come.
    Elsewhere,
}

impl Arriving {
    fn new(header: Header, target: Option<Span>) -> Self {
        let may_land = header.kind == Kind::WriteWithImmediate
            && target.as_ref().is_some_and(|span| span.bytes > HEADER_BYTES);
        let goes = if may_land { Goes::Open } else { Goes::There };
        Self { header, target, done: 0, goes }
    }

    /// Has somebody write the next bytes of the payload to their place, as many as he has, and returns what he does; `None` if
    /// that place cannot be told now.
    pub(super) fn write<R>(
        &mut self,
        landings: &mut dyn Landings,
        write: impl FnOnce(&mut [u8]) -> (usize, R),
    ) -> Option<R> {
        let Some(Span { memory, offset, bytes }) = &self.target else {
            return Some(write(&mut []).1);
        };
        let mut end = *bytes;
        if self.goes != Goes::There {
            if self.done < HEADER_BYTES {
                end = HEADER_BYTES;
            } else {
                let (mut head, is_begun) = ([0; HEADER_BYTES], self.goes == Goes::Elsewhere);
                memory.read(*offset, &mut head);
                match landings.place(self.header.immediate, &head, *bytes, is_begun) {
                    Place::There => self.goes = Goes::There,
                    Place::Later => return None,
                    Place::At(rest) => {
                        self.goes = Goes::Elsewhere;
                        let (count, result) = write(&mut rest[self.done - HEADER_BYTES..]);
                        self.done += count;
                        return Some(result);
                    }
                }
            }
        }
        let (count, result) = write(memory.lock().bytes_mut(offset + self.done..offset + end));
        self.done += count;
        Some(result)
    }

    fn is_complete(&self) -> bool {
        self.target.as_ref().is_none_or(|span| self.done == span.bytes)
    }
}

/// Why no more frames can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More bytes are needed.
    Hungry,
    /// Something must happen at this end first.
    Stalled,
}

/// What happens with a frame whose header has arrived.
enum Begin {
    Take(Option<Span>),
    Stall,
}

impl SoftQueuePair {
    /// Takes frames from the read-ahead until bytes run out.
    pub(super) fn digest(&mut self, landings: &mut dyn Landings) -> Result<Step, Fault> {
        loop {
            if self.arriving.is_none() {
                let Some(bytes) = self.inbox.header() else { return Ok(Step::Hungry) };
                let header =
                    Header::decode(bytes).ok_or_else(|| self.protocol("not a frame header"))?;
                let Begin::Take(target) = self.begin(&header)? else { return Ok(Step::Stalled) };
                self.inbox.skip_header();
                self.arriving = Some(Arriving::new(header, target));
            }
            if !self.take_payload(landings) {
                return Ok(Step::Hungry);
            }
            if let Some(Arriving { header, goes, .. }) = self.arriving.take() {
                if goes == Goes::Elsewhere {
                    landings.landed(header.immediate);
                }
                self.finish(&header)?;
            }
        }
    }

    /// Moves what was read ahead to its place; tells whether the payload is complete.
    fn take_payload(&mut self, landings: &mut dyn Landings) -> bool {
        let Some(arriving) = &mut self.arriving else { return true };
        while !self.inbox.is_empty() && !arriving.is_complete() {
            let taken = arriving.write(landings, |target| (self.inbox.take(target), ()));
            if taken.is_none() {
                return false;
            }
        }
        arriving.is_complete()
    }

    /// Finds the place of the payload, before any of it is taken.
    fn begin(&mut self, header: &Header) -> Result<Begin, Fault> {
        let bytes = header.length as usize;
        match header.kind {
            Kind::Send => self.begin_send(bytes),
            Kind::WriteWithImmediate if self.receives.is_empty() => Ok(Begin::Stall),
            Kind::Write | Kind::WriteWithImmediate if bytes == 0 => Ok(Begin::Take(None)),
            Kind::Write | Kind::WriteWithImmediate => {
                self.reach(header.remote, bytes, Access::WRITE).map(|span| Begin::Take(Some(span)))
            }
            Kind::Read | Kind::CompareAndSwap | Kind::FetchAdd
                if self.outgoing.frames() >= MAX_WAITING_FRAMES =>
            {
                Err(self.protocol("more requests than a queue pair may have outstanding"))
            }
            Kind::ReadResponse => match self.requests.awaited(false) {
                Some(request) if request.bytes == bytes => match &request.answer {
                    Answer::Awaited(span) => Ok(Begin::Take(Some(span.clone()))),
                    Answer::None | Answer::Received => Ok(Begin::Take(None)),
                },
                Some(_) | None => Err(self.protocol("an answer to a read that was not posted")),
            },
            Kind::Read
            | Kind::CompareAndSwap
            | Kind::FetchAdd
            | Kind::AtomicResponse
            | Kind::Acknowledge
            | Kind::Refuse => Ok(Begin::Take(None)),
        }
    }

    fn begin_send(&mut self, bytes: usize) -> Result<Begin, Fault> {
        let Some(receive) = self.receives.front() else { return Ok(Begin::Stall) };
        let room = receive.target.as_ref().map_or(0, |span| span.bytes);
        if bytes <= room {
            let target = receive.target.as_ref().map(|span| Span { bytes, ..span.clone() });
            return Ok(Begin::Take(target));
        }
        self.complete_receive(Opcode::Receive, Status::LocalLength, bytes, None);
        let text = format!("{}: a message of {bytes} bytes for {room}", self.path());
        Err(refusal(Status::RemoteInvalidRequest, text))
    }

    /// The memory the peer names, if it may use it so.
    fn reach(&self, remote: RemoteAddress, bytes: usize, wanted: Access) -> Result<Span, Fault> {
        self.table.remote(remote, bytes, wanted).ok_or_else(|| {
            let text = format!(
                "{}: no access to {bytes} bytes at {:#x} of {:?}",
                self.path(),
                remote.address,
                remote.key
            );
            refusal(Status::RemoteAccess, text)
        })
    }

    /// Executes a frame whose payload is in place.
    fn finish(&mut self, header: &Header) -> Result<(), Fault> {
        let bytes = header.length as usize;
        match header.kind {
            Kind::Send => self.complete_receive(Opcode::Receive, Status::Success, bytes, None),
            Kind::WriteWithImmediate => {
                let opcode = Opcode::ReceiveWriteWithImmediate;
                self.complete_receive(opcode, Status::Success, bytes, Some(header.immediate));
            }
            Kind::Read => self.answer_read(header)?,
            Kind::CompareAndSwap | Kind::FetchAdd => self.answer_atomic(header)?,
            Kind::ReadResponse => self.answered(false, None)?,
            Kind::AtomicResponse => self.answered(true, Some(header.operands[0]))?,
            Kind::Write | Kind::Acknowledge | Kind::Refuse => {}
        }
        if header.kind.is_operation() {
            self.executed.unreported_bytes += u64::from(header.length);
            self.executed.unreported_frames += 1;
            if !matches!(header.kind, Kind::Read | Kind::CompareAndSwap | Kind::FetchAdd) {
                self.executed.operations += 1;
            }
        }
        if let Some(rider) = header.rider() {
            let span = self.reach(rider.target, rider.word.len(), Access::WRITE)?;
            span.memory.write(span.offset, &rider.word);
            self.executed.operations += 1;
        }
        if self.is_fencing {
            return Ok(());
        }
        self.requests
            .acknowledge(header.acknowledged, &mut self.ready)
            .ok_or_else(|| self.protocol("an acknowledgement of what was not posted"))?;
        if header.kind == Kind::Refuse {
            return Err(self.refused(header));
        }
        Ok(())
    }

    fn complete_receive(
        &mut self,
        opcode: Opcode,
        status: Status,
        bytes: usize,
        immediate: Option<u32>,
    ) {
        let receive = self.receives.pop_front().expect("the frame was begun with a receive posted");
        self.ready.push(Completion { id: receive.id, status, opcode, bytes, immediate });
    }

    /// The answer counts as executed the request it answers, so the count goes up before it is made.
    fn answer_read(&mut self, header: &Header) -> Result<(), Fault> {
        let bytes = header.length as usize;
        let payload = match bytes {
            0 => None,
            _ => Some(self.reach(header.remote, bytes, Access::READ)?),
        };
        self.executed.operations += 1;
        self.push(Header::new(Kind::ReadResponse, bytes), payload);
        Ok(())
    }

    fn answer_atomic(&mut self, header: &Header) -> Result<(), Fault> {
        let span = self.reach(header.remote, 8, Access::ATOMIC)?;
        if !span.offset.is_multiple_of(8) {
            let text = format!("{}: an atomic on an unaligned word", self.path());
            return Err(refusal(Status::RemoteInvalidRequest, text));
        }
        let old = {
            let mut locked = span.memory.lock();
            let word = locked.bytes_mut(span.offset..span.offset + 8);
            let old = u64::from_le_bytes((&*word).try_into().expect("a word has 8 bytes"));
            word.copy_from_slice(&updated(header, old).to_le_bytes());
            old
        };
        self.executed.operations += 1;
        let response = Header { operands: [old, 0], ..Header::new(Kind::AtomicResponse, 0) };
        self.push(response, None);
        Ok(())
    }

    /// Notes that the oldest request that waits for an answer has it.
    fn answered(&mut self, atomic: bool, result: Option<u64>) -> Result<(), Fault> {
        let Some(request) = self.requests.awaited(atomic) else {
            return Err(self.protocol("an answer to what was not asked"));
        };
        let answer = std::mem::replace(&mut request.answer, Answer::Received);
        if let (Answer::Awaited(span), Some(word)) = (answer, result) {
            span.memory.store(span.offset, word);
        }
        Ok(())
    }

    fn refused(&self, header: &Header) -> Fault {
        let (status, text) = match header.operands[0] {
            1 => (Status::RemoteAccess, "the peer refused access to its memory"),
            _ => (Status::RemoteInvalidRequest, "the peer cannot take the message"),
        };
        let cause = TransportError::Refused(format!("{}: {text}", self.path()));
        Fault { culprit: Culprit::Oldest, status, cause, refusal: None }
    }
}

fn updated(header: &Header, old: u64) -> u64 {
    let [first, second] = header.operands;
    if header.kind == Kind::FetchAdd {
        return old.wrapping_add(first);
    }
    if old == first { second } else { old }
}

/// The peer asked for something it must not have.
fn refusal(reason: Status, text: String) -> Fault {
    Fault {
        culprit: Culprit::None,
        status: Status::Flushed,
        cause: TransportError::Protocol(text),
        refusal: Some(reason),
    }
}
