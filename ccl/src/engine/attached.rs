//! Collectives in ordinary memory, from which the system copies: a byte is copied once, and by its receiver.
//!
//! 1. The first time, all ranks [find out](Peers::Unknown) whether everybody can be read by everybody, and may be.
//! 2. All tell each other where their buffers are. Who cannot have its input read, because the output lies in the same bytes,
//!    or because it is memory that the system [does not copy](known), says so, and the call goes by tiles.
//! 3. Each rank combines its [part](combined) of the inputs of all, block by block, where something is reduced. Of two ranks
//!    [each](all_of_two) may combine all of it, and nothing is left to be read.
//! 4. Each rank reads what else [belongs](arrivals) into its output. What an AllReduce has combined is there when all have
//!    come, and is read from outputs.
//! 5. A barrier: nobody returns while somebody still reads his memory.
//!
//! Contributions are combined in order of rank, so this is done where the plan combines them so, too: whatever is found to be
//! faster, the bits are the same.
//!
//! Whether calls go this way is what their [trial](crate::trial) has found. If a call ends early, its readers may get
//! something else, or nothing. Whoever has read asks whether the owner has [renounced](ccl_transport::Link::renounce) before it
//! comes to a barrier, and fails as well. Nobody writes into the memory of others.

mod alike;
mod answers;
mod arrivals;
mod known;
mod peers;

use std::mem;

use ccl_core::collective::{Collective, Request};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::wire::Stamp;
use ccl_kernels::{Region, Scratch, copy, copy_streaming, fill};
use ccl_transport::attach::{Process, Testimony, Witness};
use ccl_transport::{clock, floors_bytes};

use self::alike::Alike;
use self::answers::{Answer, Answers, decide, of_read};
use self::arrivals::{Arrival, all_of_two, arrivals, combined, is_readable, kept};
use self::known::Known;
use self::peers::{Consent, Peers, Stance};
use super::parts::{Part, largest_bytes};
use super::places::{
    Contribution, Input, Output, PlaceOfResult, Places, Watch as _, Watched, carry_out,
};
use super::{Ended, Engine, Limits, arithmetic};
use crate::executor::{Arithmetic, Failure, Task};
use crate::operation::Shapes;
use crate::plans::Plan;
use crate::stores::{Call, footprint};
use crate::trial::{Course, Trial, Turn, Way};

/// Tiles in shared memory: nobody has to be asked.
const TILES: Way = Way::Usual;

/// The system copies from process to process.
const ATTACHED: Way = Way::Other;

/// Of the larger buffer of a rank. Below, ranks would tell each other for longer than they copy; where they share processors,
/// below twice that.
const LEAST_BYTES: usize = 32 << 10;
const LEAST_CROWDED_BYTES: usize = 64 << 10;

/// Of the larger buffer of a rank. Calls with as much take milliseconds.
const LONG_BYTES: usize = 8 << 20;

/// So much is read between two looks whether the call has ended elsewhere.
const PIECE_BYTES: usize = 1 << 20;

/// What can be done this way.
const COLLECTIVES: [Collective; 5] = [
    Collective::AllGather,
    Collective::AllToAll,
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::Broadcast,
];

/// Of each of these collectives, by size, rounded down to a power of two. There are few, which are found faster than hashed.
type Trials = Vec<((Collective, u32), Alike)>;

/// What is remembered from call to call.
#[derive(Debug, Default)]
pub(super) struct Attached {
    witness: Witness,
    peers: Peers,
    trials: Trials,
    known: Known,
    block: Scratch,
}

impl Engine {
    /// Does a collective by tiles, or attached to the processes of the others, as its trial says.
    pub(super) fn drive_or_attach(
        &mut self,
        request: &Request,
        plan: &Plan,
        task: &Task<'_>,
        limits: Limits<'_>,
    ) -> Ended {
        let is_apart = plan.is_apart;
        if !(plan.is_in_order && self.may_attach(request)) {
            return self.drive_apart(task, is_apart, limits);
        }
        let always = match self.introduce(task.stamp, limits)? {
            Peers::All { agreed, .. } => agreed.consent == Consent::Always,
            Peers::Unknown | Peers::NotAll => return self.drive_apart(task, is_apart, limits),
        };
        if !(always || self.is_tried(request)) {
            return self.drive_apart(task, is_apart, limits);
        }
        let alike = self.trials(request);
        let turn = if always { Turn::Go(ATTACHED) } else { alike.turn() };
        let trial = alike.of_these();
        let is_compared = !always && trial.compares();
        let makes_sure = !always && trial.makes_sure();
        let began = is_compared.then(clock::now);
        let way = match turn {
            Turn::Go(TILES) if !makes_sure => TILES,
            Turn::Go(way) => self.attach(request, task, Some(way), limits)?,
            Turn::Decide => self.attach(request, task, None, limits)?,
        };
        if way == TILES {
            // Calls that are compared here are alike.
            self.executor.hold_trials(is_compared);
            let ended = self.drive_apart(task, is_apart, limits);
            self.executor.hold_trials(false);
            ended?;
        }
        if let Some(began) = began {
            self.trials(request).record(way, clock::now() - began);
        }
        Ok(())
    }

