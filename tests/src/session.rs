//! A whole run: from the start of the ranks to the last line of the table.

use std::num::NonZeroUsize;
use std::thread;

use ccl::{Communicator, Config, ReduceOp};
use rustix::system::uname;

use crate::Outcome;
use crate::arguments::{Arguments, DeviceKind};
use crate::benchmark::Benchmark;
use crate::engine::{Case, Engine};
use crate::environment::{self, Wishes};
use crate::error::Failure;
use crate::faults::account::{self, Account};
use crate::faults::saboteur::Strike;
use crate::faults::watch::Watch;
use crate::faults::{self, wish};
use crate::gpu;
use crate::membership::{self, Entrance, Membership};
use crate::number::memory;
use crate::progress::Progress;
use crate::report::Report;
use crate::split::Split;
use crate::table::{self, Device, Measurement, Row};
use crate::timeline::{self, Entry};
use crate::traffic::Traffic;

/// What all ranks of this process have in common.
#[derive(Debug)]
struct Session<'a> {
    benchmark: &'a Benchmark,
    arguments: &'a Arguments,
    wishes: Wishes,
    traffic: Traffic,
    config: Config,
    entrance: Entrance,
    /// Number of the first rank of this process among those of the machine.
    first_here: usize,
}

/// Runs `benchmark` with the ranks of this process.
///
/// # Errors
/// The library failed, or results were wrong.
pub fn run(benchmark: &Benchmark, arguments: &Arguments, membership: Membership) -> Outcome<()> {
    ccl::log::to_standard_error().map_err(|error| Failure::Library { rank: 0, error })?;
    let wishes = environment::wishes().map_err(Failure::Input)?;
    let traffic = if benchmark.uneven { Traffic::wished(&wishes)? } else { Traffic::default() };
    let mut config = membership::configuration(arguments, benchmark.collective)?;
    faults::prepare(&mut config, arguments);
    let threads = NonZeroUsize::new(arguments.local_ranks()).unwrap_or(NonZeroUsize::MIN);
    let first_here = membership.index_here() * threads.get();
    let entrance = Entrance::open(membership, threads, &config)?;
    let session = Session { benchmark, arguments, wishes, traffic, config, entrance, first_here };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get())
            .map(|index| {
                scope.spawn({
                    let session = &session;
                    move || session.rank(index)
                })
            })
            .collect();
        let mut outcome = session.rank(0);
        for other in others {
            let panicked = |_| Failure::Input("a rank of this process panicked".to_owned());
            outcome = outcome.and(other.join().map_err(panicked).flatten());
        }
        outcome
    })
}

