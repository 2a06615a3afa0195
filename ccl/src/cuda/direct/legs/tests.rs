//! Legs that all ranks carry out symbolically: which bytes of which inputs are where in the end.

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
    let whole = Stretch { start: 0, bytes: request.bytes(), pitch: request.bytes() };
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
    let [sum, mean, most] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max].map(Reduction::Builtin);
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
    let are_there = |collective| legs(&request(collective, 10, 0), position(2), (0, 0)).is_some();
    assert!(are_there(Collective::AllReduce) && are_there(Collective::Reduce));
    assert!(!are_there(Collective::AllGather) && !are_there(Collective::ReduceScatter));
    assert!(!are_there(Collective::AllToAll));
}
