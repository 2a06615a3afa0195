//! What this rank knows of everybody's rails, and when its plans begin to depend on it.
//!
//! ```text
//! board      where the transport reports this rank's rails
//! judge      what the fates of single paths say about a rail
//! moves      where rails are whose NICs have got other addresses
//! witnesses  what third hosts say about it
//! gate       counts the collectives that this rank starts, and stops it
//! capacity   from agreed health to the topology that plans are made for
//! ```
//!
//! A report goes two ways: at once to all ranks, so that everybody can tell how all rails are, and, if it
//! matters to plans, into an [`Agreement`] on the first collective that is planned with it. The thread
//! that speaks with the store drives it; a rank inside a collective takes part without noticing.

mod board;
mod capacity;
mod gate;
mod judge;
mod moves;
#[cfg(test)]
mod tests;
mod witnesses;

pub use board::HealthBoard;
pub(crate) use capacity::{between, with_health};
pub(crate) use judge::{Judge, Paths};
pub(crate) use witnesses::Surroundings;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccl_core::epoch::{Agreement, Commit, Input, Message, Output, Row};
use ccl_core::error::Error;
use ccl_core::health::{RailCounters, RailHealth, RailState, Verdict};
use ccl_core::ids::{Rail, Rank, Timestamp};
use ccl_core::topology::{RailCapacity, Topology};
use ccl_transport::clock;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{Letters, Listener};
use crate::driver::lock;
use crate::engine::Limits;
use gate::Gate;

/// How often a call that is held back looks after the links, and whether it should give up.
const LOOK_PERIOD: Duration = Duration::from_millis(2);
/// Least time between two reports of this rank's rails: one that flaps must not keep everybody busy.
const PUBLISH_PERIOD: Duration = Duration::from_millis(10);
/// Longest evidence that travels; more is cut.
const MAX_EVIDENCE_BYTES: usize = 1024;

/// One rank's view of the health of all rails.
#[derive(Debug)]
pub(crate) struct Health {
    me: Rank,
    board: Arc<HealthBoard>,
    letters: Letters,
    gate: Gate,
    state: Mutex<State>,
    released: Condvar,
    /// The start of the agreement's time.
    start: Instant,
}

#[derive(Debug)]
struct State {
    agreement: Agreement,
    /// This rank's rails, as the agreement knows them.
    row: Row,
    /// Agreed, and not yet seen by the thread that makes plans.
    switches: Vec<Commit>,
    /// The rails of every rank.
    rails: Vec<Vec<RailNews>>,
    /// From when on this rank's rails may be reported again.
    publish_at: Instant,
}

/// A rail, as its rank tells the others about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RailNews {
    state: RailState,
    bytes_per_second: f64,
    verdict: Verdict,
    evidence: String,
    /// Ranks, one of each host, that do not answer on it while others do.
    unreached: Vec<Rank>,
    counters: RailCounters,
    last_fault: Option<Timestamp>,
}

/// What ranks write to each other.
#[derive(Debug, Serialize, Deserialize)]
enum Letter {
    Agreement(Message),
    Rails(Vec<RailNews>),
    /// The sender's rail of this number listens at another address.
    Moved(usize, SocketAddr),
}

/// A collective that may start.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Its place among the collectives of the communicator, from 1 on.
    pub(crate) sequence: u64,
    /// What has been agreed on since the last one.
    pub(crate) switches: Vec<Commit>,
}

impl Health {
    /// The health of rails that have just been introduced: each rank's capacities, in order of rank.
    pub(crate) fn new(
        me: Rank,
        introduced: &[Vec<f64>],
        board: Arc<HealthBoard>,
        letters: Letters,
    ) -> Arc<Self> {
        let start = clock::now();
        let ranks = u32::try_from(introduced.len()).unwrap_or(u32::MAX);
        let rails = introduced.iter().map(|rails| rails.iter().map(RailNews::introduced).collect());
        let state = State {
            agreement: Agreement::new(me, ranks),
            row: Row::as_introduced(),
            switches: Vec::new(),
            rails: rails.collect(),
            publish_at: start,
        };
        board.ring_with(letters.clone());
        Arc::new(Self {
            me,
            board,
            letters,
            gate: Gate::default(),
            state: Mutex::new(state),
            released: Condvar::new(),
            start,
        })
    }

