//! The initiator of a bandwidth test: as many operations on the way as the depth allows.

use ccl::vqp::{Completion, Operation, QueuePair, WorkId, WorkRequest};

use super::data::Slots;
use super::meet::{Ends, stuck, succeeded, unsuccessful};
use super::meter::Meter;
use super::plan::{Plan, Test};
use super::table::{Row, Speed};
use crate::Outcome;
use crate::error::Failure;

/// The operations of one queue pair.
#[derive(Debug)]
struct Flow {
    slots: Slots,
    posted: u64,
    completed: u64,
    pace: Pace,
}

/// How fast the fastest stretch of operations was.
#[derive(Debug)]
struct Pace {
    /// Operations of a stretch, or more: several complete at a time.
    length: u64,
    /// How many had completed when the present one began.
    from: u64,
    /// When that was.
    since_s: f64,
    /// Operations in a second of the fastest.
    best: f64,
}

/// Posts until the row is over, and waits for all of it.
///
/// # Errors
/// A queue pair fails, nothing moves any more, or a read brings something else.
pub fn initiate(ends: &mut Ends, plan: &Plan, bytes: usize, meter: &mut Meter) -> Outcome<Row> {
    let memory = ends.region.memory().clone();
    let mut flows: Vec<Flow> = (0..plan.pairs)
        .map(|pair| {
            let slots = ends.slots(pair, bytes);
            let pace = Pace { length: slots.count as u64, from: 0, since_s: 0.0, best: 0.0 };
            Flow { slots, posted: 0, completed: 0, pace }
        })
        .collect();
    for flow in &flows {
        flow.slots.fill(&memory);
    }
    ends.agree(b"go")?;
    meter.begin();
    let start_s = meter.now_s();
    flows.iter_mut().for_each(|flow| flow.pace.since_s = start_s);
    let end_s = run(ends, plan, &mut flows, meter)?;
    if plan.test == Test::ReadBandwidth {
        check_reads(ends, &flows)?;
    }
    Ok(row(bytes, &flows, end_s - start_s))
}

/// Posts and polls until everything has completed; returns when.
fn run(ends: &mut Ends, plan: &Plan, flows: &mut [Flow], meter: &mut Meter) -> Outcome<f64> {
    let start_s = meter.now_s();
    let mut moved_s = start_s;
    let mut completions = Vec::new();
    loop {
        let now_s = meter.now_s();
        let mut is_over = true;
        let mut moved = false;
        for (index, flow) in flows.iter_mut().enumerate() {
            let goes_on = match plan.duration_s {
                Some(duration_s) => now_s - start_s < duration_s,
                None => flow.posted < plan.iterations,
            };
            if goes_on {
                post(ends, plan, (index, flow))?;
            }
            // One that fails in a poll still has something to say in the next.
            let was_over = ends.pairs[index].is_over();
            moved |= ends.pairs[index].poll(&mut completions);
            let done = take(&ends.pairs[index], index, flow, &completions)?;
            if done > 0 {
                flow.pace.note(flow.completed, meter.now_s());
            }
            meter.count(done, done * flow.slots.bytes as u64, ends.pairs[0].active_rail());
            if done == 0 && was_over {
                return Err(stuck(&ends.pairs[index], index, plan));
            }
            check_stamps(ends, plan, flow, &completions)?;
            completions.clear();
            moved_s = if done > 0 { now_s } else { moved_s };
            is_over &= !goes_on && flow.completed == flow.posted;
            if now_s - moved_s > plan.limit.as_secs_f64() {
                return Err(stuck(&ends.pairs[index], index, plan));
            }
        }
        if is_over {
            return Ok(meter.now_s());
        }
        if !moved {
            ends.rest()?;
        }
    }
}

