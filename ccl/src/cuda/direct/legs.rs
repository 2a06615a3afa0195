//! The legs of a call of ranks that are several on each of several hosts, as values: what the ranks of a host do, and what
//! those with the same place on their hosts do, one after the other.
//!
//! What goes inside a host is cut into parts, one for each of its ranks, which are in the same column as the same part on
//! all other hosts: so every byte goes over the network in one column only. Contributions are combined inside the
//! hosts first; there they are scaled, and a mean is divided when the last host has come to it: both once.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{ReduceOp, Reduction};
use ccl_core::ids::Rank;
use ccl_kernels::cuda::slice;
use ccl_kernels::reciprocal;

use super::parts::Form;

/// Pieces that go through memory of the library are multiples of so many elements, where they can be.
const GRAIN: usize = 64;

/// Whose memory a leg works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Input,
    Output,
    /// Memory of the library, for what is on the way.
    Scratch,
}

/// Bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) memory: Memory,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Who does a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Circle {
    /// The ranks of the host, by kernels.
    Host(Form),
    /// Those of the column, by kernels and NICs; so many bytes are from one block to the next.
    Column { pitch: usize },
}

/// A collective of some of the ranks, as if there were no others. Its root is a place among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) circle: Circle,
    pub(super) request: Request,
    pub(super) input: Option<Area>,
    pub(super) output: Option<Area>,
}

/// Where a rank is, and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) host: usize,
    pub(super) hosts: usize,
    /// On the host.
    pub(super) place: usize,
    pub(super) places: usize,
    /// Whether ranks are numbered host by host.
    pub(super) is_in_order: bool,
    pub(super) scratch_bytes: usize,
}

/// The legs of a rank; None for what goes another way. `root` is the root's host and its place there.
pub(super) fn legs(
    request: &Request,
    position: Position,
    root: (usize, usize),
) -> Option<Vec<Leg>> {
    let plan = Plan { request: *request, position, root };
    match request.collective {
        Collective::AllReduce => Some(plan.all_reduce()),
        Collective::Broadcast => Some(plan.broadcast()),
        Collective::Reduce => plan.reduce(),
        Collective::AllGather if position.is_in_order => Some(plan.all_gather()),
        Collective::ReduceScatter if position.is_in_order => plan.reduce_scatter(),
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Gather
        | Collective::Scatter
        | Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Barrier
        | Collective::PointToPoint => None,
    }
}

impl Area {
    fn new(memory: Memory, start: usize, bytes: usize) -> Self {
        Self { memory, start, bytes }
    }
}

impl Leg {
    fn on(self, input: impl Into<Option<Area>>, output: impl Into<Option<Area>>) -> Self {
        Self { input: input.into(), output: output.into(), ..self }
    }

    fn reducing(self, reduction: Reduction) -> Self {
        Self { request: Request { reduction, ..self.request }, ..self }
    }
}

struct Plan {
    request: Request,
    position: Position,
    root: (usize, usize),
}

impl Plan {
    fn all_reduce(&self) -> Vec<Leg> {
        let [inside, between] = self.reductions();
        let (input, whole) = (self.all(Memory::Input), self.all(Memory::Output));
        let (pitch, part) = (self.pitch(), self.part());
        let scatter = self.inside(Collective::ReduceScatter, pitch, self.cut(0));
        let around = self.between(Collective::AllReduce, part);
        let gather = self.inside(Collective::AllGather, pitch, self.cut(0));
        existing([
            scatter.reducing(inside).on(input, part),
            around.reducing(between).on(part, part),
            gather.on(part, whole),
        ])
    }

    fn broadcast(&self) -> Vec<Leg> {
        let input = self.is_root().then(|| self.all(Memory::Input));
        let (pitch, part) = (self.pitch(), self.part());
        let scatter = self.inside(Collective::Scatter, pitch, self.cut(0));
        let around = self.between(Collective::Broadcast, part);
        let gather = self.inside(Collective::AllGather, pitch, self.cut(0));
        let first = scatter.on(input, part);
        let others = [around.on(part, part), gather.on(part, self.all(Memory::Output))];
        self.is_on_root_host().then_some(first).into_iter().chain(existing(others)).collect()
    }

    /// Partial sums of all parts are only with the root in the end, so they are on their way in memory of the library.
    fn reduce(&self) -> Option<Vec<Leg>> {
        let [inside, between] = self.reductions();
        let (size, bytes) = (self.request.datatype.bytes(), self.request.bytes());
        let (most, mut legs) = (self.most(1)?, Vec::new());
        for first in (0..self.pitch()).step_by(most) {
            let (count, start) = (most.min(self.pitch() - first), first * size);
            let part = self.part().bytes.saturating_sub(start).min(count * size);
            let (part, form) = (Area::new(Memory::Scratch, 0, part), self.cut(start));
            let from = |memory| Area::new(memory, start, bytes - start);
            let scatter = self.inside(Collective::ReduceScatter, count, form);
            let around = self.between(Collective::Reduce, part);
            legs.extend(existing([
                scatter.reducing(inside).on(from(Memory::Input), part),
                around.reducing(between).on(part, part),
            ]));
            let output = self.is_root().then(|| from(Memory::Output));
            let gather = self.inside(Collective::Gather, count, form).on(part, output);
            legs.extend(self.is_on_root_host().then_some(gather));
        }
        Some(legs)
    }

