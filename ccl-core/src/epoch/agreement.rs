//! The machine: a member, which every rank is, and a coordinator, which one of them is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Ballot, Commit, Input, Message, Output, RESEND_NS, Row, Table};
use crate::ids::{Epoch, Rank, Timestamp};

/// One rank's part in agreeing on epochs.
#[derive(Clone, Debug)]
pub struct Agreement {
    me: Rank,
    ranks: u32,
    /// Who has gone, and after how many collectives; 0 for the dead.
    gone: BTreeMap<Rank, u64>,
    /// Everything heard of anybody's rails, agreed on or not.
    table: Table,
    committed: Commit,
    /// The latest attempt that was answered.
    ballot: Ballot,
    standing: Standing,
    /// What this rank coordinates.
    change: Option<Change>,
    /// Attempts of this rank.
    rounds: u64,
    /// When to repeat what has had no effect yet.
    repeat: Option<Timestamp>,
    /// Messages from this rank to itself.
    own: VecDeque<Message>,
}

/// Whether this rank may start collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Free,
    /// It was told to stop by somebody who knows this epoch, and has not said yet where.
    Stopping {
        known: Epoch,
    },
    Held {
        last: u64,
    },
}

#[derive(Clone, Debug)]
enum Change {
    Preparing { answers: BTreeMap<Rank, Answer> },
    Committing { commit: Commit, done: BTreeSet<Rank> },
}

#[derive(Clone, Debug)]
struct Answer {
    last: u64,
    epoch: Epoch,
    newer: Option<Commit>,
}

impl Agreement {
    /// The part of `me` in a group of `ranks`, none of whose rails has changed yet.
    #[must_use]
    pub fn new(me: Rank, ranks: u32) -> Self {
        Self {
            me,
            ranks,
            gone: BTreeMap::new(),
            table: Table::default(),
            committed: Commit { epoch: Epoch(0), first: 1, table: Table::default() },
            ballot: Ballot::default(),
            standing: Standing::Free,
            change: None,
            rounds: 0,
            repeat: None,
            own: VecDeque::new(),
        }
    }

