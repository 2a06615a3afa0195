//! The table, byte for byte as nccl-tests prints it.

use ccl::DataType;

use crate::arguments::Arguments;
use crate::number::{fitted, general};
use crate::statistics::Summary;

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the larger of a rank's buffers.
    pub bytes: usize,
    /// Elements of the call.
    pub count: usize,
    /// Type of the elements.
    pub datatype: DataType,
    /// What the column of the operation shows.
    pub operation: &'static str,
    /// The root, where there is one.
    pub root: Option<usize>,
    /// Input and output in two buffers.
    pub out_of_place: Measurement,
    /// Input and output in one buffer.
    pub in_place: Measurement,
    /// When the row was finished, if that is shown.
    pub timestamp: Option<String>,
}

/// What was measured in one form.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// Time of one operation in seconds, as the bandwidths see it.
    pub wall_s: f64,
    /// The time to show, in seconds: elapsed or processor time.
    pub shown_s: f64,
    /// Algorithm bandwidth in GB/s.
    pub algorithm_bandwidth: f64,
    /// Bus bandwidth in GB/s.
    pub bus_bandwidth: f64,
    /// Wrong elements of all ranks; `None`: not checked.
    pub wrong: Option<u64>,
    /// Overwritten bytes behind the receive buffers of all ranks.
    pub overwritten: u64,
    /// Times of single iterations, in seconds, the longest of all ranks; empty if not asked for.
    pub iterations: Vec<f64>,
    /// Likewise, the longest of the ranks of each process.
    pub by_process: Vec<Vec<f64>>,
    /// Their summary, if asked for.
    pub summary: Option<Summary>,
}

/// A rank, as the header lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its rank.
    pub rank: usize,
    /// The number of its group.
    pub group: usize,
    /// Its process.
    pub pid: u32,
    /// The name of its host.
    pub hostname: String,
    /// Which of the ranks of its process it is.
    pub thread: usize,
    /// The identity of its host.
    pub host: String,
    /// What it computes and communicates with.
    pub description: String,
}

/// The lines above the table, up to the devices.
#[must_use]
pub fn header(program: &str, arguments: &Arguments) -> Vec<String> {
    let code = version_code();
    let version = env!("CARGO_PKG_VERSION");
    let (step, unit) = match arguments.step_factor {
        0 | 1 => (arguments.step_bytes, "bytes"),
        factor => (factor, "factor"),
    };
    let mut lines = vec![
        format!("# r2ccl-tests version {version} r2ccl-headers={code} r2ccl-library={code}"),
        format!("# Collective test starting: {program}"),
        format!(
            "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} \
             iters: {} agg iters: {} validation: {} graph: 0 unalign: {}",
            arguments.threads,
            arguments.per_thread,
            arguments.least,
            arguments.most,
            arguments.warm_up,
            arguments.iterations,
            arguments.aggregated,
            arguments.check,
            arguments.misalignment,
        ),
    ];
    lines.extend(modes(arguments));
    lines.push("#".to_owned());
    lines
}

fn modes(arguments: &Arguments) -> Vec<String> {
    let blocking = match arguments.blocking {
        1 => Some("# Blocking Enabled: wait and barrier after each inner iteration (-m) "),
        2 => Some("# Blocking Enabled: wait after each inner iteration (-m), no barrier "),
        3 => Some(
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes \
             barrier ",
        ),
        _ => None,
    };
    let skipped = match arguments.skipped {
        0 => String::new(),
        skipped => format!("; summary skips first {skipped} iterations"),
    };
    let iterations =
        format!("# Per-Iteration Report: wall time; i_* uses max over ranks{skipped} ");
    let parallel =
        "# Parallel Init Enabled: threads enter the communicator concurrently ".to_owned();
    let notes = arguments
        .without_effect()
        .into_iter()
        .map(|flag| format!("# Note: {flag} has no meaning on CPUs and is ignored"));
    let lines = blocking
        .map(str::to_owned)
        .into_iter()
        .chain((arguments.per_iteration == 1).then_some(iterations))
        .chain((arguments.parallel_init == 1).then_some(parallel));
    lines.chain(notes).collect()
}

/// The version of the library as one number, major · 10000 + minor · 100 + patch.
#[must_use]
pub fn version_code() -> u32 {
    let parts = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap_or(0));
    parts.fold(0, |code: u32, part: u32| code * 100 + part)
}

/// The line of a rank.
#[must_use]
pub fn device(device: &Device) -> String {
    let Device { rank, group, pid, hostname, thread, host, description } = device;
    format!(
        "#  Rank {rank:>2} Group {group:>2} Pid {pid:>6} on {hostname:>10} device {thread:>2} \
         [{host}] {description}"
    )
}

