//! Does what the machine says: posts on the rails, under the names that memory has there.

use ccl_core::failover::queue::{Descriptor, Input, Kind, Output, Sequence};

use super::super::{Operation, RemoteAddress, Segment, State, Status, WorkRequest};
use super::queue_pair::VirtualQp;
use super::rail::{Pending, Table, Unnamed, rename};
use crate::TransportError;

impl VirtualQp {
    pub(super) fn perform(&mut self, output: Output) {
        if self.state == State::Error {
            return;
        }
        match output {
            Output::Post { rail, sequence, entry } => {
                let Some(request) = self.request(sequence) else { return };
                let pending = Pending::Request { sequence, request, entry };
                self.rails[rail.index()].pending.push_back(pending);
                self.post_pending(rail.index());
            }
            Output::Step { rail, sequence, step } => {
                let Some(request) = self.request(sequence) else { return };
                let Some(target) = word(request) else { return };
                if self.shared.keys.result(request.operation.segment()).is_none() {
                    return self.refuse(Some(sequence), Status::LocalProtection);
                }
                let pending = Pending::Step { sequence, target, step };
                self.rails[rail.index()].pending.push_back(pending);
                self.post_pending(rail.index());
            }
            Output::ReadLog(rail) => {
                self.rails[rail.index()].pending.push_back(Pending::ReadLog);
                self.post_pending(rail.index());
            }
            Output::PostReceive { rail, receive } => self.repost_receive(rail.index(), receive),
            Output::Fence(rail) => self.rails[rail.index()].fence(),
            Output::Revive(rail) => {
                self.rails[rail.index()].reset();
                self.seek();
            }
            Output::Say(rail, message) => {
                self.rails[rail.index()].mail.unsent.push_back(message);
                self.rails[rail.index()].send_mail();
            }
            Output::Complete { sequence, result } => self.complete(sequence, result),
            Output::Dead(cause) => self.end(cause),
        }
    }

    fn request(&self, sequence: Sequence) -> Option<WorkRequest> {
        let index = sequence.0.checked_sub(self.first_request)?;
        self.requests.get(usize::try_from(index).ok()?).copied()
    }

    fn repost_receive(&mut self, rail: usize, receive: Sequence) {
        let index = receive.0.checked_sub(self.first_receive).map(|index| index as usize);
        let Some(request) = index.and_then(|index| self.receives.get(index)) else { return };
        let target = match request.target {
            Some(target) if rail > 0 => {
                let Some(key) = self.shared.keys.local(rail, target.key) else {
                    return self.refuse(None, Status::LocalProtection);
                };
                Some(Segment { key, ..target })
            }
            target => target,
        };
        if let Err(cause) = self.rails[rail].post_receive(receive, target) {
            self.fault.get_or_insert(TransportError::system("post a receive", cause));
            self.refuse(None, Status::LocalProtection);
        }
    }

    /// Posts what waits on a rail, as far as the keys of the peer are known there.
    pub(super) fn post_pending(&mut self, rail: usize) {
        while let Some(&pending) = self.rails[rail].pending.front() {
            let renamed = match pending {
                Pending::Request { request, .. } => self.rename(rail, request.operation),
                Pending::Step { target, .. } => self.rename_word(rail, target),
                Pending::ReadLog => Ok(None),
            };
            let sequence = match pending {
                Pending::Request { sequence, .. } | Pending::Step { sequence, .. } => {
                    Some(sequence)
                }
                Pending::ReadLog => None,
            };
            match renamed {
                Err(Unnamed::Local) => return self.refuse(sequence, Status::LocalProtection),
                Err(Unnamed::Remote) => return self.look_up(rail, sequence),
                Ok(operation) => {
                    self.rails[rail].pending.pop_front();
                    self.post_renamed(rail, pending, operation);
                }
            }
        }
    }

    fn post_renamed(&mut self, rail: usize, pending: Pending, operation: Option<Operation>) {
        let end = &mut self.rails[rail];
        match (pending, operation) {
            (Pending::Request { sequence, request, entry }, Some(operation)) => {
                end.gather_request(sequence, WorkRequest { operation, ..request }, entry);
            }
            (Pending::Step { step, .. }, Some(Operation::FetchAdd { target, .. })) => {
                end.post_step(target, step);
            }
            (Pending::ReadLog, None) => end.read_log(),
            (pending, operation) => panic!("{pending:?} became {operation:?}"),
        }
    }

    fn rename(&self, rail: usize, operation: Operation) -> Result<Option<Operation>, Unnamed> {
        if rail == 0 {
            return Ok(Some(operation));
        }
        let Table::Read(table) = &self.rails[rail].table else { return Err(Unnamed::Remote) };
        let local = |key| self.shared.keys.local(rail, key);
        rename(operation, local, |target| table.translate(target)).map(Some)
    }

    /// The word of an atomic under its name on a rail, in an operation whose other fields mean
    /// nothing.
    fn rename_word(
        &self,
        rail: usize,
        target: RemoteAddress,
    ) -> Result<Option<Operation>, Unnamed> {
        let named = match &self.rails[rail].table {
            _ if rail == 0 => Some(target),
            Table::Read(table) => table.translate(target),
            Table::Unread | Table::Reading => None,
        };
        let target = named.ok_or(Unnamed::Remote)?;
        let result = self.rails[rail].region().segment(0, 0);
        Ok(Some(Operation::FetchAdd { result, target, addend: 0 }))
    }

    /// Reads the keys of the peer, once for each request that names an unknown one.
    fn look_up(&mut self, rail: usize, sequence: Option<Sequence>) {
        let end = &mut self.rails[rail];
        match end.table {
            Table::Reading => {}
            Table::Unread => end.read_table(),
            Table::Read(_) if end.looked_up == sequence => {
                self.refuse(sequence, Status::RemoteAccess);
            }
            Table::Read(_) => {
                end.looked_up = sequence;
                end.read_table();
            }
        }
    }

    pub(super) fn refuse(&mut self, sequence: Option<Sequence>, status: Status) {
        if let Some(sequence) = sequence {
            self.refusal.get_or_insert((sequence, status));
        }
        self.feed(Input::Refused(sequence));
    }
}

/// The word that an atomic works on.
fn word(request: WorkRequest) -> Option<RemoteAddress> {
    match request.operation {
        Operation::CompareAndSwap { target, .. } | Operation::FetchAdd { target, .. } => {
            Some(target)
        }
        Operation::Send { .. }
        | Operation::Write { .. }
        | Operation::WriteWithImmediate { .. }
        | Operation::Read { .. } => None,
    }
}

/// What the machine has to know of a request.
pub(super) fn descriptor(request: &WorkRequest) -> Descriptor {
    let kind = match request.operation {
        Operation::Send { .. } => Kind::Send,
        Operation::Write { .. } => Kind::Write,
        Operation::WriteWithImmediate { .. } => Kind::WriteWithImmediate,
        Operation::Read { .. } => Kind::Read,
        Operation::CompareAndSwap { expected, new, .. } => Kind::CompareAndSwap { expected, new },
        Operation::FetchAdd { addend, .. } => Kind::FetchAdd { addend },
    };
    let bytes = request.operation.segment().bytes as u64;
    Descriptor { kind, bytes, signalled: request.signalled }
}