    /// Takes what happened and appends what is to be done about it.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Rails(row) => {
                self.table.learn(self.me, &row);
                self.report(out);
            }
            Input::Heard { from, message } => self.hear(from, message, out),
            Input::Held { last } => self.stop(last, out),
            Input::Gone { rank, calls } => self.lose(rank, calls, out),
            Input::Tick => {
                if self.repeat.is_some_and(|at| at <= now) {
                    self.repeat = None;
                    self.repeat_everything(out);
                }
            }
        }
        self.settle(out);
        self.repeat = match self.repeat {
            _ if !self.is_waiting() => None,
            Some(at) => Some(at),
            None => Some(now.after(RESEND_NS)),
        };
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.repeat
    }

    /// The latest agreement.
    #[must_use]
    pub fn committed(&self) -> &Commit {
        &self.committed
    }

    /// Whether collectives are held back.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.standing != Standing::Free
    }

    /// Whose word is missing, as far as this rank knows; nobody's if nothing is under way.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<Rank> {
        match &self.change {
            Some(Change::Preparing { answers }) => {
                self.living().filter(|rank| !answers.contains_key(rank)).collect()
            }
            Some(Change::Committing { done, .. }) => {
                self.living().filter(|rank| !done.contains(rank)).collect()
            }
            None if self.is_waiting() => vec![self.coordinator()],
            None => Vec::new(),
        }
    }

    fn hear(&mut self, from: Rank, message: Message, out: &mut Vec<Output>) {
        match message {
            Message::Report { row, held } => {
                self.table.learn(from, &row);
                // A report that is older than the end of this rank's own attempt tells nothing.
                let stuck = held.is_some_and(|ballot| ballot.coordinator != self.me.0);
                if stuck {
                    self.coordinate(out);
                }
            }
            Message::Prepare { ballot, known } => self.prepare(ballot, known, out),
            Message::Answer { ballot, last, epoch, newer, row } => {
                self.table.learn(from, &row);
                if ballot == self.own_ballot()
                    && let Some(Change::Preparing { answers }) = &mut self.change
                {
                    answers.insert(from, Answer { last, epoch, newer });
                }
            }
            Message::Commit { ballot, commit } => self.take(ballot, commit, out),
            Message::Done { ballot } => {
                if ballot == self.own_ballot()
                    && let Some(Change::Committing { done, .. }) = &mut self.change
                {
                    done.insert(from);
                }
            }
        }
    }

    // The member.

    fn prepare(&mut self, ballot: Ballot, known: Epoch, out: &mut Vec<Output>) {
        if ballot < self.ballot || (ballot == self.ballot && self.standing == Standing::Free) {
            return;
        }
        self.ballot = ballot;
        match self.standing {
            Standing::Free => {
                self.standing = Standing::Stopping { known };
                out.push(Output::Hold);
            }
            Standing::Stopping { .. } => self.standing = Standing::Stopping { known },
            Standing::Held { last } => self.answer(last, known, out),
        }
    }

    fn stop(&mut self, last: u64, out: &mut Vec<Output>) {
        if let Standing::Stopping { known } = self.standing {
            self.standing = Standing::Held { last };
            self.answer(last, known, out);
        }
    }

    fn answer(&mut self, last: u64, known: Epoch, out: &mut Vec<Output>) {
        let newer = (self.committed.epoch > known).then(|| self.committed.clone());
        let (ballot, epoch, row) = (self.ballot, self.committed.epoch, self.own_row());
        let message = Message::Answer { ballot, last, epoch, newer, row };
        self.send(Rank(ballot.coordinator), message, out);
    }

    fn take(&mut self, ballot: Ballot, commit: Commit, out: &mut Vec<Output>) {
        if ballot != self.ballot {
            return;
        }
        if let Standing::Held { .. } = self.standing {
            self.table.merge(&commit.table);
            if commit.epoch > self.committed.epoch {
                self.committed = commit.clone();
                out.push(Output::Switch(commit));
            }
            self.standing = Standing::Free;
            out.push(Output::Release);
        }
        self.send(Rank(ballot.coordinator), Message::Done { ballot }, out);
    }

    /// Tells the coordinator what it must know and does not act on.
    fn report(&mut self, out: &mut Vec<Output>) {
        if self.wants_attention() && self.coordinator() != self.me {
            let held = self.is_held().then_some(self.ballot);
            let message = Message::Report { row: self.own_row(), held };
            self.send(self.coordinator(), message, out);
        }
    }

    fn wants_attention(&self) -> bool {
        self.is_held() || self.table.version(self.me) > self.committed.table.version(self.me)
    }

    fn own_row(&self) -> Row {
        self.table.row(self.me).cloned().unwrap_or_else(Row::as_introduced)
    }

    // The coordinator.

    /// Takes every step that is possible now.
    fn settle(&mut self, out: &mut Vec<Output>) {
        loop {
            self.advance(out);
            match self.own.pop_front() {
                Some(message) => self.hear(self.me, message, out),
                None => return,
            }
        }
    }

    fn advance(&mut self, out: &mut Vec<Output>) {
        match &self.change {
            None => {
                let inherited = self.is_held() && self.ballot != self.own_ballot();
                if inherited || self.table != self.committed.table {
                    self.coordinate(out);
                }
            }
            Some(Change::Preparing { answers }) => {
                if self.living().all(|rank| answers.contains_key(&rank)) {
                    let commit = self.decide(answers);
                    let message =
                        Message::Commit { ballot: self.own_ballot(), commit: commit.clone() };
                    self.change = Some(Change::Committing { commit, done: BTreeSet::new() });
                    self.send_to_all(&message, out);
                }
            }
            Some(Change::Committing { done, .. }) => {
                if self.living().all(|rank| done.contains(&rank)) {
                    self.change = None;
                    self.advance(out);
                }
            }
        }
    }

    /// Starts an attempt, if that is this rank's business and none is under way.
    fn coordinate(&mut self, out: &mut Vec<Output>) {
        if self.coordinator() != self.me || self.change.is_some() {
            return;
        }
        self.rounds += 1;
        self.change = Some(Change::Preparing { answers: BTreeMap::new() });
        let message = Message::Prepare { ballot: self.own_ballot(), known: self.committed.epoch };
        self.send_to_all(&message, out);
    }

    /// What all ranks will have in common.
    fn decide(&self, answers: &BTreeMap<Rank, Answer>) -> Commit {
        let newer = answers.values().filter_map(|answer| answer.newer.as_ref());
        let latest = newer
            .chain([&self.committed])
            .max_by_key(|commit| commit.epoch)
            .unwrap_or(&self.committed);
        let behind = answers.values().any(|answer| answer.epoch < latest.epoch);
        let mut table = latest.table.clone();
        table.merge(&self.table);
        if behind || table == latest.table {
            return latest.clone();
        }
        let started = answers.values().map(|answer| answer.last);
        let last = started.chain(self.gone.values().copied()).max().unwrap_or(0);
        Commit { epoch: Epoch(latest.epoch.0 + 1), first: latest.first.max(last + 1), table }
    }

    fn repeat_everything(&mut self, out: &mut Vec<Output>) {
        let (message, missing) = match &self.change {
            None => return self.report(out),
            Some(Change::Preparing { answers }) => {
                let missing: Vec<Rank> =
                    self.living().filter(|rank| !answers.contains_key(rank)).collect();
                let (ballot, known) = (self.own_ballot(), self.committed.epoch);
                (Message::Prepare { ballot, known }, missing)
            }
            Some(Change::Committing { commit, done }) => {
                let missing = self.living().filter(|rank| !done.contains(rank)).collect();
                let commit = commit.clone();
                (Message::Commit { ballot: self.own_ballot(), commit }, missing)
            }
        };
        let to: Vec<Rank> = missing.into_iter().filter(|rank| *rank != self.me).collect();
        if !to.is_empty() {
            out.push(Output::Send { to, message });
        }
    }

    fn lose(&mut self, rank: Rank, calls: Option<u64>, out: &mut Vec<Output>) {
        if rank == self.me {
            return;
        }
        let before = self.coordinator();
        let floor = self.gone.entry(rank).or_default();
        *floor = calls.unwrap_or(0).max(*floor);
        if self.coordinator() != before {
            self.report(out);
        }
    }

    /// Whether something must happen elsewhere before this rank can be at rest.
    fn is_waiting(&self) -> bool {
        self.change.is_some() || self.wants_attention()
    }

    fn coordinator(&self) -> Rank {
        self.living().next().unwrap_or(self.me)
    }

    fn living(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks).map(Rank).filter(|rank| !self.gone.contains_key(rank))
    }

    fn own_ballot(&self) -> Ballot {
        Ballot { coordinator: self.me.0, round: self.rounds }
    }

    fn send_to_all(&mut self, message: &Message, out: &mut Vec<Output>) {
        let to: Vec<Rank> = self.living().filter(|rank| *rank != self.me).collect();
        self.own.push_back(message.clone());
        if !to.is_empty() {
            out.push(Output::Send { to, message: message.clone() });
        }
    }

    fn send(&mut self, to: Rank, message: Message, out: &mut Vec<Output>) {
        if to == self.me {
            self.own.push_back(message);
        } else {
            out.push(Output::Send { to: vec![to], message });
        }
    }
}
