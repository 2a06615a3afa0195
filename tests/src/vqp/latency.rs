//! The initiator of a latency test: one operation at a time, or one batch of atomics.

use ccl::vqp::{Completion, Memory, Operation, WorkId, WorkRequest};

use super::data::Slots;
use super::meet::{Ends, stuck, succeeded, unsuccessful};
use super::meter::Meter;
use super::plan::{AtomicType, Plan, Test};
use super::table::{Row, Speed};
use crate::Outcome;
use crate::error::Failure;

/// The word that atomics work on, in the memory of the responder.
pub(super) const WORD_OFFSET: usize = 0;
const WORD_BYTES: usize = 8;
/// What stands in the words behind it, with their number.
const DATA: u64 = 1 << 40;

/// What an end sends, and where it is answered.
pub(super) fn places(bytes: usize) -> [Slots; 2] {
    [0, bytes].map(|start| Slots { pair: 0, start, bytes, count: 1 })
}

/// Times operations one by one until the row is over.
///
/// # Errors
/// The queue pair fails, nothing moves any more, or an atomic had another result.
pub fn initiate(ends: &mut Ends, plan: &Plan, bytes: usize, meter: &mut Meter) -> Outcome<Row> {
    let [outgoing, incoming] = places(bytes);
    outgoing.fill(ends.region.memory());
    incoming.clear(ends.region.memory());
    ends.agree(b"go")?;
    meter.begin();
    let start_s = meter.now_s();
    let mut seconds = Vec::new();
    let goes_on = |count: usize, now_s: f64| match plan.duration_s {
        Some(duration_s) => now_s - start_s < duration_s,
        None => (count as u64) < plan.iterations,
    };
    while goes_on(seconds.len(), meter.now_s()) {
        let number = seconds.len() as u64 + 1;
        let before_s = meter.now_s();
        let share = match plan.test {
            Test::AtomicLatency => {
                count_up(ends, plan, number, meter)?;
                1.0
            }
            // As perftest counts: half of there and back.
            Test::WriteLatency
            | Test::WriteBandwidth
            | Test::SendBandwidth
            | Test::ReadBandwidth => {
                there_and_back(ends, plan, number, ([outgoing, incoming], meter))?;
                0.5
            }
        };
        seconds.push((meter.now_s() - before_s) * share);
    }
    let of_a_sample = if plan.test == Test::AtomicLatency { plan.batch as u64 } else { 1 };
    let posted = vec![seconds.len() as u64 * of_a_sample];
    Ok(Row { bytes, posted, speed: Speed::Latency(seconds) })
}

/// Writes, and waits for the answer and for the completion.
fn there_and_back(
    ends: &mut Ends,
    plan: &Plan,
    number: u64,
    ([outgoing, incoming], meter): ([Slots; 2], &mut Meter),
) -> Outcome<()> {
    write(ends, number, [outgoing, incoming])?;
    let memory = ends.region.memory().clone();
    wait_for(ends, (plan, number), meter, |_| incoming.has_arrived(&memory, number))?;
    meter.count(1, incoming.bytes as u64, ends.pairs[0].active_rail());
    if incoming.bytes <= CHECKED_BYTES && !incoming.is_right(&memory, incoming.start, (0, number)) {
        return Err(Failure::Results(format!("answer {number} has other bytes")));
    }
    Ok(())
}

/// Answers of up to so many bytes are compared byte by byte; of longer ones the ends are.
pub(super) const CHECKED_BYTES: usize = 256;

/// Stamps what is sent and writes it to where the other end expects it.
pub(super) fn write(ends: &mut Ends, number: u64, [outgoing, incoming]: [Slots; 2]) -> Outcome<()> {
    outgoing.stamp(ends.region.memory(), number);
    let source = ends.region.segment(outgoing.start, outgoing.bytes);
    let target = ends.theirs.at(incoming.start as u64);
    post(ends, number, Operation::Write { source, target })
}

/// The words behind it, which are read, as a transaction reads what it has locked.
pub(super) fn fill_words(memory: &Memory, plan: &Plan) {
    for read in 1..=plan.reads {
        memory.store(WORD_OFFSET + read * WORD_BYTES, DATA + read as u64);
    }
}

/// A batch of atomics with reads behind them. The result of each must be that of the atomic before.
/// `number` counts batches from 1.
fn count_up(ends: &mut Ends, plan: &Plan, number: u64, meter: &mut Meter) -> Outcome<()> {
    let (batch, requests) = (plan.batch as u64, plan.batch_requests());
    let (first_atomic, first) = ((number - 1) * batch + 1, (number - 1) * requests as u64 + 1);
    let atomic = |request| first_atomic + (request / (1 + plan.reads)) as u64;
    let read = |request| request % (1 + plan.reads);
    for (request, id) in (0..requests).zip(first..) {
        let own = ends.region.segment(WORD_OFFSET + request * WORD_BYTES, WORD_BYTES);
        let theirs = ends.theirs.at((WORD_OFFSET + read(request) * WORD_BYTES) as u64);
        let operation = match (read(request), plan.atomic) {
            (0, AtomicType::FetchAndAdd) => {
                Operation::FetchAdd { result: own, target: theirs, addend: 1 }
            }
            (0, AtomicType::CompareAndSwap) => Operation::CompareAndSwap {
                result: own,
                target: theirs,
                expected: atomic(request) - 1,
                new: atomic(request),
            },
            (_, AtomicType::FetchAndAdd | AtomicType::CompareAndSwap) => {
                Operation::Read { target: own, source: theirs }
            }
        };
        post(ends, id, operation)?;
    }
    wait_for(ends, (plan, first + requests as u64 - 1), meter, |_| true)?;
    meter.count(requests as u64, (requests * WORD_BYTES) as u64, ends.pairs[0].active_rail());
    for request in 0..requests {
        let own = WORD_OFFSET + request * WORD_BYTES;
        let seen = ends.region.memory().load(own);
        let (what, right) = match read(request) {
            0 => ("", atomic(request) - 1),
            read => ("a read behind ", DATA + read as u64),
        };
        if seen != right {
            let text = format!("{what}atomic {} found {seen}, not {right}", atomic(request));
            return Err(Failure::Results(text));
        }
        ends.region.memory().store(own, 0);
    }
    Ok(())
}

fn post(ends: &mut Ends, number: u64, operation: Operation) -> Outcome<()> {
    let request = WorkRequest { id: WorkId(number), operation, signalled: true };
    ends.pairs[0].post_send(request).map_err(|cause| Failure::system("posting", cause))
}

/// Polls until operation `number` has completed and `is_there`.
fn wait_for(
    ends: &mut Ends,
    (plan, number): (&Plan, u64),
    meter: &mut Meter,
    is_there: impl Fn(&Ends) -> bool,
) -> Outcome<()> {
    let begun_s = meter.now_s();
    let mut has_completed = false;
    let mut completions: Vec<Completion> = Vec::new();
    while !(has_completed && is_there(ends)) {
        // One that fails in a poll still has something to say in the next.
        let was_over = ends.pairs[0].is_over();
        let moved = ends.pairs[0].poll(&mut completions);
        for completion in completions.drain(..) {
            if !succeeded(&completion) {
                return Err(unsuccessful(&ends.pairs[0], 0, &completion));
            }
            has_completed |= completion.id == WorkId(number);
        }
        if moved {
            continue;
        }
        if was_over || meter.now_s() - begun_s > plan.limit.as_secs_f64() {
            return Err(stuck(&ends.pairs[0], 0, plan));
        }
        meter.count(0, 0, ends.pairs[0].active_rail());
        ends.rest()?;
    }
    Ok(())
}
