//! When is a silent path dead?
//!
//! A dead path gives no error for a second or more, but a healthy one may be silent for 100 ms and
//! longer on a host whose processors are all busy. So silence is only a suspicion, and before it is one
//! it costs a probe, of the path and of its siblings at the same moment. What delays everybody (a
//! busy host, a peer that is stopped) delays the siblings too; a suspect that stays silent for a grace
//! period after a sibling has answered is dead. How long siblings took tells how much delays everybody
//! now: if they answered at once, a part of the grace is enough; and two of them tell it better than one,
//! which may have been lucky. Without an answer of anybody nothing is decided until a last limit.

use crate::ids::Timestamp;

/// A path is asked after this part of the suspicion and this part of what a confirmation takes.
const FIRST_QUESTION: u64 = 3;
const FIRST_PART_OF_USUAL: u64 = 2;
/// After a sibling's answer, a suspect gets so many times as long as it took, but no more than the grace, and no
/// less than this part of it.
const TIMES_THE_SIBLING: u64 = 8;
const LEAST_PART_OF_GRACE: u64 = 4;
/// The same after the answer of another one.
const TIMES_THE_SECOND: u64 = 2;
/// The second probe follows the first after this part of the suspicion, others after twice as long each time, but
/// never after more than the suspicion: a lost packet should not decide.
const FIRST_PART_OF_SUSPICION: u64 = 4;
/// So much before it would be given up, as a part of the suspicion, a path is asked for the last time.
const LAST_PART_OF_SUSPICION: u64 = 8;

/// How patient the watch is, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Silence with bytes on the way that makes a path suspect.
    pub suspicion_ns: u64,
    /// How long a suspect may stay silent after a sibling has answered, at most.
    pub grace_ns: u64,
    /// How long a suspect may stay silent in any case.
    pub last_ns: u64,
    /// A device that still answers probes when it has confirmed nothing for so long is stuck.
    pub stuck_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            suspicion_ns: 15_000_000,
            grace_ns: 50_000_000,
            last_ns: 1_000_000_000,
            stuck_ns: 3_000_000_000,
        }
    }
}

/// What is seen of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It is not in use.
    Closed,
    /// Nothing is on the way.
    Calm,
    /// Of what is on the way something was confirmed since the last look.
    Moving,
    /// Nothing was confirmed although bytes are on the way.
    Silent(Silence),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ask whether the path works.
    Probe(usize, Question),
    /// Give the path up.
    GiveUp(usize, Reason),
}

/// What a path was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Nothing that it has not answered.
    First,
    /// The same.
    Again,
}

/// Why a path is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It answers nothing while its siblings do.
    Silent,
    /// Nobody answers anything any more.
    AllSilent,
    /// The network answers, but the connection makes no progress.
    Stuck,
}

/// That of a path with bytes on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// For so many nanoseconds.
    pub lasts_ns: u64,
    /// How long a confirmation takes on this path as a rule.
    pub usual_ns: u64,
}

impl Silence {
    fn beyond_ns(self) -> u64 {
        self.lasts_ns.saturating_sub(self.usual_ns)
    }

