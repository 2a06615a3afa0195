//! One rank of a world: its executor, its memory and its place in the sequence of calls.

use std::sync::Arc;

use ccl::Region;
use ccl::simulation::{Call, Failed, Player, Sweep};
use ccl_core::collective::Collective;
use ccl_core::wire::Stamp;

use crate::Nanos;
use crate::calls::Planned;
use crate::network::Shared;
use crate::oracle::{Oracle, UNTOUCHED};
use crate::scenario::{CallPlan, Scenario};

const FIRST_NAP: Nanos = 1_000;
/// Naps up to this one stand for looks without a pause.
const LONGEST_SPIN: Nanos = 64_000;

/// How often a rank looks after its links between calls: while a peer is not known to have
/// everything, and otherwise.
const EAGER: Nanos = 2_000_000;
const CALM: Nanos = 10_000_000;

/// What a rank did when it was its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something moved.
    Moved,
    /// Nothing did.
    Idle,
    /// It is between calls.
    Tended,
    /// A call ended, with the right result.
    Finished,
    /// A call failed.
    Failed,
    /// A call failed, and may.
    GaveUp,
}

/// One rank.
#[derive(Debug)]
pub(crate) struct Actor {
    rank: usize,
    pub(crate) host: usize,
    pub(crate) player: Player,
    /// Its links to other hosts.
    pub(crate) links: Vec<usize>,
    /// The call it is in, or before.
    pub(crate) call: usize,
    calls: usize,
    is_running: bool,
    /// When it begins its next call.
    begins_at: Nanos,
    /// When it has begun each of the calls until now.
    pub(crate) begun: Vec<Nanos>,
    /// Paths that it had given up when the call began.
    given_up: u64,
    memory: Memory,
    /// When it looks next.
    pub(crate) looks_at: Nanos,
    nap: Nanos,
    pub(crate) failure: Option<Failed>,
}

#[derive(Debug, Default)]
struct Memory {
    input: Vec<u8>,
    output: Vec<u8>,
    expected: Vec<u8>,
    token: [u8; 1],
    /// Collectives so far.
    sequence: u32,
}

impl Actor {
    pub(crate) fn new(rank: usize, host: usize, calls: usize, player: Player) -> Self {
        Self {
            rank,
            host,
            player,
            links: Vec::new(),
            call: 0,
            calls,
            is_running: false,
            begins_at: 0,
            begun: Vec::new(),
            given_up: 0,
            memory: Memory::default(),
            looks_at: 0,
            nap: FIRST_NAP,
            failure: None,
        }
    }

    /// Whether it has nothing more to call; its links go on.
    pub(crate) fn is_done(&self) -> bool {
        self.call >= self.calls
    }

    /// Something happened that it should look at; it does, unless it is between calls.
    pub(crate) fn wake(&mut self, at: Nanos) {
        if self.is_running {
            self.looks_at = self.looks_at.min(at);
        }
    }

    /// Computes for a while, and begins the next call then.
    pub(crate) fn compute(&mut self, now: Nanos, until: Nanos) {
        (self.nap, self.begins_at) = (FIRST_NAP, until);
        self.looks_at = until.min(now + CALM);
    }

    pub(crate) fn look_again(&mut self, at: Nanos) {
        self.nap = FIRST_NAP;
        self.looks_at = at;
    }

    /// Looks away for a while, longer each time.
    pub(crate) fn rest(&mut self, now: Nanos, longest: Nanos) {
        self.looks_at = now + self.nap;
        self.nap = (self.nap * 2).min(longest);
    }

