//! How a link ends: the goodbye goes behind everything else, and is waited for until the peer's host has it.

use std::time::Duration;

use super::super::landing::Landing;
use super::NetworkLink;
use crate::clock;

/// How long to wait at most, before links are dropped, for the hosts of the peers to confirm what was
/// sent; it takes longer than a round trip only if rails are dying.
pub const LINGER: Duration = Duration::from_secs(2);
const LINGER_PAUSE: Duration = Duration::from_micros(50);

/// How near a link is to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Nobody wants to leave.
    Open,
    /// The goodbye is said once everything before it was handed to the paths.
    Due,
    Said,
}

impl NetworkLink {
    /// Takes a step towards the end of the link, and tells whether it was the last.
    ///
    /// A connection that is closed with bytes unread, such as a credit for the last tile, throws away what
    /// has not arrived: so the peer's host has to confirm the goodbye.
    pub(super) fn part(&mut self) -> bool {
        if self.farewell == Farewell::Open {
            self.farewell = Farewell::Due;
        }
        if self.failure.is_some() || self.fences.is_severed() || self.lacking().is_some() {
            return true;
        }
        self.poll_paths(&mut Landing::none());
        self.mend();
        self.post_staged();
        if self.farewell == Farewell::Due && self.window.is_posted() {
            self.say_goodbye();
            self.farewell = Farewell::Said;
        }
        self.has_left()
    }

    /// Whether the network has taken bytes that the peer's host has not confirmed.
    pub(super) fn is_anything_on_the_way(&self) -> bool {
        let mut live = self.carriers.iter().filter_map(|carrier| carrier.live.as_ref());
        live.any(|live| live.pair.in_flight())
    }

    /// Whether the peer's host has everything up to the goodbye.
    fn has_left(&self) -> bool {
        self.farewell == Farewell::Said && self.window.is_posted() && !self.is_anything_on_the_way()
    }
}

impl Drop for NetworkLink {
    /// Who has told the link to leave has waited as long as it wanted to.
    fn drop(&mut self) {
        if self.farewell != Farewell::Open {
            return;
        }
        let deadline = clock::now() + LINGER;
        while !self.part() && clock::now() < deadline {
            clock::sleep(LINGER_PAUSE);
        }
    }
}
