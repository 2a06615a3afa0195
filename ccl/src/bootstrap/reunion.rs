//! Where the ranks of a communicator meet again without some of them, when its store may be gone with those.
//!
//! Each rank has a door that stays shut. Behind that of the lowest rank that is left a store is started, for as long as it
//! takes to tell each other the id of the communicator with which they go on.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::Settings;
use ccl_transport::clock;

use super::control::Control;
use super::group::Founder;
use super::heard::{Heard, lock};
use super::message::ControlEvent;
use super::rendezvous::Place;
use super::unique_id::{Door, UNIQUE_ID_BYTES, UniqueId};
use super::vacant::vacant;

/// What the first rank tells the others.
const NEXT: &str = "where to go on";
/// When the first rank looks whether those still live that have not come: the first time, and at the longest after the last one.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The doors of all ranks of a communicator, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Reunion {
    doors: Arc<Doors>,
    /// Who is lost, or did not come.
    lost: Mutex<BTreeSet<Rank>>,
    /// What ends the meeting that is under way.
    current: Mutex<Option<Arc<Heard>>>,
}

#[derive(Debug)]
struct Doors {
    own: Door,
    all: Vec<UniqueId>,
    /// Held while this rank meets others.
    turn: Mutex<()>,
}

/// A rank's intention to meet others; void once there is a later one.
#[derive(Debug)]
pub(crate) struct Call {
    heard: Arc<Heard>,
    is_wary: bool,
}

