//! One end of a queue pair of one device.

use std::time::Duration;

use ccl_transport::TransportError;
use ccl_transport::verbs::{Completion, Opcode, QueuePair, State, Status};

/// Polls in vain before the kernel is asked how long the host of the peer has been silent.
const POLLS_PER_LOOK: u32 = 256;

/// A queue pair of one device, which ends with its rail.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) pair: Box<dyn QueuePair>,
    idle_polls: u32,
    /// Why this end was given up, where the device does not know.
    fault: Option<TransportError>,
    /// The oldest request has still to be told what happened.
    has_verdict: bool,
}

impl Plain {
    pub(super) fn new(pair: Box<dyn QueuePair>) -> Self {
        Self { pair, idle_polls: 0, fault: None, has_verdict: false }
    }

    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>) -> bool {
        let before = completions.len();
        let moved = self.pair.poll(completions);
        let is_request = |completion: &&mut Completion| {
            let opcode = completion.opcode;
            !matches!(opcode, Opcode::Receive | Opcode::ReceiveWriteWithImmediate)
        };
        if self.has_verdict
            && let Some(oldest) = completions[before..].iter_mut().find(is_request)
        {
            oldest.status = Status::RetryExceeded;
            self.has_verdict = false;
        }
        moved
    }

    /// Counts polls in vain; tells whether it is time to look around.
    pub(super) fn has_been_idle(&mut self, moved: bool) -> bool {
        self.idle_polls = if moved { 0 } else { self.idle_polls + 1 };
        self.idle_polls >= POLLS_PER_LOOK
    }

    pub(super) fn fault(&self) -> Option<&TransportError> {
        self.fault.as_ref().or_else(|| self.pair.fault())
    }

    pub(super) fn needs_poll(&self) -> bool {
        self.pair.needs_poll() || self.has_verdict
    }

    pub(super) fn give_up(&mut self, fault: TransportError) {
        if self.pair.state() == State::ReadyToSend {
            self.fault = Some(fault);
            self.has_verdict = true;
            self.pair.fail();
        }
    }

    /// Does what a NIC does that has repeated itself in vain.
    pub(super) fn look_around(&mut self, limit: Duration) {
        self.idle_polls = 0;
        self.pair.look_at_nic();
        let silence = self.pair.silence().map(|silence| silence.beyond_repetition());
        if let Some(silence) = silence.filter(|silence| *silence > limit) {
            let text = format!("its host has confirmed nothing for {silence:.1?}");
            self.give_up(TransportError::TimedOut(text));
        }
    }
}
