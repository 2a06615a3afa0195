//! From the meaning to the memory: a schedule becomes one rank's program.

use std::collections::{BTreeMap, BTreeSet};

use super::multicast::multicasts;
use super::{Action, Buffer, Operand, Port, Program, Span, Step, StepIndex};
use crate::ids::{Chunk, Rank};
use crate::layout::Layout;
use crate::schedule::{Mode, Schedule, Transfer};
use crate::topology::Topology;

/// Offsets in scratch memory are multiples of this.
const SCRATCH_ALIGNMENT_BYTES: usize = 64;

/// The part of `rank` in `schedule`, on the buffers described by `layout`.
///
/// What a rank sends to *all* other ranks of its host in one round leaves once, on the multicast
/// link of the host. Both ends find that out from the schedule.
///
/// A chunk is read from the input until it is first written; from then on it lives in the output,
/// or in scratch memory if this rank's output has no place for it. So out-of-place calls need no
/// preparatory copy, and in-place calls are the case where both places are the same.
#[must_use]
pub fn lower(
    schedule: &dyn Schedule,
    layout: &Layout,
    rank: Rank,
    element_bytes: usize,
    topology: &Topology,
) -> Program {
    let mut lowering = Lowering {
        schedule,
        topology,
        layout,
        rank,
        element_bytes,
        places: BTreeMap::new(),
        steps: Vec::new(),
        round_begin: 0,
        scratch_bytes: 0,
    };
    let mut transfers = Vec::new();
    for round in 0..schedule.rounds() {
        transfers.clear();
        schedule.transfers(round, rank, &mut transfers);
        transfers.retain(|transfer| layout.elements(transfer.chunk) > 0);
        lowering.round(round, &mut transfers);
    }
    lowering.deliver();
    Program::from_steps(lowering.steps, rank, lowering.scratch_bytes)
}

/// A group of sends and receives with separate buffers, all at once. `sends[i]` and `receives[i]`
/// are peer, buffer and length; a message to oneself meets the receives from oneself in order.
///
/// # Panics
/// Messages to oneself do not match in number or length; the caller has checked that.
#[must_use]
pub fn point_to_point(
    rank: Rank,
    sends: &[(Rank, Buffer, usize)],
    receives: &[(Rank, Buffer, usize)],
) -> Program {
    let whole = |buffer| Span { buffer, offset: 0 };
    let step = |action, bytes| Step { action, bytes, after: Vec::new() };
    let mut steps = Vec::new();
    let mut own_sends = sends.iter().filter(|(peer, ..)| *peer == rank);
    for &(peer, buffer, bytes) in sends.iter().filter(|(peer, ..)| *peer != rank) {
        steps.push(step(
            Action::Send { port: Port::Pair(peer), from: whole(buffer), lend: true },
            bytes,
        ));
    }
    for &(peer, buffer, bytes) in receives {
        let into = whole(buffer);
        if peer == rank {
            let own = own_sends.next().copied();
            assert!(own.is_some_and(|(_, _, sent)| sent == bytes), "unmatched message to oneself");
            let from = whole(own.map_or(buffer, |(_, from, _)| from));
            steps.push(step(Action::Copy { from, into }, bytes));
        } else {
            steps.push(step(Action::Receive { port: Port::Pair(peer), into }, bytes));
        }
    }
    assert!(own_sends.next().is_none(), "unmatched message to oneself");
    Program::from_steps(steps, rank, 0)
}

/// What this rank's copy of a chunk went through so far.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Where the current bytes are, if there are any.
    current: Option<Span>,
    /// Where writes go, once there was one.
    home: Option<Span>,
    writer: Option<StepIndex>,
    readers: Vec<StepIndex>,
}

struct Lowering<'a> {
    schedule: &'a dyn Schedule,
    topology: &'a Topology,
    layout: &'a Layout,
    rank: Rank,
    element_bytes: usize,
    places: BTreeMap<Chunk, Place>,
    steps: Vec<Step>,
    /// The first step of the current round.
    round_begin: usize,
    scratch_bytes: usize,
}

