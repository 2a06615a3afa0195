//! How ranks of a communicator go on in another one, and how they find each other when only some of them have come to have that.
//!
//! The store of a new communicator tells its ranks one after another that all are connected. If its process ends meanwhile, some
//! have the new communicator, which has failed, and some are left with the one before. The former meet at the doors of the new
//! one, find that the latter have closed theirs, and still have open the ones before: so all go there. For that they keep these
//! doors until it is known that all have the new communicator.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::Communicator;
use super::core::Core;
use crate::bootstrap::{Call, Control, Reunion};
use crate::config::Config;
use crate::driver::lock;
use crate::shrink;

/// A process that is killed closes all its doors within this time.
const CLOSING: Duration = Duration::from_millis(100);
/// What a rank tells the others when it has come to have the communicator.
const HAD: &str = "had by all";

/// The ranks of a communicator that go on in another one: those that are not absent.
struct Remainder<'a> {
    reunion: &'a Reunion,
    me: Rank,
    absent: BTreeSet<u32>,
}

impl Remainder<'_> {
    fn ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.reunion.size()).filter(|rank| !self.absent.contains(rank)).map(Rank)
    }

    /// Meets the others, and makes a communicator with them of the config `to`, after one of the config `from`.
    ///
    /// # Errors
    /// Those of [`Reunion::meet`] and [`Reunion::join`], and as [`Communicator::create`].
    fn go_on(&self, call: Call, (from, to): (&Config, &Config)) -> Result<Communicator, Error> {
        let deadline = clock::now() + to.settings.bootstrap_timeout;
        let place = self.reunion.meet(call, &self.absent, &to.settings, deadline);
        let place = place.map_err(|error| from.named(error))?;
        let left: Vec<Rank> = self.ranks().collect();
        let origin = Origin::new(self.reunion, left.clone());
        let me = origin.here(self.me).unwrap_or(self.me);
        let join = |deadline| self.reunion.join(place.id(), me, &left, deadline);
        Communicator::of(place.id(), to, Some(origin), join).map_err(|error| {
            let error = to.named(shrink::renumbered(error, &left));
            if let Error::PeerLost { rank, .. } = &error {
                self.reunion.lose(*rank);
            }
            error
        })
    }
}

/// What a communicator was made of.
#[derive(Debug)]
pub(super) struct Origin {
    reunion: Reunion,
    /// The numbers that ranks of the communicator had there. Those that are new follow.
    ranks: Vec<Rank>,
    /// Who was found there.
    stayed: Mutex<BTreeSet<Rank>>,
}

impl Origin {
    /// The communicator of `reunion`, from which these `ranks` come.
    pub(super) fn new(reunion: &Reunion, ranks: Vec<Rank>) -> Self {
        Self { reunion: reunion.again(), ranks, stayed: Mutex::default() }
    }

    fn there(&self, rank: Rank) -> Option<Rank> {
        self.ranks.get(rank.index()).copied()
    }

    fn here(&self, rank: Rank) -> Option<Rank> {
        (0..).map(Rank).zip(&self.ranks).find(|(_, there)| **there == rank).map(|(here, _)| here)
    }

    /// Makes of the ranks that seem `lost` here those that are, as far as is known there.
    pub(super) fn correct(&self, lost: &mut BTreeSet<Rank>) {
        let stayed = lock(&self.stayed);
        lost.retain(|rank| !stayed.contains(rank));
        lost.extend(self.reunion.lost().into_iter().filter_map(|rank| self.here(rank)));
    }

    /// Whether ranks of the `remainder` never came to have the communicator, and have the one before. Remembers all that have.
    fn has_some(&self, remainder: &Remainder<'_>) -> bool {
        let stayed = self.stayed(remainder.reunion).unwrap_or_else(|cause| {
            tracing::debug!(%cause, "it was not found out who has the communicator before");
            BTreeSet::new()
        });
        lock(&self.stayed).extend(&stayed);
        remainder.ranks().any(|rank| stayed.contains(&rank))
    }

