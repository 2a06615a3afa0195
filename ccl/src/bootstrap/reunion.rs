//! Where the ranks of a communicator meet again without some of them, when its store may be gone with those.
//!
//! Each rank has a door that stays shut. Behind that of the lowest rank that is left a store is started, for as long as it
//! takes to tell each other the id of the communicator with which they go on.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_transport::clock;

use super::control::Control;
use super::heard::lock;
use super::message::ControlEvent;
use super::rendezvous::Place;
use super::unique_id::{Door, UNIQUE_ID_BYTES, UniqueId};

/// The doors of all ranks of a communicator, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Reunion {
    own: Door,
    all: Vec<UniqueId>,
    /// Who did not come.
    lost: Mutex<BTreeSet<Rank>>,
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
        Ok(Self { own, all, lost: Mutex::default() })
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
        let start = clock::now();
        let control = Control::return_to(door, first, (me, size), deadline)
            .inspect_err(|error| self.note(error, BTreeSet::new(), first))?;
        let met = control.await_others(absent.clone(), start, deadline);
        met.inspect_err(|error| self.note(error, control.lost(), first))?;
        drop(begun);
        let next = (first == me).then(|| Place::create(settings)).transpose();
        let next = next.inspect_err(|error| {
            if let Err(cause) = control.announce(&ControlEvent::from_error(me, error)) {
                tracing::warn!(rank = me.0, %cause, "the other ranks could not be told");
            }
        })?;
        let own = next.as_ref().map_or_else(Vec::new, |next| next.id().to_bytes().to_vec());
        let ids = control.all_gather("where to go on", &own, deadline);
        let ids = ids.inspect_err(|error| self.note(error, control.lost(), first))?;
        control.leave(0);
        match next {
            Some(next) => Ok(next),
            None => id_of(first, ids.first().map_or(&[], Vec::as_slice)).map(Place::elsewhere),
        }
    }

    /// The ranks that were lost, or did not come, when others met.
    pub(crate) fn lost(&self) -> BTreeSet<Rank> {
        lock(&self.lost).clone()
    }

    /// Remembers who was `lost` when ranks met in the process of rank `first`; that one, if nobody there says who.
    fn note(&self, error: &Error, lost: BTreeSet<Rank>, first: Rank) {
        let mut all = lock(&self.lost);
        match error {
            Error::PeerLost { rank, .. } => _ = all.insert(*rank),
            Error::Deadline { .. } if lost.is_empty() => _ = all.insert(first),
            Error::Deadline { .. }
            | Error::Disagreement { .. }
            | Error::Aborted { .. }
            | Error::InvalidArgument(_)
            | Error::InvalidUsage(_)
            | Error::System { .. }
            | Error::Cuda(_)
            | Error::Internal(_) => {}
        }
        all.extend(lost);
    }
}

fn id_of(rank: Rank, bytes: &[u8]) -> Result<UniqueId, Error> {
    let bytes: &[u8; UNIQUE_ID_BYTES] = bytes
        .try_into()
        .map_err(|_| Error::Internal(format!("rank {rank} says nothing about where ranks meet")))?;
    UniqueId::from_bytes(bytes)
}
