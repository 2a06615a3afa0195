//! What single calls cost: each verb with every evidence, beside a plain queue pair.
//!
//! Two threads are the two ends. The near one measures; the far one does the same calls and serves. Every round
//! opens everything anew, so a control verb is measured once in each; data verbs are means over a round.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Depth, Domain, DomainConfig, Evidence, Key, Meeting, Operation, QueuePair,
    ReceiveRequest, Terms, WorkId, WorkRequest,
};
use clap::Parser;

use crate::Outcome;
use crate::error::Failure;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "vqp_verbs";
const REGION_BYTES: usize = 1 << 20;
const MESSAGE_BYTES: usize = 8;
const DEPTH: usize = 64;
const EVIDENCES: [Option<Evidence>; 4] =
    [None, Some(Evidence::Resend), Some(Evidence::Handshake), Some(Evidence::Log)];
/// The calls, in the order of the table.
const CALLS: [&str; 8] = [
    "open the devices",
    "register 1 MiB",
    "make a queue pair",
    "connect, the default rail",
    "connect, all others, in the background",
    "post_receive",
    "post_send, 8 bytes",
    "poll, nothing there",
];

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, about = "Measures what the calls of queue pairs that survive their NIC cost")]
pub struct Arguments {
    /// Devices of the end that measures
    #[arg(
        short = 'd',
        long = "device",
        default_value = "127.2.5.1,127.2.5.2",
        value_name = "NAME,..."
    )]
    pub near: String,
    /// Devices of the other end
    #[arg(long = "peer-device", default_value = "127.2.6.1,127.2.6.2", value_name = "NAME,...")]
    pub far: String,
    /// How often everything is opened anew
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub rounds: u32,
    /// Requests and polls of a round
    #[arg(short = 'n', long = "iters", default_value_t = 6400, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub iterations: u32,
}

/// Runs it as the command line says.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.told_by(NAME),
    }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    ccl::log::to_standard_error().map_err(|error| Failure::Library { rank: 0, error })?;
    let mut times: [[Vec<f64>; EVIDENCES.len()]; CALLS.len()] = Default::default();
    for _ in 0..arguments.rounds {
        for (column, evidence) in EVIDENCES.into_iter().enumerate() {
            for (row, seconds) in round(arguments, evidence)?.into_iter().enumerate() {
                times[row][column].push(seconds);
            }
        }
    }
    let written = write_table(arguments, &times);
    written.map_err(|cause| Failure::system("writing the table", cause))
}

fn write_table(
    arguments: &Arguments,
    times: &[[Vec<f64>; EVIDENCES.len()]; CALLS.len()],
) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    let Arguments { near, rounds, iterations, .. } = arguments;
    writeln!(
        output,
        "# {near}: µs, medians of {rounds} rounds, data verbs {iterations} times in each"
    )?;
    let names = EVIDENCES.map(|evidence| evidence.map_or("off", Evidence::name));
    writeln!(output, "| | {} |\n|---{}|", names.join(" | "), "|---".repeat(names.len()))?;
    for (call, row) in CALLS.iter().zip(times) {
        let medians = row.each_ref().map(|one| format!("{:.3}", Summary::of(one).median * 1e6));
        writeln!(output, "| {call} | {} |", medians.join(" | "))?;
    }
    Ok(())
}

/// Seconds of each call.
fn round(arguments: &Arguments, evidence: Option<Evidence>) -> Outcome<[f64; CALLS.len()]> {
    let key = Key::from_passphrase(NAME);
    super::threads::run(
        &key,
        LIMIT,
        |meeting| measure(meeting, &key, arguments, evidence),
        |meeting| answer(meeting, &key, arguments, evidence),
    )
}

/// How one end is made.
fn terms(evidence: Option<Evidence>) -> Terms {
    Terms { evidence, depth: Depth { sends: DEPTH, receives: DEPTH }, ..Terms::default() }
}

fn config(devices: &str) -> DomainConfig {
    DomainConfig { devices: devices.to_owned(), ..DomainConfig::default() }
}

/// Appends how long a call took.
fn timed<T>(times: &mut Vec<f64>, call: impl FnOnce() -> Result<T, ccl::vqp::Error>) -> Outcome<T> {
    let watch = Stopwatch::start();
    let outcome = call();
    times.push(watch.wall_s());
    outcome.map_err(failed)
}