    /// Where the transport reports this rank's rails.
    pub(crate) fn board(&self) -> &Arc<HealthBoard> {
        &self.board
    }

    /// The rails of all ranks, in order of rank and rail.
    pub(crate) fn rails(&self) -> Vec<RailHealth> {
        let mut rails = lock(&self.state).rails.clone();
        rails[self.me.index()] = self.board.news();
        witnesses::conclude(&mut rails);
        let of_rank = |(rank, rails): (Rank, Vec<RailNews>)| {
            (0..).map(Rail).zip(rails).map(move |(rail, news)| news.of(rank, rail))
        };
        (0..).map(Rank).zip(rails).flat_map(of_rank).collect()
    }

    /// The rails are as fast as in `topology`, as all ranks know already.
    pub(crate) fn tuned(&self, topology: &Topology) {
        let mut state = lock(&self.state);
        for (rank, rails) in (0..).map(Rank).zip(&mut state.rails) {
            let measured = topology.rails(topology.node_of(rank));
            for (news, rail) in rails.iter_mut().zip(measured) {
                news.bytes_per_second = rail.bytes_per_second;
            }
        }
        self.board.tuned(topology.rails(topology.node_of(self.me)));
    }

    #[cfg(test)]
    pub(crate) fn agreed_epoch(&self) -> ccl_core::ids::Epoch {
        lock(&self.state).agreement.committed().epoch
    }

    #[cfg(test)]
    pub(crate) fn hold_back(&self) {
        self.gate.close();
    }

    /// Counts the next collective, and returns its number, if it may start at once.
    #[inline]
    pub(crate) fn enter(&self) -> Option<u64> {
        self.gate.enter()
    }

    /// Undoes the last [`Self::enter`]: nothing of the collective has begun, and it will be called again.
    pub(crate) fn cancel(&self) {
        self.gate.cancel();
    }

    /// The next collective, where it may not start at once: waits while new ones are held back, and calls
    /// `tend` now and then meanwhile. Its deadline counts from `since`.
    #[cold]
    pub(crate) fn wait_for_turn(
        &self,
        limits: Limits<'_>,
        since: Instant,
        mut tend: impl FnMut(),
    ) -> Result<Turn, Error> {
        loop {
            // Without the lock: a watch may ask for the health of the rails.
            if let Some(fault) = limits.fault() {
                return Err(fault);
            }
            let mut state = lock(&self.state);
            if !self.gate.is_closed() {
                // Nobody closes the gate now, since that needs the lock.
                let sequence = self.gate.enter_with_news();
                return Ok(Turn { sequence, switches: std::mem::take(&mut state.switches) });
            }
            if clock::now().saturating_duration_since(since) >= limits.timeout() {
                return Err(held_too_long(&state.agreement, limits.timeout()));
            }
            let woken = self.released.wait_timeout(state, LOOK_PERIOD);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
            tend();
        }
    }

    /// Gives the agreement an input and does what it asks for.
    fn handle(&self, state: &mut State, input: Input) {
        let now = self.now();
        let mut inputs = VecDeque::from([input]);
        let mut out = Vec::new();
        while let Some(input) = inputs.pop_front() {
            state.agreement.handle(now, input, &mut out);
            for output in out.drain(..) {
                match output {
                    Output::Send { to, message } => self.write(&to, &Letter::Agreement(message)),
                    Output::Hold => inputs.push_back(Input::Held { last: self.gate.close() }),
                    Output::Switch(commit) => {
                        let (epoch, first) = (commit.epoch.0, commit.first);
                        tracing::info!(rank = self.me.0, epoch, first, "plans change");
                        state.switches.push(commit);
                    }
                    Output::Release => {
                        self.gate.open(!state.switches.is_empty());
                        self.released.notify_all();
                    }
                }
            }
        }
    }

