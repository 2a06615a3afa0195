//! From a fault to the moment when requests flow again.

use super::message::Message;
use super::rails::Health;
use super::{Cause, DEFAULT, Evidence, LogEntry, MAX_EPOCH, Output, Queue, SendSignal};
use crate::ids::{Epoch, Rail, Timestamp};

/// What a queue is doing. A repair remembers when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the peer on the default rail.
    Starting,
    /// Requests flow.
    Running,
    /// The active rail has failed, and is being drained.
    Fencing { since: Timestamp, resume: Option<Resume> },
    /// The leader has no rail; the follower waits to be told one.
    Waiting { since: Timestamp },
    /// The leader has said which rail is next.
    Proposed { since: Timestamp, asked: Timestamp },
    /// The log is being read.
    Reading { since: Timestamp, asked: Timestamp },
    /// Over.
    Dead(Cause),
}

/// What the leader said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    rail: Rail,
    epoch: Epoch,
    delivered: u64,
}

impl Phase {
    /// Whether receives go to the active rail at once.
    pub(super) fn takes_receives(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Proposed { .. } | Self::Reading { .. } => true,
            Self::Fencing { .. } | Self::Waiting { .. } | Self::Dead(_) => false,
        }
    }

    /// When the repair that is going on began.
    fn since(self) -> Option<Timestamp> {
        match self {
            Self::Starting | Self::Running | Self::Dead(_) => None,
            Self::Fencing { since, .. }
            | Self::Waiting { since }
            | Self::Proposed { since, .. }
            | Self::Reading { since, .. } => Some(since),
        }
    }
}

impl Queue {
    fn leads(&self) -> bool {
        self.leads == Some(true)
    }

    pub(super) fn joined(&mut self, now: Timestamp, rail: Rail, out: &mut Vec<Output>) {
        self.rails.joined(rail, now);
        match self.phase {
            Phase::Starting if rail == DEFAULT => self.phase = Phase::Running,
            Phase::Waiting { since } if self.leads() => self.propose(now, since, out),
            Phase::Waiting { .. } => out.push(Output::Say(rail, Message::Suspect(self.epoch))),
            Phase::Starting
            | Phase::Running
            | Phase::Fencing { .. }
            | Phase::Proposed { .. }
            | Phase::Reading { .. }
            | Phase::Dead(_) => {}
        }
    }

    pub(super) fn failed(&mut self, now: Timestamp, rail: Rail, out: &mut Vec<Output>) {
        if rail == self.active && self.expects_leave() {
            return self.leave(now, out);
        }
        if self.rails.failed(rail) {
            self.fence(now, rail, out);
        }
    }

    /// Leaves the rail in use, which has not failed, so that it need not wait longer each time to come back.
    pub(super) fn leave(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if self.rails.is_up(self.active) {
            self.rails.left(self.active);
            self.fence(now, self.active, out);
        }
    }

    fn fence(&mut self, now: Timestamp, rail: Rail, out: &mut Vec<Output>) {
        out.push(Output::Fence(rail));
        let is_in_use = match self.phase {
            Phase::Waiting { .. } | Phase::Fencing { .. } | Phase::Dead(_) => false,
            Phase::Starting | Phase::Running | Phase::Proposed { .. } | Phase::Reading { .. } => {
                rail == self.active
            }
        };
        if is_in_use {
            let since = self.phase.since().unwrap_or(now);
            self.phase = Phase::Fencing { since, resume: None };
        }
    }

    pub(super) fn drained(&mut self, now: Timestamp, rail: Rail, out: &mut Vec<Output>) {
        self.rails.fenced(rail, now, self.limits.retry_ns);
        if rail != self.active {
            return;
        }
        let Phase::Fencing { since, resume } = self.phase else { return };
        if self.evidence != Evidence::Log
            && let Some(sequence) = self.window.outstanding_atomic()
        {
            return self.die(Cause::AtomicOutstanding(sequence), out);
        }
        self.window.withdraw();
        if let Some(atomic) = &mut self.atomic {
            atomic.is_interrupted = true;
        }
        self.phase = Phase::Waiting { since };
        match resume {
            Some(resume) => self.accept(now, since, resume, out),
            None if self.leads() => self.propose(now, since, out),
            None => self.complain(now, out),
        }
    }

    /// The follower lets the leader know, wherever that may be heard.
    fn complain(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        for rail in self.rails.up() {
            out.push(Output::Say(rail, Message::Suspect(self.epoch)));
        }
        self.give_up_in_time(now, out);
    }

    fn propose(&mut self, now: Timestamp, since: Timestamp, out: &mut Vec<Output>) {
        let Some(rail) = self.rails.up().next() else { return self.give_up_in_time(now, out) };
        if self.epoch.0 == MAX_EPOCH {
            return self.die(Cause::NumbersUsedUp, out);
        }
        self.epoch = Epoch(self.epoch.0 + 1);
        self.active = rail;
        self.phase = Phase::Proposed { since, asked: now };
        self.post_receives(out);
        let (epoch, delivered) = (self.epoch, self.receives.delivered);
        out.push(Output::Say(rail, Message::Resume { epoch, delivered }));
    }

