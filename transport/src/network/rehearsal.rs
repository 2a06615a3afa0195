//! Faults that a user rehearses: the rails behave as if their cables were broken, and nothing on the
//! network is touched.
//!
//! ```text
//!   Drill    what breaks and since when the time counts; one for all communicators of a process
//!     └─▶ Part    one rank in it: which host is its own, and those of its peers
//!           ├─▶ around every queue pair: nothing leaves or arrives while the cable is broken
//!           ├─▶ the keeper: no answers to probes, no new connections, NICs that are switched off
//!           └─▶ surveys: hosts that do not answer on a rail
//! ```
//!
//! A cable has two ends, so a rank imitates the faults of its peers' cables too, as far as it would
//! notice them: what it sends there is not confirmed. Both ends look at the plan and at their own clocks,
//! which began together, and tell each other nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ccl_core::fault::{Cable, Condition, Direction, Fault, Rehearsal, Timed, Turn};
use ccl_core::ids::Rank;

use crate::clock;
use crate::nics::{Change, ChangeKind};
use crate::verbs::fault::{Interrupted, Loss, Lossy};
use crate::verbs::{Depth, QueuePair};

/// How often to look whether a drill has begun.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A rehearsal in this process.
#[derive(Debug)]
pub struct Drill {
    plan: Rehearsal,
    start: OnceLock<Instant>,
    /// The turns of the plan that were told to the log, by index.
    told: Mutex<BTreeSet<usize>>,
}

impl Drill {
    /// A drill that has not begun: everything is whole.
    #[must_use]
    pub fn new(plan: Rehearsal) -> Self {
        Self { plan, start: OnceLock::new(), told: Mutex::default() }
    }

    /// From now on the time counts, unless it does already.
    pub fn begin(&self) {
        self.start.get_or_init(clock::now);
    }

    fn condition(&self, cable: Cable, now: Instant) -> Condition {
        let Some(start) = self.start.get() else { return Condition::default() };
        self.plan.condition(cable, nanoseconds(now.saturating_duration_since(*start)))
    }

    /// The moment of a turn.
    fn moment(&self, turn: &Timed) -> Option<Instant> {
        self.start.get()?.checked_add(Duration::from_nanos(turn.at_ns))
    }

    /// Whether nobody has told about a turn yet; then the caller does.
    fn claim(&self, turn: usize) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(turn)
    }
}

/// One rank in a drill.
#[derive(Debug)]
pub struct Part {
    drill: Arc<Drill>,
    me: Rank,
    /// The host of every rank.
    hosts: Vec<usize>,
}

impl Part {
    /// The part of rank `me` where `hosts` are those of all ranks, counted as the plan does.
    ///
    /// # Panics
    /// The rank is none of those.
    #[must_use]
    pub fn new(drill: Arc<Drill>, me: Rank, hosts: Vec<usize>) -> Self {
        assert!(me.index() < hosts.len(), "rank {me} has a host");
        Self { drill, me, hosts }
    }

    /// What it takes part in.
    #[must_use]
    pub fn drill(&self) -> &Arc<Drill> {
        &self.drill
    }

    /// The number of a rank's host, as the plan counts hosts.
    ///
    /// # Panics
    /// There is no such rank.
    #[must_use]
    pub fn host(&self, rank: Rank) -> usize {
        self.hosts[rank.index()]
    }

    /// Whether a peer's rail answers on a rail of this rank.
    #[must_use]
    pub fn reaches(&self, rail: usize, peer: Rank, peer_rail: usize) -> bool {
        let ends = self.ends(rail, peer, peer_rail);
        self.loss(ends, clock::now()) == Loss::default()
    }

    /// The queue pair of a path, so that it behaves as the cables at its ends do.
    pub(super) fn around(
        self: &Arc<Self>,
        pair: Box<dyn QueuePair>,
        (rail, peer, peer_rail): (usize, Rank, usize),
        depth: Depth,
    ) -> Box<dyn QueuePair> {
        let ends = self.ends(rail, peer, peer_rail);
        if !ends.iter().any(|cable| self.drill.plan.concerns(*cable)) {
            return pair;
        }
        Box::new(Interrupted::new(pair, depth.sends, Path { part: Arc::clone(self), ends }))
    }