    /// Whether a trial may have something to find: ranks that share processors were never faster so where something is
    /// combined, or all read the same.
    fn is_tried(&self, request: &Request) -> bool {
        matches!(request.collective, Collective::AllGather | Collective::AllToAll)
            || !self.is_crowded()
    }

    /// Whether ranks share processors.
    fn is_crowded(&self) -> bool {
        self.planner.introduced().crowding() > 1.0
    }

    /// Whether calls like this one can be done so, which all ranks know alike.
    fn may_attach(&self, request: &Request) -> bool {
        COLLECTIVES.contains(&request.collective)
            && self.ranks > 1
            && is_long(largest_bytes(request, self.ranks as usize), || self.is_crowded())
            && self.planner.introduced().nodes() == 1
            && !self.planner.is_forced(request.collective)
    }

    /// The trial to which a call belongs.
    fn trial(&mut self, request: &Request) -> &mut Trial {
        self.trials(request).of_these()
    }

    fn trials(&mut self, request: &Request) -> &mut Alike {
        let size = largest_bytes(request, self.ranks as usize).max(1).ilog2();
        let calls = (request.collective, size);
        let known = self.attached.trials.iter().position(|(known, _)| *known == calls);
        let index = known.unwrap_or_else(|| {
            let course = course(1 << size, self.ranks as usize, self.is_crowded());
            let before = self.attached.peers.tries_stores(1 << size).then_some(Course::OF_STORES);
            self.attached.trials.push((calls, Alike::new(course, before)));
            self.attached.trials.len() - 1
        });
        &mut self.attached.trials[index].1
    }

    /// Tells the others what this call is. Does it attached to them, if that is possible, and if it is the `way`, or the one that is
    /// decided on where there is none. Tells which way the call has to go, or has gone.
    fn attach(
        &mut self,
        request: &Request,
        task: &Task<'_>,
        way: Option<Way>,
        limits: Limits<'_>,
    ) -> Result<Way, Box<Error>> {
        let [input, output] = *task.buffers else { unreachable!("a collective has two buffers") };
        let own = Shapes::of(request, self.me, self.ranks)?;
        let buffers = [input.part(0, own.input_bytes), output.part(0, own.output_bytes)];
        let [input, output] = buffers.map(|buffer| buffer.address() as u64);
        let is_readable = is_readable(request, &buffers)
            && (way == Some(TILES) || self.are_copied(request, buffers));
        let input = if is_readable { input } else { 0 };
        let factor = arithmetic(request, self.ranks).factor;
        let times = self.trial(request).times();
        let is_in_place = Call::of(request.collective, &buffers).is_in_place;
        let factor = factor.unwrap_or(0);
        let answer = Answer { input, output, is_in_place, factor, times };
        let told = self.tell_all(answer.encode(), task.stamp, limits)?;
        let told: Answers = told.iter().map(Answer::decode).collect();
        let are_in_place = of_read(request, &told).all(|told| told.is_in_place);
        let as_taken = self.trials(request).are(are_in_place);
        if way == Some(TILES) {
            return Ok(TILES);
        }
        if of_read(request, &told).any(|told| told.input == 0) {
            self.trial(request).fail();
            return Ok(TILES);
        }
        let way = match (way, as_taken) {
            (Some(way), _) => way,
            (None, true) => self.decide(request, task.stamp, &told),
            // What was measured is of other calls.
            (None, false) => TILES,
        };
        if way == ATTACHED {
            self.read_all(request, task, &told, buffers, limits)?;
            self.pass_together(task.stamp, limits)?;
        }
        Ok(way)
    }

