//! How a queue pair ends: what failed, and when everything has come back from the device.

use std::time::{Duration, Instant};

use super::super::{Completion, State, Status};
use super::connect::Stage;
use super::hello::Farewell;
use super::queue_pair::IbQueuePair;
use super::sys::Outcome;
use crate::{TransportError, clock};

/// How long the device may take to give everything back.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// How long this end's device may take to say what that of the peer has refused: longer than until it gives
/// up on a peer that does not answer.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Everything is coming back.
#[derive(Debug)]
pub(super) struct Drain {
    /// What the oldest operation that comes back is told.
    verdict: Option<Status>,
    /// Whether it is known why; otherwise the device may still say so.
    is_explained: bool,
    until: Instant,
}

impl IbQueuePair {
    /// Goes to the error state. The oldest operation gets the verdict, everything else is flushed.
    pub(super) fn break_down(
        &mut self,
        verdict: Option<Status>,
        fault: TransportError,
        farewell: Farewell,
    ) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.fault = Some(fault);
        self.parting = None;
        let is_explained = farewell != Farewell::Unexplained;
        self.drain = Some(Drain { verdict, is_explained, until: clock::now() + DRAIN_LIMIT });
        if let Some(endpoint) = &self.endpoint
            && let Err(reason) = endpoint.fail()
        {
            tracing::debug!(%reason, "a queue pair that is given up");
        }
        self.say_farewell(farewell);
    }

    /// The operation that would be the next for the device does not go there.
    pub(super) fn refuse_next(&mut self, status: Status, fault: TransportError) {
        if let Some((_, sent)) = self.sends.unposted() {
            sent.doomed = Some(status);
        }
        self.break_down(None, fault, Farewell::Lost);
    }

    /// What an operation is told that the device gives back as failed.
    pub(super) fn send_failed(&mut self, outcome: &Outcome) -> Status {
        let (status, explanation) = match outcome {
            Outcome::Success => (Status::Success, None),
            Outcome::Flushed => (Status::Flushed, None),
            Outcome::LocalLength => (Status::LocalLength, Some("a message is too long")),
            Outcome::LocalProtection => {
                (Status::LocalProtection, Some("the device may not use memory at this end"))
            }
            Outcome::RemoteInvalidRequest => {
                (Status::RemoteInvalidRequest, Some("the peer cannot take a message"))
            }
            Outcome::RemoteAccess => {
                (Status::RemoteAccess, Some("the peer's memory is not registered for an operation"))
            }
            Outcome::LocalOperation | Outcome::Lost(_) => (Status::RetryExceeded, None),
        };
        let gone = |reason| TransportError::PeerGone(format!("{}: {reason}", self.path()));
        let fault = match (outcome, explanation) {
            (Outcome::Lost(reason), _) => gone(reason.as_str()),
            (Outcome::LocalOperation, _) => gone("the device cannot do an operation"),
            (_, Some(text)) => TransportError::Refused(format!("{}: {text}", self.path())),
            (_, None) => return self.flushed_by_the_device(),
        };
        self.explain(fault);
        status
    }

    /// What a receive is told that the device gives back as failed.
    pub(super) fn receive_failed(&mut self, outcome: &Outcome) -> Status {
        let (status, text) = match outcome {
            // The second is what soft-RoCE says.
            Outcome::LocalLength | Outcome::LocalOperation => {
                (Status::LocalLength, "a message is longer than its receive")
            }
            Outcome::LocalProtection => {
                (Status::LocalProtection, "the device may not use the memory of a receive")
            }
            Outcome::Success
            | Outcome::Flushed
            | Outcome::RemoteInvalidRequest
            | Outcome::RemoteAccess
            | Outcome::Lost(_) => {
                if self.state != State::Error {
                    self.give_up_unexplained(Some(Status::RetryExceeded));
                }
                return Status::Flushed;
            }
        };
        self.explain(TransportError::Refused(format!("{}: {text}", self.path())));
        status
    }

    /// The device says why. That counts more than what was guessed before.
    fn explain(&mut self, fault: TransportError) {
        match &mut self.drain {
            Some(drain) if !drain.is_explained => {
                (drain.is_explained, drain.verdict) = (true, None);
                self.fault = Some(fault);
            }
            Some(drain) => drain.verdict = None,
            None => {
                let is_refusal = matches!(fault, TransportError::Refused(_));
                let farewell = if is_refusal { Farewell::Refused } else { Farewell::Lost };
                self.break_down(None, fault, farewell);
            }
        }
    }

    fn flushed_by_the_device(&mut self) -> Status {
        match &mut self.drain {
            Some(drain) => drain.verdict.take().unwrap_or(Status::Flushed),
            // A port that goes down lets some devices give everything back without a reason.
            None => {
                self.give_up_unexplained(None);
                Status::RetryExceeded
            }
        }
    }

    fn give_up_unexplained(&mut self, verdict: Option<Status>) {
        let text = format!("{}: the device took the queue pair to its error state", self.path());
        self.break_down(verdict, TransportError::PeerGone(text), Farewell::Unexplained);
    }

    /// Whether the address that this end was connected with is still that of its port.
    pub(super) fn has_its_address(&self) -> bool {
        match self.address {
            Some((index, gid)) => self.domain.has_address(index, gid),
            None => true,
        }
    }

    /// Finishes when everything has come back, or has had time to: then nothing can be executed any
    /// more, because the queue pair of the device is destroyed.
    pub(super) fn continue_draining(&mut self) -> bool {
        let Some(drain) = &self.drain else { return false };
        let is_back = self.sends.posted == 0 && self.receives.posted == 0;
        if !is_back && self.endpoint.is_some() && clock::now() < drain.until {
            return false;
        }
        if !is_back {
            tracing::warn!(
                device = self.domain.name(),
                "a queue pair does not give everything back"
            );
        }
        self.give_endpoint_back();
        self.stage = Stage::Idle;
        let mut verdict = self.drain.take().and_then(|drain| drain.verdict);
        while let Some(sent) = self.sends.pop() {
            let status = sent.doomed.or(verdict.take()).unwrap_or(Status::Flushed);
            self.ready.push(Completion::of(&sent.request, status));
        }
        while let Some(request) = self.receives.pop() {
            self.ready.push(Completion::flushed_receive(request.id));
        }
        (self.sends.posted, self.receives.posted) = (0, 0);
        true
    }
}