    fn write(&self, to: &[Rank], letter: &Letter) {
        match postcard::to_allocvec(letter) {
            Ok(bytes) => self.letters.send(to, bytes),
            Err(cause) => tracing::error!(%cause, "a letter cannot be encoded"),
        }
    }

    /// Tells the others of this rank's rails, and the agreement if plans depend on it.
    fn publish(&self, state: &mut State) {
        let news = self.board.news();
        let others: Vec<Rank> = (0..).map(Rank).take(state.rails.len()).collect();
        let others: Vec<Rank> = others.into_iter().filter(|rank| *rank != self.me).collect();
        if !others.is_empty() {
            self.write(&others, &Letter::Rails(news.clone()));
            for (rail, address) in self.board.moves().take_untold() {
                self.write(&others, &Letter::Moved(rail, address));
            }
        }
        let rails: Vec<RailCapacity> = news.iter().map(RailNews::capacity).collect();
        let before: Vec<RailCapacity> = match state.row.version {
            0 => state.rails[self.me.index()].iter().map(RailNews::capacity).collect(),
            _ => state.row.rails.clone(),
        };
        if rails != before {
            state.row = Row { version: state.row.version + 1, rails };
            self.handle(state, Input::Rails(state.row.clone()));
        }
    }

    fn now(&self) -> Timestamp {
        let elapsed = clock::now().saturating_duration_since(self.start).as_nanos();
        Timestamp(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

impl Listener for Health {
    fn letter(&self, from: Rank, letter: &[u8]) {
        let mut state = lock(&self.state);
        match postcard::from_bytes(letter) {
            Ok(Letter::Agreement(message)) => {
                self.handle(&mut state, Input::Heard { from, message });
            }
            Ok(Letter::Rails(rails)) => {
                if let Some(known) = state.rails.get_mut(from.index()) {
                    *known = rails;
                }
            }
            Ok(Letter::Moved(rail, address)) => {
                self.board.moves().moved_elsewhere(from, rail, address);
            }
            Err(cause) => tracing::warn!(from = from.0, %cause, "a letter is not understood"),
        }
    }

    fn gone(&self, rank: Rank, calls: Option<u64>) {
        self.handle(&mut lock(&self.state), Input::Gone { rank, calls });
    }

    fn wake(&self) {
        let mut state = lock(&self.state);
        let now = clock::now();
        if now >= state.publish_at && self.board.take_change() {
            state.publish_at = now + PUBLISH_PERIOD;
            self.publish(&mut state);
        }
        if state.agreement.deadline().is_some_and(|at| at <= self.now()) {
            self.handle(&mut state, Input::Tick);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let due = state.agreement.deadline();
        let due = due.map(|Timestamp(at)| self.start + Duration::from_nanos(at));
        let report = self.board.has_changed().then_some(state.publish_at);
        [due, report].into_iter().flatten().min()
    }
}

impl RailNews {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "it is mapped over a slice")]
    fn introduced(bytes_per_second: &f64) -> Self {
        Self {
            state: RailState::Up,
            bytes_per_second: *bytes_per_second,
            verdict: Verdict::Unknown,
            evidence: String::new(),
            unreached: Vec::new(),
            counters: RailCounters::default(),
            last_fault: None,
        }
    }

    fn capacity(&self) -> RailCapacity {
        RailCapacity { bytes_per_second: self.bytes_per_second, up: self.state.is_usable() }
    }

    fn of(self, rank: Rank, rail: Rail) -> RailHealth {
        let Self { state, bytes_per_second, verdict, evidence, counters, last_fault, .. } = self;
        RailHealth { rank, rail, state, bytes_per_second, verdict, evidence, counters, last_fault }
    }
}

fn held_too_long(agreement: &Agreement, timeout: Duration) -> Error {
    let ranks: Vec<String> = agreement.waiting_for().iter().map(ToString::to_string).collect();
    Error::Deadline {
        call: "agreeing on the health of the rails".to_owned(),
        seconds: timeout.as_secs_f64(),
        waiting: format!("no word from ranks {}", ranks.join(", ")),
    }
}