    /// Whether it is worth a question.
    fn is_strange(self, suspicion_ns: u64) -> bool {
        self.lasts_ns >= suspicion_ns / FIRST_QUESTION + self.usual_ns / FIRST_PART_OF_USUAL
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Case {
    is_open: bool,
    /// When it was last probed.
    probed: Option<Timestamp>,
    /// How many probes it has not answered.
    unanswered: u32,
    /// When the first of the probes was sent that it has not answered.
    asked: Option<Timestamp>,
    /// Which of its siblings was the first to answer after that, and when.
    witnessed: Option<(usize, Timestamp)>,
    /// When another one did.
    seconded: Option<Timestamp>,
    /// When it was asked for the last time.
    condemned: Option<Timestamp>,
    /// When it, or others on the path, last showed that the network answers.
    answered: Option<Timestamp>,
}

/// Watches the paths of one link.
#[derive(Clone, Debug)]
pub struct Watch {
    limits: Limits,
    cases: Vec<Case>,
}

impl Watch {
    /// Watches so many paths.
    #[must_use]
    pub fn new(paths: usize, limits: Limits) -> Self {
        Self { limits, cases: vec![Case::default(); paths] }
    }

    /// A probe of the path was answered.
    pub fn answered(&mut self, now: Timestamp, path: usize) {
        self.witness(now, path);
        let Case { is_open, probed, .. } = self.cases[path];
        self.cases[path] = Case { is_open, probed, answered: Some(now), ..Case::default() };
    }

    /// Others had something confirmed on the path before it was probed for the last time, to which it owes an
    /// answer still.
    pub fn confirmed(&mut self, now: Timestamp, path: usize) {
        self.witness(now, path);
        let case = &mut self.cases[path];
        case.answered = Some(now);
        if case.asked.is_some() {
            case.asked = case.probed.max(case.condemned);
            (case.witnessed, case.seconded, case.condemned) = (None, None, None);
        }
    }

    /// A path works: that says something about siblings which were asked and are silent.
    fn witness(&mut self, now: Timestamp, path: usize) {
        let siblings = self.cases.iter_mut().enumerate().filter(|(index, _)| *index != path);
        for (_, sibling) in siblings.filter(|(_, sibling)| sibling.asked.is_some()) {
            let (first, _) = *sibling.witnessed.get_or_insert((path, now));
            if first != path {
                sibling.seconded.get_or_insert(now);
            }
        }
    }

    /// Forgets what was suspected of a path.
    pub fn forget(&mut self, path: usize) {
        self.cases[path] = Case::default();
    }

    /// Whether a path is under suspicion.
    #[must_use]
    pub fn suspects(&self, path: usize) -> bool {
        self.cases[path].is_open
    }

    /// Looks at all paths; to be called every millisecond or so while bytes are on the way.
    ///
    /// # Panics
    /// There is not one sight for every path.
    pub fn look(&mut self, now: Timestamp, sights: &[Sight], orders: &mut Vec<Order>) {
        assert_eq!(sights.len(), self.cases.len(), "one sight for every path");
        let moving = |(_, sight): &(usize, &Sight)| **sight == Sight::Moving;
        sights.iter().enumerate().filter(moving).for_each(|(path, _)| self.witness(now, path));
        for (path, sight) in sights.iter().enumerate() {
            match *sight {
                Sight::Silent(silence) if silence.is_strange(self.limits.suspicion_ns) => {
                    self.doubt(now, path, silence, sights, orders);
                }
                Sight::Closed => self.forget(path),
                Sight::Calm | Sight::Moving | Sight::Silent(_) => {
                    let probed = self.cases[path].probed;
                    self.cases[path] = Case { probed, ..Case::default() };
                }
            }
        }
    }

    fn doubt(
        &mut self,
        now: Timestamp,
        path: usize,
        silence: Silence,
        sights: &[Sight],
        orders: &mut Vec<Order>,
    ) {
        let last_ns = self.limits.suspicion_ns / LAST_PART_OF_SUSPICION;
        let asked_last = self.cases[path].condemned;
        let is_over = asked_last.is_some_and(|condemned| now.since(condemned) >= last_ns);
        let verdict = |after_ns| {
            let silence = Silence { lasts_ns: silence.lasts_ns + after_ns, ..silence };
            self.verdict(now.after(after_ns), path, silence)
        };
        match (verdict(0), asked_last) {
            // Whoever is stuck does answer.
            (Some(reason), _) if is_over || reason == Reason::Stuck => {
                orders.push(Order::GiveUp(path, reason));
                self.forget(path);
            }
            (_, None) if verdict(last_ns).is_some() => {
                self.cases[path].condemned = Some(now);
                orders.push(Order::Probe(path, Question::Again));
            }
            _ => {
                self.cases[path].is_open = silence.beyond_ns() >= self.limits.suspicion_ns;
                self.ask(now, path, sights, orders);
            }
        }
    }

    /// Probes a path and its siblings, if it is time to.
    fn ask(&mut self, now: Timestamp, path: usize, sights: &[Sight], orders: &mut Vec<Order>) {
        let pause = self.pause(self.cases[path].unanswered);
        let is_due = |probed: Timestamp| now.since(probed) >= pause;
        if !self.cases[path].probed.is_none_or(is_due) {
            return;
        }
        for (index, case) in self.cases.iter_mut().enumerate() {
            if sights[index] != Sight::Closed && case.probed != Some(now) {
                case.probed = Some(now);
                case.unanswered += 1;
                case.asked.get_or_insert(now);
                let question = if case.unanswered > 1 { Question::Again } else { Question::First };
                orders.push(Order::Probe(index, question));
            }
        }
    }

    /// How long after a probe the next one may follow.
    fn pause(&self, unanswered: u32) -> u64 {
        let longest = self.limits.suspicion_ns;
        match unanswered.checked_sub(1) {
            Some(earlier) => ((longest / FIRST_PART_OF_SUSPICION) << earlier.min(8)).min(longest),
            None => longest,
        }
    }

    /// Whether a path was silent for long enough that was asked when a sibling was, which has answered.
    fn is_overdue(
        &self,
        now: Timestamp,
        asked: Timestamp,
        answered: Timestamp,
        times: u64,
    ) -> bool {
        let most = self.limits.grace_ns;
        let as_busy = answered.since(asked).saturating_mul(times);
        now.since(answered) >= as_busy.clamp(most / LEAST_PART_OF_GRACE, most)
    }

    /// Whether the path has to be given up now. Only siblings that answered after the path was asked
    /// say something about it.
    fn verdict(&self, now: Timestamp, path: usize, silence: Silence) -> Option<Reason> {
        let Limits { suspicion_ns, last_ns, stuck_ns, .. } = self.limits;
        if silence.beyond_ns() < suspicion_ns {
            return None;
        }
        let Case { asked, witnessed, seconded, answered, .. } = self.cases[path];
        // Whoever answers nothing may be out of reach, for which there are other limits.
        let lasted_ns = |at: Timestamp| silence.beyond_ns().saturating_sub(now.since(at));
        if answered.is_some_and(|at| lasted_ns(at) >= stuck_ns) {
            return Some(Reason::Stuck);
        }
        let asked = asked?;
        // An answer takes as long as what else is on the way.
        let overdue = |answered, times| {
            now.since(asked) >= silence.usual_ns && self.is_overdue(now, asked, answered, times)
        };
        if witnessed.is_some_and(|(_, answered)| overdue(answered, TIMES_THE_SIBLING))
            || seconded.is_some_and(|answered| overdue(answered, TIMES_THE_SECOND))
        {
            return Some(Reason::Silent);
        }
        (now.since(asked) >= last_ns).then_some(Reason::AllSilent)
    }
}

#[cfg(test)]
mod tests;
