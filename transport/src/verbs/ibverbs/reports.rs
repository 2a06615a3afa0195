//! What the device reports of operations and receives.

use super::super::{Completion, Opcode, ReceiveRequest, Status, WorkRequest};
use super::hello::Farewell;
use super::queue_pair::{IbQueuePair, RECEIVE};
use super::sys::{Outcome, Reported};
use crate::TransportError;

impl IbQueuePair {
    /// Takes what the device reports; tells whether anything came.
    pub(super) fn take_reports(&mut self) -> bool {
        let Some(endpoint) = &self.endpoint else { return false };
        let mut reported = std::mem::take(&mut self.reported);
        let polled = endpoint.poll(&mut reported);
        for report in reported.drain(..) {
            self.take(report);
        }
        self.reported = reported;
        polled.unwrap_or_else(|cause| {
            let fault = TransportError::system(format!("poll {}", self.domain.name()), cause);
            self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
            true
        })
    }

    fn take(&mut self, report: Reported) {
        let number = report.id & !RECEIVE;
        let known = if report.id & RECEIVE == 0 {
            self.sends.pass_over(number, |sent| !sent.is_reported);
            self.sends.take_back(number).map(|sent| self.sent(sent.request, &report))
        } else {
            self.receives.take_back(number).map(|request| self.received(request, &report))
        };
        if known.is_none() {
            let cause = format!("it reports {report:?}, which is not the oldest");
            let fault = TransportError::system(format!("poll {}", self.domain.name()), cause);
            self.break_down(Some(Status::RetryExceeded), fault, Farewell::Lost);
        }
    }

    fn sent(&mut self, request: WorkRequest, report: &Reported) {
        if report.outcome != Outcome::Success {
            let status = self.send_failed(&report.outcome);
            self.ready.push(Completion::of(&request, status));
        } else if request.signalled {
            self.ready.push(Completion::of(&request, Status::Success));
        }
    }

    fn received(&mut self, ReceiveRequest { id, target }: ReceiveRequest, report: &Reported) {
        if report.outcome != Outcome::Success {
            let status = self.receive_failed(&report.outcome);
            return self.ready.push(Completion { status, ..Completion::flushed_receive(id) });
        }
        let (status, bytes, immediate) = (Status::Success, report.bytes, report.immediate);
        // A ledger was written by the peer, which may say anything there.
        if immediate.is_none() && bytes > target.map_or(0, |segment| segment.bytes) {
            self.broke_the_protocol("it reports a message that is longer than its receive");
            return self.ready.push(Completion::flushed_receive(id));
        }
        let opcode = match immediate {
            Some(_) => Opcode::ReceiveWriteWithImmediate,
            None => Opcode::Receive,
        };
        self.ready.push(Completion { id, status, opcode, bytes, immediate });
    }
}
