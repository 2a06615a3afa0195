//! Where the transport reports how this rank's rails are. Cheap, and never in the way: counters are
//! atomics, and a report takes a lock that nobody holds for long.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use ccl_core::health::{RailCounters, RailState, Verdict};
use ccl_core::ids::{Rail, Rank, Timestamp};
use ccl_core::topology::RailCapacity;
use ccl_transport::clock;
use ccl_transport::network::RailTraffic;

use super::moves::Moves;
use super::{MAX_EVIDENCE_BYTES, RailNews};
use crate::bootstrap::Letters;
use crate::driver::lock;

/// The rails of one rank, numbered as in its introduction. Reports about rails that it does not have
/// are ignored.
#[derive(Debug)]
pub struct HealthBoard {
    rails: Vec<RailBoard>,
    changed: AtomicBool,
    /// A path was lost, so that the control connection may be dead.
    doubted: AtomicBool,
    bell: OnceLock<Letters>,
    traffic: OnceLock<Arc<[RailTraffic]>>,
    moves: Arc<Moves>,
    start: Instant,
}

#[derive(Debug)]
struct RailBoard {
    standing: Mutex<Standing>,
    faults: AtomicU64,
    returns: AtomicU64,
    tiles: AtomicU64,
    bytes: AtomicU64,
    resent_tiles: AtomicU64,
    resent_bytes: AtomicU64,
}

#[derive(Debug)]
struct Standing {
    state: RailState,
    /// As introduced, or as measured when the communicator was made.
    nominal_bytes_per_second: f64,
    bytes_per_second: f64,
    verdict: Verdict,
    evidence: String,
    unreached: Vec<Rank>,
    last_fault: Option<Timestamp>,
}

impl HealthBoard {
    /// Rails that work, with these capacities in bytes per second.
    #[must_use]
    pub fn new(capacities: &[f64]) -> Self {
        Self {
            rails: capacities.iter().copied().map(RailBoard::new).collect(),
            changed: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            bell: OnceLock::new(),
            traffic: OnceLock::new(),
            moves: Arc::default(),
            start: clock::now(),
        }
    }

    /// How many rails there are.
    #[must_use]
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// A rail of this rank is in `state`, because of `verdict`, as `evidence` shows. The other ranks
    /// hear of it, and the plans change once all have agreed. To report the same again does nothing.
    pub fn report(&self, rail: Rail, state: RailState, verdict: Verdict, evidence: &str) {
        let Some(board) = self.rails.get(rail.index()) else { return };
        let mut standing = lock(&board.standing);
        if (standing.state, standing.verdict) == (state, verdict) {
            return;
        }
        let (was, is) = (standing.state.is_usable(), state.is_usable());
        if was && !is {
            board.faults.fetch_add(1, Ordering::Relaxed);
            let elapsed = clock::now().saturating_duration_since(self.start).as_nanos();
            standing.last_fault = Some(Timestamp(u64::try_from(elapsed).unwrap_or(u64::MAX)));
        }
        if !was && is {
            board.returns.fetch_add(1, Ordering::Relaxed);
        }
        standing.state = state;
        standing.verdict = verdict;
        let end = evidence.floor_char_boundary(MAX_EVIDENCE_BYTES);
        evidence[..end].clone_into(&mut standing.evidence);
        drop(standing);
        log(rail, state, verdict, evidence);
        self.ring(was && !is);
    }

    /// A rail carries data again. What was broken is remembered.
    pub fn recovered(&self, rail: Rail) {
        let Some(board) = self.rails.get(rail.index()) else { return };
        let (verdict, evidence) = {
            let standing = lock(&board.standing);
            (standing.verdict, standing.evidence.clone())
        };
        self.report(rail, RailState::Up, verdict, &evidence);
    }

    /// A rail works, but these ranks, one of each host, do not answer on it while others do.
    pub(super) fn missing(&self, rail: Rail, unreached: Vec<Rank>) {
        let Some(board) = self.rails.get(rail.index()) else { return };
        let mut standing = lock(&board.standing);
        if standing.unreached == unreached {
            return;
        }
        if standing.state.is_usable() && !unreached.is_empty() {
            standing.evidence = format!("others answer on it, but not {}", names(&unreached));
        }
        tracing::info!(rail = rail.0, ?unreached, "hosts that do not answer on a rail");
        standing.unreached = unreached;
        drop(standing);
        self.ring(false);
    }

    /// A rail carries this part of its nominal capacity, from 1 to 100 percent. Plans follow, so
    /// whoever measures does not report noise.
    pub fn measured(&self, rail: Rail, percent: u8) {
        let Some(board) = self.rails.get(rail.index()) else { return };
        let part = f64::from(percent.clamp(1, 100)) / 100.0;
        let mut standing = lock(&board.standing);
        let bytes_per_second = standing.nominal_bytes_per_second * part;
        if standing.bytes_per_second == bytes_per_second {
            return;
        }
        standing.bytes_per_second = bytes_per_second;
        drop(standing);
        tracing::info!(rail = rail.0, percent, "a rail carries this part of its nominal capacity");
        self.ring(false);
    }

    /// The rails are as fast as these, as all ranks know already.
    pub(super) fn tuned(&self, rails: &[RailCapacity]) {
        for (board, rail) in self.rails.iter().zip(rails) {
            let mut standing = lock(&board.standing);
            standing.nominal_bytes_per_second = rail.bytes_per_second;
            standing.bytes_per_second = rail.bytes_per_second;
        }
    }

