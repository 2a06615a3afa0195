//! Calls that copy engines do: what moves bytes only, in memory that all ranks know ([`super::windows`]).
//!
//! No kernel runs. The stream of a rank moves the rank's own bytes, meets the streams of all others, fetches what they
//! have for it, and meets them again. Ranks only read memory of others, so one that has failed, or was let go, spoils
//! nothing of theirs.
//!
//! Always true: all ranks take this way for the same calls, because what it depends on is the same on all: the call, the
//! window, and the promise of the program that a call has one offset in it. A rank that breaks the promise comes with
//! another mark, or with none, and nobody passes.

use std::sync::Arc;

use ccl_core::collective::{Collective, Request};
use ccl_kernels::cuda::gpu::{
    self, DeviceRegion, Exchange, Gpu, MEETING_MARKS, Moment, Side, Stream,
};

use super::hold::Hold;
use super::watch::{Means, Watch};
use super::windows::{Shared, Windows};
use super::wish::Wish;
use super::{Direct, Way};
use crate::cuda::digest::digest;
use crate::cuda::error::described;
use crate::cuda::staging::Issue;
use crate::driver::lock;

/// Bytes that a rank fetches: all of them have the bytes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fetch {
    rank: usize,
    /// From the beginning of that rank's memory in the window.
    from: usize,
    /// From the beginning of the output.
    to: usize,
}

/// What a rank does in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Which buffer is in the window, and how many bytes it has.
    side: Side,
    extent: usize,
    /// From where in the input to where in the output the rank's own bytes go.
    own: Option<(usize, usize)>,
    fetches: Vec<Fetch>,
}

impl Plan {
    /// None for collectives that combine, or do not go from all ranks to all.
    fn of(request: &Request, me: usize, ranks: usize) -> Option<Self> {
        let (bytes, root) = (request.bytes(), request.root.index());
        // Everybody begins with another one.
        let others = (1..ranks).map(|step| (me + step) % ranks);
        let fetch = |rank, from, to| Fetch { rank, from: from * bytes, to: to * bytes };
        Some(match request.collective {
            Collective::AllGather => Self {
                side: Side::Output,
                extent: ranks * bytes,
                own: Some((0, me * bytes)),
                fetches: others.map(|rank| fetch(rank, rank, rank)).collect(),
            },
            Collective::Broadcast => Self {
                side: Side::Output,
                extent: bytes,
                own: (me == root).then_some((0, 0)),
                fetches: (me != root).then(|| fetch(root, 0, 0)).into_iter().collect(),
            },
            Collective::AllToAll => Self {
                side: Side::Input,
                extent: ranks * bytes,
                own: Some((me * bytes, me * bytes)),
                fetches: others.map(|rank| fetch(rank, me, rank)).collect(),
            },
            Collective::AllReduce
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::Gather
            | Collective::PointToPoint
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::Scatter => return None,
        })
    }
}

/// A call on its way to the stream.
struct Copies<'a> {
    exchange: &'a Exchange,
    window: &'a Shared,
    /// Where the buffer begins in the window.
    offset: usize,
    bytes: usize,
    input: Option<DeviceRegion<'a>>,
    output: DeviceRegion<'a>,
}

impl Copies<'_> {
    fn enqueue(&self, plan: &Plan, mark: u32, stream: &Stream) -> Result<(), gpu::Error> {
        if let (Some((from, to)), Some(input)) = (plan.own, self.input) {
            let (from, to) = (input.part(from, self.bytes), self.output.part(to, self.bytes));
            if from.address() != to.address() {
                stream.copy(from, to)?;
            }
        }
        self.exchange.meet(stream, Moment::Ready, mark)?;
        for Fetch { rank, from, to } in &plan.fetches {
            if let Some(there) = self.window.view.part(*rank, self.offset + from, self.bytes) {
                stream.copy(there, self.output.part(*to, self.bytes))?;
            }
        }
        self.exchange.meet(stream, Moment::Taken, mark)?;
        self.exchange.report(stream)
    }
}

