//! One rank's working parts, used by one call at a time.

mod attached;
mod direct;
mod ending;
mod parts;
mod pauses;
mod places;
mod telling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::{Epoch, Rank};
use ccl_core::layout::Ragged;
use ccl_core::program::{Buffer, point_to_point};
use ccl_core::topology::Topology;
use ccl_core::tuning::Tuning;
use ccl_core::wire::Stamp;
use ccl_kernels::{Combine, Kernel, Region, Scratch, copy, divide, reciprocal};
use ccl_transport::shm::Allocation;
use ccl_transport::wait::Ladder;
use ccl_transport::{Loan, clock};

use smallvec::SmallVec;

use crate::executor::{Arithmetic, Executor, LEAST_LOAN_BYTES, Task};
use crate::health::{Health, Turn};
use crate::operation::{Operation, Shapes, as_done, or_empty};
use crate::plans::Planner;

use attached::Attached;
use direct::Direct;
use ending::{History, LastHope};
pub(crate) use ending::{Limits, Watch};
use pauses::Pauses;

/// Buffers of the application stand behind these in a group of sends and receives.
const FIRST_MESSAGE_BUFFER: u32 = 3;
/// Who has waited for so long tells peers on other hosts what has arrived, whatever else there is to send: links on which
/// nothing is under way would not find out that a rail swallows all.
const CONFIRM_AFTER: Duration = Duration::from_millis(1);

/// How operations ended. A call of a few bytes passes this through several layers, so it is as small as a register.
pub(crate) type Ended = Result<(), Box<Error>>;

/// One rank's links, plans and place in the sequence of calls.
#[derive(Debug)]
pub(crate) struct Engine {
    me: Rank,
    ranks: u32,
    executor: Executor,
    planner: Planner,
    health: Arc<Health>,
    /// Collectives called so far.
    calls: u64,
    history: History,
    /// When the call first looked how long it waits, if it has: its deadline counts from then.
    waits_since: Option<Instant>,
    /// What a barrier sends around.
    token: Scratch,
    /// The input of an in-place all-to-all that cannot be exchanged block by block, out of the way of its
    /// output.
    staging: Scratch,
    ladder: Ladder,
    direct: Direct,
    /// Of asking for `direct`.
    pauses: Pauses,
    attached: Attached,
    /// What this rank tells in the middle of a call, and then what all do.
    told: Scratch,
}

impl Engine {
    pub(crate) fn new(
        me: Rank,
        ranks: u32,
        executor: Executor,
        planner: Planner,
        health: Arc<Health>,
        ladder: Ladder,
    ) -> Self {
        let direct = Direct::new(executor.caches());
        Self {
            me,
            ranks,
            executor,
            planner,
            health,
            calls: 0,
            history: History::default(),
            waits_since: None,
            token: Scratch::new(1),
            staging: Scratch::new(0),
            ladder,
            direct,
            pauses: Pauses::default(),
            attached: Attached::default(),
            told: Scratch::default(),
        }
    }

    /// How many collectives were called so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Whether peers are on other hosts, so that [`Self::tend`] has something to do.
    pub(crate) fn is_networked(&self) -> bool {
        self.executor.is_pushed()
    }

    /// Gives the peers what they are not known to have, before this rank leaves; see
    /// [`Executor::settle`].
    pub(crate) fn settle(
        &mut self,
        patience: Duration,
        is_over: impl Fn() -> bool,
        has_left: impl Fn(Rank) -> bool,
    ) {
        self.executor.settle(patience, is_over, has_left);
    }

    /// See [`Executor::abandon`].
    pub(crate) fn abandon(&mut self) {
        self.executor.abandon();
    }

    /// Looks after the links between calls. Tells whether the peers have everything.
    pub(crate) fn tend(&mut self) -> bool {
        self.executor.tend()
    }

    #[cfg(test)]
    pub(crate) fn expect(&mut self, commit: ccl_core::epoch::Commit) {
        self.planner.expect(commit);
    }

    /// The epoch of the plans.
    pub(crate) fn epoch(&self) -> Epoch {
        self.planner.epoch()
    }

    /// The topology before anything failed.
    pub(crate) fn introduced(&self) -> &Topology {
        self.planner.introduced()
    }

    /// Makes plans with measurements from now on. Returns the topology that was measured.
    pub(crate) fn tuned(&mut self, tuning: &Tuning) -> Topology {
        self.planner.tuned(tuning);
        self.executor.tune(self.planner.introduced());
        self.planner.introduced().clone()
    }

