//! Communicators that are made of others.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::Communicator;
use super::lineage::{Calls, Origin};
use crate::bootstrap::{Control, Place, UniqueId};
use crate::config::Config;
use crate::driver::lock;
use crate::grow;
use crate::plans;
use crate::shrink::{self, Ongoing};
use crate::split;

impl Communicator {
    /// Divides the group by `color`, in order of `key` and then of rank; collective. A rank without
    /// a colour takes part and gets no communicator. `config` is that of the new communicator, `None`: that of
    /// this one.
    ///
    /// # Errors
    /// As [`Self::create`]. What keeps the members of a part from meeting, as a rank that does not call this
    /// before the bootstrap deadline, ends this communicator on all ranks.
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Self>, Error> {
        let core = self.core();
        self.usable()?;
        let config = config.unwrap_or(&core.config);
        let gather = core.gatherer("split", config);
        let wishes = gather("wishes", split::wish(color, key).as_bytes())?;
        let members = color.map_or_else(Vec::new, |color| split::members(&wishes, color));
        let place = members.iter().position(|member| *member == core.rank);
        let begin = |place: usize| {
            plans::check(&config.settings)?;
            (place == 0).then(|| Place::create(&config.settings)).transpose()
        };
        // Whatever the error is, the others wait for the id, or for this rank.
        let meeting = place.map_or(Ok(None), begin).inspect_err(|error| core.fail(error))?;
        let bytes = meeting.as_ref().map_or_else(Vec::new, |it| it.id().to_bytes().to_vec());
        let ids = gather("ids", &bytes)?;
        let (Some(place), Some(first)) = (place, members.first()) else { return Ok(None) };
        let id = ids[first.index()].as_slice().try_into().map_err(|_| {
            Error::Internal(format!("rank {first} announced no id for its part of the split"))
        })?;
        let id = UniqueId::from_bytes(id)?;
        let tied = core.control.tie(Rank(number(place)));
        let join = |deadline| tied.join(&id, number(members.len()), deadline);
        let created = Self::of(&id, config, None, join);
        created.map(Some).map_err(|error| core.cause_of(error, config))
    }

    /// An id for ranks that are to join those of this communicator when they [grow](Self::grow). One rank asks for it, once for each time, and
    /// gives it to the new ones, each of which becomes a rank of the new communicator by [`Self::create`]. The place where all
    /// meet is in this process: it closes, and tells those who wait, when an attempt to grow has failed, this is called anew, or this
    /// communicator is shrunk, aborted, finalized or dropped.
    ///
    /// # Errors
    /// As [`UniqueId::create`], and what ended this communicator, if something did.
    pub fn growth_id(&self) -> Result<UniqueId, Error> {
        self.usable()?;
        let core = self.core();
        let place = Place::of(core.rank, &core.config.settings);
        let place = place.map_err(|error| core.config.named(error))?;
        let id = *place.id();
        // It may take a while to close.
        let former = lock(&core.growth).replace(place);
        drop(former);
        Ok(id)
    }

    /// A communicator of these ranks, which keep their numbers, and of new ones behind them, `size` in all. Collective among
    /// these ranks, one of which has asked for the [id](Self::growth_id), and the new ones, which call [`Self::create`] with
    /// that and the same size. `config` is that of the new communicator, `None`: that of this one.
    ///
    /// If the new ranks do not come, this communicator remains as it is, and ranks can try again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], on all ranks of this communicator: they say different sizes, or not more than they are.
    /// [`Error::InvalidUsage`], on all: none has asked for an id, or several have, or a new rank that has come has gone again. What ends
    /// this communicator, if something does. Then as [`Self::create`], in the numbers of the new communicator. What keeps these ranks from
    /// agreeing, as one that does not call this before the bootstrap deadline, ends this communicator on all of them.
    pub fn grow(&self, size: u32, config: Option<&Config>) -> Result<Self, Error> {
        let core = self.core();
        // Whatever comes of it: in the process of the store its rank joins while this is there, and new ranks are told when it
        // goes.
        let place = core.end_growth();
        self.usable()?;
        let config = config.unwrap_or(&core.config);
        // The others wait for this rank.
        plans::check(&config.settings).inspect_err(|error| core.fail(error))?;
        let wish = grow::wish(size, grow::Meeting::of(place.as_ref()));
        let wishes = core.gatherer("grow", config)("wishes", &wish)?;
        let id = grow::agreed(&wishes).map_err(|error| core.config.named(error))?;
        let deadline = clock::now() + config.settings.bootstrap_timeout;
        id.await_way(&config.settings, deadline).inspect_err(|error| core.fail(error))?;
        core.try_to_go_on();
        let tied = core.control.tie(core.rank);
        let ranks = (0..core.size).map(Rank).collect();
        let origin = core.reunion.as_ref().map(|reunion| Origin::new(reunion, ranks));
        let joined = Self::of(&id, config, origin, |deadline| tied.join(&id, size, deadline));
        joined.map_err(|error| core.cause_of(error, config))
    }

