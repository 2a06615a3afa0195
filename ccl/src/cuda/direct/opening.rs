//! What ranks do when they first meet: they say what they have, decide alike, and map each other's memory or connect.

use std::sync::Arc;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{Buffer, Exchange, Invitation, Layout, Mapped, Own};

use super::Way;
use super::agreement::{Agreement, Facts, Letter, Near, agree};
use super::columns::Columns;
use super::grid::Grid;
use super::legs::Position;
use super::meeting::{Agenda, Host};
use crate::cuda::error::error as from_device;
use crate::cuda::wire::{Means, Offer, Place, Shape, Wire};
use crate::driver::lock;
use crate::rehearsal::{self, Member};
use crate::vqp::Stage;

impl Host {
    pub(super) fn open(&mut self, agenda: &Agenda) -> Result<(), Error> {
        self.facts.network = Means::of(self.correspondence.settings(), self.correspondence.key());
        let facts: Vec<Facts> = self.gather(&self.facts.clone(), agenda)?;
        let ranks = || (0..facts.len() as u32).map(Rank).collect::<Vec<_>>();
        let way = match agree(&facts) {
            Ok(Agreement::Near(near)) => {
                self.company = ranks();
                let letters = facts.iter().filter_map(|fact| fact.region.clone().ok());
                self.map_all(&letters.collect::<Vec<_>>(), near, agenda)?
                    .map(|exchange| Way::Near(Arc::new(exchange)))
            }
            Ok(Agreement::Far(shape)) => {
                // Nobody will map it.
                self.own = None;
                let place = self.place((&facts, shape), (self.me, ranks()), self.name.clone())?;
                self.connect(place, shape, agenda)?.map(|wire| Way::Far(Arc::new(wire)))
            }
            Ok(Agreement::Columns(near, shape, grid)) => self
                .columns((&facts, near, shape), grid, agenda)?
                .map(|columns| Way::Columns(Arc::new(columns))),
            Err(reason) => {
                self.refuse(&reason);
                None
            }
        };
        if way.is_none() {
            lock(&self.routes).end();
        }
        *lock(&self.way) = way;
        Ok(())
    }

    /// Ranks of every host map each other's regions, and connect with their neighbours in their columns.
    fn columns(
        &mut self,
        (facts, near, shape): (&[Facts], Near, Shape),
        grid: Grid,
        agenda: &Agenda,
    ) -> Result<Option<Columns>, Error> {
        let none = || Error::Internal("a rank is on no host".into());
        let (host, place) = grid.position(self.me).ok_or_else(none)?;
        self.company = grid.host(host);
        let said = self.ground().map_err(|error| error.to_string());
        let (said, scratch) = match said {
            Ok((letter, scratch)) => (Ok(letter), Some(scratch)),
            Err(reason) => (Err(reason), None),
        };
        let (Some(letters), Some(scratch)) = (self.gather_all(said, agenda)?, scratch) else {
            return Ok(None);
        };
        let Some(exchange) = self.map_all(&letters, near, agenda)? else { return Ok(None) };
        let name = format!("{} column {place}", self.name);
        let ring = self.place((facts, shape), (host, grid.column(place)), name)?;
        // Else the few tiles of a short call would all take the same rail, in all columns.
        let ring = Place { first_rail: place, ..ring };
        let Some(wire) = self.connect(ring, shape, agenda)? else { return Ok(None) };
        let position = Position {
            host,
            hosts: grid.height(),
            place,
            places: self.company.len(),
            is_in_order: grid.is_in_order(),
            scratch_bytes: self.facts.staging_bytes,
        };
        let members = self.company.clone().into();
        let (exchange, wire) = (Arc::new(exchange), Arc::new(wire));
        Ok(Some(Columns { exchange, wire, grid, position, members, scratch: Arc::new(scratch) }))
    }

    /// A region for the ranks of this host, in place of the one for all ranks, and scratch memory.
    fn ground(&mut self) -> Result<(Letter, Buffer), Error> {
        self.own = None;
        let (ranks, staging_bytes) = (self.company.len(), self.facts.staging_bytes);
        let layout = Layout { ranks, small_bytes: self.small_bytes, staging_bytes };
        let own = Own::new(&self.gpu, layout).map_err(from_device)?;
        let letter = own.invitation().map_err(from_device)?.into();
        self.own = Some(own);
        Ok((letter, self.gpu.reserve(staging_bytes).map_err(from_device)?))
    }