    /// Does what there is to do now.
    ///
    /// # Errors
    /// The call ended with a wrong result.
    pub(crate) fn step(
        &mut self,
        scenario: &Scenario,
        calls: &[Arc<Planned>],
        network: &Shared,
        now: Nanos,
    ) -> Result<Step, String> {
        if !self.is_running && (self.is_done() || now < self.begins_at) {
            self.tend(now);
            return Ok(Step::Tended);
        }
        let plan = &scenario.calls[self.call];
        let planned = &calls[self.call];
        if !self.is_running {
            self.begun.push(now);
            self.begin(scenario, plan, planned, network);
        }
        let has_slept = self.nap > LONGEST_SPIN;
        let sweep = |player: &mut Player, call: &Call<'_>| {
            if has_slept {
                player.inspect(call)?;
            }
            player.sweep(call)
        };
        match self.with_call(plan, planned, sweep) {
            Ok(Sweep::Moved) => Ok(Step::Moved),
            Ok(Sweep::Idle) => Ok(Step::Idle),
            Ok(Sweep::Finished) => {
                self.finish(plan, network)?;
                Ok(Step::Finished)
            }
            Err(failed) => {
                self.failure = Some(failed);
                Ok(Step::Failed)
            }
        }
    }

    /// Looks after the links between calls, as often as a communicator does.
    fn tend(&mut self, now: Nanos) {
        let pause = if self.player.tend() { CALM } else { EAGER };
        self.looks_at = now + pause;
        if !self.is_done() {
            self.looks_at = self.looks_at.min(self.begins_at);
        }
    }

    /// Whom it waits for, in words.
    pub(crate) fn waiting(&mut self, scenario: &Scenario, calls: &[Arc<Planned>]) -> String {
        if !self.is_running {
            return "it computes".into();
        }
        let (plan, planned) = (&scenario.calls[self.call], &calls[self.call]);
        self.with_call(plan, planned, |player, call| player.waiting(call))
    }

    fn begin(&mut self, scenario: &Scenario, plan: &CallPlan, planned: &Planned, network: &Shared) {
        let oracle = Oracle { plan, ranks: scenario.host_of.len() };
        let memory = &mut self.memory;
        oracle.input(self.rank, &mut memory.input);
        oracle.output(self.rank, &mut memory.expected);
        memory.output.clear();
        memory.output.resize(memory.expected.len(), UNTOUCHED);
        if is_in_place(plan) {
            memory.output.copy_from_slice(&memory.input);
        }
        memory.sequence += u32::from(plan.collective != Collective::PointToPoint);
        self.is_running = true;
        self.player.begin(&planned.programs[self.rank]);
        let (rank, call, collective) = (self.rank, self.call, plan.collective);
        let mut network = network.lock();
        self.given_up = network.given_up[rank];
        network.note(|_| format!("rank {rank} begins call {call}, {collective:?}"));
    }

    /// Looks at the result.
    fn finish(&mut self, plan: &CallPlan, network: &Shared) -> Result<(), String> {
        let (rank, call) = (self.rank, self.call);
        let mut network = network.lock();
        network.note(|_| format!("rank {rank} ends call {call}"));
        let repairs = network.given_up[rank] - self.given_up;
        network.tally.calls += 1;
        network.tally.repaired_calls += u64::from(repairs > 0);
        network.tally.repaired_twice += u64::from(repairs > 1);
        let Memory { output, expected, .. } = &self.memory;
        if let Some(at) = output.iter().zip(expected).position(|(got, wanted)| got != wanted) {
            let (got, wanted) = (output[at], expected[at]);
            return Err(format!(
                "rank {rank}, call {call}, {plan:?}: byte {at} is {got:#x}, must be {wanted:#x}"
            ));
        }
        self.is_running = false;
        self.call += 1;
        Ok(())
    }

    /// Does something with the executor and a call over this rank's memory.
    fn with_call<T>(
        &mut self,
        plan: &CallPlan,
        planned: &Planned,
        act: impl FnOnce(&mut Player, &Call<'_>) -> T,
    ) -> T {
        let Memory { input, output, token, sequence, .. } = &mut self.memory;
        let output = Region::of_mut(output);
        let mut input = Region::of(input);
        if is_in_place(plan) {
            input = output;
        }
        let empty = Region::empty();
        let is_message = plan.collective == Collective::PointToPoint;
        let buffers = match () {
            () if is_message => [empty, empty, empty, input, output],
            () if plan.only_synchronises() => [Region::of_mut(token); 5],
            () => [input, output, empty, empty, empty],
        };
        let call = Call {
            program: &planned.programs[self.rank],
            buffers: &buffers,
            stamp: Stamp {
                sequence: if is_message { 0 } else { *sequence },
                signature: planned.signature,
            },
            request: planned.request.map(|request| (request, planned.ranks())),
        };
        act(&mut self.player, &call)
    }
}

fn is_in_place(plan: &CallPlan) -> bool {
    plan.in_place && plan.collective == Collective::AllReduce
}
