//! When to connect again, and under which number. Decides; connects nothing.
//!
//! Of two ranks one dials. It goes on without an end, first soon, then more and more rarely, so that
//! a rail that is back for good is used soon and one that is not costs little. It never offers a
//! number twice: of a connection that failed half way, one end may have accepted it.

use std::time::{Duration, Instant};

use super::super::meet::FIRST_INCARNATION;

/// How long to wait after the first failure; after each other one twice as long as before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait for the peer's kernel at least; with longer pauses, as long as those. The own
/// kernel repeats what was lost after a second; a new attempt is a repetition too.
const KNOCK_LIMIT: Duration = Duration::from_millis(100);

/// How far one attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is a connection as far as anybody said.
    Resting,
    /// The next attempt begins.
    Due { at: Instant },
    /// The peer's kernel is asked.
    Knocking { until: Instant },
    /// The peer's process is asked.
    Greeting,
}

/// The connections of one path, by number.
#[derive(Clone, Debug)]
pub(super) struct Redial {
    /// The last one that was made.
    present: u32,
    /// The last one that was offered to the peer.
    offered: u32,
    pause: Duration,
    stage: Stage,
}

impl Redial {
    /// A path with its first connection.
    pub(super) fn new() -> Self {
        let (present, offered) = (FIRST_INCARNATION, FIRST_INCARNATION);
        Self { present, offered, pause: FIRST_PAUSE, stage: Stage::Resting }
    }

    /// Somebody wants a connection in place of one that was given up.
    pub(super) fn ask(&mut self, now: Instant, given_up: u32) {
        if self.stage == Stage::Resting && given_up >= self.present {
            (self.stage, self.pause) = (Stage::Due { at: now }, FIRST_PAUSE);
        }
    }

    /// When the next attempt begins, unless one is under way or none is wanted.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Due { at } => Some(at),
            Stage::Resting | Stage::Knocking { .. } | Stage::Greeting => None,
        }
    }

    /// When the peer's kernel is given up.
    pub(super) fn patience(&self) -> Option<Instant> {
        match self.stage {
            Stage::Knocking { until } => Some(until),
            Stage::Resting | Stage::Due { .. } | Stage::Greeting => None,
        }
    }

    /// An attempt begins.
    pub(super) fn knock(&mut self, now: Instant) {
        assert!(matches!(self.stage, Stage::Due { .. }), "an attempt when none is due: {self:?}");
        self.stage = Stage::Knocking { until: now + KNOCK_LIMIT.max(self.pause) };
    }

    /// The peer's kernel has answered; returns the number to offer to its process.
    pub(super) fn greet(&mut self) -> u32 {
        assert!(matches!(self.stage, Stage::Knocking { .. }), "nobody knocked: {self:?}");
        self.stage = Stage::Greeting;
        self.offered = self.offered.max(self.present) + 1;
        self.offered
    }

    /// The attempt failed. `spread`, between 0 and 1, keeps ranks from trying at the same time.
    pub(super) fn failed(&mut self, now: Instant, spread: f64) {
        let pause = self.pause.mul_f64(1.0 - spread.clamp(0.0, 1.0) / 2.0);
        self.stage = Stage::Due { at: now + pause };
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }

    /// The peer has refused the number, because it has this one already.
    pub(super) fn outdone(&mut self, by: u32) {
        self.offered = self.offered.max(by);
    }

    /// The NIC works again: whatever was waited for is not worth it any more. Tells whether an attempt
    /// that is under way is pointless.
    pub(super) fn hurry(&mut self, now: Instant) -> bool {
        self.pause = FIRST_PAUSE;
        let was_knocking = matches!(self.stage, Stage::Knocking { .. });
        if was_knocking || matches!(self.stage, Stage::Due { .. }) {
            self.stage = Stage::Due { at: now };
        }
        was_knocking
    }

    /// The peer offers a connection: takes it if it is newer than the present one.
    ///
    /// # Errors
    /// The number of the present one, if it is not.
    pub(super) fn admit(&mut self, offered: u32) -> Result<(), u32> {
        if offered <= self.present {
            return Err(self.present);
        }
        self.connected(offered);
        Ok(())
    }

    /// There is a connection.
    pub(super) fn connected(&mut self, incarnation: u32) {
        (self.present, self.stage) = (incarnation, Stage::Resting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// Pauses until the attempts numbered `attempts`, all of which fail at once.
    fn pauses(redial: &mut Redial, start: Instant, spread: f64, attempts: usize) -> Vec<f64> {
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..attempts {
            let due = redial.due().unwrap();
            pauses.push((due - now).as_secs_f64() * 1e3);
            now = due;
            redial.knock(now);
            assert!(redial.patience() >= Some(now + KNOCK_LIMIT));
            redial.failed(now, spread);
        }
        pauses
    }

    #[test]
    fn attempts_become_rarer_and_never_end() {
        let start = clock::now();
        let mut redial = Redial::new();
        redial.ask(start, 0);
        let expected = [0., 5., 10., 20., 40., 80., 160., 320., 640., 1000., 1000.];
        assert_eq!(pauses(&mut redial, start, 0.0, 11), expected);
        let mut redial = Redial::new();
        redial.ask(start, 0);
        assert_eq!(pauses(&mut redial, start, 1.0, 4), [0., 2.5, 5., 10.]);
    }

    #[test]
    fn asking_twice_is_asking_once() {
        let start = clock::now();
        let mut redial = Redial::new();
        assert_eq!(redial.due(), None);
        redial.ask(start, 0);
        redial.ask(start + KNOCK_LIMIT, 0);
        assert_eq!(redial.due(), Some(start));
        redial.knock(start);
        redial.ask(start, 0);
        assert_eq!((redial.due(), redial.greet()), (None, 1));
        redial.ask(start, 0);
        redial.connected(1);
        redial.ask(start, 0);
        assert_eq!(redial.due(), None);
        redial.ask(start, 1);
        assert_eq!(redial.due(), Some(start));
    }

    #[test]
    fn a_number_is_never_offered_twice() {
        let start = clock::now();
        let mut redial = Redial::new();
        redial.ask(start, 0);
        let mut offer = |outdone: u32| {
            redial.knock(start);
            let offered = redial.greet();
            redial.outdone(outdone);
            redial.failed(start, 0.5);
            offered
        };
        assert_eq!([offer(0), offer(0), offer(7), offer(3), offer(0)], [1, 2, 3, 8, 9]);
    }

    #[test]
    fn a_nic_that_is_back_is_tried_at_once() {
        let start = clock::now();
        let mut redial = Redial::new();
        assert!(!redial.hurry(start));
        assert_eq!(redial.due(), None);
        redial.ask(start, 0);
        pauses(&mut redial, start, 0.0, 9);
        assert!(!redial.hurry(start));
        assert_eq!(redial.due(), Some(start));
        redial.knock(start);
        assert!(redial.hurry(start));
        assert_eq!(pauses(&mut redial, start, 0.0, 2), [0., 5.]);
        redial.knock(redial.due().unwrap());
        redial.greet();
        assert!(!redial.hurry(start));
        assert_eq!(redial.due(), None);
    }

    #[test]
    fn only_newer_connections_are_taken() {
        let mut redial = Redial::new();
        let offers = [0, 1, 1, 5, 4].map(|offered| redial.admit(offered));
        assert_eq!(offers, [Err(0), Ok(()), Err(1), Ok(()), Err(5)]);
    }
}
