//! The table with perftest's columns, and what happened below it.

use std::io::Write as _;

use ccl::vqp::Event;

use super::meet::Ends;
use super::meter::Meter;
use super::plan::Plan;
use super::respond::Verdict;
use crate::Outcome;
use crate::error::Failure;

const MIB: f64 = (1u64 << 20) as f64;
const LINE: &str =
    "---------------------------------------------------------------------------------------";

/// What one row says.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of an operation.
    pub bytes: usize,
    /// Operations of each queue pair.
    pub posted: Vec<u64>,
    /// How fast it was.
    pub speed: Speed,
}

/// What was measured.
#[derive(Clone, Debug)]
pub enum Speed {
    /// Many operations at a time.
    Bandwidth {
        /// Bytes per second of the best stretch of one queue.
        peak: f64,
        /// Bytes per second of all.
        average: f64,
        /// Operations per second.
        operations: f64,
    },
    /// One at a time: seconds of each.
    Latency(Vec<f64>),
}

/// Prints rows.
#[derive(Debug)]
pub struct Table<'a> {
    plan: &'a Plan,
    gbits: bool,
}

impl<'a> Table<'a> {
    /// A table of a run.
    #[must_use]
    pub fn new(plan: &'a Plan, gbits: bool) -> Self {
        Self { plan, gbits }
    }

    /// What is measured, and the names of the columns.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn head(&self, ends: &Ends) -> Outcome<()> {
        let Plan { test, evidence, pairs, tx_depth, faults, .. } = self.plan;
        say(LINE)?;
        say(&format!(
            "# {}: evidence {evidence}, {pairs} queue pair(s), tx-depth {tx_depth}, rails {}",
            test.name(),
            ends.devices().join(", ")
        ))?;
        if !faults.is_empty() {
            say(&format!("# faults on purpose: {faults}"))?;
        }
        say(LINE)?;
        say(&self.columns())
    }

    fn columns(&self) -> String {
        if self.plan.test.is_latency() {
            return " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
                .to_owned();
        }
        let unit = unit(self.gbits);
        format!(" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    }

    /// One row.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn row(&self, row: &Row, verdict: &Verdict) -> Outcome<()> {
        say(&self.text(row))?;
        if verdict.repeated > 0 {
            say(&format!("# {} messages arrived more than once", verdict.repeated))?;
        }
        Ok(())
    }

    fn text(&self, row: &Row) -> String {
        let (bytes, operations) = (row.bytes, row.posted.iter().sum::<u64>());
        match &row.speed {
            Speed::Bandwidth { peak, average, operations: rate } => format!(
                " {bytes:<10} {operations:<14} {:<19.2} {:<21.2} {:<.6}",
                scaled(*peak, self.gbits),
                scaled(*average, self.gbits),
                rate * 1e-6
            ),
            Speed::Latency(seconds) => {
                let Latencies { least, most, median, mean, deviation, p99, p999 } =
                    Latencies::of(seconds);
                format!(
                    " {bytes:<6} {operations:<14} {least:<14.2} {most:<12.2} {median:<18.2} \
                     {mean:<14.2} {deviation:<15.2} {p99:<22.2} {p999:<.2}"
                )
            }
        }
    }
}

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Latencies {
    least: f64,
    most: f64,
    median: f64,
    mean: f64,
    deviation: f64,
    p99: f64,
    p999: f64,
}

impl Latencies {
    #[allow(clippy::cast_precision_loss, reason = "numbers of operations are far below 2^53")]
    fn of(seconds: &[f64]) -> Self {
        let mut sorted: Vec<f64> = seconds.iter().map(|one| one * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let variance = sorted.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count as f64;
        let permille = |share: usize| sorted[((count * share).div_ceil(1000)).clamp(1, count) - 1];
        Self {
            least,
            most,
            median: sorted[count / 2],
            mean,
            deviation: variance.sqrt(),
            p99: permille(990),
            p999: permille(999),
        }
    }
}

fn unit(gbits: bool) -> &'static str {
    if gbits { "Gb/sec" } else { "MiB/sec" }
}

fn scaled(bytes_per_second: f64, gbits: bool) -> f64 {
    if gbits { bytes_per_second * 8e-9 } else { bytes_per_second / MIB }
}

