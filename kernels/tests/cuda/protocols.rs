//! The kernels that wait for each other: ranks are streams, and nothing but the protocol orders them.

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{
    ARRIVAL_BYTES, Arithmetic, CopyParameters, Entry, Family, LowLatencyParameters, MOST_BLOCKS,
    MOST_RANKS, Operation, Parameters as _, PushParameters, State, slice,
};

use super::battery::{arithmetic, expected};
use super::machine::{Job, Launch, Machine};
use crate::inputs::{Random, elements};

pub(crate) const LAST_FLAG: u32 = u32::MAX;
const LINE_BYTES: usize = 16;
/// Bytes behind a result, which must stay.
const GUARD: [u8; 8] = [0xa5; 8];

/// Several calls of an AllReduce, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) family: Family,
    pub(crate) datatype: DataType,
    pub(crate) operation: Operation,
    pub(crate) ranks: usize,
    /// Blocks and threads of every rank, at most.
    pub(crate) shape: (u32, u32),
    /// Elements of each call.
    pub(crate) counts: Vec<usize>,
    pub(crate) in_place: bool,
    /// Whether buffers begin anywhere.
    pub(crate) anywhere: bool,
    /// Calls and flag from which on the ranks count.
    pub(crate) state: State,
    /// Whether mailboxes hold lines with the flags that come next after the last flag.
    pub(crate) is_stale: bool,
    /// Whether every rank takes inputs of some ranks only, and stores in outputs of some; pushes only.
    pub(crate) of_some: bool,
    /// Whether calls are cut into pieces, with a kernel each; pushes only.
    pub(crate) in_pieces: bool,
    pub(crate) seed: u64,
}

impl Scene {
    fn entry(&self) -> Entry {
        let Self { family, operation, datatype, .. } = *self;
        Entry::Elements { family, operation, datatype }
    }

    fn bytes(&self, call: usize) -> usize {
        self.counts[call] * self.datatype.bytes()
    }

    fn largest(&self) -> usize {
        self.counts.iter().max().map_or(0, |count| count * self.datatype.bytes())
    }

    fn slot_bytes(&self) -> usize {
        self.largest().next_multiple_of(8) * 2
    }
}

/// How a call is cut: elements of all, and from a piece to the next.
#[derive(Clone, Copy)]
struct Cut {
    count: usize,
    pitch: usize,
}

impl Cut {
    /// As long as the call, or at random.
    fn draw(scene: &Scene, call: usize, random: &mut Random) -> Self {
        let count = scene.counts[call];
        let pitch = if scene.in_pieces { count.div_ceil(1 + random.below(4)) } else { count };
        Self { count, pitch }
    }

    /// Where pieces begin.
    fn starts(self) -> impl Iterator<Item = usize> {
        (0..self.count).step_by(self.pitch)
    }

    /// The elements of a rank in the piece that begins at `start`: where they begin in it, and how many there are.
    fn slice(self, start: usize, size: usize, ranks: usize, rank: usize) -> (usize, usize) {
        let (first, count) = slice(self.pitch, size, ranks, rank);
        (first, count.min((self.count - start).saturating_sub(first)))
    }
}

/// Addresses of what the ranks of a scene have.
struct Stage {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    /// Mailboxes, or counters of arrivals.
    meetings: Vec<u64>,
    states: Vec<u64>,
    abort: u64,
    arithmetic: Arithmetic,
}

impl Stage {
    fn new(machine: &dyn Machine, scene: &Scene, random: &mut Random) -> Self {
        // Kernels with bugs may take the place of one slice for that of another.
        let bytes = 2 * scene.largest() + GUARD.len() + LINE_BYTES;
        let mut buffers = || -> Vec<u64> {
            let shift = |random: &mut Random| {
                if scene.anywhere { random.below(LINE_BYTES) as u64 } else { 0 }
            };
            (0..scene.ranks).map(|_| machine.allocate(bytes) + shift(random)).collect()
        };
        let inputs = buffers();
        let outputs = if scene.in_place { inputs.clone() } else { buffers() };
        let meeting_bytes = match scene.family {
            Family::LowLatency => 2 * scene.ranks * scene.slot_bytes(),
            Family::Push => MOST_BLOCKS * MOST_RANKS * ARRIVAL_BYTES,
            Family::Reduce | Family::Relay => unreachable!("no AllReduce"),
        };
        let meetings = (0..scene.ranks).map(|_| machine.allocate(meeting_bytes)).collect();
        let state_bytes = scene.state.bytes().repeat(scene.shape.0 as usize);
        let states = (0..scene.ranks).map(|_| machine.allocate(state_bytes.len())).collect();
        let abort = machine.allocate(4);
        let arithmetic = arithmetic(random, scene.datatype);
        let stage = Self { inputs, outputs, meetings, states, abort, arithmetic };
        stage.states.iter().for_each(|&states| machine.write(states, &state_bytes));
        if scene.is_stale {
            stage.fill_boxes(machine, scene);
        }
        stage
    }