fn measure(
    meeting: &mut Meeting,
    key: &Key,
    arguments: &Arguments,
    evidence: Option<Evidence>,
) -> Outcome<[f64; CALLS.len()]> {
    let mut times = Vec::with_capacity(CALLS.len());
    let config = config(&arguments.near);
    // The far end has opened its devices and waits, so that it is not measured too.
    meeting.exchange(b"open", LIMIT).map_err(failed)?;
    let domain = timed(&mut times, || Domain::open(&config, key))?;
    let region = timed(&mut times, || domain.allocate(REGION_BYTES, Access::ALL))?;
    let mut pair = timed(&mut times, || domain.queue_pair(&terms(evidence)))?;
    // The far end is as far, so that connecting takes no longer than it takes.
    meeting.exchange(b"made", LIMIT).map_err(failed)?;
    timed(&mut times, || pair.connect(meeting, LIMIT))?;
    timed(&mut times, || connect_all(&mut pair, evidence))?;
    let theirs = meeting.exchange_regions(&region, LIMIT).map_err(failed)?;

    let target = Some(region.segment(0, MESSAGE_BYTES));
    let watch = Stopwatch::start();
    for id in 0..DEPTH as u64 {
        pair.post_receive(ReceiveRequest { id: WorkId(id), target }).map_err(failed)?;
    }
    times.push(mean(&watch, DEPTH as u32));
    let (source, target) = (region.segment(0, MESSAGE_BYTES), theirs.at(0));
    times.push(post(&mut pair, Operation::Write { source, target }, arguments.iterations)?);
    let (watch, mut completions) = (Stopwatch::start(), Vec::new());
    for _ in 0..arguments.iterations {
        pair.poll(&mut completions);
    }
    times.push(mean(&watch, arguments.iterations));
    meeting.exchange(b"done", LIMIT).map_err(failed)?;
    times.try_into().map_err(|_| Failure::system("measuring", "a call was not measured"))
}

/// Waits until every rail is connected; the plain one has but its own.
fn connect_all(pair: &mut QueuePair, evidence: Option<Evidence>) -> Result<(), ccl::vqp::Error> {
    let rails = if evidence.is_some() { pair.rails() } else { 1 };
    let (mut completions, watch) = (Vec::new(), Stopwatch::start());
    while pair.connected_rails() < rails {
        if watch.wall_s() > LIMIT.as_secs_f64() {
            let (call, seconds) = ("connect all rails", LIMIT.as_secs_f64());
            return Err(ccl::vqp::Error::Deadline { call, seconds, waiting: "a rail".into() });
        }
        if !pair.poll(&mut completions) {
            QueuePair::rest(std::slice::from_mut(pair), Duration::from_millis(1))?;
        }
    }
    Ok(())
}

/// Posts as many as fit, waits for all, and so on; the mean seconds of posting one.
fn post(pair: &mut QueuePair, operation: Operation, iterations: u32) -> Outcome<f64> {
    let (mut posted, mut seconds) = (0, 0.0);
    let mut completions: Vec<Completion> = Vec::new();
    while posted < iterations {
        let batch = (iterations - posted).min(DEPTH as u32);
        let watch = Stopwatch::start();
        for number in 0..batch {
            let id = WorkId(u64::from(posted + number));
            pair.post_send(WorkRequest { id, operation, signalled: true }).map_err(failed)?;
        }
        seconds += watch.wall_s();
        posted += batch;
        completions.clear();
        while completions.len() < batch as usize {
            pair.wait(&mut completions, LIMIT).map_err(failed)?;
        }
        if let Some(lost) = completions.iter().find(|one| !super::meet::succeeded(one)) {
            return Err(super::meet::unsuccessful(pair, 0, lost));
        }
    }
    Ok(seconds / f64::from(iterations))
}

fn mean(watch: &Stopwatch, count: u32) -> f64 {
    watch.wall_s() / f64::from(count)
}

/// The far end: makes the same, and serves until the near one is done.
fn answer(
    meeting: &mut Meeting,
    key: &Key,
    arguments: &Arguments,
    evidence: Option<Evidence>,
) -> Outcome<()> {
    let domain = Domain::open(&config(&arguments.far), key).map_err(failed)?;
    let region = domain.allocate(REGION_BYTES, Access::ALL).map_err(failed)?;
    let mut pair = domain.queue_pair(&terms(evidence)).map_err(failed)?;
    meeting.exchange(b"open", LIMIT).map_err(failed)?;
    meeting.exchange(b"made", LIMIT).map_err(failed)?;
    pair.connect(meeting, LIMIT).map_err(failed)?;
    let mut completions = Vec::new();
    // The near end connects its other rails before it exchanges anything.
    while !pair.serve(&mut completions, meeting, LIMIT).map_err(failed)? {}
    meeting.exchange_regions(&region, LIMIT).map_err(failed)?;
    while !pair.serve(&mut completions, meeting, LIMIT).map_err(failed)? {}
    meeting.exchange(b"done", LIMIT).map_err(failed)?;
    Ok(())
}

fn failed(cause: ccl::vqp::Error) -> Failure {
    Failure::system("measuring", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_every_evidence_is_measured() {
        let line = "vqp_verbs -d 127.2.7.1,127.2.7.2 --peer-device 127.2.8.1,127.2.8.2 -n 200";
        let arguments = Arguments::parse_from(line.split_whitespace());
        for evidence in EVIDENCES {
            let times = round(&arguments, evidence).unwrap();
            assert!(
                times[0] > 0.0 && times.iter().all(|one| one.is_finite()),
                "{evidence:?}: {times:?}"
            );
        }
    }

    /// Whichever end has it.
    #[test]
    fn a_device_that_does_not_exist_is_named() {
        let known = Arguments::parse_from([NAME]);
        crate::vqp::threads::tests::names_devices_that_do_not_exist(|name, is_near| {
            let mut arguments = known.clone();
            let devices = if is_near { &mut arguments.near } else { &mut arguments.far };
            *devices = name.into();
            round(&arguments, None).map(|_| ())
        });
    }
}