/// The names of the columns.
#[must_use]
pub fn columns(arguments: &Arguments) -> Vec<String> {
    let time = if arguments.processor_time == 1 { "cputime" } else { "time" };
    let stamp = if arguments.timestamps == 1 {
        [format!("{:>19}", "timestamp"), "%Y-%m-%d %H:%M:%S".to_owned()]
    } else {
        [String::new(), String::new()]
    };
    let names = body([time, "algbw", "busbw", "#wrong"], &["i_min", "i_max", "i_p99", "i_cv%"]);
    let units = body(["(us)", "(GB/s)", "(GB/s)", ""], &["(us)", "(us)", "(us)", "(%)"]);
    let [names, units] = [names, units].map(|(plain, iterations)| {
        if arguments.per_iteration == 1 { format!("{plain}{iterations}") } else { plain }
    });
    let titles = if arguments.per_iteration == 1 {
        "              out-of-place (+ per-iteration)                                \
         in-place (+ per-iteration)"
    } else {
        "           out-of-place                       in-place          "
    };
    vec![
        "#".to_owned(),
        format!("# {}{titles}", start(["", "", "", "", ""], 10)),
        format!(
            "# {}{names}{names} {}",
            start(["size", "count", "type", "redop", "root"], 10),
            stamp[0]
        ),
        format!("# {}{units}{units} {}", start(["(B)", "(elements)", "", "", ""], 10), stamp[1]),
    ]
}

/// A line of the table.
#[must_use]
pub fn row(row: &Row) -> String {
    let root = row.root.map_or("-1".to_owned(), |root| root.to_string());
    let (bytes, count) = (row.bytes.to_string(), row.count.to_string());
    let first = start([&bytes, &count, row.datatype.name(), row.operation, &root], 12);
    let timestamp = row.timestamp.as_ref().map(|stamp| format!("{stamp:>21}")).unwrap_or_default();
    format!("{first}{}{}{timestamp}", measured(&row.out_of_place), measured(&row.in_place))
}

/// The lines below the table; `least` is the bandwidth that `NCCL_TESTS_MIN_BW` asks for.
#[must_use]
pub fn footer(program: &str, errors: u64, bandwidth: f64, least: Option<f64>) -> Vec<String> {
    let verdict = match least {
        None => "",
        Some(least) if is_slow(bandwidth, least) => "FAILED",
        Some(_) => "OK",
    };
    let bounds = if errors == 0 { "OK" } else { "FAILED" };
    vec![
        format!("# {:<20} : {errors} {bounds}", "Out of bounds values"),
        format!("# {:<20} : {} {verdict}", "Avg bus bandwidth", general(bandwidth)),
        "#".to_owned(),
        format!("# Collective test concluded: {program}"),
    ]
}

/// Whether less than 90 % of the bandwidth that must be reached was reached.
#[must_use]
pub fn is_slow(bandwidth: f64, least: f64) -> bool {
    bandwidth < least * 0.9
}

fn start(cells: [&str; 5], width: usize) -> String {
    let [size, count, datatype, operation, root] = cells;
    format!("{size:>width$}  {count:>12}  {datatype:>8}  {operation:>6}  {root:>6}")
}

/// Names or units of a body, and of its columns for single iterations.
fn body(plain: [&str; 4], iterations: &[&str]) -> (String, String) {
    let [time, algorithm, bus, wrong] = plain;
    (
        format!("  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}"),
        iterations.iter().map(|name| format!("  {name:>7}")).collect(),
    )
}

fn measured(measurement: &Measurement) -> String {
    let time = fitted(measurement.shown_s * 1e6, 7);
    let algorithm = fitted(measurement.algorithm_bandwidth, 6);
    let bus = fitted(measurement.bus_bandwidth, 6);
    #[allow(clippy::cast_precision_loss, reason = "only six digits are shown")]
    let wrong = match measurement.wrong {
        Some(wrong) => format!("  {:>6}", general(wrong as f64)),
        None => "    N/A".to_owned(),
    };
    let iterations = measurement.summary.as_ref().map(iterations).unwrap_or_default();
    format!("  {time}  {algorithm}  {bus}{wrong}{iterations}")
}