    /// Lines of calls that were made as long ago as flags take to return.
    fn fill_boxes(&self, machine: &dyn Machine, scene: &Scene) {
        let first_again = scene.state.calls + u64::from(LAST_FLAG - scene.state.flag);
        let box_bytes = scene.ranks * scene.slot_bytes();
        for (flag, call) in [(1u32, first_again), (2, first_again + 1)] {
            let half = [0x5a5a_5a5au32.to_le_bytes(), flag.to_le_bytes()].concat();
            let lines = half.repeat(box_bytes / half.len());
            for &mailbox in &self.meetings {
                machine.write(mailbox + call % 2 * box_bytes as u64, &lines);
            }
        }
    }

    /// A rank knows its own buffers and scalar only.
    fn push_parameters(
        &self,
        scene: &Scene,
        (cut, start, is_mapped): (Cut, usize, bool),
        rank: usize,
        roles: &[Roles],
    ) -> PushParameters {
        let size = scene.datatype.bytes();
        let slice_of = |k| cut.slice(start, size, scene.ranks, k);
        let part = |buffer: u64, k| match k < scene.ranks {
            true => buffer + ((start + slice_of(k).0) * size) as u64,
            false => 0,
        };
        let pieces = if is_mapped && start == 0 { cut.starts().count() } else { 1 };
        let mut arithmetic = Arithmetic { scalars: [u64::MAX / 3; MOST_RANKS], ..self.arithmetic };
        arithmetic.scalars[rank] = self.arithmetic.scalars[rank];
        PushParameters {
            sources: std::array::from_fn(|k| {
                let is_taken = roles.get(k).is_some_and(|role| role.takes[rank]);
                if is_taken { part(self.inputs[rank], k) } else { 0 }
            }),
            destinations: std::array::from_fn(|k| {
                let is_given = roles.get(k).is_some_and(|role| role.gives[rank]);
                if is_given { part(self.outputs[rank], k) } else { 0 }
            }),
            arrivals: std::array::from_fn(|k| self.meetings.get(k).copied().unwrap_or(0)),
            state: self.states[rank],
            abort: self.abort,
            count: slice_of(rank).1 as u64,
            reach: (cut.count - start).saturating_sub(slice_of(rank).0) as u64,
            stride_bytes: (cut.pitch * size) as u64,
            arithmetic,
            rank: rank as u32,
            ranks: scene.ranks as u32,
            pieces: pieces as u32,
            turns: 1,
        }
    }

    /// What the others have said to rank 0, to each of its blocks: who, the ticket, and where the first source is; nothing where
    /// messages have low latency.
    fn said_to_rank_zero(&self, machine: &dyn Machine, scene: &Scene) -> Vec<(usize, u64, u64)> {
        if scene.family != Family::Push {
            return Vec::new();
        }
        let number = |place: usize, at: usize| {
            let offset = place * ARRIVAL_BYTES + at * size_of::<u64>();
            let bytes = machine.read(self.meetings[0] + offset as u64, size_of::<u64>());
            u64::from_le_bytes(bytes.try_into().unwrap_or_default())
        };
        let places = 0..scene.shape.0 as usize * MOST_RANKS;
        places.map(|place| (place % MOST_RANKS, number(place, 0), number(place, 1))).collect()
    }