/// What each stretch has carried.
///
/// # Errors
/// Standard output is gone.
#[allow(clippy::cast_precision_loss, reason = "bytes of a stretch are far below 2^53")]
pub fn intervals(meter: &Meter, plan: &Plan, gbits: bool) -> Outcome<()> {
    if meter.intervals().is_empty() {
        return Ok(());
    }
    let unit = unit(gbits);
    say(&format!("# start[s]   end[s]     BW[{unit}]   operations   rail ({})", plan.test.name()))?;
    for one in meter.intervals() {
        let rate = scaled(one.bytes as f64 / (one.end_s - one.start_s), gbits);
        let (start, end) = (one.start_s, one.end_s);
        say(&format!(
            "# {start:<10.3} {end:<10.3} {rate:<13.2} {:<12} {}",
            one.operations, one.rail
        ))?;
    }
    Ok(())
}

/// What happened to the rails.
///
/// # Errors
/// Standard output is gone.
pub fn events(meter: &Meter, events: &[Vec<Event>]) -> Outcome<()> {
    for (pair, events) in events.iter().enumerate() {
        for event in events {
            say(&format!("# {:>10.6} s  queue pair {pair} {event}", meter.seconds_of(event)))?;
        }
    }
    Ok(())
}

/// What the queue pairs have gone through.
///
/// # Errors
/// Standard output is gone.
pub fn summary(ends: &Ends, meter: &Meter) -> Outcome<()> {
    let counters = ends.counters();
    let gap = meter.gap();
    say(&format!(
        "# repairs {}, repeated {} requests of {} bytes, spared {}, recovered {}, returns {}",
        counters.repairs,
        counters.resent,
        counters.resent_bytes,
        counters.spared,
        counters.recovered,
        counters.returns
    ))?;
    if let Some(mebibytes) = resident_mebibytes() {
        say(&format!("# resident memory of this process, at most: {mebibytes:.1} MiB"))?;
    }
    let (length, start) = (gap.seconds * 1e3, gap.start_s);
    say(&format!("# longest time without a completion: {length:.3} ms, from {start:.6} s on"))
}

/// As the kernel tells it.
fn resident_mebibytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<f64>().ok().map(|kibibytes| kibibytes / 1024.0)
}

fn say(line: &str) -> Outcome<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|cause| Failure::system("writing the table", cause))
}

#[cfg(test)]
mod tests {
    use super::super::arguments::Arguments;
    use super::super::plan::Test;
    use super::*;

    fn text(test: Test, gbits: bool, speed: Speed) -> Vec<String> {
        let plan = Plan::new(test, &Arguments::parsed(test, [""; 0]).unwrap());
        let table = Table::new(&plan, gbits);
        let row = Row { bytes: 65536, posted: vec![2500, 2500], speed };
        let words = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        vec![table.columns(), words(table.text(&row))]
    }

    #[test]
    fn bandwidths_are_in_the_unit_of_the_heading() {
        let speed = || Speed::Bandwidth { peak: 2e9, average: 1.048576e9, operations: 16000.0 };
        let [heading, row] = &text(Test::WriteBandwidth, false, speed())[..] else { panic!() };
        assert!(heading.contains("BW average[MiB/sec]"), "{heading}");
        assert_eq!(row, "65536 5000 1907.35 1000.00 0.016000");
        let [heading, row] = &text(Test::ReadBandwidth, true, speed())[..] else { panic!() };
        assert!(heading.contains("BW peak[Gb/sec]"), "{heading}");
        assert_eq!(row, "65536 5000 16.00 8.39 0.016000");
    }

    #[test]
    fn latencies_are_those_of_known_times() {
        let seconds: Vec<f64> = (1..=1000).rev().map(|us| f64::from(us) * 1e-6).collect();
        let [_, row] = &text(Test::WriteLatency, false, Speed::Latency(seconds))[..] else {
            panic!()
        };
        assert_eq!(row, "65536 5000 1.00 1000.00 501.00 500.50 288.67 990.00 999.00");
        assert_eq!(Latencies::of(&[]), Latencies::default());
    }
}