impl Lowering<'_> {
    /// Sends read the state before the round, so they come first. On every link both ends see the
    /// chunks of a round in order of their turns, and of their numbers where these are the same.
    fn round(&mut self, round: u32, transfers: &mut [Transfer]) {
        transfers.sort_unstable_by_key(|t| (t.turn, t.chunk, t.target, t.source));
        let me = self.rank;
        self.round_begin = self.steps.len();
        let shared = multicasts(transfers, me, self.topology);
        let mut last = None;
        for transfer in transfers.iter().filter(|t| t.source == me) {
            let chunk = transfer.chunk;
            if !(shared.contains(&chunk) && self.topology.together(me, transfer.target)) {
                self.send(chunk, Port::Pair(transfer.target));
            } else if last != Some(chunk) {
                last = Some(chunk);
                self.send(chunk, Port::Multicast(me));
            }
        }
        let heard = self.heard(round, transfers);
        let mut incoming = transfers.iter().filter(|t| t.target == me).peekable();
        let mut sources = Vec::new();
        while let Some(first) = incoming.next() {
            let port = |source| match heard.contains(&(source, first.chunk)) {
                true => Port::Multicast(source),
                false => Port::Pair(source),
            };
            sources.clear();
            sources.push(port(first.source));
            while let Some(next) = incoming.next_if(|next| next.chunk == first.chunk) {
                sources.push(port(next.source));
            }
            match first.mode {
                Mode::Store => self.store(first.chunk, sources[0]),
                Mode::Accumulate => self.accumulate(first.chunk, &sources),
            }
        }
    }

    /// What this rank receives in `round` on multicast links: the sources and their chunks.
    fn heard(&self, round: u32, transfers: &[Transfer]) -> BTreeSet<(Rank, Chunk)> {
        let me = self.rank;
        let near = |t: &&Transfer| t.target == me && self.topology.together(me, t.source);
        let sources: BTreeSet<Rank> = transfers.iter().filter(near).map(|t| t.source).collect();
        let mut heard = BTreeSet::new();
        let mut theirs = Vec::new();
        for source in sources {
            theirs.clear();
            self.schedule.transfers(round, source, &mut theirs);
            let shared = multicasts(&theirs, source, self.topology);
            heard.extend(shared.into_iter().map(|chunk| (source, chunk)));
        }
        heard
    }

    fn send(&mut self, chunk: Chunk, port: Port) {
        let place = self.place(chunk);
        let Some(from) = place.current else {
            unreachable!("a verified schedule does not read nothing: {chunk:?} to {port:?}")
        };
        let after = place.writer.into_iter().collect();
        let index = self.push(Action::Send { port, from, lend: true }, chunk, after);
        self.place(chunk).readers.push(index);
    }

    fn store(&mut self, chunk: Chunk, port: Port) {
        let into = self.home(chunk);
        self.write(chunk, Action::Receive { port, into });
    }

    /// Reduces in order of rank, the own copy in its place among the others, so that ranks that
    /// reduce the same contributions get the same bits.
    fn accumulate(&mut self, chunk: Chunk, sources: &[Port]) {
        let own = self.place(chunk).current;
        let into = self.home(chunk);
        let lower = sources.iter().filter(|source| source.rank() < self.rank);
        let higher = sources.iter().filter(|source| source.rank() > self.rank);
        let operands = lower
            .map(|source| Operand::Arrival(*source))
            .chain(own.map(Operand::Local))
            .chain(higher.map(|source| Operand::Arrival(*source)))
            .collect();
        self.write(chunk, Action::Reduce { operands, into });
    }

    fn write(&mut self, chunk: Chunk, action: Action) {
        let place = self.place(chunk);
        let mut after = std::mem::take(&mut place.readers);
        after.extend(place.writer);
        for &before in after.iter().filter(|before| **before as usize >= self.round_begin) {
            if let Action::Send { lend, .. } = &mut self.steps[before as usize].action {
                *lend = false;
            }
        }
        let index = self.push(action, chunk, after);
        let place = self.place(chunk);
        place.writer = Some(index);
        place.current = place.home;
    }

    /// Chunks that are still where they began go where they must be.
    fn deliver(&mut self) {
        for chunk in (0..self.layout.chunks()).map(Chunk) {
            let Some(output) = self.layout.output(self.rank, chunk) else { continue };
            let empty = self.layout.elements(chunk) == 0;
            let place = self.place(chunk);
            let (Some(from), None, false) = (place.current, place.writer, empty) else { continue };
            let into = Span { buffer: Buffer::OUTPUT, offset: output * self.element_bytes };
            self.push(Action::Copy { from, into }, chunk, Vec::new());
        }
    }

    fn push(&mut self, action: Action, chunk: Chunk, after: Vec<StepIndex>) -> StepIndex {
        let bytes = self.layout.elements(chunk) * self.element_bytes;
        self.steps.push(Step { action, bytes, after });
        u32::try_from(self.steps.len() - 1).unwrap_or(u32::MAX)
    }

    fn place(&mut self, chunk: Chunk) -> &mut Place {
        let (layout, rank, element_bytes) = (self.layout, self.rank, self.element_bytes);
        self.places.entry(chunk).or_insert_with(|| {
            let input = layout.input(rank, chunk);
            let current =
                input.map(|at| Span { buffer: Buffer::INPUT, offset: at * element_bytes });
            Place { current, ..Place::default() }
        })
    }

    /// Where writes to `chunk` go.
    fn home(&mut self, chunk: Chunk) -> Span {
        if let Some(home) = self.place(chunk).home {
            return home;
        }
        let home = match self.layout.output(self.rank, chunk) {
            Some(at) => Span { buffer: Buffer::OUTPUT, offset: at * self.element_bytes },
            None => self.scratch(self.layout.elements(chunk) * self.element_bytes),
        };
        self.place(chunk).home = Some(home);
        home
    }

    fn scratch(&mut self, bytes: usize) -> Span {
        let offset = self.scratch_bytes;
        self.scratch_bytes += bytes.next_multiple_of(SCRATCH_ALIGNMENT_BYTES);
        Span { buffer: Buffer::SCRATCH, offset }
    }
}