    /// The ranks of the communicator with the doors of `reunion` that have only the one before.
    fn stayed(&self, reunion: &Reunion) -> Result<BTreeSet<Rank>, Error> {
        let ranks: BTreeSet<Rank> =
            (0..).map(Rank).zip(&self.ranks).map(|(here, _)| here).collect();
        let gone_here = reunion.vacant(ranks.iter().copied())?;
        let gone_there = self.gone(&ranks)?;
        // Somebody has gone on since because all had the communicator.
        let had_all = gone_there.iter().any(|rank| !gone_here.contains(rank));
        let stayed: BTreeSet<Rank> = gone_here.difference(&gone_there).copied().collect();
        if had_all || stayed.is_empty() {
            return Ok(BTreeSet::new());
        }
        clock::sleep(CLOSING);
        let gone_there = self.gone(&stayed)?;
        Ok(stayed.difference(&gone_there).copied().collect())
    }

    /// Those of the `ranks` whose doors there are closed.
    fn gone(&self, ranks: &BTreeSet<Rank>) -> Result<BTreeSet<Rank>, Error> {
        let gone = self.reunion.vacant(ranks.iter().filter_map(|rank| self.there(*rank)))?;
        Ok(gone.into_iter().filter_map(|rank| self.here(rank)).collect())
    }

    /// The same ranks there.
    fn remainder(&self, remainder: &Remainder<'_>) -> Option<Remainder<'_>> {
        let left: BTreeSet<Rank> = remainder.ranks().filter_map(|rank| self.there(rank)).collect();
        let absent = (0..self.reunion.size()).filter(|rank| !left.contains(&Rank(*rank))).collect();
        Some(Remainder { reunion: &self.reunion, me: self.there(remainder.me)?, absent })
    }
}

/// The origin of a communicator, until it is known that all its ranks have it. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Descent(Arc<Mutex<Option<Arc<Origin>>>>);

impl Descent {
    pub(super) fn from(origin: Option<Origin>) -> Self {
        Self(Arc::new(Mutex::new(origin.map(Arc::new))))
    }

    /// The origin, if ranks may be left there.
    pub(super) fn origin(&self) -> Option<Arc<Origin>> {
        lock(&self.0).clone()
    }

    /// This rank has the communicator: tells the others, and ends the descent once all have told so.
    pub(super) fn tell(&self, control: &Control) {
        let descent = self.clone();
        let end = move || {
            let origin = lock(&descent.0).take();
            drop(origin);
        };
        if let Err(cause) = control.when_all(HAD, end) {
            tracing::debug!(%cause, "the others are not told that this rank has the communicator");
        }
    }

    /// As [`Reunion::end`].
    pub(super) fn end_meeting(&self, reason: &str) {
        self.origin().iter().for_each(|origin| origin.reunion.end(reason));
    }
}

/// What a rank [calls](Reunion::call) to meet others: at the doors of a communicator, and of its origin.
#[derive(Debug)]
pub(super) struct Calls {
    here: Call,
    there: Option<(Arc<Origin>, Call)>,
}

impl Core {
    /// This rank will meet others; `None` if there are no others.
    pub(super) fn calls(&self) -> Option<Calls> {
        let here = self.reunion.as_ref()?.call(self.rank);
        let Some(origin) = self.descent.origin() else { return Some(Calls { here, there: None }) };
        // The others may have gone there already.
        let there = origin.there(self.rank).map(|me| origin.reunion.call(me).wary());
        Some(Calls { here: here.wary(), there: there.map(|call| (origin, call)) })
    }

    /// Has the ranks that are not `absent` go on in a communicator of the config `to`, together with those that are left with what this
    /// communicator was made of, if there are such ranks.
    ///
    /// # Errors
    /// As [`Communicator::shrink`].
    pub(super) fn go_on(
        &self,
        reunion: &Reunion,
        calls: Calls,
        absent: BTreeSet<u32>,
        to: &Config,
    ) -> Result<Communicator, Error> {
        let configs = (&self.config, to);
        let remainder = Remainder { reunion, me: self.rank, absent };
        let error = match remainder.go_on(calls.here, configs) {
            Err(error @ (Error::PeerLost { .. } | Error::InvalidUsage(_))) => error,
            went_on => return went_on,
        };
        let Some((origin, call)) = calls.there else { return Err(error) };
        if self.descent.origin().is_none() || !origin.has_some(&remainder) {
            return Err(error);
        }
        let Some(there) = origin.remainder(&remainder) else { return Err(error) };
        tracing::info!(rank = self.rank.0, "all go back to ranks that never had this communicator");
        there.go_on(call, configs).map_err(|error| {
            let here = |rank| origin.here(rank).unwrap_or(rank);
            shrink::told_as(error, here, "the communicator before")
        })
    }
}

#[cfg(test)]
mod tests;
