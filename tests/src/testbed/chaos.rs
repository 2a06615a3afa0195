//! Random faults from a seed: the same seed gives the same faults at the same times.
//!
//! Cables break at random moments and heal after random times. However many are broken at once,
//! every two hosts keep a rail on which both have a whole cable: what happens to a job whose hosts
//! cannot reach each other is known.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::fault::{Action, Direction, Fault, Turn};
use super::shape::{Cable, Shape};
use super::specification::Timed;

/// No fault is shorter, and no two cuts are closer: one takes about so long to happen.
const SHORTEST_NS: u64 = 1_000_000;

/// Kinds of faults that chaos chooses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosFault {
    /// [`Fault::Admin`].
    Admin,
    /// [`Fault::Carrier`].
    Carrier,
    /// [`Fault::Silent`].
    Silent,
    /// [`Fault::Oneway`], in a random direction.
    Oneway,
}

/// What chaos may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChaosPlan {
    /// Where the random numbers begin.
    pub seed: u64,
    /// Mean time between two cuts.
    pub every_ns: u64,
    /// Mean time until a cable heals.
    pub heal_ns: u64,
    /// If given, each cut is followed by another at most so much later.
    pub second_ns: Option<u64>,
    /// Cables that are broken at once.
    pub most: usize,
    /// Hosts with broken cables at once.
    pub most_hosts: usize,
    /// What cables suffer from.
    pub faults: Vec<ChaosFault>,
}

impl ChaosPlan {
    /// Twice a second a cable breaks, for about half a second; one at a time.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            every_ns: 500_000_000,
            heal_ns: 500_000_000,
            second_ns: None,
            most: 1,
            most_hosts: 1,
            faults: vec![ChaosFault::Admin, ChaosFault::Carrier, ChaosFault::Silent],
        }
    }

    /// Refuses plans that nothing can come of.
    ///
    /// # Errors
    /// The sentence names what is wrong.
    pub fn checked(self) -> Result<Self, String> {
        match self {
            Self { every_ns: 0, .. } => Err("every= must not be zero".to_owned()),
            Self { most: 0, .. } => Err("most= must not be zero".to_owned()),
            Self { most_hosts: 0, .. } => Err("hosts= must not be zero".to_owned()),
            plan => Ok(plan),
        }
    }
}

impl ChaosFault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Carrier, Self::Silent, Self::Oneway];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.losing(Direction::Outgoing).name()
    }

    /// The fault, which loses this direction if it is one of a direction.
    fn losing(self, direction: Direction) -> Fault {
        match self {
            Self::Admin => Fault::Admin,
            Self::Carrier => Fault::Carrier,
            Self::Silent => Fault::Silent,
            Self::Oneway => Fault::Oneway(direction),
        }
    }
}

/// The faults of one run, in order of time and without an end.
#[derive(Debug)]
pub struct Chaos {
    plan: ChaosPlan,
    shape: Shape,
    random: StdRng,
    /// What is wrong with which cable, and until when.
    broken: BTreeMap<Cable, (Fault, u64)>,
    next_cut_ns: u64,
    /// The cut that follows the last one.
    second_cut_ns: Option<u64>,
}

impl Chaos {
    /// The faults that `plan` makes of a bed.
    #[must_use]
    pub fn new(plan: ChaosPlan, shape: Shape) -> Self {
        let mut random = StdRng::seed_from_u64(plan.seed);
        let next_cut_ns = exponential(&mut random, plan.every_ns);
        Self { plan, shape, random, broken: BTreeMap::new(), next_cut_ns, second_cut_ns: None }
    }

    /// Breaks a cable if one may break now.
    fn cut(&mut self, now_ns: u64) -> Option<Action> {
        let is_second = self.second_cut_ns.take_if(|second_ns| *second_ns == now_ns).is_some();
        if !is_second {
            self.next_cut_ns = now_ns + exponential(&mut self.random, self.plan.every_ns);
        }
        let eligible = self.eligible(&self.broken);
        if eligible.is_empty() {
            return None;
        }
        let cable = eligible[self.random.random_range(0..eligible.len())];
        let fault = self.fault();
        let until_ns = now_ns + exponential(&mut self.random, self.plan.heal_ns);
        self.broken.insert(cable, (fault, until_ns));
        if let Some(most_ns) = self.plan.second_ns.filter(|_| !is_second) {
            let later_ns = self.random.random_range(0..=most_ns).max(SHORTEST_NS);
            self.second_cut_ns = Some(now_ns + later_ns);
        }
        Some(Action { turn: Turn::Cut, fault, cable })
    }

    fn fault(&mut self) -> Fault {
        let fault = self.plan.faults[self.random.random_range(0..self.plan.faults.len())];
        // Only what depends on it is drawn.
        let is_incoming = fault == ChaosFault::Oneway && !self.random.random::<bool>();
        fault.losing(if is_incoming { Direction::Incoming } else { Direction::Outgoing })
    }

