//! The report in JSON, with nccl-tests' keys.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Outcome;
use crate::arguments::Arguments;
use crate::error::Failure;
use crate::faults::ORDERS;
use crate::faults::account::Account;
use crate::launch::MEMBER;
use crate::statistics::PerIteration;
use crate::table::{Device, Measurement, Row, is_slow, version_code};
use crate::{environment, stopwatch};

/// Version of the format.
const FORMAT: u32 = 3;

/// How many names are tried for the file.
const MOST_NAMES: usize = 1000;

/// A report that is being written. It reaches the file when it is finished.
#[derive(Debug)]
pub struct Report {
    file: File,
    path: PathBuf,
    document: Document,
}

#[derive(Debug, Serialize)]
struct Document {
    version: u32,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    nccl_version: u32,
    r2ccl_version: &'static str,
    config: Config,
    results: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_bounds: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    average_bus_bandwidth: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<Vec<Account>>,
    errors: Vec<String>,
    end_time: String,
}

#[derive(Debug, Serialize)]
struct Config {
    nthreads: usize,
    ngpus: usize,
    minimum_bytes: usize,
    maximum_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<usize>,
    warmup_iters: usize,
    iterations: usize,
    aggregated_iterations: usize,
    validation: u32,
    graph: u32,
    blocking_collectives: &'static str,
    per_iter_timing: &'static str,
    per_iter_skip: usize,
    parallel_init: &'static str,
    devices: Vec<DeviceLine>,
}

#[derive(Debug, Serialize)]
struct DeviceLine {
    rank: usize,
    group: usize,
    pid: u32,
    hostname: String,
    device: usize,
    device_hex: String,
    device_info: String,
}

#[derive(Debug, Serialize)]
struct Line {
    size: usize,
    count: usize,
    #[serde(rename = "type")]
    datatype: &'static str,
    redop: &'static str,
    root: String,
    out_of_place: Body,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_place_per_iter: Option<PerIteration>,
    in_place: Body,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_per_iter: Option<PerIteration>,
    actual_iterations: usize,
    experiment_name: String,
}

#[derive(Debug, Serialize)]
struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_time: Option<f64>,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Count {
    count: u64,
    okay: &'static str,
}

#[derive(Debug, Serialize)]
struct Bandwidth {
    bandwidth: f64,
    okay: &'static str,
}

/// Whether a word of the command line is not the user's: what ranks are told by those who start them.
fn is_internal(word: &str) -> bool {
    [MEMBER, ORDERS].iter().any(|begin| word.starts_with(begin))
}

impl Report {
    /// Creates the file, under a name with a number behind it if there is one already.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, arguments: &Arguments) -> Outcome<Self> {
        let (file, path) = create(path)?;
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let document = Document {
            version: FORMAT,
            start_time: stopwatch::timestamp(),
            args: words.filter(|word| !is_internal(word)).collect(),
            env: environment::relevant(),
            nccl_version: version_code(),
            r2ccl_version: env!("CARGO_PKG_VERSION"),
            config: Config::of(arguments),
            results: Vec::new(),
            out_of_bounds: None,
            average_bus_bandwidth: None,
            faults: None,
            errors: Vec::new(),
            end_time: String::new(),
        };
        Ok(Self { file, path, document })
    }

    /// Where it is written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the ranks.
    pub fn devices(&mut self, devices: &[Device]) {
        let line = |device: &Device| DeviceLine {
            rank: device.rank,
            group: device.group,
            pid: device.pid,
            hostname: device.hostname.clone(),
            device: device.thread,
            device_hex: device.host.clone(),
            device_info: device.description.clone(),
        };
        self.document.config.devices = devices.iter().map(line).collect();
    }

    /// Adds a row.
    pub fn row(&mut self, row: &Row, arguments: &Arguments, name: &str) {
        let per_iteration = |measurement| per_iteration(measurement, arguments.skipped);
        let body = |measurement| Body::of(measurement, arguments.processor_time == 1);
        self.document.results.push(Line {
            size: row.bytes,
            count: row.count,
            datatype: row.datatype.name(),
            redop: row.operation,
            root: format!("{:>6}", row.root.map_or("-1".to_owned(), |root| root.to_string())),
            out_of_place: body(&row.out_of_place),
            out_of_place_per_iter: per_iteration(&row.out_of_place),
            in_place: body(&row.in_place),
            in_place_per_iter: per_iteration(&row.in_place),
            actual_iterations: arguments.iterations.get(),
            experiment_name: name.to_owned(),
        });
    }

    /// Adds the lines below the table.
    pub fn footer(&mut self, errors: u64, bandwidth: f64, least: Option<f64>) {
        self.document.out_of_bounds = Some(Count { count: errors, okay: word(errors == 0) });
        let okay = least.map_or("unchecked", |least| word(!is_slow(bandwidth, least)));
        self.document.average_bus_bandwidth = Some(Bandwidth { bandwidth, okay });
    }

    /// Adds how the ranks got over the cuts of `--fault`.
    pub fn faults(&mut self, accounts: &[Account]) {
        self.document.faults = Some(accounts.to_vec());
    }

    /// Adds what went wrong.
    pub fn error(&mut self, text: String) {
        self.document.errors.push(text);
    }

    /// Writes everything to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Outcome<()> {
        self.document.end_time = stopwatch::timestamp();
        serde_json::to_writer(&self.file, &self.document)
            .map_err(|cause| Failure::system(format!("writing {}", self.path.display()), cause))
    }
}

