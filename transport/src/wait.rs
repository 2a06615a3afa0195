//! How to wait for a peer: poll, then let others run, then sleep.
//!
//! Polling costs 0.1 µs where a wake-up costs tens, but when ranks outnumber cores the peer may need
//! the very core that polls; so the first rung is skipped there, but for as many looks between two yields
//! as a peer on another core needs to send what it is about to. Yielding hands the core over only
//! while the scheduler finds the other rank entitled to it, and to somebody who computes for a whole
//! slice of time, so that rung is short: after it the rank sleeps, until a peer rings its bell, a
//! socket has something or a short time has passed. The naps grow, so that a rank whose peers
//! compute for seconds does not burn a core.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

use crate::bell::Bell;
use crate::clock;

const SPINS_WHEN_ALONE: u32 = 1000;
/// Looking at sockets costs a call of the kernel each time, and a network that is waited for for so long is the
/// bottleneck: whoever sleeps then loses nothing. Measured between two hosts, 8 bytes to 4 MiB and all rails full: with
/// half of it small messages begin to suffer, without a limit full rails cost twice the processor time.
const SPINNING_ON_SOCKETS: Duration = Duration::from_micros(200);
const SPINS_PER_LOOK: u32 = 16;
/// Where ranks outnumber cores, this many looks at the links for each yield: the switch to another rank and
/// back takes ten times as long.
const LOOKS_PER_YIELD: u32 = 2;
/// A yield costs little where nobody else wants the core.
const YIELDS: u32 = 1000;
/// Where somebody does, each can take milliseconds.
const YIELDING: Duration = Duration::from_micros(300);
/// Looking at sockets before every yield does cost, and they can wake a sleeper.
const YIELDS_BETWEEN_SOCKETS: u32 = 50;
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);
/// With a bell, naps end by themselves only for the news of ranks that died.
const LONGEST_NAP_WITH_BELL: Duration = Duration::from_millis(5);

/// Sleeping on more sockets than this needs heap memory.
const INLINE_SOCKETS: usize = 64;

/// How long somebody has waited already, and therefore what to do next.
#[derive(Debug)]
pub struct Ladder {
    spins: u32,
    looks_per_yield: u32,
    waited: u32,
    /// When somebody first looked how long the first rung has taken.
    spinning: Option<Instant>,
    /// When the first yield was, if there was one.
    yielding: Option<Instant>,
    nap: Duration,
    /// What peers on this host ring.
    bell: Option<Bell>,
    is_armed: bool,
}

impl Ladder {
    /// For `ranks` ranks that share `cores` processors, of which this one's peers ring `bell`.
    #[must_use]
    pub fn new(ranks: usize, cores: usize, bell: Option<Bell>) -> Self {
        let (spins, looks_per_yield) =
            if ranks <= cores { (SPINS_WHEN_ALONE, 1) } else { (0, LOOKS_PER_YIELD) };
        Self {
            spins,
            looks_per_yield,
            waited: 0,
            spinning: None,
            yielding: None,
            nap: FIRST_NAP,
            bell,
            is_armed: false,
        }
    }

    /// Something happened: start again from the first rung.
    #[inline]
    pub fn reset(&mut self) {
        if self.waited > 0 {
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        self.waited = 0;
        self.spinning = None;
        self.yielding = None;
        self.nap = FIRST_NAP;
        if let Some(bell) = self.bell.as_ref().filter(|_| self.is_armed) {
            bell.disarm();
            self.is_armed = false;
        }
    }

    /// Waits a little; a longer wait ends early when one of `sockets` can be read. Tells whether
    /// enough time has passed to make a look at the clock worthwhile.
    pub fn pause(&mut self, sockets: &[RawFd]) -> bool {
        self.waited = self.waited.saturating_add(1);
        if self.waited <= self.spins {
            if !sockets.is_empty() && self.waited.is_multiple_of(SPINS_PER_LOOK) {
                self.look_how_long();
            }
            std::hint::spin_loop();
            return self.waited.is_multiple_of(256);
        }
        if sockets.is_empty() && !self.waited.is_multiple_of(self.looks_per_yield) {
            std::hint::spin_loop();
            return false;
        }
        if self.may_yield(sockets) {
            std::thread::yield_now();
            return self.waited.is_multiple_of(16);
        }
        match self.bell.as_ref().filter(|_| sockets.is_empty()) {
            Some(bell) if self.is_armed => {
                bell.sleep(self.nap);
                self.is_armed = false;
                self.nap = (self.nap * 2).min(LONGEST_NAP_WITH_BELL);
                return true;
            }
            Some(bell) => {
                // One more look at the links, for what came before.
                bell.arm();
                self.is_armed = true;
                return false;
            }
            None if sockets.is_empty() => clock::sleep(self.nap),
            None => rest(sockets, self.nap),
        }
        self.nap = (self.nap * 2).min(LONGEST_NAP);
        true
    }

    /// Ends the first two rungs when sockets were looked at for long enough.
    fn look_how_long(&mut self) {
        let now = clock::now();
        let began = *self.spinning.get_or_insert(now);
        if now.saturating_duration_since(began) >= SPINNING_ON_SOCKETS {
            self.waited = self.spins + YIELDS_BETWEEN_SOCKETS;
        }
    }

    fn may_yield(&mut self, sockets: &[RawFd]) -> bool {
        let pauses = match sockets.is_empty() {
            true => YIELDS * self.looks_per_yield,
            false => YIELDS_BETWEEN_SOCKETS,
        };
        if self.waited > self.spins + pauses {
            return false;
        }
        let now = clock::now();
        now.saturating_duration_since(*self.yielding.get_or_insert(now)) < YIELDING
    }
}

/// Sleeps until one of `sockets` can be read, at most for `nap`.
fn rest(sockets: &[RawFd], nap: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
    let mut polled: SmallVec<[PollFd<'_>; INLINE_SOCKETS]> = sockets
        .iter()
        .map(|socket| {
            // SAFETY: the caller owns the links whose sockets these are, for longer than this call.
            let socket = unsafe { BorrowedFd::borrow_raw(*socket) };
            PollFd::from_borrowed_fd(socket, PollFlags::IN)
        })
        .collect();
    // An interrupted or failed poll is a short nap.
    let _ = rustix::event::poll(&mut polled, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_network_that_is_slow_is_slept_for_and_peers_of_this_host_are_not() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let socket = reader.as_raw_fd();
        for sockets in [&[socket][..], &[]] {
            let mut ladder = Ladder::new(1, 1, None);
            for _ in 0..3 * SPINS_PER_LOOK {
                ladder.pause(sockets);
                clock::sleep(SPINNING_ON_SOCKETS / 8);
            }
            assert_eq!(ladder.waited > ladder.spins, !sockets.is_empty());
            ladder.reset();
            ladder.pause(sockets);
            assert_eq!(ladder.waited, 1, "something happened: all begins again");
        }
    }
}
