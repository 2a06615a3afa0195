//! How links begin: both ends of each let the other know where their rings are.
//!
//! Some devices send nothing before both ends are ready: nobody leaves before what the peers wait for has left. A rail may
//! die while ranks meet, which only one end may know at first: nobody leaves with a link that has never had a rail either, since
//! the peer makes one as soon as it has found out.

use std::time::{Duration, Instant};

use ccl_core::ids::Rank;

use super::link::NetworkLink;
use super::meet::{HANDSHAKE_LIMIT, SETTLED};
use crate::{TransportError, clock};

/// How long to sleep between looks at rings that are not announced yet.
const PAUSE: Duration = Duration::from_micros(50);
/// For how long a link may have no rail. A peer that lives and meets nobody else any more makes one sooner.
const RAILLESS_LIMIT: Duration = HANDSHAKE_LIMIT.saturating_mul(4);

/// Lets both ends of every link learn where the other's ring is, unless all is over before.
pub(super) fn announce(
    links: &mut [(Rank, NetworkLink)],
    deadline: Instant,
    is_repaired: bool,
    is_over: &dyn Fn() -> bool,
) -> Result<(), TransportError> {
    let mut waits = vec![Wait::default(); links.len()];
    loop {
        let mut missing = Vec::new();
        for ((rank, link), wait) in links.iter_mut().zip(&mut waits) {
            link.settle()?;
            let now = clock::now();
            if is_repaired && wait.is_partly_in_vain(link, now) {
                link.begin_without_unannounced();
            }
            missing.extend(wait.missing(*rank, link, now));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let text = || format!("no ring was announced by {}", missing.join(", "));
        if is_over() {
            return Err(TransportError::PeerGone(text()));
        }
        if clock::now() >= deadline {
            return Err(TransportError::TimedOut(text()));
        }
        clock::sleep(PAUSE);
    }
}

/// What a link waits for.
#[derive(Clone, Debug, Default)]
struct Wait {
    /// Since when only some of its rails are announced: the others are broken if that lasts.
    partly: Option<Instant>,
    /// Since when it has no rail, if it has never had one: where it has, the peer may have gone on.
    railless: Option<Instant>,
    was_announced: bool,
}

impl Wait {
    fn is_partly_in_vain(&mut self, link: &NetworkLink, now: Instant) -> bool {
        if !link.is_partly_announced() {
            self.partly = None;
            return false;
        }
        now >= *self.partly.get_or_insert(now) + SETTLED
    }

    fn missing(&mut self, rank: Rank, link: &mut NetworkLink, now: Instant) -> Option<String> {
        let rails = link.unannounced_rails();
        if !rails.is_empty() {
            return Some(format!("rank {rank} rails {rails:?}"));
        }
        if !self.was_announced && !link.is_announced() {
            let is_waited_for = now < *self.railless.get_or_insert(now) + RAILLESS_LIMIT;
            // From here on it has the patience of a link in use.
            link.begin_anew_to_wait();
            return is_waited_for.then(|| format!("rank {rank} over any rail"));
        }
        self.was_announced = true;
        (!link.has_announced()).then(|| format!("this rank to rank {rank}"))
    }
}