impl Config {
    fn of(arguments: &Arguments) -> Self {
        let factor = (arguments.step_factor > 1).then_some(arguments.step_factor);
        Self {
            nthreads: arguments.threads.get(),
            ngpus: arguments.per_thread.get(),
            minimum_bytes: arguments.least,
            maximum_bytes: arguments.most,
            step_factor: factor,
            step_bytes: factor.is_none().then_some(arguments.step_bytes),
            warmup_iters: arguments.warm_up,
            iterations: arguments.iterations.get(),
            aggregated_iterations: arguments.aggregated.get(),
            validation: arguments.check,
            graph: 0,
            blocking_collectives: word(arguments.blocking != 0),
            per_iter_timing: word(arguments.per_iteration != 0),
            per_iter_skip: arguments.skipped,
            parallel_init: word(arguments.parallel_init != 0),
            devices: Vec::new(),
        }
    }
}

impl Body {
    fn of(measurement: &Measurement, processor_time: bool) -> Self {
        let shown_us = measurement.shown_s * 1e6;
        Self {
            time: (!processor_time).then_some(shown_us),
            cpu_time: processor_time.then_some(shown_us),
            alg_bw: measurement.algorithm_bandwidth,
            bus_bw: measurement.bus_bandwidth,
            nwrong: measurement.wrong,
        }
    }
}

fn per_iteration(measurement: &Measurement, skipped: usize) -> Option<PerIteration> {
    let Measurement { summary, iterations, by_process, .. } = measurement;
    Some(PerIteration::new(summary.as_ref()?, skipped, iterations, by_process))
}

/// nccl-tests writes truth as text.
fn word(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}

fn create(path: &Path) -> Outcome<(File, PathBuf)> {
    let numbered = (0..MOST_NAMES).map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    });
    for candidate in std::iter::once(path.to_owned()).chain(numbered) {
        match File::create_new(&candidate) {
            Ok(file) => return Ok((file, candidate)),
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {}
            Err(cause) => {
                let call = format!("creating {}", candidate.display());
                return Err(Failure::system(call, cause));
            }
        }
    }
    Err(Failure::Input(format!("{} and {MOST_NAMES} more reports exist", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::DataType;
    use clap::Parser as _;

    #[test]
    fn the_report_has_the_keys_of_nccl_tests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        let arguments = Arguments::try_parse_from(["perf", "-f", "2"]).unwrap();
        let mut report = Report::create(&path, &arguments).unwrap();
        let measurement = Measurement { shown_s: 1e-6, wrong: Some(2), ..Measurement::default() };
        let row = Row {
            bytes: 64,
            count: 16,
            datatype: DataType::Float32,
            operation: "sum",
            root: None,
            in_place: Measurement { wrong: None, ..measurement.clone() },
            out_of_place: measurement,
            timestamp: None,
        };
        report.row(&row, &arguments, "all_reduce_perf");
        report.footer(1, 2.5, Some(2.0));
        report.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let line = &json["results"][0];
        assert_eq!((line["size"].as_u64(), line["root"].as_str()), (Some(64), Some("    -1")));
        assert_eq!(line["out_of_place"]["nwrong"], 2);
        assert!(line["in_place"]["nwrong"].is_null() && line["in_place"]["time"] == 1.0);
        assert_eq!(json["config"]["step_factor"], 2);
        assert_eq!(json["out_of_bounds"]["okay"], "false");
        assert_eq!(json["average_bus_bandwidth"]["okay"], "true");
    }

    #[test]
    fn an_existing_report_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        let arguments = Arguments::try_parse_from(["perf"]).unwrap();
        let names: Vec<_> = (0..3)
            .map(|_| Report::create(&path, &arguments).unwrap().path().to_owned())
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["report.json", "report.json.0", "report.json.1"]);
    }
}
