//! Two hosts that have lost different rails have none in common: collectives go round by a third host, and straight again when
//! rails return. And a host that has no rail for a while, in which the others leave.
#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]
#![allow(clippy::print_stdout, reason = "that is how a rank answers")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use ccl::{Communicator, Config, Error, RailState, Rank, ReduceOp};
use ccl_tests::testbed::bed::Bed;
use ccl_tests::testbed::failure::Failure;
use ccl_tests::testbed::fault::{Action, Fault, Turn};
use ccl_tests::testbed::shape::{Cable, Rate, Shape, host_name, management_address};

use support::bed::{until, wait_for_end};
use support::skip;

const HOSTS: usize = 3;
/// Host 0 and host 1 have one rail each then, and not the same one.
const CUT: [Cable; 2] = [Cable { host: 0, rail: 0 }, Cable { host: 1, rail: 1 }];

/// The host that has no rail for a while.
const ALONE: usize = 1;

/// Says in its environment that a process is a rank.
const ROLE: &str = "CCL_TESTS_APART";
const BROADCAST: &str = "broadcast";
/// Begins the lines that are for the parent.
const MARK: &str = "rank: ";

/// A link that is needed has to have a rail again after so many seconds.
const PATIENCE: &str = "1";
const LONGER_THAN_PATIENCE: Duration = Duration::from_millis(2500);
/// The same where a host has no rail for a while.
const MORE_PATIENCE: &str = "20";
/// Longer than a rank takes to leave that has nothing to wait for.
const LONGER_THAN_LEAVING: Duration = Duration::from_secs(5);
/// It takes a few milliseconds until all ranks have agreed on plans for what they know of rails.
const AGREEMENT: Duration = Duration::from_secs(1);

/// Every collective that can go round, with results that only the right inputs have.
fn all_collectives(communicator: &Communicator, count: usize) -> Result<(), Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let ranks = size as usize;
    let sum: u32 = (1..=size).sum();
    let own = |of: u32, count: usize| -> Vec<u32> {
        (0..u32::try_from(count).unwrap()).map(|place| (of + 1) * (place % 1000)).collect()
    };
    let summed = |count| -> Vec<u32> { own(0, count).iter().map(|value| sum * value).collect() };
    let block = |values: Vec<u32>, rank: u32| values[rank as usize * count..][..count].to_vec();

    let mut data = own(me, count);
    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, summed(count), "all_reduce");
    let mut all = vec![0; ranks * count];
    communicator.all_gather(&own(me, count), &mut all)?;
    let gathered: Vec<u32> = (0..size).flat_map(|rank| own(rank, count)).collect();
    assert_eq!(all, gathered, "all_gather");
    let mut part = vec![0; count];
    communicator.reduce_scatter(&own(me, ranks * count), &mut part, ReduceOp::Sum)?;
    assert_eq!(part, block(summed(ranks * count), me), "reduce_scatter");
    for root in (0..size).map(Rank) {
        let mut data = own(me, count);
        communicator.broadcast(&mut data, root)?;
        assert_eq!(data, own(root.0, count), "broadcast of {root}");
    }
    communicator.all_to_all(&own(me, ranks * count), &mut all)?;
    let dealt = |rank| block(own(rank, ranks * count), me);
    assert_eq!(all, (0..size).flat_map(dealt).collect::<Vec<u32>>(), "all_to_all");
    communicator.barrier()
}

/// Rails that do not work, of all ranks.
fn lost(communicator: &Communicator) -> usize {
    let health = communicator.health();
    health.iter().filter(|rail| rail.state != RailState::Up).count()
}

/// Something from rank 0.
fn broadcast(communicator: &Communicator) {
    let mut data = vec![communicator.rank().0; 1000];
    communicator.broadcast(&mut data, Rank(0)).unwrap();
    assert_eq!(data, vec![0; 1000]);
}

/// What a rank is told, a word in each line: to do all collectives or a broadcast, or to wait until so many rails are lost.
fn play() {
    let communicator =
        Communicator::from_environment(&Config::from_environment().unwrap()).unwrap();
    for word in std::io::stdin().lines().map_while(Result::ok) {
        match word.parse::<usize>() {
            Ok(number) => {
                until("all know of it", || (lost(&communicator) == number).then_some(()));
            }
            Err(_) if word == BROADCAST => broadcast(&communicator),
            Err(_) => [2, 50_000].iter().for_each(|count| {
                all_collectives(&communicator, *count).unwrap();
            }),
        }
        println!("{MARK}{word}");
    }
    communicator.finalize().unwrap();
}

