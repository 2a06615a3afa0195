//! What ranks do when they first meet: they say what they have, decide alike, and map each other's memory or connect.

use std::sync::Arc;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{Exchange, Invitation, Mapped};

use super::Way;
use super::agreement::{Agreement, Facts, agree};
use super::meeting::{Agenda, Host};
use crate::cuda::wire::{Means, Offer, Place, Shape, Wire};
use crate::driver::lock;
use crate::rehearsal::{self, Member};
use crate::vqp::Stage;

impl Host {
    pub(super) fn open(&mut self, agenda: &Agenda) -> Result<(), Error> {
        self.facts.network = Means::of(self.correspondence.settings(), self.correspondence.key());
        let facts: Vec<Facts> = self.gather(&self.facts.clone(), agenda)?;
        match agree(&facts) {
            Ok(Agreement::Near { blocks, maps_buffers }) => {
                self.map_all(&facts, (blocks, maps_buffers), agenda)
            }
            Ok(Agreement::Far(shape)) => self.connect(&facts, shape, agenda),
            Err(reason) => {
                self.refuse(&reason);
                Ok(())
            }
        }
    }

    /// Ranks of one host map each other's regions.
    fn map_all(
        &mut self,
        facts: &[Facts],
        (blocks, maps_buffers): (u32, bool),
        agenda: &Agenda,
    ) -> Result<(), Error> {
        let mut mapped = Vec::new();
        let map_all = facts.iter().enumerate().map(|(rank, fact)| {
            let map = || {
                let letter = fact.region.as_ref().map_err(Clone::clone)?;
                let invitation = Invitation::try_from(letter)?;
                self.gpu.map(&invitation).map_err(|error| format!("region of rank {rank}: {error}"))
            };
            if rank == self.me { Ok(None) } else { map().map(Some) }
        });
        let result: Result<Vec<Option<Mapped>>, String> = map_all.collect();
        let said = result.map(|all| {
            mapped = all;
            mapped.iter().map(|one| one.as_ref().map_or(0, Mapped::address)).collect::<Vec<u64>>()
        });
        let Some(all) = self.gather_all(said, agenda)? else { return Ok(()) };
        let here = |addresses: &Vec<u64>| addresses.get(self.me).copied().unwrap_or(0);
        let seen = all.iter().map(here).collect();
        let none = || Error::Internal("a rank has no region, and has said that it has one".into());
        let own = self.own.take().ok_or_else(none)?;
        let gpu = Arc::clone(&self.gpu);
        let exchange = Exchange::new(gpu, own, self.me, blocks, (mapped, seen));
        self.maps_buffers = maps_buffers;
        lock(&self.routes).way = Some(Way::Near(Arc::new(exchange)));
        Ok(())
    }

    /// Ranks that are each on a host of their own connect with their neighbours.
    fn connect(&mut self, facts: &[Facts], shape: Shape, agenda: &Agenda) -> Result<(), Error> {
        // Nobody will map it.
        self.own = None;
        let correspondence = Arc::clone(&self.correspondence);
        let place = self.place(facts, shape)?;
        let means = (correspondence.settings(), correspondence.key());
        let offer = Offer::new(&self.gpu, place.clone(), shape, means);
        let offer = offer.and_then(|offer| Ok((offer.address()?, offer)));
        let (said, offer) = match offer {
            Ok((address, offer)) => (Ok(address), Some(offer)),
            Err(error) => (Err(error.to_string()), None),
        };
        let Some(addresses) = self.gather_all(said, agenda)? else { return Ok(()) };
        let wire = offer.map(|offer| {
            let terms = (place.clone(), shape, self.small_bytes);
            let is_over = || agenda.is_stopped();
            Wire::connect(&self.gpu, offer, addresses[place.next()], terms, &is_over)
        });
        let none = || Err(Error::Internal("a rank has nothing, and has said that it has".into()));
        let wire = wire.unwrap_or_else(none).map_err(|error| error.to_string());
        let (said, wire) = match wire {
            Ok(wire) => (Ok(()), Some(wire)),
            Err(reason) => (Err(reason), None),
        };
        if let (Some(_), Some(wire)) = (self.gather_all(said, agenda)?, wire) {
            let obstacle = wire.obstacle();
            tracing::info!(rank = self.me, ?shape, obstacle, "collectives between hosts by NICs");
            lock(&self.routes).way = Some(Way::Far(Arc::new(wire)));
        }
        Ok(())
    }

    /// Where this rank is, with its part in a rehearsal of faults.
    fn place(&self, facts: &[Facts], shape: Shape) -> Result<Place, Error> {
        let (me, ranks) = (self.me, facts.len());
        let mut place = Place { me, ranks, name: self.name.clone(), stages: [None, None] };
        let Some(plan) = &self.correspondence.settings().rehearsal else { return Ok(place) };
        let rails = shape.lanes;
        let members = facts.iter().map(|fact| Member { host: &fact.host, rails });
        let members: Vec<Member<'_>> = members.collect();
        let part = rehearsal::part(plan, Rank(me as u32), &members)?;
        let host = |rank: usize| part.host(Rank(rank as u32));
        let stage = |peer| Some(Stage { plan: plan.clone(), hosts: [host(me), host(peer)] });
        place.stages = [stage(place.next()), stage(place.previous())];
        Ok(place)
    }
}