    /// Whether the system copies for others what they read of these buffers.
    fn are_copied(&mut self, request: &Request, [input, output]: [Region<'_>; 2]) -> bool {
        let process = self.process(self.me.index());
        let known = &mut self.attached.known;
        let mut is_copied =
            |buffer| known.is_copied(&buffer, |address, bytes| process.has(address, bytes));
        is_copied(input) && (request.collective != Collective::AllReduce || is_copied(output))
    }

    /// Finds out whether everybody can read the memory of everybody, if nobody has tried yet.
    fn introduce(&mut self, stamp: Stamp, limits: Limits<'_>) -> Result<&Peers, Box<Error>> {
        if !matches!(self.attached.peers, Peers::Unknown) {
            return Ok(&self.attached.peers);
        }
        let testimony = self.attached.witness.testimony();
        let told = self.tell_all(testimony.encode(), stamp, limits)?;
        let processes: Result<Vec<_>, _> =
            told.iter().map(|told| Testimony::decode(told).examine()).collect();
        let processes = processes.inspect_err(|cause| {
            tracing::debug!(rank = self.me.0, %cause, "memory of peers cannot be read");
        });
        let consent = Consent::of(self.planner.cross_memory_attach(), processes.is_ok());
        let least_in_doubt = self.executor.caches().least_in_doubt() as u64;
        let told = self.tell_all(Stance { consent, least_in_doubt }.encode(), stamp, limits)?;
        self.attached.peers = Peers::new(processes, &told);
        Ok(&self.attached.peers)
    }

    /// The end of a trial.
    fn decide(&mut self, request: &Request, stamp: Stamp, told: &[Answer]) -> Way {
        let trial = self.trial(request);
        let (times, way) = (trial.times(), decide(trial, request, told));
        let call = stamp.signature;
        tracing::debug!(rank = self.me.0, %call, ?way, ?times, "ways compared");
        way
    }

    /// Does what this rank does in a call in which all read each other's memory.
    fn read_all(
        &mut self,
        request: &Request,
        task: &Task<'_>,
        told: &[Answer],
        buffers: [Region<'_>; 2],
        limits: Limits<'_>,
    ) -> Ended {
        let arithmetic = arithmetic(request, self.ranks);
        let any_in_place = told.iter().any(|told| told.is_in_place);
        let streams = footprint(&buffers) >= self.executor.caches().exceeding_bytes();
        if let Some(all) = all_of_two(request, told.len(), any_in_place) {
            return self.combine((&all, arithmetic), task.stamp, told, (buffers, streams), limits);
        }
        if let Some(part) = combined(request, self.me, told.len()) {
            self.combine((&part, arithmetic), task.stamp, told, (buffers, streams), limits)?;
        } else if let Some(Arrival { source, target, bytes, .. }) =
            kept(request, self.me, told.len())
        {
            let [input, output] = buffers;
            let past_caches = self.executor.stores_past(task.stamp, &buffers);
            let store = if past_caches { copy_streaming } else { copy };
            store(input.source(source, bytes), output.target(target, bytes));
        }
        let are_results = request.collective == Collective::AllReduce;
        if are_results {
            self.pass_together(task.stamp, limits)?;
        }
        let watch = self.watched(task.stamp, limits);
        for arrival in arrivals(request, self.me, told.len()) {
            let Answer { input, output, .. } = told[arrival.from];
            self.fetch(arrival, if are_results { output } else { input }, buffers[1], &watch)?;
        }
        Ok(())
    }

    /// Puts what this rank combines into its output, past the caches if that `streams`.
    fn combine(
        &mut self,
        (part, arithmetic): (&Part, Arithmetic),
        stamp: Stamp,
        told: &[Answer],
        (buffers, streams): ([Region<'_>; 2], bool),
        limits: Limits<'_>,
    ) -> Ended {
        let mut block = mem::take(&mut self.attached.block);
        let places = self.places(part, told, arithmetic.factor.is_some(), buffers);
        let watch = self.watched(stamp, limits);
        let ended = carry_out(part, arithmetic.kernel, places, &mut block, streams, watch);
        self.attached.block = block;
        ended?;
        self.check_read(part.from.indices(told.len()), stamp, limits)
    }

    /// Reads what another rank has, whose buffer begins at `start` there, into the own output.
    fn fetch(
        &self,
        Arrival { from, source, target, bytes }: Arrival,
        start: u64,
        output: Region<'_>,
        watch: &Watched<'_>,
    ) -> Ended {
        let process = self.process(from);
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            watch.look()?;
            let piece = PIECE_BYTES.min(bytes - offset);
            let address = start.wrapping_add((source + offset) as u64);
            let into = output.target(target + offset, piece);
            fill(into, |into| process.read(address, into))
                .map_err(|cause| watch.failed(Failure::Link { peer: rank(from), cause }))?;
        }
        self.executor.check_read(rank(from)).map_err(|failure| watch.failed(failure))
    }

    /// Where a part is combined: read from the inputs of all, to go into the own output.
    fn places<'a>(
        &self,
        part: &Part,
        told: &[Answer],
        is_scaled: bool,
        [input, output]: [Region<'a>; 2],
    ) -> Places<'a> {
        let contribution = |(index, answer): (usize, &Answer)| {
            let input = if index == self.me.index() {
                Input::Here(input)
            } else {
                let (peer, process) = (rank(index), self.process(index));
                Input::Attached { peer, process, address: answer.input }
            };
            Contribution { input, factor: is_scaled.then_some(answer.factor) }
        };
        let is_read = input.address() + part.source == output.address() + part.target;
        let result = PlaceOfResult { output: Output::Here(output), is_read };
        Places {
            inputs: told.iter().enumerate().map(contribution).collect(),
            outputs: [result].into_iter().collect(),
        }
    }

    /// The process of a rank.
    fn process(&self, index: usize) -> Process {
        let Peers::All { processes, .. } = &self.attached.peers else {
            unreachable!("they were asked");
        };
        processes[index]
    }

    fn watched<'a>(&'a self, stamp: Stamp, limits: Limits<'a>) -> Watched<'a> {
        Watched { limits, me: self.me, stamp, history: &self.history }
    }
}

/// Whether so many bytes take longer to copy than ranks take to tell each other where they are.
fn is_long(bytes: usize, are_crowded: impl FnOnce() -> bool) -> bool {
    bytes >= LEAST_CROWDED_BYTES || bytes >= LEAST_BYTES && !are_crowded()
}

/// The trial of calls of so many ranks with about so many bytes.
fn course(bytes: usize, ranks: usize, are_crowded: bool) -> Course {
    let course = match bytes {
        LONG_BYTES.. => Course::OF_MILLISECONDS,
        _ if are_crowded => Course::OF_THE_CROWDED,
        _ => Course::OF_MICROSECONDS,
    };
    // So many fill the floors once: each rank fills its part of them with its part of the bytes.
    course.after_first_touch(u32::try_from(floors_bytes(ranks) / bytes).unwrap_or(u32::MAX))
}

fn rank(index: usize) -> Rank {
    #[allow(clippy::cast_possible_truncation, reason = "the index of a rank")]
    Rank(index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_are_not_tried_and_those_of_crowded_ranks_not_up_to_twice_that() {
        for (bytes, alone, crowded) in [
            (LEAST_BYTES - 1, false, false),
            (LEAST_BYTES, true, false),
            (LEAST_CROWDED_BYTES - 1, true, false),
            (LEAST_CROWDED_BYTES, true, true),
        ] {
            assert_eq!([is_long(bytes, || false), is_long(bytes, || true)], [alone, crowded]);
        }
    }

    #[test]
    fn the_shorter_calls_are_and_the_more_ranks_disturb_each_other_the_more_are_counted() {
        assert_eq!(course(LONG_BYTES - 1, 2, false), Course::OF_MICROSECONDS);
        assert_eq!(course(LONG_BYTES - 1, 4, true), Course::OF_THE_CROWDED);
        let long = [(2, false), (8, true)].map(|(ranks, are)| course(LONG_BYTES, ranks, are));
        assert_eq!(long, [Course::OF_MILLISECONDS; 2]);
    }

    #[test]
    fn nothing_is_tried_until_the_floors_have_been_filled() {
        let calls =
            |(bytes, ranks)| course(bytes, ranks, false).calls() - Course::OF_MICROSECONDS.calls();
        // Four calls fill floors of 4 MiB with 1 MiB each, sixteen with 256 KiB; those of 16 ranks have 8 MiB.
        assert_eq!([(1 << 20, 2), (256 << 10, 2), (512 << 10, 16)].map(calls), [0, 10, 10]);
    }
}
