//! Messages of any length between all ranks: ranks are streams, and each of them knows its own lengths only.

use ccl_kernels::cuda::{
    Entry, LETTER_BYTES, MOST_BLOCKS, MOST_RANKS, Parameters as _, PullParameters, QUARREL_NUMBERS,
    State,
};

use super::machine::{Job, Launch, Machine};
use super::protocols::{compare, copy, end_when_told};
use crate::inputs::Random;

const LENGTHS: [usize; 9] = [0, 0, 1, 15, 16, 17, 64, 100, 333];
/// Of a place for a message.
const PLACE_BYTES: usize = 384;
const GUARD: u8 = 0xa5;
const QUARREL_BYTES: usize = 8 * QUARREL_NUMBERS;

/// Several calls, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Pulls {
    pub(crate) ranks: usize,
    pub(crate) calls: usize,
    pub(crate) threads: u32,
    pub(crate) part_bytes: u64,
    pub(crate) most_parts: u32,
    /// Of staging memory for each rank; at least 16 for each part.
    pub(crate) staging_bytes: u64,
    /// Whether messages begin anywhere.
    pub(crate) anywhere: bool,
    pub(crate) seed: u64,
}

impl Pulls {
    pub(crate) fn draw(ranks: usize, seed: u64) -> Self {
        let mut random = Random(seed * 8 + ranks as u64);
        let most_parts = random.pick(&[1, 2, 3]);
        Self {
            ranks,
            calls: random.pick(&[2, 3, 4]),
            threads: random.pick(&[8, 32]),
            part_bytes: random.pick(&[16, 50, 128]),
            most_parts,
            staging_bytes: u64::from(most_parts) * random.pick(&[16, 40, 64, 512]),
            anywhere: random.below(2) == 0,
            seed,
        }
    }
}

/// What the ranks have.
struct Stage {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    staging: Vec<u64>,
    letters: Vec<u64>,
    states: Vec<u64>,
    quarrels: Vec<u64>,
    abort: u64,
}

/// What a rank has in one call: bytes for and from each rank, and whether its input goes through staging memory.
#[derive(Clone)]
struct Part {
    sent: Vec<usize>,
    received: Vec<usize>,
    is_staged: bool,
}

impl Stage {
    fn new(machine: &dyn Machine, scene: &Pulls, random: &mut Random) -> Self {
        let all = |bytes: usize| -> Vec<u64> {
            (0..scene.ranks).map(|_| machine.allocate(bytes)).collect()
        };
        let mut anywhere = |buffers: Vec<u64>| -> Vec<u64> {
            let shift =
                |random: &mut Random| if scene.anywhere { random.below(16) as u64 } else { 0 };
            buffers.into_iter().map(|start| start + shift(random)).collect()
        };
        let buffer_bytes = scene.ranks * PLACE_BYTES + 16;
        let stage = Self {
            inputs: anywhere(all(buffer_bytes)),
            outputs: anywhere(all(buffer_bytes)),
            staging: all(scene.ranks * scene.staging_bytes as usize),
            letters: all(MOST_BLOCKS * MOST_RANKS * LETTER_BYTES),
            states: all(MOST_BLOCKS * size_of::<State>()),
            quarrels: all(MOST_RANKS * QUARREL_BYTES),
            abort: machine.allocate(4),
        };
        // Beyond what 32 bits count.
        let state = State { calls: (1 << 32) - 2, ..State::default() };
        let states = state.bytes().repeat(MOST_BLOCKS);
        stage.states.iter().for_each(|&address| machine.write(address, &states));
        stage
    }