    /// The cables of a path: that of this rank, and that of the peer.
    fn ends(&self, rail: usize, peer: Rank, peer_rail: usize) -> [Cable; 2] {
        let far = Cable { host: self.hosts[peer.index()], rail: peer_rail };
        [self.cable(rail), far]
    }

    fn cable(&self, rail: usize) -> Cable {
        Cable { host: self.hosts[self.me.index()], rail }
    }

    fn loss(&self, ends: [Cable; 2], now: Instant) -> Loss {
        let [near, far] = ends.map(|cable| self.drill.condition(cable, now));
        let (out, back) = (Direction::Outgoing, Direction::Incoming);
        Loss {
            outgoing: near.loses(out) || far.loses(back),
            incoming: near.loses(back) || far.loses(out),
        }
    }

    /// The turns of the cables of this host, in order of time, with their indices.
    fn turns(&self) -> impl Iterator<Item = (usize, &Timed)> {
        let host = self.hosts[self.me.index()];
        let turns = self.drill.plan.turns().iter().enumerate();
        turns.filter(move |(_, turn)| turn.action.cable.host == host)
    }
}

/// The cables of one path, as a queue pair over it asks for them.
#[derive(Debug)]
struct Path {
    part: Arc<Part>,
    ends: [Cable; 2],
}

impl Lossy for Path {
    fn loss(&self) -> Loss {
        self.part.loss(self.ends, clock::now())
    }
}

/// Tells the keeper of a rank which of its NICs would be switched off, and the log what happens.
#[derive(Debug)]
pub(super) struct Prompter {
    part: Arc<Part>,
    /// What a NIC suffers from that its host notices, by rail.
    severed: Vec<Option<Fault>>,
    /// When the plan was last looked at.
    looked: Option<Instant>,
}

impl Prompter {
    /// For a rank with so many rails, which are whole.
    pub(super) fn new(part: Arc<Part>, rails: usize) -> Self {
        Self { part, severed: vec![None; rails], looked: None }
    }

    /// Whose changes they are.
    pub(super) fn part(&self) -> &Arc<Part> {
        &self.part
    }

    /// Whether a path is broken in any direction.
    pub(super) fn is_broken(&self, rail: usize, peer: Rank, peer_rail: usize) -> bool {
        !self.part.reaches(rail, peer, peer_rail)
    }

    /// What has changed since the last call.
    pub(super) fn changes(&mut self, now: Instant) -> Vec<Change> {
        self.tell(now);
        self.looked = Some(now);
        let mut changes = Vec::new();
        for rail in 0..self.severed.len() {
            let severed = self.part.drill.condition(self.part.cable(rail), now).severed();
            let was_severed = std::mem::replace(&mut self.severed[rail], severed).is_some();
            match severed {
                Some(fault) if !was_severed => {
                    let cause = format!("{} on purpose (R2CCL_FAULT)", fault.name());
                    changes.push(Change { rail, kind: ChangeKind::Severed(cause) });
                }
                None if was_severed => changes.push(Change { rail, kind: ChangeKind::Restored }),
                Some(_) | None => {}
            }
        }
        changes
    }

    /// When there may be changes. A turn that has come since the last look is due at once.
    pub(super) fn alarm(&self, now: Instant) -> Option<Instant> {
        if self.part.drill.start.get().is_none() {
            return Some(now + LOOK_EVERY);
        }
        let moments = self.part.turns().filter_map(|(_, turn)| self.part.drill.moment(turn));
        moments.filter(|moment| self.looked.is_none_or(|looked| *moment > looked)).min()
    }

