//! The rails of a queue: which can be used, and when to try again with the others.

use super::settings::{Standing, chain};
use crate::ids::{Rail, Timestamp};

/// Doublings of the pause between attempts to have a rail back.
const MAX_DOUBLINGS: u32 = 6;

/// What one end knows about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Not connected.
    Absent,
    /// Connected, and the peer has been heard on it.
    Up { since: Timestamp },
    /// Failed, and what was posted on it has not been given back yet.
    Fencing,
    /// Fenced. Nothing posted on it can be executed any more.
    Down { retry: Timestamp },
}

#[derive(Clone, Copy, Debug)]
struct State {
    health: Health,
    failures: u32,
}

/// All rails of a queue.
#[derive(Debug)]
pub(super) struct Rails {
    states: Vec<State>,
    chain: Vec<Rail>,
}

impl Rails {
    pub(super) fn new(standings: &[Standing]) -> Self {
        let absent = State { health: Health::Absent, failures: 0 };
        Self { states: vec![absent; standings.len()], chain: chain(standings) }
    }

    pub(super) fn count(&self) -> usize {
        self.states.len()
    }

    pub(super) fn health(&self, rail: Rail) -> Health {
        self.states[rail.index()].health
    }

    pub(super) fn is_up(&self, rail: Rail) -> bool {
        matches!(self.health(rail), Health::Up { .. })
    }

    pub(super) fn joined(&mut self, rail: Rail, now: Timestamp) {
        self.states[rail.index()].health = Health::Up { since: now };
    }

    /// Tells whether it has to be fenced now.
    pub(super) fn failed(&mut self, rail: Rail) -> bool {
        let state = &mut self.states[rail.index()];
        match state.health {
            Health::Fencing | Health::Down { .. } => false,
            Health::Absent | Health::Up { .. } => {
                state.health = Health::Fencing;
                state.failures += 1;
                true
            }
        }
    }

    /// It is left for another one, although it works: it has to be fenced now.
    pub(super) fn left(&mut self, rail: Rail) {
        self.states[rail.index()].health = Health::Fencing;
    }

    pub(super) fn fenced(&mut self, rail: Rail, now: Timestamp, retry_ns: u64) {
        let state = &mut self.states[rail.index()];
        let doublings = (state.failures.saturating_sub(1)).min(MAX_DOUBLINGS);
        let retry = now.after(retry_ns.saturating_mul(1 << doublings));
        state.health = Health::Down { retry };
    }

    /// The rails that are up, best first.
    pub(super) fn up(&self) -> impl Iterator<Item = Rail> {
        self.chain.iter().copied().filter(|&rail| self.is_up(rail))
    }

    /// Makes those whose pause is over absent, so that they can be connected again.
    pub(super) fn revive(&mut self, now: Timestamp, mut revived: impl FnMut(Rail)) {
        for &rail in &self.chain {
            let state = &mut self.states[rail.index()];
            if matches!(state.health, Health::Down { retry } if retry <= now) {
                state.health = Health::Absent;
                revived(rail);
            }
        }
    }

    /// When the next pause is over.
    pub(super) fn next_retry(&self) -> Option<Timestamp> {
        let retries = self.states.iter().filter_map(|state| match state.health {
            Health::Down { retry } => Some(retry),
            Health::Absent | Health::Up { .. } | Health::Fencing => None,
        });
        retries.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAIL: Rail = Rail(1);
    const RETRY_NS: u64 = 10;

    /// The pause after it was up and is not any more, for that reason.
    fn pause(rails: &mut Rails, end: impl Fn(&mut Rails)) -> u64 {
        let now = Timestamp(1000);
        rails.joined(RAIL, now);
        end(rails);
        rails.fenced(RAIL, now, RETRY_NS);
        rails.next_retry().map_or(0, |retry| retry.since(now))
    }

    #[test]
    fn only_what_fails_has_to_wait_longer_each_time() {
        let mut rails = Rails::new(&[Standing::default(); 2]);
        let left = |rails: &mut Rails| rails.left(RAIL);
        let failed = |rails: &mut Rails| assert!(rails.failed(RAIL));
        let pauses = [0; 3].map(|_| pause(&mut rails, left));
        assert_eq!(pauses, [RETRY_NS; 3]);
        let pauses = [0; 3].map(|_| pause(&mut rails, failed));
        assert_eq!(pauses, [RETRY_NS, 2 * RETRY_NS, 4 * RETRY_NS]);
    }
}
