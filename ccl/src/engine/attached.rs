//! AllGather and AllToAll in ordinary memory, from which the system copies: a byte is copied once, and by its receiver.
//!
//! 1. The first time, all ranks [find out](Peers::Unknown) whether everybody can be read by everybody, and may be.
//! 2. All tell each other where their input is. Who cannot have it read, because the output lies in the same bytes,
//!    says so, and the call goes by tiles.
//! 3. Each rank reads what belongs into its output.
//! 4. A barrier: nobody returns while somebody still reads his memory.
//!
//! Whether calls go this way is what their [trial](crate::trial) has found. If a call ends early, its readers get
//! something else, or nothing, and fail as well: they do not come past the barrier.

use std::ops::Range;

use ccl_core::collective::{Collective, Request};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::CrossMemoryAttach;
use ccl_core::wire::Stamp;
use ccl_kernels::{Region, copy, copy_streaming, fill};
use ccl_transport::attach::{Process, Testimony, Witness};
use ccl_transport::clock;
use smallvec::SmallVec;

use super::{Ended, Engine, Limits};
use crate::executor::{Failure, Task};
use crate::operation::Shapes;
use crate::stores::footprint;
use crate::trial::{Times, Trial, Turn, Way};

/// Tiles in shared memory: nobody has to be asked.
const TILES: Way = Way::Usual;

/// The system copies from process to process.
const ATTACHED: Way = Way::Other;

/// Of all blocks of a rank together. Below, ranks would tell each other for longer than they copy.
const LEAST_BYTES: usize = 64 << 10;

/// So much is read between two looks whether the call has ended elsewhere.
const PIECE_BYTES: usize = 1 << 20;

/// Of AllGathers and of AllToAlls, by size to the next power of two.
type Trials = [[Trial; usize::BITS as usize]; 2];

/// What is remembered from call to call.
#[derive(Debug)]
pub(super) struct Attached {
    witness: Witness,
    peers: Peers,
    trials: Trials,
}

/// Whose memory can be read.
#[derive(Debug)]
enum Peers {
    /// Nobody has tried.
    Unknown,
    /// That of all, in order of rank.
    All { processes: Vec<Process>, always: bool },
    /// Not everybody can read everybody, or somebody must not.
    NotAll,
}

/// What a rank says to being read; all do what the most reluctant one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Consent {
    No = 0,
    Yes = 1,
    Always = 2,
}

impl Consent {
    /// Of a rank whose settings say so, if it can read all others.
    fn of(setting: CrossMemoryAttach, can: bool) -> Self {
        match setting {
            _ if !can => Self::No,
            CrossMemoryAttach::Never => Self::No,
            CrossMemoryAttach::Measured => Self::Yes,
            CrossMemoryAttach::Always => Self::Always,
        }
    }

    /// Of all ranks, from the numbers that they have told.
    fn of_all(told: &[[u8; 1]]) -> Self {
        let consents = told.iter().map(|[number]| match number {
            1 => Self::Yes,
            2 => Self::Always,
            _ => Self::No,
        });
        consents.min().unwrap_or(Self::No)
    }
}

impl Default for Attached {
    fn default() -> Self {
        let trials = [[Trial::default(); usize::BITS as usize]; 2];
        Self { witness: Witness::default(), peers: Peers::Unknown, trials }
    }
}

/// What a rank tells before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    /// Of its input; 0 if that must not be read.
    address: u64,
    times: Times,
}

impl Answer {
    const ENCODED_BYTES: usize = 3 * size_of::<u64>();

    fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        let words = [self.address, self.times.usual, self.times.other];
        for (part, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Self {
        let word = |index: usize| {
            u64::from_le_bytes(std::array::from_fn(|at| bytes[size_of::<u64>() * index + at]))
        };
        Self { address: word(0), times: Times { usual: word(1), other: word(2) } }
    }
}

impl Engine {
    /// Does a collective by tiles, with its input put aside if it `is_apart`, or attached to the processes of the others,
    /// as its trial says.
    pub(super) fn drive_or_attach(
        &mut self,
        request: &Request,
        (task, is_apart): (&Task<'_>, bool),
        limits: Limits<'_>,
    ) -> Ended {
        if !self.may_attach(request) {
            return self.drive_apart(task, is_apart, limits);
        }
        let always = match self.introduce(task.stamp, limits)? {
            Peers::All { always, .. } => *always,
            Peers::Unknown | Peers::NotAll => return self.drive_apart(task, is_apart, limits),
        };
        let began = clock::now();
        let turn = if always { Turn::Go(ATTACHED) } else { self.trial(request).turn() };
        let way = match turn {
            Turn::Go(TILES) => TILES,
            Turn::Go(ATTACHED) => self.attach(request, task, Some(ATTACHED), limits)?,
            Turn::Decide => self.attach(request, task, None, limits)?,
        };
        if way == TILES {
            // Calls that are compared here are alike.
            let is_tried = !self.trial(request).is_settled();
            self.executor.hold_trials(is_tried);
            let ended = self.drive_apart(task, is_apart, limits);
            self.executor.hold_trials(false);
            ended?;
        }
        self.trial(request).record(way, clock::now() - began);
        Ok(())
    }

    /// Whether calls like this one are tried both ways, which all ranks know alike.
    fn may_attach(&self, request: &Request) -> bool {
        matches!(request.collective, Collective::AllGather | Collective::AllToAll)
            && self.ranks > 1
            && all_bytes(request, self.ranks) >= LEAST_BYTES
            && self.planner.introduced().nodes() == 1
            && !self.planner.is_forced(request.collective)
    }

    /// The trial to which a call belongs.
    fn trial(&mut self, request: &Request) -> &mut Trial {
        let collective = usize::from(request.collective == Collective::AllToAll);
        let size = all_bytes(request, self.ranks).ilog2();
        &mut self.attached.trials[collective][size as usize]
    }

    /// Does a collective attached to the others, if that is possible, and if it is the `way`, or the one that is
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
        let (input, output) = (input.part(0, own.input_bytes), output.part(0, own.output_bytes));
        let is_readable = is_readable(request, &input, &output);
        let address = if is_readable { input.address() as u64 } else { 0 };
        let answer = Answer { address, times: self.trial(request).times() };
        let told = self.tell_all(answer.encode(), task.stamp, limits)?;
        let told: SmallVec<[Answer; 8]> = told.iter().map(Answer::decode).collect();
        if told.iter().any(|answer| answer.address == 0) {
            self.trial(request).fail();
            return Ok(TILES);
        }
        let way = way.unwrap_or_else(|| self.decide(request, task.stamp, &told));
        if way == ATTACHED {
            self.read_all(request, task.stamp, &told, [input, output], limits)?;
            self.pass_together(task.stamp, limits)?;
        }
        Ok(way)
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
        let own = Consent::of(self.planner.cross_memory_attach(), processes.is_ok());
        let consent = Consent::of_all(&self.tell_all([own as u8], stamp, limits)?);
        self.attached.peers = match (processes, consent) {
            (Err(_), _) | (_, Consent::No) => Peers::NotAll,
            (Ok(processes), _) => Peers::All { processes, always: consent == Consent::Always },
        };
        Ok(&self.attached.peers)
    }

