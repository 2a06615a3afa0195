//! How ranks of a communicator go on in another one, and how they find each other when only some of them have come to have that.
//!
//! The store of a new communicator tells its ranks one after another that all are connected. If its process ends meanwhile, some
//! have the new communicator, which has failed, and some are left with the one before. Ranks that meet at the doors of the new one
//! find those of the others closed, which opened them in vain, but open the ones that they had before: so they all go there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::Communicator;
use super::core::Core;
use crate::bootstrap::{Call, Reunion};
use crate::config::Config;
use crate::shrink;

/// A process that ends closes all its doors within this time.
const CLOSING: Duration = Duration::from_millis(100);

/// The ranks of a communicator that go on in another one: those that are not absent.
pub(super) struct Remainder<'a> {
    pub(super) reunion: &'a Reunion,
    pub(super) me: Rank,
    pub(super) absent: BTreeSet<u32>,
}

impl Remainder<'_> {
    fn ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.reunion.size()).filter(|rank| !self.absent.contains(rank)).map(Rank)
    }

    /// Meets the others, and makes a communicator with them of the config `to`, after one of the config `from`.
    ///
    /// # Errors
    /// Those of [`Reunion::meet`] and [`Reunion::join`], and as [`Communicator::create`].
    pub(super) fn go_on(
        &self,
        call: Call,
        (from, to): (&Config, &Config),
        deadline: Instant,
    ) -> Result<Communicator, Error> {
        let place = self.reunion.meet(call, &self.absent, &to.settings, deadline);
        let place = place.map_err(|error| from.named(error))?;
        let left: Vec<Rank> = self.ranks().collect();
        let me = (0..).map(Rank).zip(&left).find(|(_, rank)| **rank == self.me);
        let me = me.map_or(self.me, |(number, _)| number);
        let origin = Origin::new(self.reunion, left.clone());
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
}

impl Origin {
    /// The communicator of `reunion`, from which these `ranks` come.
    pub(super) fn new(reunion: &Reunion, ranks: Vec<Rank>) -> Self {
        Self { reunion: reunion.again(), ranks }
    }

    fn there(&self, rank: Rank) -> Option<Rank> {
        self.ranks.get(rank.index()).copied()
    }

    fn here(&self, rank: Rank) -> Option<Rank> {
        (0..).map(Rank).zip(&self.ranks).find(|(_, there)| **there == rank).map(|(here, _)| here)
    }

    /// As [`Reunion::call`], for a rank that comes from there.
    pub(super) fn call(&self, me: Rank) -> Option<Call> {
        Some(self.reunion.call(self.there(me)?))
    }

    /// As [`Reunion::end`].
    pub(super) fn end(&self, reason: &str) {
        self.reunion.end(reason);
    }

    /// As [`Reunion::lost`].
    pub(super) fn lost(&self) -> BTreeSet<Rank> {
        self.reunion.lost().into_iter().filter_map(|rank| self.here(rank)).collect()
    }

    /// Those of the `remainder` that never came to have the communicator, and have the one before.
    fn stayed(
        &self,
        remainder: &Remainder<'_>,
        departed: &BTreeSet<Rank>,
    ) -> Result<BTreeSet<Rank>, Error> {
        let others = remainder.ranks().filter(|rank| !departed.contains(rank));
        let from_there = others.filter(|rank| self.there(*rank).is_some());
        let stayed = self.open(remainder.reunion.vacant(from_there)?)?;
        if stayed.is_empty() {
            return Ok(stayed);
        }
        clock::sleep(CLOSING);
        self.open(stayed)
    }

    /// Those of the `ranks` whose doors there are open.
    fn open(&self, mut ranks: BTreeSet<Rank>) -> Result<BTreeSet<Rank>, Error> {
        let gone = self.reunion.vacant(ranks.iter().filter_map(|rank| self.there(*rank)))?;
        ranks.retain(|rank| self.there(*rank).is_some_and(|there| !gone.contains(&there)));
        Ok(ranks)
    }

    /// The same ranks there.
    fn remainder(&self, remainder: &Remainder<'_>) -> Option<Remainder<'_>> {
        let left: BTreeSet<Rank> = remainder.ranks().filter_map(|rank| self.there(rank)).collect();
        let absent = (0..self.reunion.size()).filter(|rank| !left.contains(&Rank(*rank))).collect();
        Some(Remainder { reunion: &self.reunion, me: self.there(remainder.me)?, absent })
    }
}

/// What a rank [calls](Reunion::call) to meet others: at the doors of a communicator, and of the one that it was made of.
#[derive(Debug)]
pub(super) struct Calls {
    here: Call,
    there: Option<Call>,
}

impl Core {
    /// This rank will meet others; `None` if there are no others.
    pub(super) fn calls(&self) -> Option<Calls> {
        let here = self.reunion.as_ref()?.call(self.rank);
        let there = self.origin.as_ref().and_then(|origin| origin.call(self.rank));
        Some(Calls { here, there })
    }

    /// Has the ranks that are not `absent` go on in a communicator of the config `to`, together with those that are left with what this
    /// communicator was made of, if there are such ranks.
    ///
    /// # Errors
    /// As [`Remainder::go_on`], in the numbers of this communicator.
    pub(super) fn go_on(
        &self,
        reunion: &Reunion,
        calls: Calls,
        absent: BTreeSet<u32>,
        to: &Config,
        deadline: Instant,
    ) -> Result<Communicator, Error> {
        let configs = (&self.config, to);
        let here = Remainder { reunion, me: self.rank, absent };
        let error = match here.go_on(calls.here, configs, deadline) {
            Err(error @ Error::PeerLost { .. }) => error,
            went_on => return went_on,
        };
        let (Some(origin), Some(call)) = (&self.origin, calls.there) else { return Err(error) };
        let stayed = origin.stayed(&here, &self.control.departed()).unwrap_or_else(|cause| {
            tracing::debug!(%cause, "it was not found out who has the communicator before");
            BTreeSet::new()
        });
        let there = origin.remainder(&here).filter(|_| !stayed.is_empty());
        let Some(there) = there else { return Err(error) };
        tracing::info!(
            rank = self.rank.0,
            ?stayed,
            "ranks never had this communicator: all meet where they are"
        );
        reunion.find(&stayed);
        let here = |rank| origin.here(rank).unwrap_or(rank);
        there
            .go_on(call, configs, deadline)
            .map_err(|error| shrink::told_as(error, here, "the communicator before"))
    }
}

#[cfg(test)]
mod tests;
