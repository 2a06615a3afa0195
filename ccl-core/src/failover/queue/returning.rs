//! Back to the default rail, without a fault.
//!
//! Both ends withhold requests behind a signalled one and wait until nothing is outstanding. Then
//! the leader fences the backup, with nothing to lose, and a repair with an empty window chooses the
//! default rail. If an end does not get there in time, the leader gives up until later: what is
//! outstanding may wait for a receive that the peer posts only after it has been sent something.

use super::message::Message;
use super::repair::Phase;
use super::{Output, Queue, SendSignal, SendState};
use crate::ids::Timestamp;

/// A return that is going on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returning {
    round: u64,
    /// When it is given up.
    until: Timestamp,
    is_drained: bool,
    is_peer_drained: bool,
}

impl Queue {
    /// Whether the execution fence holds requests back.
    pub(super) fn withholds(&self) -> bool {
        self.sending == SendState::WaitDrained
    }

    /// Whether the leader leaves the active rail for the default one as soon as it can: that is no fault of
    /// the rail, however this end hears of it.
    pub(super) fn expects_leave(&self) -> bool {
        let is_drained = self.returning.is_some_and(|returning| returning.is_drained);
        self.leads == Some(false) && is_drained
    }

    pub(super) fn return_deadline(&self) -> Option<Timestamp> {
        if self.phase != Phase::Running || self.leads != Some(true) {
            return None;
        }
        match &self.returning {
            Some(returning) => Some(returning.until),
            None if self.sending == SendState::Fallback => Some(self.return_is_due()?),
            None => None,
        }
    }

    fn return_is_due(&self) -> Option<Timestamp> {
        let settled = self.default_is_up_since()?.after(self.limits.settle_ns);
        Some(settled.max(self.not_before))
    }

    pub(super) fn advance_return(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if self.phase != Phase::Running {
            return;
        }
        if self.leads == Some(true) && self.return_deadline().is_some_and(|due| due <= now) {
            match self.returning {
                None => self.begin_return(now, out),
                Some(returning) => return self.abandon(now, returning, out),
            }
        }
        if self.sending == SendState::WaitSignaled && self.window.ends_signalled() {
            self.sending = self.sending.after(SendSignal::FencePosted);
        }
        let Some(returning) = &mut self.returning else { return };
        if !returning.is_drained
            && self.sending == SendState::WaitDrained
            && self.window.is_drained()
        {
            returning.is_drained = true;
            if self.leads == Some(false) {
                out.push(Output::Say(self.active, Message::Drained(returning.round)));
            }
        }
        if returning.is_drained && returning.is_peer_drained {
            self.counters.returns += 1;
            self.returning = None;
            self.leave(now, out);
        }
    }

    fn begin_return(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        self.rounds += 1;
        self.start_round(self.rounds, now);
        out.push(Output::Say(self.active, Message::Return(self.rounds)));
    }

    fn start_round(&mut self, round: u64, now: Timestamp) {
        let until = now.after(self.limits.drain_ns);
        self.returning =
            Some(Returning { round, until, is_drained: false, is_peer_drained: false });
        self.sending = self.sending.after(SendSignal::Return);
    }

    fn abandon(&mut self, now: Timestamp, returning: Returning, out: &mut Vec<Output>) {
        self.returning = None;
        self.sending = self.sending.after(SendSignal::Abandon);
        self.not_before = now.after(self.limits.settle_ns);
        out.push(Output::Say(self.active, Message::Stay(returning.round)));
        self.post_waiting(out);
    }

    pub(super) fn heard_about_return(&mut self, now: Timestamp, message: Message) {
        if self.phase != Phase::Running {
            return;
        }
        match (message, &mut self.returning) {
            (Message::Return(round), _) if self.leads == Some(false) => {
                self.start_round(round, now);
            }
            (Message::Drained(round), Some(returning)) if returning.round == round => {
                returning.is_peer_drained = true;
            }
            (Message::Stay(_), _) if self.leads == Some(false) => {
                self.returning = None;
                self.sending = self.sending.after(SendSignal::Abandon);
            }
            _ => {}
        }
    }
}