    /// Ranks of one host map each other's regions, of which they have the letters of all ranks.
    fn map_all(
        &mut self,
        letters: &[Letter],
        near: Near,
        agenda: &Agenda,
    ) -> Result<Option<Exchange>, Error> {
        let mut mapped = Vec::new();
        let map_all = self.company.iter().map(|rank| {
            let map = || {
                let invitation = Invitation::try_from(&letters[rank.index()])?;
                self.gpu.map(&invitation).map_err(|error| format!("region of rank {rank}: {error}"))
            };
            if rank.index() == self.me { Ok(None) } else { map().map(Some) }
        });
        let result: Result<Vec<Option<Mapped>>, String> = map_all.collect();
        let said = result.map(|all| {
            mapped = all;
            mapped.iter().map(|one| one.as_ref().map_or(0, Mapped::address)).collect::<Vec<u64>>()
        });
        let Some(all) = self.gather_all(said, agenda)? else { return Ok(None) };
        let place = self.own_place();
        let here = |rank: &Rank| all[rank.index()].get(place).copied().unwrap_or(0);
        let seen = self.company.iter().map(here).collect();
        let none = || Error::Internal("a rank has no region, and has said that it has one".into());
        let own = self.own.take().ok_or_else(none)?;
        let gpu = Arc::clone(&self.gpu);
        let exchange = Exchange::new(gpu, own, place, near.blocks, (mapped, seen));
        self.maps_buffers = near.maps_buffers;
        Ok(Some(exchange))
    }

    /// Ranks that are each on a host of their own connect with their neighbours.
    fn connect(
        &mut self,
        place: Place,
        shape: Shape,
        agenda: &Agenda,
    ) -> Result<Option<Wire>, Error> {
        let correspondence = Arc::clone(&self.correspondence);
        let means = (correspondence.settings(), correspondence.key());
        let offer = Offer::new(&self.gpu, place.clone(), shape, means);
        let offer = offer.and_then(|offer| Ok((offer.address()?, offer)));
        let (said, offer) = match offer {
            Ok((address, offer)) => (Ok(address), Some(offer)),
            Err(error) => (Err(error.to_string()), None),
        };
        let Some(addresses) = self.gather_all(said, agenda)? else { return Ok(None) };
        let next = addresses[place.rank(place.next()).index()];
        let wire = offer.map(|offer| {
            let is_over = || agenda.is_stopped();
            Wire::connect(&self.gpu, offer, next, (place, shape, self.small_bytes), &is_over)
        });
        let none = || Err(Error::Internal("a rank has nothing, and has said that it has".into()));
        let wire = wire.unwrap_or_else(none).map_err(|error| error.to_string());
        let (said, wire) = match wire {
            Ok(wire) => (Ok(()), Some(wire)),
            Err(reason) => (Err(reason), None),
        };
        if self.gather_all(said, agenda)?.is_none() {
            return Ok(None);
        }
        let obstacle = wire.as_ref().and_then(Wire::obstacle);
        tracing::info!(rank = self.me, ?shape, obstacle, "collectives between hosts by NICs");
        Ok(wire)
    }

    /// Where this rank is in a ring of such members, with its part in a rehearsal of faults.
    fn place(
        &self,
        (facts, shape): (&[Facts], Shape),
        (me, members): (usize, Vec<Rank>),
        name: String,
    ) -> Result<Place, Error> {
        let mut place = Place { me, members, first_rail: 0, name, stages: [None, None] };
        let Some(plan) = &self.correspondence.settings().rehearsal else { return Ok(place) };
        let rails = shape.lanes;
        let all = facts.iter().map(|fact| Member { host: &fact.host, rails });
        let all: Vec<Member<'_>> = all.collect();
        let part = rehearsal::part(plan, place.rank(me), &all)?;
        let host = |at: usize| part.host(place.rank(at));
        let stage = |peer| Some(Stage { plan: plan.clone(), hosts: [host(me), host(peer)] });
        place.stages = [stage(place.next()), stage(place.previous())];
        Ok(place)
    }
}
