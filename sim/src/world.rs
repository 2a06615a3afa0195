//! Runs one world: all ranks, their links and the network, in one thread and in virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ccl::simulation::{Cause, Failed};
use ccl_core::random::Random;
use ccl_transport::TransportError;
use ccl_transport::clock::simulation::VirtualTime;

use crate::actor::{Actor, Step};
use crate::build;
use crate::calls::{Planned, Plans};
use crate::mutation::Mutation;
use crate::network::{Network, Shared};
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::{IS_IN_WORLD, Nanos};

/// When all faults are over, calls end within this time.
const LIVENESS: Nanos = 60_000_000_000;

/// A link may fail when there was no working path between its hosts for so long.
const PATIENCE: Nanos = 3_000_000_000;

/// Of a peer that has closed every path, a link thinks that it has ended, if it does not come back
/// soon. It cannot, when the network is lost for this long.
const CLOSED_PATIENCE: Nanos = 150_000_000;

/// Calls end within this time if nothing goes wrong but what their plans go round. It is less than links wait for a path.
const PROMPT: Nanos = 3_000_000_000;

/// More sweeps than this are a hang, whatever the virtual time is.
const MOST_SWEEPS: u64 = 2_000_000;

/// How long a sweep takes.
const SWEEP: Nanos = 500;

/// How to run a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to write down what happens.
    pub transcript: bool,
    /// What is broken on purpose.
    pub mutation: Option<Mutation>,
}

/// How a world ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What went wrong, if anything did.
    pub violation: Option<String>,
    /// What was reached.
    pub tally: Tally,
    /// Virtual time at the end.
    pub elapsed: Nanos,
    /// What happened, if it was to be written down.
    pub transcript: Vec<String>,
}

/// Runs the world of a scenario to its end.
#[must_use]
pub fn run(scenario: &Scenario, plans: &mut Plans, options: Options) -> Outcome {
    let network = build::network(scenario);
    {
        let mut network = network.lock();
        network.mutate(options.mutation);
        network.log = options.transcript.then(Vec::new);
    }
    IS_IN_WORLD.set(true);
    let played = catch_unwind(AssertUnwindSafe(|| play(scenario, plans, &network)));
    IS_IN_WORLD.set(false);
    let result = played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    });
    let mut network = network.lock();
    let mut tally = network.tally;
    tally.worlds = 1;
    let violation = network.violation.take().or(result.err());
    let transcript = network.log.take().unwrap_or_default();
    Outcome { violation, tally, elapsed: network.now, transcript }
}

fn play(scenario: &Scenario, plans: &mut Plans, network: &Shared) -> Result<(), String> {
    let calls = (0..scenario.calls.len()).map(|call| plans.plan(scenario, call));
    let calls = calls.collect::<Result<Vec<Arc<Planned>>, String>>()?;
    let time = VirtualTime::begin();
    let actors = build::actors(scenario, network).map_err(|error| error.to_string())?;
    let random = Random::new(scenario.seed.rotate_left(32));
    let mut world = World { scenario, calls, network, actors, time, random, sweeps: 0 };
    let result = world.play();
    // Whoever leaves now waits for nobody.
    network.lock().over = true;
    result
}

struct World<'a> {
    scenario: &'a Scenario,
    calls: Vec<Arc<Planned>>,
    network: &'a Shared,
    actors: Vec<Actor>,
    time: VirtualTime,
    random: Random,
    sweeps: u64,
}

