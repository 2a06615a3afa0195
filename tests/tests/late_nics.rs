//! Hosts whose only NIC is not there yet when a job starts, hosts whose NIC never comes, and hosts that have others.
//!
//! What would wait for the timeout of the bootstrap does not end within these tests.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use ccl::{Settings, UniqueId};
use ccl_tests::testbed::bed::Bed;
use ccl_tests::testbed::failure::Failure;
use ccl_tests::testbed::fault::{Action, Fault, Turn};
use ccl_tests::testbed::shape::{Cable, Rate, Shape, host_name, management_address, rail_address};

use support::bed::{until, wait_for_end};
use support::skip;

const HOSTS: usize = 2;
/// The host whose NIC is late.
const LATE: usize = 1;
const CABLE: Cable = Cable { host: LATE, rail: 0 };
const NIC: &str = "rail0";
const BENCHMARK: &str = env!("CARGO_BIN_EXE_all_reduce_perf");
/// Longer than any test, in seconds.
const FOR_EVER: &str = "100000";
const WAITING: &str = "waiting for a NIC";

/// Two hosts with one rail, or nothing and a report.
fn bed() -> Option<Bed> {
    bed_with(1)
}

fn bed_with(rails: usize) -> Option<Bed> {
    if let Err(cause) = Command::new("ip").arg("-V").output() {
        skip(&format!("NICs that are late: `ip`: {cause}"));
        return None;
    }
    match Bed::build(Shape { hosts: HOSTS, rails, rate: Rate::Unlimited }) {
        Ok(bed) => Some(bed),
        Err(failure @ Failure::Unavailable { .. }) => {
            skip(&format!("NICs that are late: {failure}"));
            None
        }
        Err(failure) => panic!("{failure}"),
    }
}

fn carrier(bed: &mut Bed, turn: Turn) {
    bed.apply(Action { turn, fault: Fault::Carrier, cable: CABLE }).unwrap();
}

fn ip(bed: &Bed, host: usize, arguments: &str) {
    let run = || Command::new("ip").args(arguments.split(' ')).output();
    let output = bed.on_host(host, run).unwrap().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A rank that runs. Dropping it kills it.
struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: String,
    output: Receiver<String>,
}

impl Running {
    fn start(bed: &Bed, host: usize, master: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(BENCHMARK);
        command.args(["-b", "8", "-e", "64K", "-f", "16", "-n", "2", "-w", "1"]);
        let (rank, size) = (host.to_string(), HOSTS.to_string());
        command.envs([("RANK", rank.as_str()), ("WORLD_SIZE", &size), ("LOCAL_RANK", "0")]);
        command.envs([("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", master), ("MASTER_PORT", "4000")]);
        command.envs([("R2CCL_HOST_ID", host_name(host).as_str()), ("R2CCL_LOG", "warn")]);
        command.env("R2CCL_BOOTSTRAP_TIMEOUT", FOR_EVER).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bed.on_host(host, || command.spawn()).unwrap().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (line, lines) = channel();
        thread::spawn(move || {
            for text in BufReader::new(stderr).lines().map_while(Result::ok) {
                // The test may have failed already.
                let _ = line.send(text);
            }
        });
        let (text, output) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = BufReader::new(stdout).read_to_end(&mut bytes);
            let _ = text.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        Self { child, lines, errors: String::new(), output }
    }

    /// Returns when it has said this on its standard error.
    fn says(&mut self, words: &str) {
        until(words, || {
            // What it has said before it ended is read until there is no more.
            let has_ended = self.child.try_wait().unwrap().is_some();
            let lines: Vec<String> = if has_ended {
                self.lines.iter().collect()
            } else {
                self.lines.try_iter().collect()
            };
            self.errors.extend(lines.into_iter().map(|line| line + "\n"));
            assert!(!has_ended || self.errors.contains(words), "{}", self.errors);
            self.errors.contains(words).then_some(())
        });
    }