/// What copy engines are to do for a call, and in which window from where on.
pub(super) struct Copied {
    exchange: Arc<Exchange>,
    plan: Plan,
    window: Arc<Shared>,
    offset: usize,
}

impl Copied {
    /// Whether the memory is still that of the window. It asks the driver.
    pub(super) fn is_there(&self, gpu: &Gpu) -> bool {
        self.window.is_there(gpu, self.offset)
    }
}

impl Direct {
    /// Puts a call on the stream, after all calls before.
    pub(super) fn copy(
        &self,
        wish: &Wish<'_, '_>,
        sequence: u64,
        copied: Copied,
        (stream, issue): (&Stream, &mut Issue),
    ) -> Result<Watch, gpu::Error> {
        let Wish::Even { request, input, output: Some(output), .. } = wish else {
            return Err(gpu::Error::Misuse("there is no buffer".into()));
        };
        let Copied { exchange, plan, window, offset } = copied;
        let called = Called { sequence, window: window.number, offset };
        let (number, marks) = lock(&self.routes).windows.follow(|n| called.mark(n, request));
        lock(&self.paths).copied += 1;
        if let Some(last) = &issue.last {
            stream.wait(last)?;
        }
        let entered = issue.enter(stream)?;
        let (bytes, input, output) = (request.bytes(), *input, *output);
        let copies = Copies { exchange: &exchange, window: &window, offset, bytes, input, output };
        let enqueued = copies.enqueue(&plan, marks.own, stream);
        let ended = Arc::new(issue.end_of_call());
        // Behind a call that is not whole, too: it is let go until its end is told in one of two ways, or the device is broken.
        let marked = ended.mark(stream);
        let last = self.events.mark(stream).map(Arc::new);
        let place = (Arc::clone(&exchange), window);
        let ends = (Arc::clone(&ended), last.as_ref().ok().cloned());
        let hold = Hold::new(place, (number, marks), ends, &self.releases);
        let whole = enqueued.and(marked).and(last);
        // What waits already is let go with what is held, and nobody must take that for a result.
        let last = whole.inspect_err(|error| self.staging.keep(&described(error)))?;
        issue.last = Some(last);
        let (staging, members) = (Arc::clone(&self.staging), Arc::clone(&self.members));
        let means = Means::Copies(hold);
        Ok(Watch { exchange, staging, call: wish.name(), means, members, entered, ended })
    }

    /// What is to be done, in which window and where; None if it is not for copy engines.
    pub(super) fn copied(
        &self,
        wish: &Wish<'_, '_>,
        way: Option<&Way>,
        windows: &Windows,
    ) -> Option<Copied> {
        let (Some(Way::Near(exchange)), Wish::Even { request, input, output: Some(output), .. }) =
            (way, wish)
        else {
            return None;
        };
        let plan = Plan::of(request, self.me, self.ranks)?;
        let shared = match plan.side {
            // What others have not taken yet must not be overwritten.
            Side::Input => input.filter(|input| input.address() != output.address())?,
            Side::Output => *output,
        };
        let (window, offset) = windows.find(&shared.part(0, plan.extent), request.bytes())?;
        Some(Copied { exchange: Arc::clone(exchange), plan, window, offset })
    }
}

/// What only one call has, beside the request.
#[derive(Clone, Copy, Debug)]
struct Called {
    sequence: u64,
    window: u64,
    offset: usize,
}