    /// The cables that may break while those of `broken` are.
    fn eligible(&self, broken: &BTreeMap<Cable, (Fault, u64)>) -> Vec<Cable> {
        if broken.len() >= self.plan.most {
            return Vec::new();
        }
        let may_break = |cable: &Cable| {
            let is_broken = |other: Cable| other == *cable || broken.contains_key(&other);
            let has_broken = |host: &usize| {
                (0..self.shape.rails).any(|rail| is_broken(Cable { host: *host, rail }))
            };
            let hosts = (0..self.shape.hosts).filter(has_broken).count();
            !broken.contains_key(cable)
                && hosts <= self.plan.most_hosts
                && all_can_meet(self.shape, is_broken)
        };
        self.shape.cables().filter(may_break).collect()
    }
}

impl Iterator for Chaos {
    type Item = Timed;

    /// What happens next; `None` if nothing ever can.
    fn next(&mut self) -> Option<Timed> {
        if self.eligible(&BTreeMap::new()).is_empty() {
            return None;
        }
        loop {
            let cut_ns = self.second_cut_ns.unwrap_or(u64::MAX).min(self.next_cut_ns);
            let first =
                self.broken.iter().min_by_key(|(cable, (_, until_ns))| (*until_ns, **cable));
            match first {
                Some((&cable, &(fault, at_ns))) if at_ns <= cut_ns => {
                    self.broken.remove(&cable);
                    return Some(Timed {
                        at_ns,
                        action: Action { turn: Turn::Heal, fault, cable },
                    });
                }
                Some(_) | None => {
                    if let Some(action) = self.cut(cut_ns) {
                        return Some(Timed { at_ns: cut_ns, action });
                    }
                }
            }
        }
    }
}

/// Whether every two hosts have a rail on which the cables of both are whole.
fn all_can_meet(shape: Shape, is_broken: impl Fn(Cable) -> bool) -> bool {
    let is_whole = |host: usize, rail: usize| !is_broken(Cable { host, rail });
    let can_meet = |one: usize, other: usize| {
        (0..shape.rails).any(|rail| is_whole(one, rail) && is_whole(other, rail))
    };
    (0..shape.hosts).all(|one| (0..one).all(|other| can_meet(one, other)))
}

/// A random time with this mean, as for events that do not remember each other.
fn exponential(random: &mut StdRng, mean_ns: u64) -> u64 {
    let uniform: f64 = random.random();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a random time need not be exact, and is not negative"
    )]
    let time_ns = (-(1.0 - uniform).ln() * mean_ns as f64) as u64;
    time_ns.max(SHORTEST_NS)
}

#[cfg(test)]
mod tests {
    use super::super::shape::Rate;
    use super::*;

    const SHAPE: Shape = Shape { hosts: 3, rails: 4, rate: Rate::Unlimited };
    const EVENTS: usize = 5000;

    fn plan(most: usize, most_hosts: usize) -> ChaosPlan {
        let faults = ChaosFault::ALL.to_vec();
        ChaosPlan { most, most_hosts, faults, second_ns: Some(10_000_000), ..ChaosPlan::of(3) }
    }

    fn events(plan: ChaosPlan, shape: Shape) -> Vec<Timed> {
        Chaos::new(plan, shape).take(EVENTS).collect()
    }

    #[test]
    fn limits_hold_at_every_moment_and_are_reached() {
        for (most, most_hosts) in [(1, 1), (2, 2), (3, 1), (9, 3)] {
            let mut broken: BTreeMap<Cable, (Fault, u64)> = BTreeMap::new();
            let (mut last_ns, mut reached, mut reached_hosts) = (0, 0, 0);
            for Timed { at_ns, action } in events(plan(most, most_hosts), SHAPE) {
                assert!(at_ns >= last_ns, "time goes on");
                last_ns = at_ns;
                let before = match action.turn {
                    Turn::Cut => broken.insert(action.cable, (action.fault, at_ns)),
                    Turn::Heal => broken.remove(&action.cable),
                };
                let healed = before.map(|(fault, _)| fault);
                assert_eq!(healed, (action.turn == Turn::Heal).then_some(action.fault));
                let mut hosts: Vec<usize> = broken.keys().map(|cable| cable.host).collect();
                hosts.dedup();
                assert!(broken.len() <= most && hosts.len() <= most_hosts);
                assert!(all_can_meet(SHAPE, |cable| broken.contains_key(&cable)));
                reached = reached.max(broken.len());
                reached_hosts = reached_hosts.max(hosts.len());
            }
            assert!(reached >= most.min(4) && reached_hosts == most_hosts, "{most} {most_hosts}");
        }
    }

    #[test]
    fn a_seed_is_a_run() {
        assert_eq!(events(plan(2, 2), SHAPE), events(plan(2, 2), SHAPE));
        let other = ChaosPlan { seed: 4, ..plan(2, 2) };
        assert_ne!(events(plan(2, 2), SHAPE), events(other, SHAPE));
    }

    #[test]
    fn cuts_come_as_often_as_they_should() {
        let often = ChaosPlan { heal_ns: 0, second_ns: None, ..plan(12, 3) };
        let events = events(often, SHAPE);
        let cuts = events.iter().filter(|timed| timed.action.turn == Turn::Cut).count() as u64;
        let mean_ns = events.last().unwrap().at_ns / cuts;
        assert!((450_000_000..550_000_000).contains(&mean_ns), "{mean_ns}");
    }

    #[test]
    fn the_only_rail_is_never_cut() {
        assert_eq!(events(plan(2, 2), Shape { rails: 1, ..SHAPE }), []);
    }
}
