//! Backups that many queue pairs between two processes share.
//!
//! A pool has idle connections over every rail but the default one: sockets, and nothing else. A queue pair that has
//! lost its rail takes one, and the queue pair of the device is made on it then. Of these *spares* each end owns half,
//! and the end that leads a queue pair takes one of its own for it, so two ends never want the same.
//!
//! ```text
//!   threads ── connections ──▶ spares of a rail ── claim ──▶ the queue pair that has lost its rail, at both ends
//!                              line of a rail ──── note ───▶ the end that leads, if only the other one has noticed
//! ```
//!
//! A queue pair without backups of its own has no other way to tell its peer that its rail has failed: so there is
//! one more connection over each rail, the *line*. What arrives is looked for by the polls of all queue pairs of the
//! pool. Its threads only make connections.

mod customer;
mod filler;
mod keeper;
mod stock;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ccl_transport::nics::Listeners;
use serde::{Deserialize, Serialize};

use super::domain::Wiring;
use super::introduction::{NAME_BYTES, random_name};
use super::meeting::Deadline;
use super::{Domain, Error, Meeting, Side};
pub(super) use customer::Customer;
use filler::Filler;
use keeper::Keeper;
use stock::Stock;

/// The most spares that an end may have on a rail.
pub const MAX_SPARES: usize = 4096;

/// Idle connections to one process, which many queue pairs use as backups in place of own ones: see
/// [`QueuePair::connect_pooled`](super::QueuePair::connect_pooled). Those that are used up, or have died, are
/// replaced in the background until it is dropped; queue pairs live on, with what there is.
#[derive(Debug)]
pub struct Pool {
    stock: Arc<Stock>,
    _filler: Filler,
}

/// What the ends tell each other.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    rails: usize,
    spares: usize,
    /// What both call it: the accepting end chooses.
    name: String,
    /// Where the accepting end listens, by rail, the default one left out.
    addresses: Vec<SocketAddr>,
}

impl Pool {
    /// How many queue pairs this end could give a backup now, on the rail that has fewest.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.stock.spares()
    }

    /// Whether it is over the devices of this domain.
    pub(super) fn is_of(&self, wiring: &Arc<Wiring>) -> bool {
        Arc::ptr_eq(&self.stock.wiring, wiring)
    }
}

impl Domain {
    /// A pool of backups for queue pairs of this domain, made together with the peer, which calls this too. On
    /// each rail but the default one both ends get `spares` connections to give away: as many queue pairs as may
    /// lose their rail at a time, on either end. They are made in the background.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no second device, or `spares` is 0 or more than [`MAX_SPARES`];
    /// [`Error::InvalidUsage`]: the ends differ in devices or spares, which it names; [`Error::Deadline`];
    /// [`Error::PeerLost`]; or the system refuses.
    pub fn pool(
        &self,
        meeting: &mut Meeting,
        spares: usize,
        limit: Duration,
    ) -> Result<Pool, Error> {
        let rails = self.devices().len();
        if rails < 2 || !(1..=MAX_SPARES).contains(&spares) {
            let text = format!(
                "a pool of {spares} spares over {rails} devices: 1 to {MAX_SPARES} spares, and two devices at least"
            );
            return Err(Error::InvalidArgument(text));
        }
        // A device that cannot be used is a rail that is down, as for any backup.
        self.open_backups();
        let deadline = Deadline::after("make a pool", limit);
        let (listeners, name) = match meeting.side() {
            Side::Accepting => (Some(filler::listen(&self.wiring)?), random_name()?),
            Side::Connecting => Default::default(),
        };
        let addresses = listeners.as_ref().map(Listeners::addresses).unwrap_or_default();
        let mine = Offer { rails, spares, name, addresses };
        let theirs = exchange(&mine, meeting, &deadline)?;
        mine.agrees(&theirs)?;
        let name = if mine.name.is_empty() { theirs.name } else { mine.name };
        // One that is used up may be replaced before the accepting end has seen for whom it was.
        let room = match meeting.side() {
            Side::Accepting => 2 * spares,
            Side::Connecting => spares,
        };
        let keeper = Keeper::new(self.inner.clone(), 2 * spares);
        let stock = Arc::new(Stock::new(name, room, keeper, Arc::clone(&self.wiring)));
        let filler = match listeners {
            Some(listeners) => Filler::accepting(&stock, listeners)?,
            None => Filler::dialling(&stock, &theirs.addresses)?,
        };
        Ok(Pool { stock, _filler: filler })
    }
}

fn exchange(mine: &Offer, meeting: &mut Meeting, deadline: &Deadline) -> Result<Offer, Error> {
    let encoded =
        postcard::to_stdvec(mine).map_err(|cause| Error::system("write an offer", cause))?;
    let heard = meeting.exchange(&encoded, deadline.left("the peer to make the pool too")?)?;
    let theirs: Offer = postcard::from_bytes(&heard)
        .map_err(|_| Error::PeerLost("it does not make a pool".into()))?;
    let is_told = mine.addresses.len() + theirs.addresses.len() + 1 == theirs.rails;
    let is_named = theirs.name.len() <= NAME_BYTES * 2;
    if is_named && (is_told || theirs.rails != mine.rails) {
        return Ok(theirs);
    }
    Err(Error::PeerLost("it does not say where it listens".into()))
}

impl Offer {
    /// Both ends compare the same values, so they find out the same.
    fn agrees(&self, peer: &Self) -> Result<(), Error> {
        for (what, here, there) in
            [("number of rails", self.rails, peer.rails), ("spares", self.spares, peer.spares)]
        {
            if here != there {
                let text = format!("the ends differ: {what} {here} here, {there} at the peer");
                return Err(Error::InvalidUsage(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::{Key, Listener};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_name_that_no_peer_chooses_is_refused() {
        let offer = |name: String, addresses| Offer { rails: 2, spares: 1, name, addresses };
        let key = Key::from_passphrase("a test of offers");
        let listener = Listener::bind("127.0.0.1:0", key.clone()).unwrap();
        let address = listener.address().unwrap();
        let peer = thread::spawn(move || {
            let mut meeting = listener.accept(LIMIT).unwrap();
            let theirs = offer("x".repeat(5000), vec![address]);
            exchange(&theirs, &mut meeting, &Deadline::after("test", LIMIT)).unwrap();
        });
        let mut meeting = Meeting::connect(&address.to_string(), &key, LIMIT).unwrap();
        let mine = offer(String::new(), Vec::new());
        let heard = exchange(&mine, &mut meeting, &Deadline::after("test", LIMIT));
        assert!(matches!(heard, Err(Error::PeerLost(_))), "{heard:?}");
        peer.join().unwrap();
    }
}