impl Session<'_> {
    /// Everything that one rank does.
    fn rank(&self, thread: usize) -> Outcome<()> {
        let number = u32::try_from(thread).unwrap_or(u32::MAX);
        let world = self.entrance.enter(number, &self.config)?;
        let outcome = self.member(&world, thread);
        match &outcome {
            Ok(()) => {
                world.finalize().map_err(|error| Failure::Library { rank: world.rank().0, error })
            }
            // The others have come to the same end, or must not wait for this rank.
            Err(failure) => {
                if !matches!(failure, Failure::Results(_)) {
                    world.abort(&failure.to_string());
                }
                outcome
            }
        }
    }

    fn member(&self, world: &Communicator, thread: usize) -> Outcome<()> {
        let library = |error| Failure::Library { rank: world.rank().0, error };
        let split = Split::wished(&self.wishes)?;
        let color = split.color(world.rank().0);
        let group = match split {
            Split::None => world.clone(),
            Split::And(_) | Split::Or(_) | Split::Modulo(_) | Split::Divide(_) => {
                let part = world.split(Some(color), 0, None).map_err(library)?;
                part.unwrap_or_else(|| world.clone())
            }
        };
        self.possible(&group)?;
        let on_device = self.arguments.device == DeviceKind::Cuda;
        let open = || match self.wishes.first_device {
            Some(first) => gpu::Device::open(first.saturating_add(thread)),
            None => gpu::Device::shared_out(self.first_here + thread),
        };
        let gpu = on_device.then(open).transpose();
        let gpu = gpu.map_err(library)?;
        let devices = self.devices(world, color as usize, thread, gpu.as_ref()).map_err(library)?;
        let members = [world, &group];
        let traffic = self.traffic.clone();
        let mut engine =
            Engine::new(self.benchmark, self.arguments, members, traffic, gpu.as_ref())?;
        let mut output = match world.rank().0 {
            0 => Some(Output::begin(self, &engine, &devices, group.size() as usize)?),
            _ => None,
        };
        let mut totals = Totals::default();
        let outcome = self.table(&mut engine, &mut output, &mut totals);
        if let (Some(ways), Some(output)) = (engine.ways(), &output) {
            output.progress.print(&[format!("# Rank 0: {ways}")])?;
        }
        let outcome = outcome.and_then(|()| engine.release());
        let buffer_bytes = engine.buffer_bytes();
        let history = self.history(world, engine.into_watch(), outcome.is_ok())?;
        if let Some(output) = &mut output {
            output.history(&history)?;
        }
        match output {
            Some(output) => output.end(&totals, buffer_bytes, outcome),
            None => outcome,
        }
    }

    /// What happened to cables and rails, if that is asked for: into the file, and of all ranks for
    /// those who read the table.
    fn history(&self, world: &Communicator, watch: Watch, together: bool) -> Outcome<History> {
        let Arguments { timeline: file, faults, .. } = self.arguments;
        let (records, saboteur) = watch.finish(world);
        let mut history = History::default();
        if let Some(saboteur) = saboteur {
            (history.strikes, history.missed) = (saboteur.strikes(), saboteur.missed());
        }
        if let Some(file) = file {
            timeline::append(file, world.rank().0, &records, &history.strikes)?;
        }
        if together && (file.is_some() || !faults.is_empty()) {
            let entries = timeline::gather(world, &records)
                .map_err(|error| Failure::Library { rank: world.rank().0, error })?;
            history.entries = Some(entries);
            history.rails = timeline::troubled(&world.health());
        }
        Ok(history)
    }

    /// Refuses what no rank could do, with the same words on all ranks.
    fn possible(&self, group: &Communicator) -> Outcome<()> {
        let ranks = group.size() as usize;
        if self.benchmark.rooted && self.arguments.roots(ranks).is_empty() {
            let root = &self.arguments.root;
            return Err(Failure::Input(format!("-r {root}: there are only {ranks} ranks")));
        }
        self.traffic.fits(ranks)
    }

    /// Measures all parts of the table, each again and again if that is wished.
    fn table(
        &self,
        engine: &mut Engine<'_>,
        output: &mut Option<Output<'_>>,
        totals: &mut Totals,
    ) -> Outcome<()> {
        let cases = engine.cases();
        if let (true, Some(output), Some(case)) = (self.arguments.explain, &output, cases.first()) {
            output.explain(engine, *case)?;
        }
        if let Some(output) = &output {
            output.progress.print(&table::columns(self.arguments))?;
        }
        for case in cases {
            engine.warm_up(case)?;
            let mut cycle = 0;
            while self.arguments.cycles == 0 || cycle < self.arguments.cycles {
                self.cycle(engine, case, output, totals)?;
                cycle += 1;
            }
        }
        Ok(())
    }

    fn cycle(
        &self,
        engine: &mut Engine<'_>,
        case: Case,
        output: &mut Option<Output<'_>>,
        totals: &mut Totals,
    ) -> Outcome<()> {
        for bytes in engine.sizes() {
            if let Some(output) = &output {
                output.progress.begins(format!("{bytes} bytes, {}", case.datatype.name()));
            }
            let row = engine.row(case, bytes)?;
            totals.add(&row);
            if let Some(output) = output {
                output.row(&row)?;
            }
        }
        Ok(())
    }

    /// The descriptions of all ranks.
    fn devices(
        &self,
        world: &Communicator,
        group: usize,
        thread: usize,
        gpu: Option<&gpu::Device>,
    ) -> Result<Vec<Device>, ccl::Error> {
        let hostname = uname().nodename().to_string_lossy().into_owned();
        let hostname = hostname.split('.').next().unwrap_or_default().to_owned();
        let settings = &self.config.settings;
        let rails: Vec<String> = settings.rails.iter().map(ToString::to_string).collect();
        let description = match rails.as_slice() {
            [] => "CPU".to_owned(),
            rails => format!("CPU, rails {}", rails.join(",")),
        };
        let host = settings.host_identity.clone().unwrap_or_else(|| hostname.clone());
        let (number, host, description) = match gpu.map(gpu::Device::description) {
            Some((ordinal, name, bus)) => (ordinal, bus.to_owned(), name.to_owned()),
            None => (thread, host, description),
        };
        let own = [
            group.to_string(),
            std::process::id().to_string(),
            hostname,
            number.to_string(),
            host,
            description,
        ];
        let mut sent = own.join("\n").into_bytes();
        let mut longest = [sent.len() as u64];
        world.all_reduce_in_place(&mut longest, ReduceOp::Max)?;
        let bytes = usize::try_from(longest[0]).unwrap_or(usize::MAX);
        sent.resize(bytes, 0);
        let mut received = vec![0; bytes * world.size() as usize];
        world.all_gather(&sent, &mut received)?;
        Ok(received.chunks(bytes).enumerate().map(parse_device).collect())
    }
}