    fn launch(&self, scene: &Pulls, rank: usize, part: &Part) -> Launch {
        let of = |number: &dyn Fn(usize) -> u64| -> [u64; MOST_RANKS] {
            std::array::from_fn(|k| if k < scene.ranks { number(k) } else { 0 })
        };
        let place = |start: u64, k: usize| start + (k * PLACE_BYTES) as u64;
        let is_staged = |k: usize| part.is_staged && k != rank;
        let staging = |k: usize| self.staging[rank] + k as u64 * scene.staging_bytes;
        let input = |k: usize| place(self.inputs[rank], k);
        let parameters = PullParameters {
            sources: of(&|k| if is_staged(k) { staging(k) } else { input(k) }),
            sent: of(&|k| part.sent[k] as u64),
            destinations: of(&|k| place(self.outputs[rank], k)),
            received: of(&|k| part.received[k] as u64),
            inputs: of(&|k| if is_staged(k) { input(k) } else { 0 }),
            staging: of(&|k| if is_staged(k) { staging(k) } else { 0 }),
            letters: of(&|k| self.letters[k]),
            quarrels: self.quarrels[rank],
            state: self.states[rank],
            abort: self.abort,
            staging_bytes: scene.staging_bytes,
            part_bytes: scene.part_bytes,
            most_parts: scene.most_parts,
            rank: rank as u32,
            ranks: scene.ranks as u32,
            unused: 0,
        };
        let lengths = part.sent.iter().chain(&part.received);
        let blocks = lengths.map(|length| parameters.parts(*length as u64)).max().unwrap_or(1);
        Launch::new(rank as u32, Entry::Pull, (blocks, scene.threads), &parameters)
    }
}

/// Parts of all ranks that fit together.
fn draw_parts(scene: &Pulls, random: &mut Random) -> Vec<Part> {
    let lengths: Vec<Vec<usize>> = (0..scene.ranks)
        .map(|_| (0..scene.ranks).map(|_| random.pick(&LENGTHS)).collect())
        .collect();
    let part = |rank: usize, random: &mut Random| Part {
        sent: lengths[rank].clone(),
        received: lengths.iter().map(|sent| sent[rank]).collect(),
        is_staged: random.below(2) == 0,
    };
    (0..scene.ranks).map(|rank| part(rank, random)).collect()
}

/// All calls of a scene, by all ranks: before each the input and the output are overwritten, and after each the
/// output is copied away, so that whoever is too early or too late gives a wrong result.
pub(crate) fn pulls(machine: &dyn Machine, scene: &Pulls) -> Result<(), String> {
    let mut random = Random(scene.seed);
    let stage = Stage::new(machine, scene, &mut random);
    let bytes = scene.ranks * PLACE_BYTES;
    let blank = machine.allocate(bytes);
    machine.write(blank, &vec![GUARD; bytes]);
    let (mut launches, mut results) = (Vec::new(), Vec::new());
    for call in 0..scene.calls {
        let parts = draw_parts(scene, &mut random);
        let inputs: Vec<Vec<u8>> = (0..scene.ranks)
            .map(|_| (0..bytes).map(|_| random.below(256) as u8).collect())
            .collect();
        for (rank, part) in parts.iter().enumerate() {
            let (ready, kept) = (machine.allocate(bytes), machine.allocate(bytes));
            machine.write(ready, &inputs[rank]);
            let stream = rank as u32;
            launches.push(copy(stream, ready, stage.inputs[rank], bytes));
            launches.push(copy(stream, blank, stage.outputs[rank], bytes));
            launches.push(stage.launch(scene, rank, part));
            // Nobody needs the input any more, and nobody writes into the output.
            launches.push(copy(stream, blank, stage.inputs[rank], bytes));
            launches.push(copy(stream, stage.outputs[rank], kept, bytes));
            let mut result = vec![GUARD; bytes];
            for (from, length) in part.received.iter().enumerate() {
                let message = &inputs[from][rank * PLACE_BYTES..][..*length];
                result[from * PLACE_BYTES..][..*length].copy_from_slice(message);
            }
            results.push((format!("call {call}, rank {rank}"), kept, result));
        }
    }
    let ended = machine.run(Job::new(&launches, scene.seed));
    let outcome = ended.and_then(|()| compare(machine, &results)).and_then(|()| {
        let numbers = |rank: usize| machine.read(stage.quarrels[rank], MOST_RANKS * QUARREL_BYTES);
        let is_calm = (0..scene.ranks).all(|rank| numbers(rank).iter().all(|byte| *byte == 0));
        if is_calm { Ok(()) } else { Err("ranks that agree quarrel".into()) }
    });
    machine.release();
    outcome.map_err(|wrong| format!("{wrong}: {scene:?}"))
}

