//! How to wait for a peer: poll, then let others run, then sleep.
//!
//! Polling costs 0.1 µs where a wake-up costs tens, but when ranks outnumber cores the peer may need
//! the very core that polls; so the first rung is skipped there. The last rung bounds what a
//! long wait costs; its naps grow, so that a rank whose peers compute for seconds does not burn a
//! core.

use std::time::Duration;

use crate::clock;

const SPINS_WHEN_ALONE: u32 = 2000;
const YIELDS: u32 = 2000;
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// How long somebody has waited already, and therefore what to do next.
#[derive(Clone, Debug)]
pub struct Ladder {
    spins: u32,
    waited: u32,
    nap: Duration,
}

impl Ladder {
    /// For `ranks` ranks that share `cores` processors.
    #[must_use]
    pub fn new(ranks: usize, cores: usize) -> Self {
        let spins = if ranks <= cores { SPINS_WHEN_ALONE } else { 0 };
        Self { spins, waited: 0, nap: FIRST_NAP }
    }

    /// Something happened: start again from the first rung.
    pub fn reset(&mut self) {
        self.waited = 0;
        self.nap = FIRST_NAP;
    }

    /// Waits a little. Tells whether this took long enough to make a look at the clock worthwhile.
    pub fn pause(&mut self) -> bool {
        self.waited = self.waited.saturating_add(1);
        if self.waited <= self.spins {
            std::hint::spin_loop();
            return self.waited.is_multiple_of(256);
        }
        if self.waited <= self.spins + YIELDS {
            std::thread::yield_now();
            return self.waited.is_multiple_of(16);
        }
        clock::sleep(self.nap);
        self.nap = (self.nap * 2).min(LONGEST_NAP);
        true
    }
}