    /// Whether it ended well, and everything that it has said.
    fn end(mut self) -> (bool, String) {
        wait_for_end(self.child.id());
        let status = self.child.wait().unwrap();
        let errors = std::mem::take(&mut self.errors);
        let said = errors + &self.lines.iter().collect::<Vec<_>>().join("\n");
        (status.success(), self.output.recv().unwrap() + &said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All ranks, which meet over the network for management.
fn job(bed: &Bed, variables: &[(&str, &str)]) -> Vec<Running> {
    let master = management_address(0).to_string();
    (0..HOSTS).map(|host| Running::start(bed, host, &master, variables)).collect()
}

fn assert_done(job: Vec<Running>) {
    for (rank, running) in job.into_iter().enumerate() {
        let (is_well, said) = running.end();
        assert!(is_well, "rank {rank}: {said}");
        assert!(rank != 0 || said.contains("# Out of bounds values : 0 OK"), "{said}");
    }
}

fn assert_refused(job: Vec<Running>, words: &str) {
    for (rank, running) in job.into_iter().enumerate() {
        let (is_well, said) = running.end();
        assert!(!is_well && said.contains(words), "rank {rank}: {said}");
    }
}

/// Whether loopback is what is left (`^manage`), or nothing (`rail`).
#[test]
fn a_carrier_and_an_address_that_are_late_are_waited_for() {
    let Some(mut bed) = bed() else { return };
    for filter in ["^manage", "rail"] {
        let variables = [("R2CCL_NIC", filter), ("R2CCL_NIC_WAIT", FOR_EVER)];
        carrier(&mut bed, Turn::Cut);
        let mut late = job(&bed, &variables);
        late[LATE].says(WAITING);
        carrier(&mut bed, Turn::Heal);
        assert_done(late);

        let address = format!("{}/24 dev {NIC}", rail_address(CABLE));
        ip(&bed, LATE, &format!("addr del {address}"));
        let mut late = job(&bed, &variables);
        late[LATE].says(WAITING);
        ip(&bed, LATE, &format!("addr add {address}"));
        assert_done(late);
    }
}

#[test]
fn a_carrier_that_never_comes_is_an_error_on_all_ranks() {
    let Some(mut bed) = bed() else { return };
    carrier(&mut bed, Turn::Cut);
    for filter in ["^manage", "rail"] {
        let refused = job(&bed, &[("R2CCL_NIC", filter), ("R2CCL_NIC_WAIT", "0.1")]);
        let words = "rank 1 on host1 has no NIC that leads to rank 0 on host0: rail0 has no carrier (waited 0.";
        assert_refused(refused, words);
    }
}

/// What nobody has switched on, and what is a wrong name, is not waited for.
#[test]
fn a_nic_that_is_off_and_loopback_that_is_named_are_errors_at_once() {
    let Some(bed) = bed() else { return };
    let named = job(&bed, &[("R2CCL_NIC", "lo"), ("R2CCL_NIC_WAIT", FOR_EVER)]);
    assert_refused(named, "R2CCL_NIC=lo leaves it loopback only");
    ip(&bed, LATE, &format!("link set {NIC} down"));
    let off = job(&bed, &[("R2CCL_NIC", "^manage"), ("R2CCL_NIC_WAIT", FOR_EVER)]);
    assert_refused(off, "rank 1 on host1 has no NIC that leads to rank 0 on host0: rail0 is off");
}

/// Whoever gets the id looks for the store there, and finds it when the carrier is there.
#[test]
fn an_id_names_the_address_of_a_nic_without_carrier() {
    let Some(mut bed) = bed() else { return };
    carrier(&mut bed, Turn::Cut);
    for filter in ["^manage", "rail"] {
        let settings = Settings::parse([("R2CCL_NIC", filter)]).unwrap().settings;
        let id = bed.on_host(LATE, || UniqueId::create(&settings)).unwrap().unwrap();
        let addresses = format!("addresses: [{}]", rail_address(CABLE));
        assert!(format!("{id:?}").contains(&addresses), "{id:?}");
    }
}

/// There is no network for management: the ranks meet over the NIC that is late, too.
#[test]
fn the_way_to_the_store_is_waited_for_and_missed() {
    let Some(mut bed) = bed() else { return };
    (0..HOSTS).for_each(|host| ip(&bed, host, "link set manage0 down"));
    let master = rail_address(Cable { host: 0, rail: 0 }).to_string();
    carrier(&mut bed, Turn::Cut);
    let late = Running::start(&bed, LATE, &master, &[("R2CCL_NIC_WAIT", "0.1")]);
    let words = "no interface of host1 is up but loopback: rail0 has no carrier (waited 0.";
    let (is_well, said) = late.end();
    assert!(!is_well && said.contains(words), "{said}");

    let wait = [("R2CCL_NIC_WAIT", FOR_EVER)];
    let mut late: Vec<_> =
        (0..HOSTS).map(|host| Running::start(&bed, host, &master, &wait)).collect();
    late[LATE].says(WAITING);
    carrier(&mut bed, Turn::Heal);
    assert_done(late);
}

/// The first of three, so that those of the other host are opposite to other ones if it is left out.
#[test]
fn a_job_starts_without_a_nic_that_is_broken() {
    let Some(mut bed) = bed_with(3) else { return };
    for fault in [Fault::Carrier, Fault::Admin, Fault::Silent] {
        bed.apply(Action { turn: Turn::Cut, fault, cable: CABLE }).unwrap();
        let mut job = job(&bed, &[("R2CCL_NIC", "rail")]);
        job.iter_mut().for_each(|running| running.says("a rail does not work"));
        assert_done(job);
        bed.apply(Action { turn: Turn::Heal, fault, cable: CABLE }).unwrap();
    }
}
