//! Ranks that agree on epochs in virtual time, over a network that loses, doubles, delays and reorders,
//! while some of them die, leave or stop calling. Everything follows from a seed.

use std::collections::BTreeMap;

use super::{Agreement, Ballot, Input, Message, Output, Row};
use crate::ids::{Epoch, Rank, Timestamp};
use crate::random::Random;
use crate::topology::RailCapacity;

const MILLISECOND: u64 = 1_000_000;
/// Until here everything may go wrong.
const FAULTS_END: u64 = 4_000 * MILLISECOND;
/// By here everything must have come to rest.
const END: u64 = 14_000 * MILLISECOND;

/// A way to break the protocol. The simulation must notice each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// Ranks go on calling while they are held.
    NobodyStops,
    /// The coordinator believes that a living rank has gone, and does without its answer.
    OneIsNotAsked,
    /// Answers of earlier attempts are believed.
    OldAnswersCount,
    /// Nobody tells a new coordinator what the old one committed.
    OldCommitsAreForgotten,
    /// Commits of earlier ballots are believed.
    OldCoordinatorsAreObeyed,
    /// Nothing is sent twice.
    NothingIsRepeated,
    /// Who leaves does not say how many calls it made.
    LeaversKeepTheirCount,
}

/// What a run reached, so that a test can see that it tests something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub(super) calls: u64,
    pub(super) switches: u64,
    pub(super) deaths: u64,
    pub(super) deaths_under_way: u64,
    pub(super) departures: u64,
    pub(super) lost: u64,
}

enum Event {
    Deliver { from: Rank, to: Rank, message: Message },
    Gone { to: Rank, rank: Rank, calls: Option<u64> },
    Call { rank: Rank },
    Change { rank: Rank },
    Death { rank: Rank },
    Departure { rank: Rank },
    Tick { rank: Rank },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Left,
    Dead,
}

struct Member {
    agreement: Agreement,
    life: Life,
    held: bool,
    started: u64,
    started_in_peace: u64,
    /// It makes no call after this many.
    last_call: u64,
    switches: Vec<(u64, Epoch)>,
    used: BTreeMap<u64, Epoch>,
    row: Row,
    /// The latest question it asked and the latest answer it gave, for the saboteur.
    asked: Ballot,
    answered: Ballot,
    /// When the last message it sent arrives.
    quiet_at: u64,
}

pub(super) struct World {
    random: Random,
    sabotage: Option<Sabotage>,
    now: u64,
    serial: u64,
    events: BTreeMap<(u64, u64), Event>,
    members: Vec<Member>,
    loss_percent: u64,
    longest_delay: u64,
    pub(super) reached: Reached,
    violation: Option<String>,
}

/// Runs the world of `seed` to its end. The error says which promise was broken.
pub(super) fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<Reached, String> {
    let mut world = World::new(seed, sabotage);
    while let Some(((at, _), event)) = world.events.pop_first() {
        world.now = at;
        if at > END {
            break;
        }
        world.happen(event);
        if let Some(violation) = world.violation.take() {
            return Err(format!("seed {seed}, at {} ms: {violation}", at / MILLISECOND));
        }
    }
    world.check_rest().map_err(|violation| format!("seed {seed}, at the end: {violation}"))?;
    Ok(world.reached)
}