    /// The piece that begins at `start`, if there are pieces.
    fn launch(
        &self,
        scene: &Scene,
        piece: (Cut, usize, bool),
        rank: usize,
        roles: &[Roles],
    ) -> Launch {
        let all = |of: &[u64]| std::array::from_fn(|k| of.get(k).copied().unwrap_or(0));
        let (stream, count) = (rank as u32, piece.0.count as u64);
        if scene.family == Family::Push {
            let parameters = self.push_parameters(scene, piece, rank, roles);
            // Calls have more blocks and fewer, the same on all ranks.
            let (blocks, threads) = scene.shape;
            let shape = (1 + piece.0.count as u32 % blocks, threads);
            return Launch::new(stream, scene.entry(), shape, &parameters);
        }
        let parameters = LowLatencyParameters {
            input: self.inputs[rank],
            output: self.outputs[rank],
            mailboxes: all(&self.meetings),
            state: self.states[rank],
            abort: self.abort,
            count,
            slot_bytes: scene.slot_bytes() as u64,
            arithmetic: self.arithmetic,
            rank: rank as u32,
            ranks: scene.ranks as u32,
            most_blocks: scene.shape.0,
            most_threads: scene.shape.1,
        };
        let shape = parameters.shape(scene.datatype);
        Launch::new(stream, scene.entry(), shape, &parameters)
    }
}

/// Whose inputs a rank takes, and in whose outputs it stores the result.
struct Roles {
    takes: Vec<bool>,
    gives: Vec<bool>,
}

impl Roles {
    /// Of every rank, in one call.
    fn draw(scene: &Scene, random: &mut Random) -> Vec<Self> {
        let mut some = || {
            let mut some: Vec<bool> =
                (0..scene.ranks).map(|_| !scene.of_some || random.below(2) == 0).collect();
            let one = random.below(scene.ranks);
            some[one] = true;
            some
        };
        (0..scene.ranks).map(|_| Self { takes: some(), gives: some() }).collect()
    }

    /// What the rank combines in its slice of the contributions.
    fn combined(&self, scene: &Scene, arithmetic: &Arithmetic, slices: &[&[u8]]) -> Vec<u8> {
        let mut taken = Arithmetic { scaled: 0, ..*arithmetic };
        let mut contributions = Vec::new();
        for (rank, slice) in slices.iter().enumerate().filter(|(rank, _)| self.takes[*rank]) {
            let index = contributions.len();
            taken.scalars[index] = arithmetic.scalars[rank];
            taken.scaled |= (arithmetic.scaled >> rank & 1) << index;
            contributions.push(slice.to_vec());
        }
        expected(scene.datatype, scene.operation, &taken, &contributions)
    }
}

/// What the ranks have in the end, who have their contribution in the output before.
fn results_of(
    scene: &Scene,
    cut: Cut,
    (arithmetic, roles): (&Arithmetic, &[Roles]),
    contributions: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    if !scene.of_some {
        let all = expected(scene.datatype, scene.operation, arithmetic, contributions);
        return vec![all; scene.ranks];
    }
    let mut results = contributions.to_vec();
    let size = scene.datatype.bytes();
    let all =
        cut.starts().flat_map(|start| roles.iter().enumerate().map(move |role| (start, role)));
    for (start, (rank, role)) in all {
        let (first, count) = cut.slice(start, size, scene.ranks, rank);
        if count == 0 {
            continue;
        }
        let range = (start + first) * size..(start + first + count) * size;
        let slices: Vec<&[u8]> = contributions.iter().map(|all| &all[range.clone()]).collect();
        let combined = role.combined(scene, arithmetic, &slices);
        for (result, _) in results.iter_mut().zip(&role.gives).filter(|(_, gives)| **gives) {
            result[range.clone()].copy_from_slice(&combined);
        }
    }
    results
}

pub(super) fn copy(stream: u32, from: u64, to: u64, bytes: usize) -> Launch {
    let destinations = std::array::from_fn(|k| if k == 0 { to } else { 0 });
    let bytes = bytes as u64;
    let parameters =
        CopyParameters { source: from, destinations, bytes, destination_count: 1, unused: 0 };
    Launch::new(stream, Entry::Copy, (1, 16), &parameters)
}