/// Fills the window of a queue pair.
fn post(ends: &mut Ends, plan: &Plan, (index, flow): (usize, &mut Flow)) -> Outcome<()> {
    let window = flow.slots.count as u64;
    while flow.posted - flow.completed < window
        && (plan.duration_s.is_some() || flow.posted < plan.iterations)
    {
        let number = flow.posted + 1;
        let offset = flow.slots.offset(flow.slots.of(number));
        let segment = ends.region.segment(offset, flow.slots.bytes);
        let place = ends.theirs.at(offset as u64);
        let operation = match plan.test {
            Test::ReadBandwidth => {
                flow.slots.unstamp(ends.region.memory(), number);
                Operation::Read { target: segment, source: place }
            }
            Test::SendBandwidth => {
                flow.slots.stamp(ends.region.memory(), number);
                Operation::Send { source: segment }
            }
            Test::WriteBandwidth | Test::WriteLatency | Test::AtomicLatency => {
                flow.slots.stamp(ends.region.memory(), number);
                Operation::Write { source: segment, target: place }
            }
        };
        let request = WorkRequest { id: WorkId(number), operation, signalled: true };
        ends.pairs[index]
            .post_send(request)
            .map_err(|cause| Failure::system(format!("posting on queue pair {index}"), cause))?;
        flow.posted = number;
    }
    Ok(())
}

/// Checks that operations complete in order, each once, and counts them.
fn take(
    pair: &QueuePair,
    index: usize,
    flow: &mut Flow,
    completions: &[Completion],
) -> Outcome<u64> {
    for completion in completions {
        if !succeeded(completion) {
            return Err(unsuccessful(pair, index, completion));
        }
        if completion.id != WorkId(flow.completed + 1) {
            let (seen, expected) = (completion.id.0, flow.completed + 1);
            let text = format!("operation {seen} completed in place of operation {expected}");
            return Err(Failure::Results(text));
        }
        flow.completed += 1;
    }
    Ok(completions.len() as u64)
}

/// The owner of the memory has filled every slot as of the operation with its number.
fn check_stamps(ends: &Ends, plan: &Plan, flow: &Flow, completions: &[Completion]) -> Outcome<()> {
    if plan.test != Test::ReadBandwidth {
        return Ok(());
    }
    for completion in completions {
        let slot = flow.slots.of(completion.id.0);
        let seen = flow.slots.first_stamp(ends.region.memory(), flow.slots.offset(slot));
        if seen != flow.slots.truncated(slot as u64) {
            let number = completion.id.0;
            return Err(Failure::Results(format!("read {number} brought {seen} for {slot}")));
        }
    }
    Ok(())
}

fn check_reads(ends: &Ends, flows: &[Flow]) -> Outcome<()> {
    let memory = ends.region.memory();
    for Flow { slots, posted, .. } in flows {
        let used = (1..=slots.count as u64).take_while(|number| number <= posted);
        for slot in used.map(|number| slots.of(number)) {
            if !slots.is_right(memory, slots.offset(slot), (slot, slot as u64)) {
                let pair = slots.pair;
                let text = format!("slot {slot} of queue pair {pair} was read wrong");
                return Err(Failure::Results(text));
            }
        }
    }
    Ok(())
}

impl Pace {
    /// Looks whether a stretch is over.
    #[allow(clippy::cast_precision_loss, reason = "numbers of operations are far below 2^53")]
    fn note(&mut self, completed: u64, now_s: f64) {
        let operations = completed - self.from;
        if operations >= self.length && now_s > self.since_s {
            self.best = self.best.max(operations as f64 / (now_s - self.since_s));
            (self.from, self.since_s) = (completed, now_s);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "bytes of a row are far below 2^53")]
fn row(bytes: usize, flows: &[Flow], seconds: f64) -> Row {
    let posted: Vec<u64> = flows.iter().map(|flow| flow.posted).collect();
    let operations = posted.iter().sum::<u64>() as f64 / seconds;
    let average = operations * bytes as f64;
    let best = flows.iter().map(|flow| flow.pace.best).fold(0.0, f64::max);
    let peak = best * bytes as f64 * flows.len() as f64;
    let speed = Speed::Bandwidth { peak: peak.max(average), average, operations };
    Row { bytes, posted, speed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_counts_for_as_many_operations_as_it_has() {
        let mut pace = Pace { length: 10, from: 0, since_s: 1.0, best: 0.0 };
        for (completed, now_s, best) in
            [(9, 1.9, 0.0), (15, 2.0, 15.0), (21, 2.1, 15.0), (25, 3.0, 15.0)]
        {
            pace.note(completed, now_s);
            assert!((pace.best - best).abs() < 1e-9, "{completed}: {pace:?}");
        }
        pace.note(45, 4.0);
        assert!((pace.best - 20.0).abs() < 1e-9, "{pace:?}");
        pace.note(60, 4.0);
        assert!(pace.best.is_finite(), "{pace:?}");
    }
}