    /// Tiles went out on a rail.
    pub fn sent(&self, rail: Rail, tiles: u64, bytes: u64) {
        if let Some(board) = self.rails.get(rail.index()) {
            board.tiles.fetch_add(tiles, Ordering::Relaxed);
            board.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Where the transport counts what goes out on the rails.
    pub(crate) fn read_traffic(&self, traffic: Arc<[RailTraffic]>) {
        // There is one network for each board.
        let _ = self.traffic.set(traffic);
    }

    /// Which rails have moved.
    pub(crate) fn moves(&self) -> &Arc<Moves> {
        &self.moves
    }

    /// A rail of this rank listens at another address. The other ranks hear of it.
    pub(crate) fn moved(&self, rail: usize, address: SocketAddr) {
        self.moves.moved_here(rail, address);
        self.ring(false);
    }

    /// Tiles that had gone out on a rail went out again, on any.
    pub fn resent(&self, rail: Rail, tiles: u64, bytes: u64) {
        if let Some(board) = self.rails.get(rail.index()) {
            board.resent_tiles.fetch_add(tiles, Ordering::Relaxed);
            board.resent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whom to wake after a report.
    pub(super) fn ring_with(&self, bell: Letters) {
        // There is one for each communicator, and one board.
        let _ = self.bell.set(bell);
        if self.has_changed() {
            self.ring(false);
        }
        if self.is_in_doubt() {
            self.doubt();
        }
    }

    /// Whether something was reported since the last [`Self::take_change`].
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Whether something was reported since the last call.
    pub(super) fn take_change(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// All rails as they are now.
    pub(super) fn news(&self) -> Vec<RailNews> {
        let mut news: Vec<RailNews> = self.rails.iter().map(RailBoard::news).collect();
        let traffic = self.traffic.get().map_or(&[][..], |traffic| traffic);
        for (news, traffic) in news.iter_mut().zip(traffic) {
            news.counters.tiles += traffic.tiles();
            news.counters.bytes += traffic.bytes();
        }
        news
    }

    /// A path was lost, and the control connection may have used the same NICs.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
        if let Some(bell) = self.bell.get() {
            bell.doubt();
        }
    }

    /// Whether a path was ever lost.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    fn ring(&self, failed: bool) {
        self.changed.store(true, Ordering::Release);
        if let Some(bell) = self.bell.get() {
            bell.wake();
        }
        if failed {
            self.doubt();
        }
    }
}

/// Ranks in words, for people.
pub(super) fn names(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    names.join(", ")
}

/// Suspicions come and go.
fn log(rail: Rail, state: RailState, verdict: Verdict, evidence: &str) {
    let (rail, name, verdict) = (rail.0, state.name(), verdict.name());
    match state {
        RailState::Up => tracing::info!(rail, state = name, evidence, "a rail works"),
        RailState::Suspect => tracing::debug!(rail, state = name, evidence, "a rail is odd"),
        RailState::Down | RailState::Quarantined => {
            tracing::warn!(rail, state = name, verdict, evidence, "a rail does not work");
        }
    }
}

impl RailBoard {
    fn new(bytes_per_second: f64) -> Self {
        Self {
            standing: Mutex::new(Standing {
                state: RailState::Up,
                nominal_bytes_per_second: bytes_per_second,
                bytes_per_second,
                verdict: Verdict::Unknown,
                evidence: String::new(),
                unreached: Vec::new(),
                last_fault: None,
            }),
            faults: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            tiles: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            resent_tiles: AtomicU64::new(0),
            resent_bytes: AtomicU64::new(0),
        }
    }

    fn news(&self) -> RailNews {
        let standing = lock(&self.standing);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RailNews {
            state: standing.state,
            bytes_per_second: standing.bytes_per_second,
            verdict: standing.verdict,
            evidence: standing.evidence.clone(),
            unreached: standing.unreached.clone(),
            counters: RailCounters {
                faults: count(&self.faults),
                returns: count(&self.returns),
                tiles: count(&self.tiles),
                bytes: count(&self.bytes),
                resent_tiles: count(&self.resent_tiles),
                resent_bytes: count(&self.resent_bytes),
            },
            last_fault: standing.last_fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_returns_are_counted_once() {
        let board = HealthBoard::new(&[1e9, 1e9]);
        let rail = Rail(1);
        for state in [RailState::Suspect, RailState::Down, RailState::Down, RailState::Quarantined]
        {
            board.report(rail, state, Verdict::LocalNic, "no carrier");
        }
        assert!(board.take_change() && !board.take_change());
        board.recovered(rail);
        board.report(Rail(9), RailState::Down, Verdict::Path, "there is no such rail");
        board.resent(rail, 2, 300);
        let news = &board.news()[1];
        let expected = RailCounters {
            faults: 1,
            returns: 1,
            resent_tiles: 2,
            resent_bytes: 300,
            ..RailCounters::default()
        };
        assert_eq!((news.state, news.counters), (RailState::Up, expected));
        assert_eq!((news.verdict, news.evidence.as_str()), (Verdict::LocalNic, "no carrier"));
        assert!(news.last_fault.is_some());
        assert_eq!(board.news()[0].counters, RailCounters::default());
    }

    #[test]
    fn a_measured_capacity_is_reported_when_it_changes() {
        let board = HealthBoard::new(&[1e9]);
        for (percent, capacity, counts) in
            [(100, 1e9, false), (50, 0.5e9, true), (50, 0.5e9, false), (100, 1e9, true)]
        {
            board.measured(Rail(0), percent);
            assert_eq!(board.take_change(), counts, "{percent}");
            assert_eq!(board.news()[0].bytes_per_second, capacity);
        }
    }
}
