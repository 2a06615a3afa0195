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
mod tests {
    use ccl_core::datatype::DataType;

    use super::super::parts::{Cast, Stretch};
    use super::*;

    /// Which bytes of which inputs have come together: rank and place, sorted.
    type Sum = Vec<(usize, usize)>;

    const COLLECTIVES: [Collective; 5] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
    ];
    const SCRATCH_BYTES: usize = 200;

    /// One rank's buffers and what is left for it to do.
    struct Member {
        buffers: [Vec<Sum>; 3],
        legs: Vec<Leg>,
    }

    impl Member {
        fn read(&self, area: Area) -> Vec<Sum> {
            self.buffers[area.memory as usize][area.start..][..area.bytes].to_vec()
        }

        fn write(&mut self, area: Area, at: usize, sum: Sum) {
            assert!(at < area.bytes, "{at} of {area:?}");
            self.buffers[area.memory as usize][area.start + at] = sum;
        }
    }

    fn request(collective: Collective, count: usize, root: usize) -> Request {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        let datatype = DataType::Uint8;
        Request { collective, count, datatype, reduction, root: Rank(root as u32) }
    }

    fn members(request: &Request, hosts: usize, places: usize) -> Vec<Member> {
        let block = request.bytes();
        let member = |rank: usize| {
            let position = Position {
                host: rank / places,
                hosts,
                place: rank % places,
                places,
                is_in_order: true,
                scratch_bytes: SCRATCH_BYTES,
            };
            let root = (request.root.index() / places, request.root.index() % places);
            let blocks = Cast::even(*request, rank, hosts * places).blocks();
            let input = (0..blocks.input * block).map(|at| vec![(rank, at)]).collect();
            let empty = |bytes| vec![Sum::new(); bytes];
            Member {
                buffers: [input, empty(blocks.output * block), empty(SCRATCH_BYTES)],
                legs: legs(request, position, root).unwrap(),
            }
        };
        (0..hosts * places).map(member).collect()
    }

    /// Ranks that are next in a leg of theirs together do it. Their form says how long the blocks are, on hosts.
    fn act(members: &mut [Member], circle: &[usize]) -> bool {
        let next: Vec<Leg> =
            circle.iter().filter_map(|rank| members[*rank].legs.first().copied()).collect();
        let is_column = |leg: &Leg| matches!(leg.circle, Circle::Column { .. });
        let wanted = circle.windows(2).all(|pair| pair[1] != pair[0] + 1);
        if next.len() < circle.len() || next.iter().any(|leg| is_column(leg) != wanted) {
            return false;
        }
        assert!(next.iter().all(|leg| leg.request == next[0].request), "{next:?}");
        let (request, ranks) = (next[0].request, circle.len());
        let cast = |me: usize| match next[me].circle {
            Circle::Host(form) => Cast { request, me, ranks, form },
            Circle::Column { pitch } => {
                let form = Form { pitch, reach: (ranks - 1) * pitch + request.bytes() };
                Cast { request, me, ranks, form }
            }
        };
        let read: Vec<Vec<Sum>> = circle
            .iter()
            .zip(&next)
            .map(|(rank, leg)| leg.input.map_or(Vec::new(), |area| members[*rank].read(area)))
            .collect();
        for (me, rank) in circle.iter().enumerate() {
            for (at, sum) in result(&cast(me), &read) {
                members[*rank].write(next[me].output.unwrap(), at, sum);
            }
            members[*rank].legs.remove(0);
        }
        true
    }

    /// What a rank has then, and where, if they have `read` this.
    fn result(cast: &Cast, read: &[Vec<Sum>]) -> Vec<(usize, Sum)> {
        let Cast { request, me, ranks, form } = *cast;
        let whole = Stretch { start: 0, bytes: request.bytes() };
        let (root, own) = (request.root.index(), cast.held(1, 0, whole));
        let all = |at: usize| -> Sum {
            let mut sum: Sum = read.iter().flat_map(|input| input[at].clone()).collect();
            sum.sort_unstable();
            sum
        };
        let from = |rank: usize, at: usize| read[rank][at].clone();
        let places = |bytes: usize, sum: &dyn Fn(usize) -> Sum| -> Vec<(usize, Sum)> {
            (0..bytes).map(|at| (at, sum(at))).collect()
        };
        match request.collective {
            Collective::Reduce | Collective::Gather if me != root => Vec::new(),
            Collective::AllReduce | Collective::Reduce => places(request.count, &all),
            Collective::ReduceScatter => places(own, &|at| all(me * form.pitch + at)),
            Collective::Broadcast => places(request.count, &|at| from(root, at)),
            Collective::Scatter => places(own, &|at| from(root, me * form.pitch + at)),
            Collective::AllGather | Collective::Gather => {
                let block = |rank: usize| {
                    let sums = places(cast.held(ranks, rank, whole), &|at| from(rank, at));
                    sums.into_iter().map(move |(at, sum)| (rank * form.pitch + at, sum))
                };
                (0..ranks).flat_map(block).collect()
            }
            Collective::AllToAll
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => unreachable!("in no leg"),
        }
    }

    /// Does all legs, whoever comes first.
    fn run(request: &Request, hosts: usize, places: usize) -> Vec<Vec<Sum>> {
        let mut members = members(request, hosts, places);
        let inside = (0..hosts).map(|host| (host * places..(host + 1) * places).collect());
        let between = (0..places).map(|place| (place..hosts * places).step_by(places).collect());
        let circles: Vec<Vec<usize>> = inside.chain(between).collect();
        while circles.iter().any(|circle| act(&mut members, circle)) {}
        assert!(members.iter().all(|member| member.legs.is_empty()), "ranks wait in a circle");
        members.into_iter().map(|member| member.buffers[1].clone()).collect()
    }

    #[test]
    fn everybody_gets_what_the_collective_says() {
        for (collective, (hosts, places)) in COLLECTIVES
            .into_iter()
            .flat_map(|collective| [(2, 2), (3, 2), (2, 4), (2, 3)].map(|size| (collective, size)))
        {
            let ranks = hosts * places;
            for (count, root) in [(1, 0), (3, 1), (17, 3), (64, 2), (301, 3), (1000, 1)] {
                let request = request(collective, count, root);
                for (rank, output) in run(&request, hosts, places).iter().enumerate() {
                    for (at, sum) in output.iter().enumerate() {
                        let all = |at: usize| (0..ranks).map(|from| (from, at)).collect::<Sum>();
                        let expected = match collective {
                            Collective::AllReduce => all(at),
                            // Only the root has an output.
                            Collective::Reduce => all(at),
                            Collective::ReduceScatter => all(rank * count + at),
                            Collective::AllGather => vec![(at / count, at % count)],
                            Collective::Broadcast => vec![(root, at)],
                            Collective::AllToAll
                            | Collective::AllToAllV
                            | Collective::Gather
                            | Collective::Scatter
                            | Collective::Barrier
                            | Collective::PointToPoint => unreachable!("not in the list"),
                        };
                        let what = format!("{request:?}, rank {rank} of {hosts} x {places}: {at}");
                        assert_eq!(*sum, expected, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_network_carries_no_byte_twice() {
        let request = request(Collective::AllReduce, 1001, 0);
        let all = members(&request, 3, 2);
        let of_host = all[..2].iter().flat_map(|member| &member.legs);
        let columns = of_host.filter(|leg| matches!(leg.circle, Circle::Column { .. }));
        assert_eq!(columns.map(|leg| leg.request.bytes()).sum::<usize>(), 1001);
    }

    fn position(places: usize) -> Position {
        let (host, hosts, place, scratch_bytes) = (0, 2, 0, 64);
        Position { host, hosts, place, places, is_in_order: false, scratch_bytes }
    }

    #[test]
    fn contributions_are_scaled_once_and_means_divided_once() {
        let reductions = |datatype, reduction| {
            let request = Request { datatype, reduction, ..request(Collective::AllReduce, 99, 0) };
            let legs = legs(&request, position(3), (0, 0)).unwrap();
            [legs[0].request.reduction, legs[1].request.reduction]
        };
        let [sum, mean, most] =
            [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max].map(Reduction::Builtin);
        let (float, int) = (DataType::Float32, DataType::Int32);
        let scaled =
            Reduction::PreMulSum { datatype: float, scalar: u64::from((1.0_f32 / 6.0).to_bits()) };
        assert_eq!(reductions(float, mean), [scaled, sum]);
        assert_eq!(reductions(float, scaled), [scaled, sum]);
        assert_eq!(reductions(int, mean), [sum, mean]);
        assert_eq!(reductions(int, most), [most, most]);
    }

    #[test]
    fn blocks_of_ranks_that_are_not_in_order_go_another_way() {
        let are_there =
            |collective| legs(&request(collective, 10, 0), position(2), (0, 0)).is_some();
        assert!(are_there(Collective::AllReduce) && are_there(Collective::Reduce));
        assert!(!are_there(Collective::AllGather) && !are_there(Collective::ReduceScatter));
        assert!(!are_there(Collective::AllToAll));
    }
}
