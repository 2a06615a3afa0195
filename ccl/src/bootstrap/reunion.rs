//! Where the ranks of a communicator meet again without some of them, when its store may be gone with those.
//!
//! Each rank has a door that stays shut. Behind that of the lowest rank that is left a store is started, for as long as it
//! takes to tell each other the id of the communicator with which they go on.

use std::collections::BTreeSet;
use std::time::Instant;

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;

use super::control::Control;
use super::message::ControlEvent;
use super::rendezvous::Place;
use super::unique_id::{Door, UNIQUE_ID_BYTES, UniqueId};

/// The doors of all ranks of a communicator, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Reunion {
    own: Door,
    all: Vec<UniqueId>,
}

impl Reunion {
    /// Tells the other ranks of a door by `exchange`, which returns what all have said, in order of rank.
    ///
    /// # Errors
    /// [`Error::System`] if there is no port, and those of `exchange`.
    pub(crate) fn prepare(
        settings: &Settings,
        exchange: impl FnOnce(&Vec<u8>) -> Result<Vec<Vec<u8>>, Error>,
    ) -> Result<Self, Error> {
        let own = Door::open(settings)?;
        let all = exchange(&own.id.to_bytes().to_vec())?;
        let all = (0..)
            .map(Rank)
            .zip(&all)
            .map(|(rank, id)| id_of(rank, id))
            .collect::<Result<_, _>>()?;
        Ok(Self { own, all })
    }

    /// Meets the ranks that are not `absent`, of which this is rank `me`, and returns where they go on: in the process of the
    /// lowest of them, which has to stay there until it has joined. All of these ranks call it alike.
    ///
    /// # Errors
    /// Those of [`Control::join`], in the numbers of these ranks. [`Error::PeerLost`] also if the lowest of them has dropped
    /// its `Reunion`, [`Error::InvalidUsage`] if others are absent to other ranks.
    pub(crate) fn meet(
        &self,
        me: Rank,
        absent: &BTreeSet<u32>,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Place, Error> {
        let size = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let first = (0..size).find(|rank| !absent.contains(rank)).map_or(me, Rank);
        let door = &self.all[first.index()];
        let begun = (first == me).then(|| Place::behind(&self.own, me)).transpose()?;
        let control = Control::join_again(door, first, me, size, absent.clone(), deadline)?;
        drop(begun);
        let next = (first == me).then(|| Place::create(settings)).transpose();
        let next = next.inspect_err(|error| {
            if let Err(cause) = control.announce(&ControlEvent::from_error(me, error)) {
                tracing::warn!(rank = me.0, %cause, "the other ranks could not be told");
            }
        })?;
        let own = next.as_ref().map_or_else(Vec::new, |next| next.id().to_bytes().to_vec());
        let ids = control.all_gather("where to go on", &own, deadline)?;
        control.leave(0);
        match next {
            Some(next) => Ok(next),
            None => id_of(first, ids.first().map_or(&[], Vec::as_slice)).map(Place::elsewhere),
        }
    }
}

fn id_of(rank: Rank, bytes: &[u8]) -> Result<UniqueId, Error> {
    let bytes: &[u8; UNIQUE_ID_BYTES] = bytes
        .try_into()
        .map_err(|_| Error::Internal(format!("rank {rank} says nothing about where ranks meet")))?;
    UniqueId::from_bytes(bytes)
}