    /// Writes what has come to the log, once in a process.
    fn tell(&self, now: Instant) {
        let Part { drill, me, .. } = &*self.part;
        for (index, turn) in self.part.turns() {
            let has_come = drill.moment(turn).is_some_and(|moment| moment <= now);
            if !has_come || !drill.claim(index) {
                continue;
            }
            let Cable { host, rail } = turn.action.cable;
            let (rank, fault) = (me.0, turn.action.fault);
            match turn.action.turn {
                Turn::Cut => tracing::warn!(rank, host, rail, %fault, "a rehearsed fault begins"),
                Turn::Heal => tracing::warn!(rank, host, rail, %fault, "a rehearsed fault ends"),
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Loss = Loss { outgoing: true, incoming: true };
    const NONE: Loss = Loss { outgoing: false, incoming: false };

    /// Three hosts with a rank each, as rank `me` sees them, after `begin` of the drill.
    fn part(text: &str, me: u32) -> Arc<Part> {
        let drill = Arc::new(Drill::new(text.parse().unwrap()));
        drill.begin();
        Arc::new(Part::new(drill, Rank(me), vec![0, 1, 2]))
    }

    /// What paths lose on rail 1, which have the same rail at both ends, `after` the beginning.
    fn losses(part: &Part, after: Duration) -> Vec<Loss> {
        let now = *part.drill.start.get().unwrap() + after;
        let peers = (0..3).map(Rank).filter(|peer| *peer != part.me);
        peers.map(|peer| part.loss(part.ends(1, peer, 1), now)).collect()
    }

    #[test]
    fn both_ends_of_a_cable_lose_what_it_loses() {
        let text = "oneway:host=1,rail=1,at=1s,heal=1s,lose=outgoing";
        let [outgoing, incoming] =
            [(true, false), (false, true)].map(|(outgoing, incoming)| Loss { outgoing, incoming });
        for (me, broken) in
            [(0, [incoming, NONE]), (1, [outgoing, outgoing]), (2, [NONE, incoming])]
        {
            let part = part(text, me);
            assert_eq!(losses(&part, Duration::from_millis(999)), [NONE; 2], "rank {me}");
            assert_eq!(losses(&part, Duration::from_secs(1)), broken, "rank {me}");
            assert_eq!(losses(&part, Duration::from_secs(2)), [NONE; 2], "rank {me}");
        }
    }

    #[test]
    fn the_fault_of_another_host_does_nothing_here() {
        let text = "silent:host=0,rail=1,at=0s;admin:host=0,rail=0,at=0s";
        for me in [1, 2] {
            let part = part(text, me);
            assert_eq!(losses(&part, Duration::ZERO), [BOTH, NONE], "rank {me}");
            let mut prompter = Prompter::new(Arc::clone(&part), 2);
            assert_eq!(prompter.changes(clock::now()), [], "no NIC of rank {me} is off");
            assert_eq!(prompter.alarm(clock::now()), None);
            assert!(part.reaches(1, Rank(3 - me), 1) && !part.reaches(1, Rank(0), 1));
        }
    }

    #[test]
    fn before_it_begins_everything_is_whole() {
        let drill = Arc::new(Drill::new("admin:host=0,rail=0,at=0s".parse().unwrap()));
        let part = Arc::new(Part::new(Arc::clone(&drill), Rank(0), vec![0, 1]));
        let mut prompter = Prompter::new(Arc::clone(&part), 1);
        let now = clock::now();
        assert!(part.reaches(0, Rank(1), 0) && prompter.changes(now).is_empty());
        assert_eq!(prompter.alarm(now), Some(now + LOOK_EVERY));
        drill.begin();
        let kind = ChangeKind::Severed("admin on purpose (R2CCL_FAULT)".into());
        assert_eq!(prompter.changes(clock::now()), [Change { rail: 0, kind }]);
        assert!(!part.reaches(0, Rank(1), 0));
    }

    #[test]
    fn a_nic_is_switched_off_and_on_once_whatever_overlaps() {
        let text = "admin:host=0,rail=1,at=1s,heal=2s;carrier:host=0,rail=1,at=2s,heal=2s";
        let part = part(text, 0);
        let start = *part.drill.start.get().unwrap();
        let mut prompter = Prompter::new(Arc::clone(&part), 2);
        let mut seen = Vec::new();
        let mut now = start;
        while let Some(alarm) = prompter.alarm(now) {
            now = alarm;
            seen.extend(prompter.changes(now).into_iter().map(|change| (now - start, change.rail)));
        }
        assert_eq!(seen, [(Duration::from_secs(1), 1), (Duration::from_secs(4), 1)]);
        assert_eq!(*part.drill.told.lock().unwrap(), BTreeSet::from([0, 1, 2, 3]));
    }
}