    /// A communicator of the ranks that are not `excluded`, in their order: to go on without ranks that are lost, or with all
    /// of them after an error. Collective among these ranks, which exclude the same ones; the others take no part. This
    /// communicator may have failed, but not been finalized, and may have lost the process in which its ranks met. If that has
    /// ended in the moment in which this communicator came to be, some ranks may not have it: these shrink the one before.
    /// `config` is that of the new communicator, `None`: that of this one.
    ///
    /// A call that fails because one of the others is lost as well leaves this communicator as it is, and can be made again
    /// with more ranks excluded: with all [that are lost](Self::lost_ranks) as far as is known then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this rank is excluded, or another one twice, or there is none. [`Error::InvalidUsage`]: a
    /// rank excludes others than the rest, or this communicator was finalized. [`Error::PeerLost`], [`Error::Deadline`]: one
    /// of the ranks has ended or dropped this communicator, or does not call this before the bootstrap deadline.
    /// [`Error::Aborted`]: one of them has [aborted](Self::abort) this communicator or called this anew meanwhile, or the lowest
    /// goes on without this rank. Then as [`Self::create`]. Fields of errors name ranks of this communicator; what keeps the
    /// new one from being created may be told in the numbers of that.
    pub fn shrink(
        &self,
        excluded: &[Rank],
        ongoing: Ongoing,
        config: Option<&Config>,
    ) -> Result<Self, Error> {
        self.begin_shrink(excluded, ongoing)?.finish(config)
    }

    /// What [`Self::shrink`] does before it waits for anybody: from here on this call counts, and none before it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] and [`Error::InvalidUsage`], as [`Self::shrink`].
    pub fn begin_shrink(&self, excluded: &[Rank], ongoing: Ongoing) -> Result<Shrink, Error> {
        let core = self.core();
        let absent = shrink::absent(excluded, core.rank, core.size)?;
        if core.finalized.load(Ordering::Acquire) {
            return Err(Error::InvalidUsage("the communicator was finalized".into()));
        }
        core.try_to_go_on();
        drop(core.end_growth());
        if ongoing == Ongoing::Abort {
            self.abort("ranks go on in another communicator");
        }
        Ok(Shrink { of: self.clone(), absent, calls: core.calls() })
    }

    /// The ranks that are lost to this one as far as is known, in order: those that have ended, left or cannot be reached, and
    /// those that a [`Self::shrink`] has waited for in vain, or that another rank excluded there. Those of a host that has no power
    /// any more are known when the network has given them up; when the process is gone in which all had met, nobody is told of others
    /// before a [`Self::shrink`] has looked for them. Where this communicator has failed, and this rank has called [`Self::shrink`]
    /// or [`Self::grow`], who leaves afterwards may have gone on, and is not lost before another [`Self::shrink`] finds nobody there.
    #[must_use]
    pub fn lost_ranks(&self) -> Vec<Rank> {
        self.core().lost().into_iter().collect()
    }
}

/// A [`Communicator::shrink`] that has begun.
#[derive(Debug)]
#[must_use = "nobody meets until it is finished"]
pub struct Shrink {
    of: Communicator,
    absent: BTreeSet<u32>,
    calls: Option<Calls>,
}

impl Shrink {
    /// Waits for the other ranks that go on.
    ///
    /// # Errors
    /// As [`Communicator::shrink`].
    pub fn finish(self, config: Option<&Config>) -> Result<Communicator, Error> {
        let Self { of, absent, calls } = self;
        let core = of.core();
        core.queue.drain();
        let config = config.unwrap_or(&core.config);
        plans::check(&config.settings)?;
        if let (Some(reunion), Some(calls)) = (&core.reunion, calls) {
            return core.go_on(reunion, calls, absent, config);
        }
        let place = Place::create(&config.settings).map_err(|error| core.config.named(error))?;
        let alone = |deadline| Control::join(place.id(), Rank(0), 1, deadline);
        Communicator::of(place.id(), config, None, alone).map_err(|error| config.named(error))
    }
}

/// Of ranks.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
