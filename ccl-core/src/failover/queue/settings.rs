//! What a queue is told when it is made.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::ids::Rail;
use crate::topology::Distance;

/// How a sender learns, after a failure, what its peer already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It does not: everything outstanding is sent again. Messages may arrive twice.
    Resend,
    /// The ends tell each other how many messages they have taken.
    Handshake,
    /// A log at the peer, written behind every request and read one-sided.
    Log,
}

impl Evidence {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Resend, Self::Handshake, Self::Log];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resend => "resend",
            Self::Handshake => "handshake",
            Self::Log => "log",
        }
    }
}

/// What a backup rail is worth: the nearest is used first, and of those the one that carries most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Standing {
    /// How far its device is from that of the default rail, near which the program keeps its memory.
    pub distance: Distance,
    /// What it carries, in bytes per second.
    pub capacity: Reverse<u64>,
}

impl Standing {
    /// That of a rail whose two devices have these: what one end says and the other does not know counts, and
    /// otherwise the worse.
    #[must_use]
    pub fn with(self, peer: Self) -> Self {
        let distance = match (self.distance, peer.distance) {
            (Distance::Unknown, known) | (known, Distance::Unknown) => known,
            (here, there) => here.max(there),
        };
        Self { distance, capacity: self.capacity.max(peer.capacity) }
    }
}

/// The rails in the order in which they are tried: the default one, then the backups.
pub(super) fn chain(standings: &[Standing]) -> Vec<Rail> {
    let count = u8::try_from(standings.len()).expect("a queue has fewer than 256 rails");
    let mut chain: Vec<Rail> = (0..count).map(Rail).collect();
    if let Some(backups) = chain.get_mut(1..) {
        backups.sort_by_key(|rail| (standings[rail.index()], rail.index()));
    }
    chain
}

/// How long things may take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The answer of the peer over a rail that is tried, if there is another rail to try.
    pub answer_ns: u64,
    /// A repair as a whole.
    pub repair_ns: u64,
    /// A rail to come back, when none is left.
    pub patience_ns: u64,
    /// Between a failure of a rail and the wish to have it back; doubled with every failure, up to
    /// 64 times.
    pub retry_ns: u64,
    /// How long the default rail must have been back before it is used again.
    pub settle_ns: u64,
    /// How long requests are withheld for the return to the default rail.
    pub drain_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MILLISECOND: u64 = 1_000_000;
        Self {
            answer_ns: 1_000 * MILLISECOND,
            repair_ns: 30_000 * MILLISECOND,
            patience_ns: 1_000 * MILLISECOND,
            retry_ns: 100 * MILLISECOND,
            settle_ns: 1_000 * MILLISECOND,
            drain_ns: 100 * MILLISECOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ends_the_worse_counts_and_what_is_not_known_does_not() {
        let standing = |distance, capacity| Standing { distance, capacity: Reverse(capacity) };
        for (here, there, both) in [
            (standing(Distance::Pix, 10), standing(Distance::Sys, 20), (Distance::Sys, 10)),
            (standing(Distance::Unknown, 10), standing(Distance::Phb, 5), (Distance::Phb, 5)),
            (
                standing(Distance::Unknown, 1),
                standing(Distance::Unknown, 2),
                (Distance::Unknown, 1),
            ),
        ] {
            let both = standing(both.0, both.1);
            assert_eq!((here.with(there), there.with(here)), (both, both));
        }
    }

    #[test]
    fn backups_are_tried_by_distance_and_then_by_capacity() {
        let standing = |distance, capacity| Standing { distance, capacity: Reverse(capacity) };
        let (near, far) = (Distance::Pix, Distance::Sys);
        let standings = [
            standing(Distance::Unknown, 1),
            standing(far, 50),
            standing(near, 10),
            standing(near, 40),
            standing(far, 50),
            standing(Distance::Unknown, 60),
        ];
        assert_eq!(chain(&standings), [0, 3, 2, 1, 4, 5].map(Rail));
        assert_eq!(chain(&standings[..1]), [Rail(0)]);
        assert!(chain(&[]).is_empty());
    }
}