/// All calls of a scene, by all ranks: before each the input is overwritten, and after each the output
/// is copied away, so that whoever is too early or too late gives a wrong result.
pub(crate) fn all_reduce(machine: &dyn Machine, scene: &Scene) -> Result<(), String> {
    let mut random = Random(scene.seed);
    let stage = Stage::new(machine, scene, &mut random);
    let mut launches = Vec::new();
    let mut results = Vec::new();
    for call in 0..scene.counts.len() {
        let bytes = scene.bytes(call) + GUARD.len();
        let contributions: Vec<Vec<u8>> = (0..scene.ranks)
            .map(|_| elements(&mut random, scene.datatype, scene.counts[call]))
            .collect();
        let roles = Roles::draw(scene, &mut random);
        let cut = Cut::draw(scene, call, &mut random);
        let are_mapped = random.below(2) == 0;
        let all = results_of(scene, cut, (&stage.arithmetic, &roles), &contributions);
        for (rank, contribution) in contributions.iter().enumerate() {
            let (ready, kept) = (machine.allocate(bytes), machine.allocate(bytes));
            machine.write(ready, &[contribution.as_slice(), &GUARD].concat());
            let stream = rank as u32;
            let is_mapped = !scene.in_pieces || are_mapped || random.below(3) > 0;
            if !scene.in_place {
                launches.push(copy(stream, ready, stage.outputs[rank], bytes));
            }
            let size = scene.datatype.bytes();
            for start in cut.starts() {
                // What is not mapped comes piece by piece, and what is mapped comes at once.
                let (at, most) = (start * size, cut.pitch * size);
                let is_last = start + cut.pitch >= cut.count;
                let part = if is_mapped || is_last { bytes - at } else { most };
                if start == 0 || !is_mapped {
                    let from = (ready + at as u64, stage.inputs[rank] + at as u64);
                    launches.push(copy(stream, from.0, from.1, part));
                }
                if start == 0 || !is_mapped {
                    let piece = (cut, start, is_mapped);
                    launches.push(stage.launch(scene, piece, rank, &roles));
                }
            }
            launches.push(copy(stream, stage.outputs[rank], kept, bytes));
            let result = [all[rank].as_slice(), &GUARD].concat();
            results.push((format!("call {call}, rank {rank}"), kept, result));
        }
    }
    let ended = machine.run(Job::new(&launches, scene.seed));
    let outcome = ended.and_then(|()| compare(machine, &results));
    machine.release();
    outcome.map_err(|wrong| format!("{wrong}: {scene:?}"))
}

/// Whether there is at each address what should be.
pub(super) fn compare(
    machine: &dyn Machine,
    results: &[(String, u64, Vec<u8>)],
) -> Result<(), String> {
    for (label, address, result) in results {
        let memory = machine.read(*address, result.len());
        let wrong = memory.iter().zip(result).position(|(is, should)| is != should);
        if let Some(at) = wrong {
            return Err(format!("{label}: byte {at} is {:#x}, not {:#x}", memory[at], result[at]));
        }
    }
    Ok(())
}

/// Rank 0 never comes; the others must end when they are told to give up, and say nothing of what comes later.
pub(crate) fn gives_up(machine: &dyn Machine, scene: &Scene) -> Result<(), String> {
    let mut random = Random(scene.seed);
    let stage = Stage::new(machine, scene, &mut random);
    let roles = Roles::draw(scene, &mut random);
    // Whoever waits in the first call looks at the abort word there.
    let calls = if scene.family == Family::Push { 2 } else { 1 };
    let cut = Cut::draw(scene, 0, &mut random);
    // Each begins one element behind the one before.
    let launches: Vec<Launch> = (0..calls)
        .flat_map(|call| (1..scene.ranks).map(move |rank| (call, rank)))
        .map(|(call, rank)| stage.launch(scene, (cut, call, true), rank, &roles))
        .collect();
    let are_silent = || {
        let ticket = 2 * scene.state.calls + 1;
        let is_first = |(rank, said, source): &(usize, u64, u64)| {
            let told = || stage.push_parameters(scene, (cut, 0, true), *rank, &roles).sources[0];
            (*said, *source) == (0, 0) || (*said, *source) == (ticket, told())
        };
        let said = stage.said_to_rank_zero(machine, scene);
        said.iter().all(is_first).then_some(()).ok_or("a rank goes on")
    };
    let outcome = end_when_told(machine, &launches, (stage.abort, &are_silent), scene.seed);
    outcome.map_err(|wrong| format!("{wrong}: {scene:?}"))
}

/// Runs launches that wait in vain, and after a while tells them to give up, by the word at `abort`; then looks.
pub(super) fn end_when_told(
    machine: &dyn Machine,
    launches: &[Launch],
    (abort, look): (u64, &dyn Fn() -> Result<(), &'static str>),
    seed: u64,
) -> Result<(), String> {
    let mut turns = 0;
    let mut meanwhile = || {
        turns += 1;
        if turns == 100 {
            machine.write(abort, &1u32.to_le_bytes());
        }
    };
    let job = Job { meanwhile: Some(&mut meanwhile), ..Job::new(launches, seed) };
    let ended = machine.run(job).and_then(|()| look().map_err(str::to_owned));
    machine.release();
    ended?;
    if turns < 100 { Err("a rank did not wait".into()) } else { Ok(()) }
}