fn iterations(summary: &Summary) -> String {
    let Summary { least, most, p99, .. } = summary;
    let times = [least, most, p99].map(|seconds| format!("  {}", fitted(seconds * 1e6, 7)));
    format!("{}  {}", times.concat(), fitted(summary.variation_percent(), 7))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn arguments(line: &str) -> Arguments {
        Arguments::try_parse_from(std::iter::once("perf").chain(line.split_whitespace())).unwrap()
    }

    fn sample(root: Option<usize>) -> Row {
        let out_of_place = Measurement {
            wall_s: 12.354e-6,
            shown_s: 12.354e-6,
            algorithm_bandwidth: 84.94,
            bus_bandwidth: 127.41,
            wrong: Some(0),
            ..Measurement::default()
        };
        let in_place = Measurement { wrong: None, ..out_of_place.clone() };
        let (datatype, operation) = (DataType::Float32, "sum");
        Row {
            bytes: 1_048_576,
            count: 262_144,
            datatype,
            operation,
            root,
            out_of_place,
            in_place,
            timestamp: None,
        }
    }

    #[test]
    fn a_row_has_the_widths_of_nccl_tests() {
        assert_eq!(
            row(&sample(None)),
            "     1048576        262144     float     sum      -1    12.35   84.94  127.41       0\
             \x20   12.35   84.94  127.41    N/A"
        );
        assert!(row(&sample(Some(3))).contains("     sum       3  "));
    }

    #[test]
    fn per_iteration_columns_and_timestamps_come_last() {
        let mut sample = sample(None);
        let summary =
            Summary { least: 1e-6, most: 3e-6, p99: 2e-6, mean: 2e-6, ..Summary::default() };
        sample.in_place.summary = Some(summary);
        sample.timestamp = Some("2026-01-02 03:04:05".to_owned());
        let text = row(&sample);
        assert!(text.ends_with("    N/A     1.00     3.00     2.00     0.00  2026-01-02 03:04:05"));
    }

    #[test]
    fn columns_are_those_of_nccl_tests() {
        assert_eq!(
            columns(&arguments("")).join("\n"),
            "#\n\
             #                                                              out-of-place                       in-place          \n\
             #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n\
             #        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         "
        );
        assert!(columns(&arguments("-C 1"))[2].contains(" cputime   algbw"));
        assert!(columns(&arguments("-S 1"))[2].ends_with("#wrong           timestamp"));
        assert!(
            columns(&arguments("-I 1"))[2].ends_with("#wrong    i_min    i_max    i_p99    i_cv% ")
        );
    }

    #[test]
    fn the_header_names_the_run() {
        let lines = header("all_reduce_perf", &arguments("-b 8 -e 1K -f 2 -t 2 -G 1 -z 1"));
        assert_eq!(
            lines,
            [
                "# r2ccl-tests version 0.1.0 r2ccl-headers=100 r2ccl-library=100",
                "# Collective test starting: all_reduce_perf",
                "# nThread 2 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0",
                "# Blocking Enabled: wait and barrier after each inner iteration (-m) ",
                "# Note: -G has no meaning on CPUs and is ignored",
                "#",
            ]
        );
        let line = |blocking| header("x", &arguments(&format!("-z {blocking}"))).swap_remove(3);
        assert_eq!(
            [2, 3].map(line),
            [
                "# Blocking Enabled: wait after each inner iteration (-m), no barrier ",
                "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier ",
            ]
        );
        assert_eq!(
            header("x", &arguments("-I 1 -K 3 -p 1"))[3..5],
            [
                "# Per-Iteration Report: wall time; i_* uses max over ranks; summary skips first 3 iterations ",
                "# Parallel Init Enabled: threads enter the communicator concurrently ",
            ]
        );
        let of_rank = Device {
            rank: 3,
            group: 0,
            pid: 4711,
            hostname: "node".into(),
            thread: 1,
            host: "host2".into(),
            description: "CPU".into(),
        };
        assert_eq!(
            device(&of_rank),
            "#  Rank  3 Group  0 Pid   4711 on       node device  1 [host2] CPU"
        );
    }

    #[test]
    fn the_footer_judges() {
        assert_eq!(
            footer("x_perf", 0, 1.25, None),
            [
                "# Out of bounds values : 0 OK",
                "# Avg bus bandwidth    : 1.25 ",
                "#",
                "# Collective test concluded: x_perf"
            ]
        );
        assert_eq!(footer("x", 3, 1.0, None)[0], "# Out of bounds values : 3 FAILED");
        assert_eq!(footer("x", 0, 0.9, Some(1.0))[1], "# Avg bus bandwidth    : 0.9 OK");
        assert_eq!(footer("x", 0, 0.89, Some(1.0))[1], "# Avg bus bandwidth    : 0.89 FAILED");
    }
}