impl World {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut random = Random::new(seed);
        let ranks = 1 + u32::try_from(random.below(5)).unwrap();
        let member = |rank| Member {
            agreement: Agreement::new(Rank(rank), ranks),
            life: Life::Alive,
            held: false,
            started: 0,
            started_in_peace: 0,
            last_call: u64::MAX,
            switches: vec![(0, Epoch(0))],
            used: BTreeMap::new(),
            row: Row::as_introduced(),
            asked: Ballot::default(),
            answered: Ballot::default(),
            quiet_at: 0,
        };
        let mut world = Self {
            sabotage,
            now: 0,
            serial: 0,
            events: BTreeMap::new(),
            members: (0..ranks).map(member).collect(),
            loss_percent: random.below(40),
            longest_delay: 1 + random.below(300),
            reached: Reached::default(),
            violation: None,
            random,
        };
        world.plan();
        world
    }

    /// What will happen to the ranks.
    fn plan(&mut self) {
        let ranks: Vec<Rank> = (0..).map(Rank).take(self.members.len()).collect();
        for rank in ranks.iter().copied() {
            let first_call = self.random_moment(100);
            self.at(first_call, Event::Call { rank });
            for _ in 0..self.random.below(4) {
                let at = self.random_moment(3_500);
                self.at(at, Event::Change { rank });
            }
            match self.random.below(8) {
                0 | 1 => {
                    let at = self.random_moment(3_500);
                    self.at(at, Event::Death { rank });
                }
                2 => {
                    let at = self.random_moment(3_500);
                    self.at(at, Event::Departure { rank });
                }
                3 => self.members[rank.index()].last_call = self.random.below(20),
                _ => {}
            }
        }
        if self.sabotage == Some(Sabotage::OneIsNotAsked) {
            let rank = *ranks.last().expect("at least one rank");
            self.at(0, Event::Gone { to: Rank(0), rank, calls: None });
        }
    }

    fn random_moment(&mut self, milliseconds: u64) -> u64 {
        self.random.below(milliseconds * MILLISECOND)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, message } => {
                let message = self.tampered(to, message);
                self.feed(to, Input::Heard { from, message });
            }
            Event::Gone { to, rank, calls } => self.feed(to, Input::Gone { rank, calls }),
            Event::Call { rank } => self.call(rank),
            Event::Change { rank } => self.change(rank),
            Event::Death { rank } => self.die(rank),
            Event::Departure { rank } => self.leave(rank),
            Event::Tick { rank } => {
                if self.sabotage != Some(Sabotage::NothingIsRepeated) {
                    self.feed(rank, Input::Tick);
                }
            }
        }
    }

    /// Gives a rank an input and does what it asks for.
    fn feed(&mut self, rank: Rank, input: Input) {
        let member = &mut self.members[rank.index()];
        if member.life != Life::Alive {
            return;
        }
        let mut out = Vec::new();
        member.agreement.handle(Timestamp(self.now), input, &mut out);
        let mut hold = false;
        for output in out {
            let member = &mut self.members[rank.index()];
            match output {
                Output::Hold => (member.held, hold) = (true, true),
                Output::Release => member.held = false,
                Output::Switch(commit) => {
                    if commit.first <= member.started {
                        self.violation = Some(format!("rank {rank} is told too late: {commit:?}"));
                    }
                    member.switches.push((commit.first, commit.epoch));
                    self.reached.switches += 1;
                }
                Output::Send { to, message } => self.send(rank, &to, &message),
            }
        }
        if hold {
            let last = self.members[rank.index()].started;
            return self.feed(rank, Input::Held { last });
        }
        if let Some(Timestamp(at)) = self.members[rank.index()].agreement.deadline() {
            self.at(at.max(self.now), Event::Tick { rank });
        }
    }

    fn send(&mut self, from: Rank, to: &[Rank], message: &Message) {
        match message {
            Message::Prepare { ballot, .. } => self.members[from.index()].asked = *ballot,
            Message::Answer { ballot, .. } => self.members[from.index()].answered = *ballot,
            Message::Report { .. } | Message::Commit { .. } | Message::Done { .. } => {}
        }
        for to in to.iter().copied() {
            let faulty = self.now < FAULTS_END;
            let copies = match () {
                () if faulty && self.random.percent(self.loss_percent) => 0,
                () if faulty && self.random.percent(20) => 2,
                () => 1,
            };
            self.reached.lost += u64::from(copies == 0);
            for _ in 0..copies {
                let slow = faulty && self.random.percent(10);
                let factor = if slow { 10 } else { 1 };
                let delay = self.random_moment(self.longest_delay * factor);
                let at = self.now + if faulty { delay } else { delay % (20 * MILLISECOND) };
                let sender = &mut self.members[from.index()];
                sender.quiet_at = sender.quiet_at.max(at);
                self.at(at, Event::Deliver { from, to, message: message.clone() });
            }
        }
    }

    fn tampered(&self, to: Rank, message: Message) -> Message {
        let receiver = &self.members[to.index()];
        match (self.sabotage, message) {
            (Some(Sabotage::OldAnswersCount), Message::Answer { last, epoch, newer, row, .. }) => {
                Message::Answer { ballot: receiver.asked, last, epoch, newer, row }
            }
            (Some(Sabotage::OldCommitsAreForgotten), Message::Answer { ballot, last, row, .. }) => {
                let epoch = receiver.agreement.committed().epoch;
                Message::Answer { ballot, last, epoch, newer: None, row }
            }
            (Some(Sabotage::OldCoordinatorsAreObeyed), Message::Commit { commit, .. }) => {
                Message::Commit { ballot: receiver.answered, commit }
            }
            (_, message) => message,
        }
    }

    /// The next call of a rank, if it may and can make one.
    fn call(&mut self, rank: Rank) {
        let pause = MILLISECOND + self.random_moment(if self.now < FAULTS_END { 60 } else { 400 });
        self.at(self.now + pause, Event::Call { rank });
        let member = &self.members[rank.index()];
        let stopped = member.held && self.sabotage != Some(Sabotage::NobodyStops);
        if member.life != Life::Alive || stopped || member.started >= member.last_call {
            return;
        }
        if !self.is_finished(member.started) {
            return;
        }
        let peace = self.now >= FAULTS_END;
        let member = &mut self.members[rank.index()];
        member.started += 1;
        member.started_in_peace += u64::from(peace);
        let sequence = member.started;
        let reached = member.switches.iter().rev().find(|(first, _)| *first <= sequence);
        let epoch = reached.expect("the first epoch begins with the first call").1;
        member.used.insert(sequence, epoch);
        self.reached.calls += 1;
        self.compare(rank, sequence, epoch);
    }

    /// One call in three needs nobody else, as that of a broadcast's root; the others need everybody.
    fn is_finished(&self, sequence: u64) -> bool {
        sequence.is_multiple_of(3) || self.alive().all(|(_, member)| member.started >= sequence)
    }

    /// No two ranks use different epochs for one call, unless one of them is dead.
    fn compare(&mut self, rank: Rank, sequence: u64, epoch: Epoch) {
        let somebody_died = self.reached.deaths > 0;
        for (other, member) in (0..).map(Rank).zip(&self.members) {
            let counts = match member.life {
                Life::Alive => true,
                Life::Left => !somebody_died,
                Life::Dead => false,
            };
            let theirs = member.used.get(&sequence).filter(|theirs| counts && **theirs != epoch);
            if let Some(theirs) = theirs {
                self.violation = Some(format!(
                    "call {sequence}: rank {rank} uses {epoch:?}, rank {other} {theirs:?}"
                ));
            }
        }
    }

    fn change(&mut self, rank: Rank) {
        let rail = || RailCapacity { bytes_per_second: 1e9, up: true };
        let mut rails = vec![rail(), rail()];
        rails[0].up = self.random.percent(50);
        rails[1].up = self.random.percent(50);
        let row = &mut self.members[rank.index()].row;
        *row = Row { version: row.version + 1, rails };
        let row = row.clone();
        self.feed(rank, Input::Rails(row));
    }

    fn die(&mut self, rank: Rank) {
        if self.alive().count() == 1 || self.members[rank.index()].life != Life::Alive {
            return;
        }
        let member = &mut self.members[rank.index()];
        member.life = Life::Dead;
        self.reached.deaths += 1;
        self.reached.deaths_under_way += u64::from(!member.agreement.waiting_for().is_empty());
        self.spread_the_news(rank, None, self.now);
    }

    /// Leaves, unless this rank has something to finish for the others.
    fn leave(&mut self, rank: Rank) {
        let lowest = self.alive().next().map(|(rank, _)| rank);
        let member = &mut self.members[rank.index()];
        let busy = lowest == Some(rank) && !member.agreement.waiting_for().is_empty();
        if member.life != Life::Alive || busy {
            return;
        }
        member.life = Life::Left;
        self.reached.departures += 1;
        let keeps = self.sabotage == Some(Sabotage::LeaversKeepTheirCount);
        let calls = (!keeps).then_some(member.started);
        let after = member.quiet_at;
        self.spread_the_news(rank, calls, self.now.max(after));
    }

    fn spread_the_news(&mut self, rank: Rank, calls: Option<u64>, after: u64) {
        for to in (0..).map(Rank).take(self.members.len()).filter(|to| *to != rank) {
            let at = after + 1 + self.random_moment(400);
            self.at(at, Event::Gone { to, rank, calls });
        }
    }

    fn alive(&self) -> impl Iterator<Item = (Rank, &Member)> {
        let all = (0..).map(Rank).zip(&self.members);
        all.filter(|(_, member)| member.life == Life::Alive)
    }

    /// What must be true when nothing has gone wrong for a long time.
    fn check_rest(&self) -> Result<(), String> {
        let everybody_calls = self.alive().all(|(_, member)| member.last_call == u64::MAX);
        let mut agreed = None;
        for (rank, member) in self.alive() {
            let committed = member.agreement.committed();
            if member.held || member.agreement.deadline().is_some() {
                return Err(format!("rank {rank} is not at rest: {:?}", member.agreement));
            }
            if *agreed.get_or_insert(committed) != committed {
                return Err(format!("rank {rank} has {committed:?}, another one {agreed:?}"));
            }
            for (other, changed) in self.alive() {
                if committed.table.version(other) != changed.row.version {
                    return Err(format!("rank {rank} has not heard of the rails of rank {other}"));
                }
            }
            if everybody_calls && member.started_in_peace < 5 {
                return Err(format!("rank {rank} made {} calls", member.started_in_peace));
            }
        }
        Ok(())
    }
}