    pub(super) fn heard(
        &mut self,
        now: Timestamp,
        rail: Rail,
        message: Message,
        out: &mut Vec<Output>,
    ) {
        match message {
            Message::Suspect(epoch) if self.leads() && epoch == self.epoch => {
                self.failed(now, self.active, out);
            }
            Message::Resume { epoch, delivered } if !self.leads() && epoch > self.epoch => {
                self.resume(now, Resume { rail, epoch, delivered }, out);
            }
            Message::Accept { epoch, delivered } if epoch == self.epoch => {
                if let Phase::Proposed { since, .. } = self.phase
                    && rail == self.active
                {
                    self.weigh(now, since, delivered, out);
                }
            }
            Message::Return(_) | Message::Drained(_) | Message::Stay(_) => {
                self.heard_about_return(now, message);
            }
            Message::Suspect(_) | Message::Resume { .. } | Message::Accept { .. } => {}
        }
    }

    /// The leader has chosen a rail. It has fenced the old one; this end must have done so too.
    fn resume(&mut self, now: Timestamp, resume: Resume, out: &mut Vec<Output>) {
        match self.phase {
            Phase::Waiting { since } => self.accept(now, since, resume, out),
            Phase::Fencing { since, .. } => {
                self.phase = Phase::Fencing { since, resume: Some(resume) };
            }
            Phase::Starting | Phase::Running | Phase::Proposed { .. } | Phase::Reading { .. } => {
                self.failed(now, self.active, out);
                let since = self.phase.since().unwrap_or(now);
                self.phase = Phase::Fencing { since, resume: Some(resume) };
            }
            Phase::Dead(_) => {}
        }
    }

    fn accept(&mut self, now: Timestamp, since: Timestamp, resume: Resume, out: &mut Vec<Output>) {
        if !self.rails.is_up(resume.rail) {
            return self.complain(now, out);
        }
        (self.epoch, self.active) = (resume.epoch, resume.rail);
        self.post_receives(out);
        let (epoch, delivered) = (self.epoch, self.receives.delivered);
        out.push(Output::Say(self.active, Message::Accept { epoch, delivered }));
        self.weigh(now, since, resume.delivered, out);
    }

    /// Both ends have fenced the old rail: finds out what has been executed.
    fn weigh(&mut self, now: Timestamp, since: Timestamp, delivered: u64, out: &mut Vec<Output>) {
        match self.evidence {
            Evidence::Resend => self.run(),
            Evidence::Handshake => {
                self.counters.spared += self.window.delivered(delivered);
                self.run();
            }
            Evidence::Log => {
                self.counters.spared += self.window.delivered(delivered);
                self.phase = Phase::Reading { since, asked: now };
                out.push(Output::ReadLog(self.active));
            }
        }
        self.complete(out);
    }

    pub(super) fn read_log(&mut self, rail: Rail, words: &[u64], out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Reading { .. }) || rail != self.active {
            return;
        }
        let logged = words.iter().filter_map(|&word| LogEntry(word).sequence(self.epoch)).max();
        if let Some(sequence) = logged {
            self.counters.spared += self.window.logged(sequence);
        }
        self.run();
        self.complete(out);
    }

    fn run(&mut self) {
        self.phase = Phase::Running;
        self.counters.repairs += 1;
        self.returning = None;
        let is_default = self.active == DEFAULT;
        let signal = if is_default { SendSignal::OnDefault } else { SendSignal::OnBackup };
        self.sending = self.sending.after(signal);
    }

    /// When to call [`Queue::handle`] with [`Input::Tick`](super::Input::Tick), if nothing happens
    /// before.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let retry = self.rails.next_retry();
        [self.phase_deadline(), retry, self.return_deadline()].into_iter().flatten().min()
    }

    fn phase_deadline(&self) -> Option<Timestamp> {
        let end = |since: Timestamp| since.after(self.limits.repair_ns);
        match self.phase {
            Phase::Starting | Phase::Running | Phase::Dead(_) => None,
            Phase::Fencing { since, .. } => Some(end(since)),
            Phase::Waiting { since } if self.rails.up().next().is_none() => {
                Some(since.after(self.limits.patience_ns).min(end(since)))
            }
            Phase::Waiting { since } => Some(end(since)),
            Phase::Proposed { since, asked } | Phase::Reading { since, asked } => {
                let has_other = self.rails.up().any(|rail| rail != self.active);
                let answer = has_other.then(|| asked.after(self.limits.answer_ns));
                Some(answer.unwrap_or(end(since)).min(end(since)))
            }
        }
    }

    pub(super) fn tick(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        self.give_up_in_time(now, out);
        if matches!(self.phase, Phase::Dead(_)) {
            return;
        }
        self.rails.revive(now, |rail| out.push(Output::Revive(rail)));
    }

    fn give_up_in_time(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if self.phase_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let is_over = |since: Timestamp| since.after(self.limits.repair_ns) <= now;
        match self.phase {
            Phase::Waiting { .. } if self.rails.up().next().is_none() => {
                self.die(Cause::NoRail, out);
            }
            Phase::Proposed { since, .. } | Phase::Reading { since, .. } if !is_over(since) => {
                self.failed(now, self.active, out);
            }
            Phase::Waiting { .. }
            | Phase::Fencing { .. }
            | Phase::Proposed { .. }
            | Phase::Reading { .. } => self.die(Cause::NoAnswer, out),
            Phase::Starting | Phase::Running | Phase::Dead(_) => {}
        }
    }

    /// Since when the default rail could be used again.
    pub(super) fn default_is_up_since(&self) -> Option<Timestamp> {
        match self.rails.health(DEFAULT) {
            Health::Up { since } => Some(since),
            Health::Absent | Health::Fencing | Health::Down { .. } => None,
        }
    }
}