/// Rank 1 sends rank 0 something else than rank 0 expects: rank 0 says so, nobody ends before all are told to give
/// up, and the message is not stored.
pub(crate) fn quarrel(machine: &dyn Machine, scene: &Pulls) -> Result<(), String> {
    let mut random = Random(scene.seed);
    let stage = Stage::new(machine, scene, &mut random);
    let mut parts = draw_parts(scene, &mut random);
    let (sent, expected) = random.pick(&[(64, 0), (0, 64), (17, 16), (333, 1)]);
    (parts[1].sent[0], parts[0].received[1]) = (sent, expected);
    machine.write(stage.outputs[0] + PLACE_BYTES as u64, &vec![GUARD; PLACE_BYTES]);
    let (one, marks) = (machine.allocate(1), [0, 1].map(|_| machine.allocate(1)));
    machine.write(one, &[1]);
    let mut launches: Vec<Launch> =
        parts.iter().enumerate().map(|(rank, part)| stage.launch(scene, rank, part)).collect();
    // What follows on the streams of the two.
    launches.extend((0..).zip(marks).map(|(stream, mark)| copy(stream, one, mark, 1)));
    let quarrel = stage.quarrels[0] + QUARREL_BYTES as u64;
    let said = || -> Vec<u64> {
        let bytes = machine.read(quarrel, QUARREL_BYTES);
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect()
    };
    let (mut turns, mut heard, mut is_passed) = (0, 0, false);
    let mut meanwhile = || {
        turns += 1;
        if heard == 0 && said()[0] == 1 {
            heard = turns;
        }
        // All others come so far that they would end if they did not wait.
        if heard > 0 && turns == heard + 300 {
            is_passed = marks.iter().any(|mark| machine.read(*mark, 1) != [0]);
            machine.write(stage.abort, &1u32.to_le_bytes());
        }
    };
    let job = Job { meanwhile: Some(&mut meanwhile), ..Job::new(&launches, scene.seed) };
    let ended = machine.run(job);
    let numbers = said();
    let place = machine.read(stage.outputs[0] + PLACE_BYTES as u64, PLACE_BYTES);
    machine.release();
    let outcome = ended.and_then(|()| {
        if numbers[..3] != [1, sent as u64, expected as u64] {
            return Err(format!("rank 0 says {numbers:?}, not that {sent} came for {expected}"));
        }
        if place.iter().any(|byte| *byte != GUARD) {
            return Err("what nobody expects is stored".into());
        }
        if turns < heard + 300 || is_passed { Err("a rank did not wait".into()) } else { Ok(()) }
    });
    outcome.map_err(|wrong| format!("{wrong}: {scene:?}"))
}

/// Rank 0 never comes; the others must end when they are told to give up.
pub(crate) fn gives_up(machine: &dyn Machine, scene: &Pulls) -> Result<(), String> {
    let mut random = Random(scene.seed);
    let stage = Stage::new(machine, scene, &mut random);
    let parts = draw_parts(scene, &mut random);
    let launches: Vec<Launch> =
        (1..scene.ranks).map(|rank| stage.launch(scene, rank, &parts[rank])).collect();
    let outcome = end_when_told(machine, &launches, (stage.abort, &|| Ok(())), scene.seed);
    outcome.map_err(|wrong| format!("{wrong}: {scene:?}"))
}
