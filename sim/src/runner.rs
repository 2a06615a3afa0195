//! Runs many worlds on several threads, and makes one that fails smaller.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Plans;
use crate::mutation::Mutation;
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::world::{Options, Outcome, run};

/// Seeds that a thread takes at a time.
const BATCH: u64 = 64;

/// A world in which something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Its seed.
    pub seed: u64,
    /// What.
    pub violation: String,
}

/// What many worlds have shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was reached.
    pub tally: Tally,
    /// The worlds in which something went wrong, by seed.
    pub failing: Vec<Failing>,
}

/// How to run many worlds.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Threads.
    pub jobs: usize,
    /// What is broken on purpose.
    pub mutation: Option<Mutation>,
    /// Whether the other end may never hear that a connection is gone; see
    /// [`Physics::loses_notices`](crate::scenario::Physics::loses_notices).
    pub loses_notices: bool,
    /// Stop when so many worlds have failed.
    pub most_failing: usize,
}

impl Campaign {
    /// Runs the worlds of these seeds.
    #[must_use]
    pub fn run(&self, seeds: Range<u64>) -> Report {
        let next = AtomicU64::new(seeds.start);
        let report = Mutex::new(Report::default());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| self.work(&next, seeds.end, &report));
            }
        });
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.failing.sort_by_key(|failing| failing.seed);
        report
    }

    fn work(&self, next: &AtomicU64, end: u64, report: &Mutex<Report>) {
        let mut plans = Plans::default();
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            let batch = self.batch(&mut plans, first..end.min(first.saturating_add(BATCH)));
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.tally += batch.tally;
            report.failing.extend(batch.failing);
            if first.saturating_add(BATCH) >= end || report.failing.len() >= self.most_failing {
                return;
            }
        }
    }

    fn batch(&self, plans: &mut Plans, seeds: Range<u64>) -> Report {
        let mut report = Report::default();
        let options = Options { transcript: false, mutation: self.mutation };
        for seed in seeds {
            let mut scenario = Scenario::draw(seed);
            scenario.physics.loses_notices = self.loses_notices;
            let outcome = run(&scenario, plans, options);
            report.tally += outcome.tally;
            report.failing.extend(outcome.violation.map(|violation| Failing { seed, violation }));
        }
        report
    }
}

/// The smallest scenario that still fails which is found by leaving out faults and calls, and by
/// making calls simpler; with its outcome and transcript. `None` if the scenario does not fail.
#[must_use]
pub fn shrink(scenario: &Scenario, mutation: Option<Mutation>) -> Option<(Scenario, Outcome)> {
    let mut plans = Plans::default();
    let mut fails = |candidate: &Scenario| {
        let options = Options { transcript: true, mutation };
        Some(run(candidate, &mut plans, options)).filter(|outcome| outcome.violation.is_some())
    };
    let mut smallest = (scenario.clone(), fails(scenario)?);
    loop {
        let candidates = smaller(&smallest.0);
        let found = candidates.into_iter().find_map(|candidate| {
            let outcome = fails(&candidate)?;
            Some((candidate, outcome))
        });
        match found {
            Some(found) => smallest = found,
            None => return Some(smallest),
        }
    }
}

/// Scenarios with a little less in them.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut candidates = Vec::new();
    for index in 0..scenario.faults.len() {
        let mut candidate = scenario.clone();
        candidate.faults.remove(index);
        candidates.push(candidate);
    }
    for index in 0..scenario.calls.len() {
        candidates.push(scenario.without_call(index));
    }
    if scenario.retreat.is_some() {
        candidates.push(Scenario { retreat: None, ..scenario.clone() });
    }
    for index in 0..scenario.calls.len() {
        if scenario.calls[index].count > 1 {
            let mut candidate = scenario.clone();
            candidate.calls[index].count /= 2;
            candidates.push(candidate);
        }
    }
    if scenario.physics.jitter > 0 || scenario.physics.completion_delay > 0 {
        let mut candidate = scenario.clone();
        (candidate.physics.jitter, candidate.physics.completion_delay) = (0, 0);
        candidates.push(candidate);
    }
    candidates
}
