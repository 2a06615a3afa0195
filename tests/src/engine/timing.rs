//! Iterations, and how long they take.

use ccl::{Group, Operation as LibraryCall};

use super::{Engine, Plan};
use crate::Outcome;
use crate::benchmark::{Call, Phase};
use crate::stopwatch::Stopwatch;

/// `-z`: a barrier after every call.
const BARRIER_AFTER_CALLS: u8 = 1;
/// `-z`: no calls in groups.
const NO_GROUPS: u8 = 2;
/// `-z`: a barrier after every iteration, which is not timed.
const BARRIER_AFTER_ITERATIONS: u8 = 3;

/// How long the iterations of a row took on this rank.
#[derive(Debug)]
pub(super) struct Timing {
    pub(super) wall_s: f64,
    pub(super) processor_s: f64,
    pub(super) iterations: Vec<f64>,
}

impl Engine<'_> {
    /// Times the iterations of a row.
    #[allow(clippy::cast_precision_loss, reason = "numbers of iterations are far below 2^53")]
    pub(super) fn timed(&self, plan: &Plan<'_>) -> Outcome<Timing> {
        let (turns, aggregated) =
            (self.arguments.iterations.get(), self.arguments.aggregated.get());
        let asked = self.arguments.per_iteration == 1;
        let mut iterations = Vec::with_capacity(if asked { turns } else { 0 });
        let only = self.only_call(plan);
        self.barrier()?;
        let mut watch = Stopwatch::start();
        let mut last = 0.0;
        for turn in 0..turns {
            self.watch.reached(turn);
            match &only {
                Some(call) => self.group.run(call.clone()).map_err(|error| self.failure(error))?,
                None => self.iteration(plan, turn)?,
            }
            if asked {
                let now = watch.wall_s();
                iterations.push((now - last) / aggregated as f64);
                last = now;
            }
            if self.arguments.blocking == BARRIER_AFTER_ITERATIONS {
                let pause = Stopwatch::start();
                self.barrier()?;
                watch.leave_out(&pause);
            }
        }
        self.finish()?;
        let (wall_s, processor_s) = (watch.wall_s(), watch.processor_s());
        self.barrier()?;
        let operations = (turns * aggregated) as f64;
        Ok(Timing {
            wall_s: wall_s / operations,
            processor_s: processor_s / operations,
            iterations,
        })
    }

    /// What every iteration does, if that is a single call on the same memory and nothing else: to describe it anew each
    /// time would be felt in calls of a few bytes.
    fn only_call(&self, plan: &Plan<'_>) -> Option<LibraryCall<'_>> {
        let [Phase::Calls(calls)] = plan.phases else { return None };
        let [call] = calls.as_slice() else { return None };
        let blocking = self.arguments.blocking;
        let is_alone = self.gpu.is_none()
            && self.arguments.aggregated.get() == 1
            && !matches!(blocking, BARRIER_AFTER_CALLS | BARRIER_AFTER_ITERATIONS)
            && plan.parts.are_one();
        is_alone.then(|| self.call(call, plan, 0))
    }

    /// The operations of one iteration: as a group, if they are single calls that may be one.
    pub(super) fn iteration(&self, plan: &Plan<'_>, turn: usize) -> Outcome<()> {
        let (aggregated, blocking) = (self.arguments.aggregated.get(), self.arguments.blocking);
        let slots = turn * aggregated..(turn + 1) * aggregated;
        let separate = matches!(blocking, BARRIER_AFTER_CALLS | NO_GROUPS);
        match (plan.phases, &self.gpu) {
            ([Phase::Calls(calls)], Some(gpu)) if aggregated > 1 && !separate => {
                self.enqueue(gpu, calls, plan, slots)?;
            }
            ([Phase::Calls(calls)], None) if aggregated > 1 && !separate => {
                let mut group = Group::default();
                for slot in slots {
                    let start = plan.parts.start(slot);
                    calls
                        .iter()
                        .for_each(|call| group.add(self.group, self.call(call, plan, start)));
                }
                group.run().map_err(|error| self.failure(error))?;
            }
            _ => {
                for slot in slots {
                    self.operation(plan, slot)?;
                    if blocking == BARRIER_AFTER_CALLS {
                        self.finish()?;
                        self.barrier()?;
                    }
                }
            }
        }
        if blocking == BARRIER_AFTER_ITERATIONS || self.arguments.per_iteration == 1 {
            self.finish()?;
        }
        Ok(())
    }

    /// One operation: its phases, one after the other.
    pub(super) fn operation(&self, plan: &Plan<'_>, slot: usize) -> Outcome<()> {
        let start = plan.parts.start(slot);
        for phase in plan.phases {
            match (phase, &self.gpu) {
                (Phase::Copy { from, to }, None) => {
                    self.buffers.copy(&plan.layout, *from, *to, start);
                }
                (Phase::Copy { from, to }, Some(gpu)) => {
                    let [from, to] =
                        [from, to].map(|span| self.buffers.position(&plan.layout, *span, start));
                    gpu.copy(from, to).map_err(|error| self.failure(error))?;
                }
                (Phase::Calls(calls), Some(gpu)) => {
                    self.enqueue(gpu, calls, plan, slot..slot + 1)?
                }
                (Phase::Calls(calls), None) => {
                    let outcome = match calls.as_slice() {
                        [call] => self.group.run(self.call(call, plan, start)),
                        calls => {
                            let mut group = Group::default();
                            let add = |call| group.add(self.group, self.call(call, plan, start));
                            calls.iter().for_each(add);
                            group.run()
                        }
                    };
                    outcome.map_err(|error| self.failure(error))?;
                }
            }
        }
        Ok(())
    }

    /// A call on the memory of the part that begins at `start`.
    fn call(&self, call: &Call, plan: &Plan<'_>, start: usize) -> LibraryCall<'_> {
        plan.request.call(call, |span| self.buffers.region(&plan.layout, span, start))
    }
}