    pub(crate) fn explain(&self, request: &Request) -> Result<String, Error> {
        self.planner.explain(request)
    }

    /// How many seconds a validated operation would take.
    pub(crate) fn predict(&self, operation: &Operation<'_>) -> Result<f64, Error> {
        match operation {
            Operation::Collective { request, .. } if request.count > 0 => {
                self.planner.predict(request)
            }
            Operation::Collective { .. } | Operation::Barrier => {
                self.planner.predict(&Request::BARRIER)
            }
            Operation::AllToAllV { datatype, counts, .. } => {
                // As if all blocks were as large as this rank's are on average.
                let sent: usize = counts.send.iter().map(|(count, _)| *count).sum();
                let count = sent.div_ceil(self.ranks.max(1) as usize);
                self.planner.predict(&Request {
                    collective: Collective::AllToAll,
                    count: count.max(1),
                    datatype: *datatype,
                    ..Request::BARRIER
                })
            }
            Operation::Send { peer, data } | Operation::Receive { peer, data } => {
                Ok(self.planner.predict_message(*peer, data.bytes()))
            }
        }
    }

    /// Runs validated operations: collectives in order, then sends and receives together.
    #[inline(always)]
    pub(crate) fn run(&mut self, operations: &[Operation<'_>], limits: Limits<'_>) -> Ended {
        match operations {
            [Operation::Collective { request, input, output }] => {
                self.described(request, &[or_empty(*input), or_empty(*output)], limits)
            }
            _ => self.several(operations, limits),
        }
    }

    fn several(&mut self, operations: &[Operation<'_>], limits: Limits<'_>) -> Ended {
        let operations = as_done(operations);
        let collectives = operations.partition_point(|operation| !operation.is_message());
        let (collectives, messages) = operations.split_at(collectives);
        collectives.iter().try_for_each(|operation| self.one(operation, limits))?;
        if messages.is_empty() { Ok(()) } else { self.exchange(messages, limits) }
    }

    fn one(&mut self, operation: &Operation<'_>, limits: Limits<'_>) -> Ended {
        match operation {
            Operation::Collective { request, input, output } => {
                self.described(request, &[or_empty(*input), or_empty(*output)], limits)
            }
            Operation::AllToAllV { datatype, counts, input, output } => {
                self.ragged(*datatype, counts, *input, *output, limits)
            }
            Operation::Barrier => self.synchronise(&Request::BARRIER, limits),
            Operation::Send { .. } | Operation::Receive { .. } => {
                unreachable!("messages are exchanged together")
            }
        }
    }

    /// A collective that is described by a request, from the first buffer into the second.
    pub(crate) fn described(
        &mut self,
        request: &Request,
        buffers: &[Region<'_>; 2],
        limits: Limits<'_>,
    ) -> Ended {
        if request.count == 0 {
            return self.synchronise(request, limits);
        }
        let [input, output] = buffers;
        let is_one =
            request.collective == Collective::AllToAll && input.address() == output.address();
        let plan = self.enter(limits, |planner| planner.plan(request, is_one))?;
        let stamp = self.stamp(plan.signature);
        let arithmetic = arithmetic(request, self.ranks);
        let is_straight = plan.is_straight && arithmetic.factor.is_none();
        let program = &plan.program;
        let task = Task { program, buffers, stamp, arithmetic: Some(arithmetic), is_straight };
        // Every rank asks where the others do, whatever its own buffers are like.
        if !(self.may_be_direct(request) && self.directly(request, &task, limits)?) {
            self.drive_or_attach(request, &plan, &task, limits)?;
        }
        self.planner.keep(plan);
        if request.collective.reduces() && is_integer_mean(request) {
            let result = Shapes::of(request, self.me, self.ranks)?.output_bytes;
            divide(request.datatype, u64::from(self.ranks), output.target(0, result));
        }
        Ok(())
    }

    fn ragged(
        &mut self,
        datatype: DataType,
        counts: &Ragged,
        input: Region<'_>,
        output: Region<'_>,
        limits: Limits<'_>,
    ) -> Ended {
        let is_one = input.address() == output.address();
        let plan =
            self.enter(limits, |planner| planner.ragged(datatype, counts.clone(), is_one))?;
        let stamp = self.stamp(plan.signature);
        let (program, buffers) = (&plan.program, &[input, output]);
        let task = Task { program, buffers, stamp, arithmetic: None, is_straight: false };
        self.drive_apart(&task, plan.is_apart, limits)
    }

    /// Lets nobody pass before everybody has come, under the name of `request`.
    fn synchronise(&mut self, request: &Request, limits: Limits<'_>) -> Ended {
        let plan = self.enter(limits, |planner| planner.synchronising(request))?;
        let stamp = self.stamp(plan.signature);
        let arithmetic = Some(arithmetic(&Request::BARRIER, self.ranks));
        let mut token = std::mem::take(&mut self.token);
        let (program, buffers) = (&plan.program, &[token.region(); 2]);
        let task = Task { program, buffers, stamp, arithmetic, is_straight: plan.is_straight };
        let result = self.drive(&task, limits);
        self.token = token;
        self.planner.keep(plan);
        result
    }

    /// Sends and receives of one group, all at once. They have no place in the sequence of
    /// collectives: only the two ends of each take part.
    fn exchange(&mut self, messages: &[Operation<'_>], limits: Limits<'_>) -> Ended {
        self.begin(limits)?;
        let mut buffers = vec![Region::empty(); FIRST_MESSAGE_BUFFER as usize];
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (message, buffer) in messages.iter().zip(FIRST_MESSAGE_BUFFER..) {
            let (list, peer, data) = match message {
                Operation::Send { peer, data } => (&mut sends, *peer, *data),
                Operation::Receive { peer, data } => (&mut receives, *peer, *data),
                Operation::Collective { .. } | Operation::AllToAllV { .. } | Operation::Barrier => {
                    unreachable!("only messages are exchanged")
                }
            };
            buffers.push(data);
            if data.bytes() > 0 {
                list.push((peer, Buffer(buffer), data.bytes()));
            }
        }
        let program = point_to_point(self.me, &sends, &receives);
        let stamp = Stamp { sequence: 0, signature: Signature::POINT_TO_POINT };
        let (program, buffers) = (&program, &buffers);
        let task = Task { program, buffers, stamp, arithmetic: None, is_straight: false };
        self.drive(&task, limits)
    }

    /// As [`Self::drive`], with the input put out of the way of the output first if it has to be.
    #[inline(always)]
    fn drive_apart(&mut self, task: &Task<'_>, is_apart: bool, limits: Limits<'_>) -> Ended {
        if is_apart { self.drive_aside(task, limits) } else { self.drive(task, limits) }
    }

    /// As [`Self::drive`], with the input put out of the way of the output first.
    fn drive_aside(&mut self, task: &Task<'_>, limits: Limits<'_>) -> Ended {
        let [input, output] = *task.buffers else { unreachable!("a collective has two buffers") };
        let mut staging = std::mem::take(&mut self.staging);
        staging.grow(input.bytes());
        let aside = staging.region();
        copy(input.source(0, input.bytes()), aside.target(0, input.bytes()));
        let result = self.drive(&Task { buffers: &[aside, output], ..*task }, limits);
        self.staging = staging;
        result
    }

    /// Runs a program until it is done.
    #[inline(always)]
    fn drive(&mut self, task: &Task<'_>, limits: Limits<'_>) -> Ended {
        if !task.is_straight {
            let loans: SmallVec<[Option<Loan>; 4]> = task.buffers.iter().map(loan).collect();
            self.executor.begin(task);
            return self.wait_through(task, &loans, limits);
        }
        match self.executor.at_once(task) {
            Ok(true) => Ok(()),
            Ok(false) => self.wait_through(task, &[], limits),
            Err(failure) => {
                Err(limits.error_for(failure, self.me, task.stamp, &self.history).into())
            }
        }
    }

    /// Sweeps until the program that has begun is done, waiting as the ladder says.
    fn wait_through(
        &mut self,
        task: &Task<'_>,
        loans: &[Option<Loan>],
        limits: Limits<'_>,
    ) -> Ended {
        let ladder = &mut self.ladder;
        ladder.reset();
        let waits_since = &mut self.waits_since;
        let (me, history) = (self.me, &self.history);
        let is_message = task.stamp.signature.collective == Collective::PointToPoint;
        let calls = (!is_message).then_some(self.calls);
        let mut last_hope = LastHope::default();
        let error = |failure| limits.error_for(failure, me, task.stamp, history);
        let mut run = self.executor.resume(task, loans);
        loop {
            let moved = run.sweep().map_err(error)?;
            if run.finished() {
                ladder.reset();
                return Ok(());
            }
            if moved {
                ladder.reset();
                continue;
            }
            if ladder.pause(run.sockets()) {
                run.inspect().map_err(error)?;
                if let Some(fault) = limits.abandoned() {
                    return Err(fault.into());
                }
                if let Some(fault) = limits.control.fault() {
                    // Ranks that are ahead may have failed in a later call; then all of this one is here.
                    while !run.finished() && matches!(run.sweep(), Ok(true)) {}
                    return if run.finished() { Ok(()) } else { Err(Error::clone(fault).into()) };
                }
                let now = clock::now();
                let hopeless = limits.hopeless(calls, &run.peers_waited_for());
                if let Some(error) = last_hope.look(now, hopeless) {
                    return Err(error.into());
                }
                let waited = now - *waits_since.get_or_insert(now);
                if waited >= CONFIRM_AFTER {
                    run.confirm();
                }
                if waited >= limits.timeout() {
                    let call = match is_message {
                        true => "a group of sends and receives".to_owned(),
                        false => format!("call {}, {}", task.stamp.sequence, task.stamp.signature),
                    };
                    let seconds = limits.timeout().as_secs_f64();
                    return Err(Error::Deadline { call, seconds, waiting: run.waiting() }.into());
                }
            }
        }
    }

    /// Begins the next collective with a plan of the epoch that it is in. If the communicator has failed, or there is no
    /// plan, it has not begun.
    fn enter<T>(
        &mut self,
        limits: Limits<'_>,
        plan: impl FnOnce(&mut Planner) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.begin(limits)?;
        let sequence = match self.health.enter() {
            Some(sequence) => sequence,
            None => self.wait_for_turn(limits)?,
        };
        self.planner.advance(sequence);
        let plan = plan(&mut self.planner).inspect_err(|_| self.health.cancel())?;
        self.calls = sequence;
        Ok(plan)
    }

    /// Nothing begins once the communicator has failed, even if all that it needs is there: who failed may have other things
    /// by now in memory that peers were to read.
    #[inline(always)]
    fn begin(&mut self, limits: Limits<'_>) -> Result<(), Error> {
        self.waits_since = None;
        limits.control.fault().map_or(Ok(()), |fault| Err(Error::clone(fault)))
    }

    #[cold]
    fn wait_for_turn(&mut self, limits: Limits<'_>) -> Result<u64, Error> {
        let since = *self.waits_since.get_or_insert_with(clock::now);
        let executor = &mut self.executor;
        // Peers may still need something of the collective before.
        let tend = || {
            executor.tend();
        };
        let Turn { sequence, switches } = self.health.wait_for_turn(limits, since, tend)?;
        switches.into_iter().for_each(|commit| self.planner.expect(commit));
        Ok(sequence)
    }

    /// The stamp of the collective that has begun, which is remembered.
    fn stamp(&mut self, signature: Signature) -> Stamp {
        #[allow(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
        let stamp = Stamp { sequence: self.calls as u32, signature };
        self.history.remember(stamp);
        stamp
    }
}

/// How peers on this host can read a buffer, if it is worth their while.
fn loan(buffer: &Region<'_>) -> Option<Loan> {
    let large = buffer.bytes() >= LEAST_LOAN_BYTES;
    large.then(|| Allocation::loan(buffer.address(), buffer.bytes())).flatten()
}

pub(crate) fn is_integer_mean(request: &Request) -> bool {
    request.reduction == Reduction::Builtin(ReduceOp::Avg) && !request.datatype.is_float()
}

/// How contributions are combined, and by what each rank scales its own first.
pub(crate) fn arithmetic(request: &Request, ranks: u32) -> Arithmetic {
    let datatype = request.datatype;
    let (combine, factor) = match request.reduction {
        Reduction::Builtin(ReduceOp::Sum) => (Combine::Sum, None),
        Reduction::Builtin(ReduceOp::Prod) => (Combine::Prod, None),
        Reduction::Builtin(ReduceOp::Max) => (Combine::Max, None),
        Reduction::Builtin(ReduceOp::Min) => (Combine::Min, None),
        Reduction::Builtin(ReduceOp::Avg) => {
            (Combine::Sum, datatype.is_float().then(|| reciprocal(datatype, ranks)))
        }
        Reduction::PreMulSum { scalar, .. } => (Combine::Sum, Some(scalar)),
    };
    Arithmetic { kernel: Kernel { datatype, combine }, factor }
}