impl World<'_> {
    fn play(&mut self) -> Result<(), String> {
        loop {
            if self.actors.iter().all(|actor| actor.is_done()) {
                return Ok(());
            }
            let Some(now) = self.pass()? else {
                self.network.lock().tally.gave_up += 1;
                return Ok(());
            };
            let first = self.random.index(self.actors.len());
            for offset in 0..self.actors.len() {
                let rank = (first + offset) % self.actors.len();
                if self.is_due(rank, now) && self.step(rank, now)? == Step::GaveUp {
                    self.network.lock().tally.gave_up += 1;
                    return Ok(());
                }
            }
        }
    }

    /// Lets the time pass until something happens, or a rank looks; returns the time, or `None` if
    /// nobody can go on because a link has failed between calls, as it may.
    fn pass(&mut self) -> Result<Option<Nanos>, String> {
        let mut network = self.network.lock();
        if let Some(violation) = &network.violation {
            return Err(violation.clone());
        }
        let awake = self.actors.iter().filter(|actor| !network.is_frozen(actor.host));
        let looks = awake.map(|actor| actor.looks_at).min();
        let next = looks.into_iter().chain(network.next_event()).min();
        let elapsed = u64::try_from(self.time.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = next.ok_or("nothing will ever happen")?.max(elapsed);
        if now > network.troubled_until + LIVENESS || self.sweeps > MOST_SWEEPS {
            if self.is_excused(&network) {
                return Ok(None);
            }
            drop(network);
            return Err(self.hang());
        }
        if let Some(call) = self.dawdles(&network, now) {
            drop(network);
            return Err(format!(
                "call {call} goes round what is lost, and takes long: {}",
                self.hang()
            ));
        }
        self.time.set(Duration::from_nanos(now));
        network.advance(now);
        let wakes = network.take_wakes();
        for (rank, actor) in self.actors.iter_mut().enumerate() {
            if wakes & (1 << rank) != 0 {
                actor.wake(now + self.random.below(SWEEP));
            }
        }
        Ok(Some(now))
    }

    fn is_due(&self, rank: usize, now: Nanos) -> bool {
        let actor = &self.actors[rank];
        actor.looks_at <= now && !self.network.lock().is_frozen(actor.host)
    }

    fn step(&mut self, rank: usize, now: Nanos) -> Result<Step, String> {
        self.sweeps += 1;
        let nap = self.scenario.physics.longest_nap;
        let takes = SWEEP + self.random.below(SWEEP);
        let actor = &mut self.actors[rank];
        let step = actor.step(self.scenario, &self.calls, self.network, now)?;
        match step {
            Step::Moved => actor.look_again(now + takes),
            Step::Idle => actor.rest(now, nap),
            Step::Finished => {
                let pause = self.scenario.calls.get(actor.call).map_or(0, |call| call.pause);
                let pause = self.random.below(pause + 1);
                actor.compute(now + takes, now + takes + pause);
            }
            Step::Failed => {
                self.may_fail(rank)?;
                return Ok(Step::GaveUp);
            }
            Step::Tended | Step::GaveUp => {}
        }
        Ok(step)
    }

    /// For how long a link had no path at a stretch, as far as this rank's call may fail for it. It uses the link, and
    /// what was lost while plans went round it does not count.
    fn loss(&self, network: &Network, rank: usize, link: usize) -> Nanos {
        let (actor, ends) = (&self.actors[rank], network.ends(link));
        if actor.is_done() || !self.calls[actor.call].joins(ends) {
            return 0;
        }
        let last = self.scenario.last_without_cards().filter(|last| *last < actor.call);
        let went_round = last.is_some_and(|last| !self.calls[last].joins(ends));
        let rejoined = last.filter(|_| went_round).and_then(|last| actor.begun.get(last + 1));
        network.longest_loss(link, rejoined.copied().unwrap_or(0))
    }

    /// The call that has not ended long after everybody has come to it, though its plan does without what is lost.
    fn dawdles(&self, network: &Network, now: Nanos) -> Option<usize> {
        let retreat = self.scenario.retreat.as_ref().filter(|retreat| retreat.is_all)?;
        let is_late = |call: &usize| {
            let came = self.actors.iter().map(|actor| actor.begun.get(*call).copied());
            let all = came.collect::<Option<Vec<Nanos>>>().and_then(|came| came.into_iter().max());
            all.is_some_and(|all| now > all + PROMPT + network.delayed_since(all))
                && self.actors.iter().any(|actor| actor.call == *call)
        };
        retreat.calls.clone().find(is_late)
    }

    /// Whether calls may wait for ever: for a link that has had no path for longer than its patience.
    fn is_excused(&self, network: &Network) -> bool {
        let ranks = self.actors.iter().enumerate();
        let mut links =
            ranks.flat_map(|(rank, actor)| actor.links.iter().map(move |link| (rank, *link)));
        links.any(|(rank, link)| self.loss(network, rank, link) >= PATIENCE)
    }

    /// A link may fail only if there was no path between its ends for longer than its patience, and calls only fail with
    /// links that they use.
    fn may_fail(&mut self, rank: usize) -> Result<(), String> {
        let actor = &self.actors[rank];
        let mut network = self.network.lock();
        let Failed { peer, cause } = actor.failure.clone().ok_or("a failure without a cause")?;
        let failure = format!("rank {rank} fails in call {}, waiting for rank {peer}", actor.call);
        let Cause::Link(TransportError::PeerGone(cause) | TransportError::Severed(cause)) = cause
        else {
            return Err(format!("{failure}: {cause:?}"));
        };
        let to_peer =
            actor.links.iter().filter(|link| network.ends(**link).contains(&peer.index()));
        let loss = to_peer.map(|link| self.loss(&network, rank, *link)).max().unwrap_or(0);
        // Every path that is gone was closed; one that has come back may never have become usable.
        let is_closed = cause.contains("(closed)") && !cause.replace("(closed)", "").contains('(');
        if loss >= PATIENCE || is_closed && loss >= CLOSED_PATIENCE {
            network.note(|_| format!("{failure}, as it may: {cause}"));
            return Ok(());
        }
        Err(format!("{failure}, though rails were lost for {} µs only: {cause}", loss / 1000))
    }

    fn hang(&mut self) -> String {
        let (scenario, calls) = (self.scenario, &self.calls);
        let waiting = self.actors.iter_mut().enumerate().filter(|(_, actor)| !actor.is_done());
        let describe = |(rank, actor): (usize, &mut Actor)| {
            let waits = actor.waiting(scenario, calls);
            format!("rank {rank} in call {}: {waits}", actor.call)
        };
        let waiting: Vec<String> = waiting.map(describe).collect();
        let links: Vec<String> =
            self.actors.iter().map(|actor| format!("{:?}", actor.player)).collect();
        self.network.lock().note(|_| links.join("\n"));
        format!("hang: {}", waiting.join("; "))
    }
}