fn parse_device((rank, bytes): (usize, &[u8])) -> Device {
    let text = String::from_utf8_lossy(bytes);
    let mut fields = text.trim_end_matches('\0').split('\n').map(str::to_owned);
    let mut next = || fields.next().unwrap_or_default();
    let (group, pid, hostname) = (next(), next(), next());
    let (thread, host, description) = (next(), next(), next());
    Device {
        rank,
        group: group.parse().unwrap_or(0),
        pid: pid.parse().unwrap_or(0),
        hostname,
        thread: thread.parse().unwrap_or(0),
        host,
        description,
    }
}

/// What happened to cables and rails.
#[derive(Debug, Default)]
struct History {
    /// What all ranks saw; nothing if they could not tell each other any more.
    entries: Option<Vec<Entry>>,
    strikes: Vec<Strike>,
    /// Faults that were not made, and in how many measurements.
    missed: Vec<(String, usize)>,
    /// Lines about rails that are not well.
    rails: Vec<String>,
}

/// What the rows add up to.
#[derive(Debug, Default)]
struct Totals {
    /// Rows and forms with wrong elements, and overwritten bytes.
    errors: u64,
    bandwidth_sum: f64,
    bandwidths: u32,
}

impl Totals {
    fn add(&mut self, row: &Row) {
        for Measurement { wrong, overwritten, bus_bandwidth, .. } in
            [&row.out_of_place, &row.in_place]
        {
            self.errors += u64::from(wrong.unwrap_or(0) > 0) + overwritten;
            self.bandwidth_sum += bus_bandwidth;
            self.bandwidths += 1;
        }
    }

    fn bandwidth(&self) -> f64 {
        self.bandwidth_sum / f64::from(self.bandwidths.max(1))
    }
}

/// What numbers of groups of `ranks` are worth, in a job of `all`, if there is something to say about that.
fn alone(ranks: usize, all: usize) -> Option<&'static str> {
    match (ranks, all) {
        (1, 1) => Some("one rank moves nothing between ranks; --ranks N starts N of them"),
        (1, _) => Some(
            "a group of one rank moves nothing between ranks; NCCL_TESTS_SPLIT makes the groups",
        ),
        _ => None,
    }
}

/// What rank 0 shows.
#[derive(Debug)]
struct Output<'a> {
    session: &'a Session<'a>,
    progress: Progress,
    report: Option<Report>,
}

impl<'a> Output<'a> {
    fn begin(
        session: &'a Session<'a>,
        engine: &Engine<'_>,
        devices: &[Device],
        ranks: usize,
    ) -> Outcome<Self> {
        let Session { benchmark, arguments, .. } = session;
        let cycles = arguments.cycles.max(1);
        let progress = Progress::new((engine.cases().len() * engine.sizes().len() * cycles) as u64);
        let mut report =
            arguments.report.as_ref().map(|path| Report::create(path, arguments)).transpose()?;
        let mut lines = Vec::new();
        if let Some(report) = &mut report {
            lines.push(format!("# Writing JSON output to {}", report.path().display()));
            report.devices(devices);
        }
        lines.extend(table::header(benchmark.name, arguments));
        lines.extend(wish::lines(arguments));
        lines.push("# Using devices".to_owned());
        lines.extend(devices.iter().map(table::device));
        let alone = alone(ranks, devices.len()).map(str::to_owned);
        let remarks = alone.into_iter().chain((benchmark.remark)(ranks));
        lines.extend(remarks.map(|remark| format!("# Note: {remark}")));
        progress.print(&lines)?;
        Ok(Self { session, progress, report })
    }