    fn all_gather(&self) -> Vec<Leg> {
        let Position { hosts, place, places, .. } = self.position;
        let (count, block) = (self.request.count, self.request.bytes());
        let pitch = places * block;
        let input = self.all(Memory::Input);
        let own = Area::new(Memory::Output, place * block, (hosts - 1) * pitch + block);
        let around = self.between(Collective::AllGather, input).on(input, own);
        let around = Leg { circle: Circle::Column { pitch }, ..around };
        let gather = |host: usize| {
            let form = Form { pitch: block, reach: pitch };
            let own = Area::new(Memory::Output, host * pitch + place * block, block);
            let all = Area::new(Memory::Output, host * pitch, pitch);
            self.inside(Collective::AllGather, count, form).on(own, all)
        };
        std::iter::once(around).chain((0..hosts).map(gather)).collect()
    }

    /// Sums of a host for the ranks of all hosts need more memory than the output has.
    fn reduce_scatter(&self) -> Option<Vec<Leg>> {
        let [inside, between] = self.reductions();
        let Position { hosts, places, .. } = self.position;
        let Request { count, datatype, .. } = self.request;
        let (size, block) = (datatype.bytes(), self.request.bytes());
        let (most, mut legs) = (self.most(hosts)?, Vec::new());
        for first in (0..count).step_by(most) {
            let (count, start) = (most.min(count - first), first * size);
            let bytes = count * size;
            let reach = (places - 1) * block + bytes;
            let scatter = |host: usize| {
                let form = Form { pitch: block, reach };
                let leg = self.inside(Collective::ReduceScatter, count, form);
                let input = Area::new(Memory::Input, host * places * block + start, reach);
                let output = Area::new(Memory::Scratch, host * bytes, bytes);
                leg.reducing(inside).on(input, output)
            };
            legs.extend((0..hosts).map(scatter));
            let output = Area::new(Memory::Output, start, bytes);
            let around = self.between(Collective::ReduceScatter, output).reducing(between);
            legs.push(around.on(Area::new(Memory::Scratch, 0, hosts * bytes), output));
        }
        Some(legs)
    }

    /// What combines inside the hosts, and what between them.
    fn reductions(&self) -> [Reduction; 2] {
        let (own, datatype) = (self.request.reduction, self.request.datatype);
        let ranks = (self.position.hosts * self.position.places) as u32;
        let sum = Reduction::Builtin(ReduceOp::Sum);
        match own {
            Reduction::Builtin(ReduceOp::Avg) if datatype.is_float() => {
                [Reduction::PreMulSum { datatype, scalar: reciprocal(datatype, ranks) }, sum]
            }
            Reduction::Builtin(ReduceOp::Avg) => [sum, own],
            Reduction::PreMulSum { .. } => [own, sum],
            Reduction::Builtin(ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min) => {
                [own; 2]
            }
        }
    }

    /// Elements from one part to the next.
    fn pitch(&self) -> usize {
        let Request { count, datatype, .. } = self.request;
        slice(count, datatype.bytes(), self.position.places, 0).1
    }

    /// Elements of every one of so many blocks that scratch memory has room for.
    fn most(&self, blocks: usize) -> Option<usize> {
        let most = self.position.scratch_bytes / (blocks * self.request.datatype.bytes());
        let whole = if most > GRAIN { most / GRAIN * GRAIN } else { most };
        (whole > 0).then_some(whole)
    }

    /// The parts, without the first bytes of each.
    fn cut(&self, start: usize) -> Form {
        let size = self.request.datatype.bytes();
        Form { pitch: self.pitch() * size, reach: self.request.bytes().saturating_sub(start) }
    }

    /// This rank's part of the output.
    fn part(&self) -> Area {
        let Request { count, datatype, .. } = self.request;
        let (places, place) = (self.position.places, self.position.place);
        let (first, count) = slice(count, datatype.bytes(), places, place);
        Area::new(Memory::Output, first * datatype.bytes(), count * datatype.bytes())
    }

    /// The one block of a buffer.
    fn all(&self, memory: Memory) -> Area {
        Area::new(memory, 0, self.request.bytes())
    }

    fn is_on_root_host(&self) -> bool {
        self.root.0 == self.position.host
    }

    fn is_root(&self) -> bool {
        self.root == (self.position.host, self.position.place)
    }

    /// A leg of the ranks of this host with blocks of `count` elements.
    fn inside(&self, collective: Collective, count: usize, form: Form) -> Leg {
        let root = Rank(self.root.1 as u32);
        let request = Request { collective, count, root, ..self.request };
        Leg { circle: Circle::Host(form), request, input: None, output: None }
    }

    /// A leg of the ranks of this column with blocks as large as that.
    fn between(&self, collective: Collective, block: Area) -> Leg {
        let bytes = block.bytes;
        let (root, count) = (Rank(self.root.0 as u32), bytes / self.request.datatype.bytes());
        let request = Request { collective, count, root, ..self.request };
        Leg { circle: Circle::Column { pitch: bytes }, request, input: None, output: None }
    }
}

/// Columns without a part do nothing.
fn existing<const N: usize>(legs: [Leg; N]) -> Vec<Leg> {
    let is_empty =
        |leg: &Leg| matches!(leg.circle, Circle::Column { .. }) && leg.request.count == 0;
    legs.into_iter().filter(|leg| !is_empty(leg)).collect()
}

#[cfg(test)]
mod tests;