impl Called {
    /// What ranks tell each other in the meetings of the copied call with this number. It differs from that of the call
    /// before always, and from those of all other calls but in one case of 16 million.
    fn mark(self, number: u64, request: &Request) -> u32 {
        let has_root = request.collective == Collective::Broadcast;
        let numbers = [
            self.sequence,
            request.collective as u64,
            request.bytes() as u64,
            request.datatype.bytes() as u64,
            if has_root { u64::from(request.root.0) } else { 0 },
            self.window,
            self.offset as u64,
        ];
        let hash = digest(numbers.into_iter().flat_map(u64::to_le_bytes));
        let turn = (number % u64::from(MEETING_MARKS)) as u32 + 1;
        ((hash ^ hash >> 32) as u32) << 8 | turn
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::datatype::{DataType, ReduceOp, Reduction};
    use ccl_core::ids::Rank;

    use super::*;

    fn request(collective: Collective, root: u32) -> Request {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        Request { collective, count: 3, datatype: DataType::Uint8, reduction, root: Rank(root) }
    }

    /// What lies where, when all ranks have done their part: a byte says whose input it was, and where it lay there.
    fn done(request: &Request, ranks: usize) -> Vec<Vec<Option<(usize, usize)>>> {
        let plans: Vec<Plan> = (0..ranks).map(|me| Plan::of(request, me, ranks).unwrap()).collect();
        let inputs: Vec<Vec<_>> =
            (0..ranks).map(|me| (0..ranks * 3).map(|at| Some((me, at))).collect()).collect();
        let mut outputs = vec![vec![None; ranks * 3]; ranks];
        for (me, plan) in plans.iter().enumerate() {
            if let Some((from, to)) = plan.own {
                outputs[me][to..to + 3].copy_from_slice(&inputs[me][from..from + 3]);
            }
        }
        let ready = outputs.clone();
        for (me, plan) in plans.iter().enumerate() {
            for Fetch { rank, from, to } in &plan.fetches {
                let there = if plan.side == Side::Input { &inputs[*rank] } else { &ready[*rank] };
                assert!(*rank != me && from + 3 <= plan.extent);
                outputs[me][*to..to + 3].copy_from_slice(&there[*from..from + 3]);
            }
        }
        outputs
    }

    #[test]
    fn everybody_gets_what_the_collective_says() {
        for ranks in [2, 3, 8] {
            let gathered = done(&request(Collective::AllGather, 0), ranks);
            let exchanged = done(&request(Collective::AllToAll, 0), ranks);
            for me in 0..ranks {
                for at in 0..ranks * 3 {
                    let (block, rest) = (at / 3, at % 3);
                    assert_eq!(gathered[me][at], Some((block, rest)));
                    assert_eq!(exchanged[me][at], Some((block, me * 3 + rest)));
                }
            }
            for root in 0..ranks {
                let sent = done(&request(Collective::Broadcast, root as u32), ranks);
                let expected = [0, 1, 2].map(|at| Some((root, at)));
                assert!(sent.iter().all(|output| output[..3] == expected));
            }
        }
        assert_eq!(Plan::of(&request(Collective::AllReduce, 0), 0, 2), None);
    }

    #[test]
    fn ranks_begin_with_different_ones() {
        let first =
            |me| Plan::of(&request(Collective::AllToAll, 0), me, 4).unwrap().fetches[0].rank;
        assert_eq!([0, 1, 2, 3].map(first), [1, 2, 3, 0]);
    }

    #[test]
    fn marks_tell_calls_from_others() {
        let called = Called { sequence: 5, window: 1, offset: 64 };
        let [gather, broadcast] =
            [request(Collective::AllGather, 0), request(Collective::Broadcast, 0)];
        let own = called.mark(7, &gather);
        let others = [
            called.mark(7, &broadcast),
            called.mark(7, &Request { count: 4, ..gather }),
            Called { sequence: 6, ..called }.mark(7, &gather),
            Called { window: 2, ..called }.mark(7, &gather),
            Called { offset: 65, ..called }.mark(7, &gather),
            called.mark(8, &gather),
        ];
        assert!(others.iter().all(|other| *other != own));
        let elsewhere = Request { root: Rank(1), ..gather };
        assert_eq!(called.mark(7, &elsewhere), own, "nobody asks for the root");
        for number in 0..1000 {
            // Whatever the rest of a mark is.
            let turn = |number| called.mark(number, &gather) & 0xff;
            assert!(turn(number) != 0 && turn(number) != turn(number + 1));
        }
    }
}