impl Call {
    /// The others may meet elsewhere: while this rank waits for the first of them it looks whether all have their doors still. The
    /// call fails with [`Error::PeerLost`] if one has not.
    pub(crate) fn wary(self) -> Self {
        Self { is_wary: true, ..self }
    }
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
        Ok(Self::at(Arc::new(Doors { own, all, turn: Mutex::default() })))
    }

    fn at(doors: Arc<Doors>) -> Self {
        let (lost, current) = Default::default();
        Self { doors, lost, current }
    }

    /// Another one at the same doors, which stay for as long as one of both.
    pub(crate) fn again(&self) -> Self {
        Self::at(Arc::clone(&self.doors))
    }

    /// How many ranks have a door.
    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.doors.all.len()).unwrap_or(u32::MAX)
    }

    /// Rank `me` will [meet](Self::meet) others: the call before makes way, whether it has begun to wait or not.
    pub(crate) fn call(&self, me: Rank) -> Call {
        let heard = Arc::new(Heard::new(me));
        if let Some(former) = lock(&self.current).replace(Arc::clone(&heard)) {
            former.withdraw("it meets others anew");
        }
        Call { heard, is_wary: false }
    }

    /// Meets the ranks that are not `absent`, of which this is one, and returns where they go on: in the process of the
    /// lowest of them, which has to stay there until it has joined. All of these ranks call it alike.
    ///
    /// # Errors
    /// Those of [`Control::join`], in the numbers of these ranks. [`Error::PeerLost`] also if the lowest of them has dropped
    /// its `Reunion`, or any of them where the call is [wary](Call::wary), [`Error::InvalidUsage`] if others are absent to other ranks, [`Error::Aborted`] if a rank has ended the
    /// meeting, or the lowest one goes on without this one.
    pub(crate) fn meet(
        &self,
        Call { heard, is_wary }: Call,
        absent: &BTreeSet<u32>,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Place, Error> {
        let me = heard.me();
        let size = self.size();
        let first = (0..size).find(|rank| !absent.contains(rank)).map_or(me, Rank);
        let _turn = lock(&self.doors.turn);
        let founder = || Founder { rank: me.0, absent: absent.clone() };
        let _begun =
            (first == me).then(|| Place::behind(&self.doors.own, founder())).transpose()?;
        let start = clock::now();
        let all: Vec<Rank> = (0..size).map(Rank).collect();
        let is_other = |rank: &Rank| !absent.contains(&rank.0) && ![me, first].contains(rank);
        let door = &self.doors.all[first.index()];
        let reach = || Control::return_to(door, first, Arc::clone(&heard), size, deadline);
        let reached = match is_wary && first != me {
            true => looking(|| self.miss(all.iter().copied().filter(is_other), &heard), reach),
            false => reach(),
        };
        let control = reached.inspect_err(|error| {
            self.note(error, None, (me, first));
            self.look_behind(first, me, absent);
        })?;
        let told = || control.fault().map(|_| control.lost());
        let wait = || control.await_others(absent.clone(), start, deadline);
        let look = || self.look_for(&all, &control);
        let come = if first == me { looking(look, wait) } else { wait() };
        let next = match come {
            Ok(()) => agree(&control, first, settings, deadline).map_err(|error| {
                let missing = || control.missing(NEXT).ok();
                (error, told().or_else(|| Some(missing()?.into_iter().map(Rank).collect())))
            }),
            Err(error) => Err((error, told())),
        };
        let next = next.map_err(|(error, told)| {
            self.note(&error, told, (me, first));
            tell(&control, &error);
            error
        });
        lock(&self.lost).extend(control.lost());
        control.leave(0);
        next
    }

    /// Joins the group of `id`, where the ranks go on that are `left`, as rank `me` of those. All have heard it of the first of them, whose
    /// process it is in.
    ///
    /// # Errors
    /// Those of [`Control::join`]; [`Error::PeerLost`] if one of these ranks has ended since.
    pub(crate) fn join(
        &self,
        id: &UniqueId,
        me: Rank,
        left: &[Rank],
        deadline: Instant,
    ) -> Result<Control, Error> {
        let (first, size) = (Rank(0), u32::try_from(left.len()).unwrap_or(u32::MAX));
        let start = clock::now();
        let control = Control::return_to(id, first, Arc::new(Heard::new(me)), size, deadline)?;
        let wait = || control.await_others(BTreeSet::new(), start, deadline);
        if me == first { looking(|| self.look_for(left, &control), wait) } else { wait() }?;
        Ok(control)
    }

    /// Rank `first`, where `me` was to meet others, is not there: notes which of the next ones are not either, up to the one that is.
    fn look_behind(&self, first: Rank, me: Rank, absent: &BTreeSet<u32>) {
        if !self.lost().contains(&first) {
            return;
        }
        for rank in (first.0 + 1..me.0).filter(|rank| !absent.contains(rank)).map(Rank) {
            match self.vacant([rank]) {
                Ok(gone) if !gone.is_empty() => self.lose(rank),
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Those of the `ranks` whose doors are not there any more.
    ///
    /// # Errors
    /// As [`vacant`].
    pub(crate) fn vacant(
        &self,
        ranks: impl IntoIterator<Item = Rank>,
    ) -> Result<BTreeSet<Rank>, Error> {
        let door = |rank: Rank| Some((rank, self.doors.all.get(rank.index())?));
        vacant(&ranks.into_iter().filter_map(door).collect::<Vec<_>>())
    }

    /// Ends all waiting of the founder for those `others`, by their numbers there, whose processes have ended.
    fn look_for(&self, others: &[Rank], control: &Control) -> Result<(), Error> {
        let door = |number: u32| {
            let rank = others.get(number as usize)?;
            Some((Rank(number), self.doors.all.get(rank.index())?))
        };
        let doors = control.unjoined()?.into_iter().filter_map(door);
        let gone = vacant(&doors.collect::<Vec<_>>())?;
        if gone.is_empty() { Ok(()) } else { control.lose(&gone) }
    }

    /// Ends what this rank has `heard`, and waits for, if one of the `ranks` is not there.
    fn miss(&self, ranks: impl Iterator<Item = Rank>, heard: &Heard) -> Result<(), Error> {
        let gone = self.vacant(ranks)?;
        gone.iter().for_each(|rank| self.lose(*rank));
        if let Some(rank) = gone.first() {
            heard.end(Error::PeerLost { rank: *rank, reason: "nobody is behind its door".into() });
        }
        Ok(())
    }

    /// Ends the meeting that is under way, for all who have come.
    pub(crate) fn end(&self, reason: &str) {
        if let Some(heard) = lock(&self.current).take() {
            heard.withdraw(reason);
        }
    }

    /// The ranks that were lost, or did not come, when others met.
    pub(crate) fn lost(&self) -> BTreeSet<Rank> {
        lock(&self.lost).clone()
    }

    /// A rank was lost after the others had met.
    pub(crate) fn lose(&self, rank: Rank) {
        lock(&self.lost).insert(rank);
    }

    /// Remembers who is lost, as an error says and the store has `told`; rank `first`, where all meet, if that says nothing.
    fn note(&self, error: &Error, told: Option<BTreeSet<Rank>>, (me, first): (Rank, Rank)) {
        let mut lost = lock(&self.lost);
        match error {
            Error::PeerLost { rank, .. } => _ = lost.insert(*rank),
            Error::Deadline { .. } if told.is_none() => _ = lost.insert(first),
            // Who goes because of it is not lost.
            Error::Aborted { .. }
            | Error::Deadline { .. }
            | Error::Disagreement { .. }
            | Error::InvalidArgument(_)
            | Error::InvalidUsage(_)
            | Error::System { .. }
            | Error::Cuda(_)
            | Error::Internal(_) => {}
        }
        lost.extend(told.unwrap_or_default());
        lost.remove(&me);
    }
}

/// Does what waits for others, and looks for them meanwhile.
fn looking<T>(look: impl Fn() -> Result<(), Error> + Send, wait: impl FnOnce() -> T) -> T {
    let (waiting, is_over) = channel::<()>();
    thread::scope(|scope| {
        let looks = move || {
            let mut pause = LOOKS.0;
            while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = (2 * pause).min(LOOKS.1);
                if let Err(cause) = look() {
                    tracing::debug!(%cause, "it was not found out who still lives");
                }
            }
        };
        let named = thread::Builder::new().name("r2ccl-doors".to_owned());
        if let Err(cause) = named.spawn_scoped(scope, looks) {
            tracing::warn!(%cause, "nobody looks whether the other ranks still live");
        }
        let waited = wait();
        drop(waiting);
        waited
    })
}

/// Where all who have met go on: rank `first` says that. Either all hear it or nobody.
fn agree(
    control: &Control,
    first: Rank,
    settings: &Settings,
    deadline: Instant,
) -> Result<Place, Error> {
    let own = (control.rank() == first).then(|| Place::create(settings)).transpose()?;
    let id = own.as_ref().map_or_else(Vec::new, |place| place.id().to_bytes().to_vec());
    let ids = control.all_gather(NEXT, &id, deadline)?;
    match own {
        Some(place) => Ok(place),
        None => id_of(first, ids.first().map_or(&[], Vec::as_slice)).map(Place::elsewhere),
    }
}

/// Tells the others of what only this rank has met with.
fn tell(control: &Control, error: &Error) {
    let me = control.rank();
    let event = ControlEvent::from_error(me, error);
    if matches!(&event, ControlEvent::Aborted { rank, .. } if *rank == me)
        && let Err(cause) = control.announce(&event)
    {
        tracing::warn!(rank = me.0, %cause, "the other ranks could not be told");
    }
}

fn id_of(rank: Rank, bytes: &[u8]) -> Result<UniqueId, Error> {
    let bytes: &[u8; UNIQUE_ID_BYTES] = bytes
        .try_into()
        .map_err(|_| Error::Internal(format!("rank {rank} says nothing about where ranks meet")))?;
    UniqueId::from_bytes(bytes)
}
