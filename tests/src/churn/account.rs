//! What has happened, and how long it took.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::arguments::Arguments;
use crate::statistics::Summary;

/// Of all members, dead or alive.
#[derive(Debug, Default)]
pub struct Account {
    /// Processes that were started.
    pub started: u32,
    /// Those that were killed.
    pub killed: u32,
    /// Those that got into a communicator.
    pub joined: u32,
    /// Those that never got into a communicator, because others were killed.
    pub outside: u32,
    /// Errors that members have told.
    pub failures: u32,
    /// Collectives that those have checked who were killed.
    pub checked: u64,
    /// Seconds from the first kill to the first call of all who were left.
    after_kills: Vec<f64>,
    /// Seconds from the start of the newcomers to the first call of all.
    after_starts: Vec<f64>,
}

impl Account {
    /// All are in one communicator again, after some were killed or others came.
    pub fn united(&mut self, some_were_killed: bool, time: Duration) {
        let times = if some_were_killed { &mut self.after_kills } else { &mut self.after_starts };
        times.push(time.as_secs_f64());
    }

    /// Tells of the last time.
    #[allow(clippy::print_stdout, reason = "its result is what it prints")]
    pub fn tell(&self, before: u32, newcomers: u32, now: u32) {
        println!("{before} members, {newcomers} asked to come, now {now}");
    }

    /// Tells of everything.
    #[allow(clippy::print_stdout, reason = "its result is what it prints")]
    pub fn print(&self, arguments: &Arguments) {
        let Self { started, killed, joined, outside, failures, checked, .. } = self;
        let hosts = arguments.hosts.map_or(1, NonZeroUsize::get);
        println!("# churn: seed {}, {hosts} hosts, {}", arguments.seed, arguments.time);
        println!(
            "# {started} started, {joined} joined, {killed} killed, {outside} told that nothing comes of it"
        );
        println!(
            "# {failures} errors seen, {checked} collectives checked by those who were killed"
        );
        tell_times("after kills", &self.after_kills);
        tell_times("after starts", &self.after_starts);
    }
}

#[allow(clippy::print_stdout, reason = "its result is what it prints")]
fn tell_times(what: &str, times: &[f64]) {
    let Summary { median, p95, most, .. } = Summary::of(times);
    let [median, p95, most] = [median, p95, most].map(|seconds| seconds * 1e3);
    let count = times.len();
    println!(
        "# {what}: all together again {count} times, ms: median {median:.0}, 95 % {p95:.0}, most {most:.0}"
    );
}
