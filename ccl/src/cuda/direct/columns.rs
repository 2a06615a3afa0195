//! Calls of ranks that are several on each of several hosts: kernels inside the hosts, kernels and NICs in the columns
//! ([`super::grid`]), in turn, on one stream.
//!
//! The groups of a host and of a column are no communicators: they are made by the thread that meets all ranks, after
//! all have said what they have, so what is agreed on, counted, watched and failed is one communicator still, with one
//! driver thread and one order of calls.
//!
//! Always true: a rank does all legs of a call before any of the next one; and when a leg fails, no kernel of this call
//! or of a later one waits for others.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::collective::Request;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{self, Buffer, DeviceRegion, Exchange, Protocol, Stream};

use super::call::Call;
use super::grid::Grid;
use super::legs::{Area, Circle, Leg, Memory, Position, legs};
use super::parts::{Cast, Form, Work};
use super::watch::guarded;
use super::{Direct, Watch};
use crate::cuda::deadline::Deadline;
use crate::cuda::error::described;
use crate::cuda::staging::{Issue, Staging};
use crate::cuda::wire::{self, Wire};
use crate::driver::lock;

/// A rank that has met those of its host and its neighbours in the column.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) exchange: Arc<Exchange>,
    pub(super) wire: Arc<Wire>,
    pub(super) grid: Grid,
    pub(super) position: Position,
    /// The ranks of the host.
    pub(super) members: Arc<[Rank]>,
    /// As large as staging memory.
    pub(super) scratch: Arc<Buffer>,
}

impl Columns {
    /// What is to be done for a request; None if it goes through the host: the same on all ranks.
    pub(super) fn legs(&self, request: &Request) -> Option<Vec<Leg>> {
        let root = self.grid.position(request.root.index())?;
        if self.wire.takes(request) { legs(request, self.position, root) } else { None }
    }
}

/// What the driver thread does for a call.
#[derive(Debug)]
pub(crate) struct Job {
    /// The memory on which it works lives as long.
    columns: Arc<Columns>,
    staging: Arc<Staging>,
    turns: Vec<Turn>,
}

/// What happens in one group.
#[derive(Debug)]
enum Turn {
    Host(Watch),
    Column(wire::Job),
}

impl Job {
    /// Waits for the stream, and does the call, in at most `timeout`. What ends it, which `fault` tells or `fail` is
    /// told, lets all kernels go.
    ///
    /// # Errors
    /// Whatever ended it, which is kept.
    pub(crate) fn run(
        self,
        fault: &dyn Fn() -> Option<Error>,
        fail: &dyn Fn(&Error),
        timeout: Duration,
    ) -> Result<(), Error> {
        let (deadline, exchange) = (Deadline::new(timeout), &self.columns.exchange);
        let end = |error: &Error| {
            // Before streams go on with nothing.
            self.staging.keep(error);
            exchange.give_up();
        };
        let mut before = None;
        let mut turns = self.turns.into_iter();
        let mut result = turns.by_ref().try_for_each(|turn| match turn {
            // Whoever waits for the next turn looks after this one.
            Turn::Host(watch) => {
                before = Some(watch);
                Ok(())
            }
            Turn::Column(job) => {
                let watch = before.take();
                let hindrance = || watch.as_ref().and_then(|watch: &Watch| watch.look(&deadline));
                // Before the job goes, and with it its turn.
                let take = || job.take(&hindrance, fault, &deadline);
                let taken = guarded(&self.staging, exchange, take);
                // Before the stream goes on to kernels that would wait.
                taken.inspect_err(|error| end(error))
            }
        });
        if let (Ok(()), Some(watch)) = (&result, before) {
            result = guarded(&self.staging, exchange, || watch.wait(fault, &deadline));
        }
        if let Err(error) = &result {
            end(error);
            fail(error);
        }
        // Only now do streams go on that wait for turns which did not come.
        drop(turns);
        result
    }
}

impl Direct {
    /// Puts all legs of a call on the stream, after all calls before.
    pub(super) fn columns(
        &self,
        (columns, legs): (&Arc<Columns>, &[Leg]),
        (request, number): (&Request, u64),
        memory: [Option<DeviceRegion<'_>>; 2],
        (stream, issue): (&Stream, &mut Issue),
    ) -> Result<Job, gpu::Error> {
        lock(&self.paths).count_columns(&columns.wire);
        let mut turns: Vec<Turn> = Vec::new();
        for leg in legs {
            let turn = self.leg((columns, leg), (request, number), memory, (stream, issue));
            // The turns before end with it, and nobody must take that for results.
            let turn = turn.inspect_err(|error| self.staging.keep(&described(error)))?;
            match (turns.last_mut(), turn) {
                // They are watched as one.
                (Some(Turn::Host(before)), Turn::Host(watch)) => before.ended = watch.ended,
                (_, turn) => turns.push(turn),
            }
        }
        let staging = Arc::clone(&self.staging);
        Ok(Job { columns: Arc::clone(columns), staging, turns })
    }

    fn leg(
        &self,
        (columns, leg): (&Arc<Columns>, &Leg),
        (request, number): (&Request, u64),
        memory: [Option<DeviceRegion<'_>>; 2],
        (stream, issue): (&Stream, &mut Issue),
    ) -> Result<Turn, gpu::Error> {
        let place = |area: Option<Area>| area.and_then(|area| columns.place(memory, area));
        let (input, output) = (place(leg.input), place(leg.output));
        Ok(match leg.circle {
            Circle::Host(form) => {
                let work = columns.inside(leg, form, (input, output));
                let name = request.collective.name();
                let members = Arc::clone(&columns.members);
                let exchange = Arc::clone(&columns.exchange);
                Turn::Host(self.kernels(exchange, (name, members), (stream, issue), || {
                    let grounds = work.grounds(|region| self.mapped(region));
                    work.push(stream, &grounds)?;
                    Ok((Protocol::Push, None))
                })?)
            }
            Circle::Column { pitch } => {
                let (turn, [input, output]) = issue.hold(stream, [input, output])?;
                let ranks = columns.position.hosts * columns.position.places;
                let call = wire::Call::new(leg.request, number, (input, output), ranks);
                let call = wire::Call { pitch, called: *request, ..call };
                let (wire, scratch) = (Arc::clone(&columns.wire), Arc::clone(&columns.scratch));
                Turn::Column(wire::Job { turn, wire, call, scratch: Some(scratch) })
            }
        })
    }
}

impl Columns {
    fn place<'a>(
        &'a self,
        [input, output]: [Option<DeviceRegion<'a>>; 2],
        area: Area,
    ) -> Option<DeviceRegion<'a>> {
        let all = match area.memory {
            Memory::Input => input?,
            Memory::Output => output?,
            Memory::Scratch => self.scratch.region(),
        };
        Some(all.part(area.start, area.bytes))
    }

    /// A leg of the ranks of the host.
    fn inside<'a>(
        &self,
        leg: &Leg,
        form: Form,
        (input, output): (Option<DeviceRegion<'a>>, Option<DeviceRegion<'a>>),
    ) -> Call<'a, '_> {
        let Position { place: me, places: ranks, .. } = self.position;
        let cast = Cast { request: leg.request, me, ranks, form };
        let work = Work::of(&leg.request, me, ranks);
        Call { exchange: &self.exchange, cast, work, input, output }
    }
}