    /// The end of a trial.
    fn decide(&mut self, request: &Request, stamp: Stamp, told: &[Answer]) -> Way {
        let trial = self.trial(request);
        let (times, way) = (trial.times(), trial.decide(told.iter().map(|answer| answer.times)));
        let call = stamp.signature;
        tracing::debug!(rank = self.me.0, %call, ?way, ?times, "ways compared");
        way
    }

    /// Reads what belongs into this rank's output from where all ranks have their inputs.
    fn read_all(
        &self,
        request: &Request,
        stamp: Stamp,
        told: &[Answer],
        [input, output]: [Region<'_>; 2],
        limits: Limits<'_>,
    ) -> Ended {
        let Peers::All { processes, .. } = &self.attached.peers else {
            unreachable!("they were asked");
        };
        let ranks = processes.len();
        self.keep_own(request, [input, output]);
        // So that not all read from the same one.
        for index in (1..ranks).map(|step| (self.me.index() + step) % ranks) {
            let (process, start) = (processes[index], told[index].address);
            let block = block_of(request, self.me.index());
            let target = index * block.len();
            for offset in (0..block.len()).step_by(PIECE_BYTES) {
                if let Some(fault) = limits.fault() {
                    return Err(fault.into());
                }
                let bytes = PIECE_BYTES.min(block.len() - offset);
                let address = start.wrapping_add((block.start + offset) as u64);
                fill(output.target(target + offset, bytes), |into| process.read(address, into))
                    .map_err(|cause| {
                        #[allow(clippy::cast_possible_truncation, reason = "the index of a rank")]
                        let failure = Failure::Link { peer: Rank(index as u32), cause };
                        limits.error_for(failure, self.me, stamp, &self.history)
                    })?;
            }
        }
        Ok(())
    }

    /// Copies what this rank has for itself.
    fn keep_own(&self, request: &Request, [input, output]: [Region<'_>; 2]) {
        let block = block_of(request, self.me.index());
        let source = input.source(block.start, block.len());
        let target = output.target(self.me.index() * block.len(), block.len());
        if footprint(&[input, output]) >= self.executor.caches().exceeding_bytes() {
            copy_streaming(source, target);
        } else {
            copy(source, target);
        }
    }
}

/// Bytes that every rank has in the end.
fn all_bytes(request: &Request, ranks: u32) -> usize {
    request.bytes().saturating_mul(ranks as usize)
}

/// Which bytes of every input go to the rank with this index.
fn block_of(request: &Request, index: usize) -> Range<usize> {
    let first = if request.collective == Collective::AllToAll { index } else { 0 };
    first * request.bytes()..(first + 1) * request.bytes()
}

/// Whether the input stays as it is until all have read it: an AllToAll in place writes there.
fn is_readable(request: &Request, input: &Region<'_>, output: &Region<'_>) -> bool {
    request.collective == Collective::AllGather || input.address() != output.address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_told() {
        let times = Times { usual: 1 << 40, other: u64::MAX };
        let answer = Answer { address: 0x7fff_1234_5678, times };
        assert_eq!(Answer::decode(&answer.encode()), answer);
    }

    #[test]
    fn all_do_what_the_most_reluctant_rank_says() {
        use Consent::{Always, No, Yes};
        for (told, all) in [
            (&[[2], [1], [2]][..], Yes),
            (&[[2], [0], [1]], No),
            (&[[2], [2]], Always),
            (&[[1], [3]], No),
            (&[], No),
        ] {
            assert_eq!(Consent::of_all(told), all, "{told:?}");
        }
        assert_eq!(Consent::of(CrossMemoryAttach::Always, false), No);
        assert_eq!(Consent::of(CrossMemoryAttach::Never, true), No);
        assert_eq!(Consent::of(CrossMemoryAttach::Always, true), Always);
    }

    #[test]
    fn every_rank_reads_its_own_block_of_an_all_to_all() {
        let request = Request { collective: Collective::AllToAll, count: 5, ..Request::BARRIER };
        let bytes = request.bytes();
        assert_eq!(block_of(&request, 3), 3 * bytes..4 * bytes);
        let request = Request { collective: Collective::AllGather, ..request };
        assert_eq!(block_of(&request, 3), 0..bytes);
    }
}