/// A rank that runs. Dropping it kills it.
struct Running {
    child: Child,
    /// Until it is to end.
    words: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(bed: &Bed, host: usize, patience: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "collectives_go_round_hosts_without_a_common_rail",
            "--nocapture",
        ]);
        let (rank, size, master) = (host.to_string(), HOSTS.to_string(), management_address(0));
        command.env(ROLE, "").envs([("RANK", &rank), ("WORLD_SIZE", &size)]);
        command.envs([("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_PORT", "4000")]);
        command.env("MASTER_ADDR", master.to_string()).env("R2CCL_HOST_ID", host_name(host));
        command.envs([("R2CCL_NIC", "rail"), ("R2CCL_RAIL_PATIENCE", patience)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = bed.on_host(host, || command.spawn()).unwrap().unwrap();
        let (words, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, words: Some(words), lines: BufReader::new(output).lines() }
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.words.as_mut().unwrap(), "{word}").unwrap();
    }

    /// Waits until it has done what it was told; it ends by itself if that takes too long.
    fn done(&mut self, word: &str) {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let answer = lines.find(|line| line.starts_with(MARK));
        assert_eq!(answer, Some(format!("{MARK}{word}")), "a rank has failed");
    }

    /// Lets it leave.
    fn dismiss(&mut self) {
        drop(self.words.take());
    }

    fn end(mut self) {
        wait_for_end(self.child.id());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all(job: &mut [Running], word: &str) {
    job.iter_mut().for_each(|rank| rank.tell(word));
    job.iter_mut().for_each(|rank| rank.done(word));
}

/// Three hosts, or nothing and a report.
fn bed() -> Option<Bed> {
    match Bed::build(Shape { hosts: HOSTS, rails: 2, rate: Rate::Unlimited }) {
        Ok(bed) => Some(bed),
        Err(failure @ Failure::Unavailable { .. }) => {
            skip(&format!("hosts without a common rail: {failure}"));
            None
        }
        Err(failure) => panic!("{failure}"),
    }
}

fn job(bed: &Bed, patience: &str) -> Vec<Running> {
    (0..HOSTS).map(|host| Running::start(bed, host, patience)).collect()
}

#[test]
fn collectives_go_round_hosts_without_a_common_rail() {
    if env::var_os(ROLE).is_some() {
        return play();
    }
    let Some(mut bed) = bed() else { return };
    let mut job = job(&bed, PATIENCE);
    all(&mut job, "collectives");
    let mut turn = |turn, lost: usize, job: &mut [Running]| {
        for cable in CUT {
            bed.apply(Action { turn, fault: Fault::Carrier, cable }).unwrap();
        }
        all(job, &lost.to_string());
        thread::sleep(AGREEMENT);
        all(job, "collectives");
    };
    turn(Turn::Cut, CUT.len(), &mut job);
    thread::sleep(LONGER_THAN_PATIENCE);
    all(&mut job, "collectives");
    turn(Turn::Heal, 0, &mut job);
    job.iter_mut().for_each(Running::dismiss);
    job.into_iter().for_each(Running::end);
}

/// The others have sent the last that there is when its cables fall silent, and leave: until it has it they stay.
#[test]
fn who_has_no_rail_gets_what_the_others_sent_before_they_left() {
    let Some(mut bed) = bed() else { return };
    let mut job = job(&bed, MORE_PATIENCE);
    all(&mut job, "collectives");
    let mut turn = |turn| {
        for rail in 0..2 {
            let cable = Cable { host: ALONE, rail };
            bed.apply(Action { turn, fault: Fault::Silent, cable }).unwrap();
        }
    };
    turn(Turn::Cut);
    job.iter_mut().for_each(|rank| rank.tell(BROADCAST));
    for rank in [0, 2] {
        job[rank].done(BROADCAST);
        job[rank].dismiss();
    }
    thread::sleep(LONGER_THAN_LEAVING);
    turn(Turn::Heal);
    job[ALONE].done(BROADCAST);
    job[ALONE].dismiss();
    job.into_iter().for_each(Running::end);
}