    fn explain(&self, engine: &Engine<'_>, case: Case) -> Outcome<()> {
        for bytes in engine.sizes() {
            let text = engine.explained(case, bytes)?;
            let text = text.unwrap_or_else(|| "nothing to choose".to_owned());
            let heading = format!("#\n# {bytes} bytes:");
            let lines = text.trim_end().lines().map(|line| format!("#   {line}"));
            self.progress.print(&std::iter::once(heading).chain(lines).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row) -> Outcome<()> {
        let Session { benchmark, arguments, .. } = self.session;
        if let Some(report) = &mut self.report {
            report.row(row, arguments, benchmark.name);
        }
        self.progress.finished();
        self.progress.print(&[table::row(row)])
    }

    /// Prints what happened to the rails, and how the ranks got over every cut.
    fn history(&mut self, history: &History) -> Outcome<()> {
        let History { entries, strikes, missed, rails } = history;
        let Arguments { faults, timeline: file, .. } = self.session.arguments;
        let mut lines = match file {
            Some(_) => timeline::show(entries.as_deref().unwrap_or_default(), strikes),
            None => Vec::new(),
        };
        lines.extend(rails.iter().cloned());
        if let Some(entries) = entries.as_ref().filter(|_| !faults.is_empty()) {
            let ranks_per_host = wish::ranks_per_host(self.session.arguments);
            let accounts = account::accounts(strikes, faults, entries, ranks_per_host);
            lines.extend(accounts.iter().map(Account::sentence));
            lines.extend(missed.iter().map(|(text, times)| {
                format!("# fault {text}: {times} measurements were over before it was due")
            }));
            if let Some(report) = &mut self.report {
                report.faults(&accounts);
            }
        }
        self.progress.print(&lines)
    }

    /// Prints the lines below the table, and finds out whether the run was good.
    fn end(mut self, totals: &Totals, buffer_bytes: usize, outcome: Outcome<()>) -> Outcome<()> {
        self.progress.ends();
        let Session { benchmark, arguments, wishes, .. } = self.session;
        let outcome = outcome.and_then(|()| {
            let bandwidth = totals.bandwidth();
            let least = wishes.least_bandwidth;
            if arguments.memory_report == 1 {
                self.progress.print(&[memory_line(buffer_bytes)])?;
            }
            self.progress.print(&table::footer(benchmark.name, totals.errors, bandwidth, least))?;
            if let Some(report) = &mut self.report {
                report.footer(totals.errors, bandwidth, least);
            }
            verdict(totals, least)
        });
        if let Some(mut report) = self.report {
            if let Err(failure) = &outcome {
                report.error(failure.to_string());
            }
            report.finish()?;
        }
        outcome
    }
}

fn verdict(totals: &Totals, least: Option<f64>) -> Outcome<()> {
    let bandwidth = totals.bandwidth();
    match least {
        _ if totals.errors > 0 => Err(Failure::Results("results were wrong".to_owned())),
        Some(least) if table::is_slow(bandwidth, least) => Err(Failure::Results(format!(
            "the average bus bandwidth is less than 90 % of {least} GB/s"
        ))),
        _ => Ok(()),
    }
}

/// The memory of rank 0: its buffers, and what its process had in memory at most.
fn memory_line(buffer_bytes: usize) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: u32 = peak
        .and_then(|line| line.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    #[allow(clippy::cast_precision_loss, reason = "only three digits are shown")]
    let buffers = memory(buffer_bytes as f64);
    let peak = memory(f64::from(kilobytes) * 1024.0);
    format!("# {:<20} : Buffers {buffers} | Peak of the process {peak}", "Memory usage")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_of_one_rank_is_told_to_start_more() {
        assert!(alone(1, 1).is_some_and(|text| text.contains("--ranks")));
        assert!(
            alone(1, 8).is_some_and(|text| text.contains("SPLIT") && !text.contains("--ranks"))
        );
        assert_eq!(alone(2, 8), None);
    }
}
