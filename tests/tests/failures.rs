//! What the public API promises when something goes wrong, between real processes: within the
//! deadline every rank has its result or an error that names who and why, and nothing is left behind.
//!
//! What the ranks do is in [`support::roles`]; here is what happens to them.

#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use support::child::{self, Ending};
use support::job::{DEADLINE, Job};
use support::roles::{MISMATCHES, MISUSES, Misuse, ROLES};
use support::{note, skip};

/// Not a scenario of its own: every rank of the others begins here. Started by the harness, it checks
/// that a process with an unknown role fails loudly.
#[test]
fn child_entry() {
    if child::enter(ROLES) {
        return;
    }
    let mut job = Job::of(1, "no such role");
    let number = job.spawn(0);
    assert_eq!(job.exit_of(number).code(), Some(child::NO_SUCH_ROLE));
    job.check_leftovers();
}

fn all_of(size: usize) -> Vec<usize> {
    (0..size).collect()
}

fn all_but(size: usize, number: usize) -> Vec<usize> {
    (0..size).filter(|other| *other != number).collect()
}

/// Ranks in the middle of an endless sequence of all-reduces.
fn underway(job: Job, size: usize) -> Job {
    let mut job = job.start();
    job.underway(&all_of(size)).expect("nothing that a host may refuse");
    job
}

/// Ends what these do, and expects that all was well.
fn stop_these(mut job: Job, numbers: &[usize]) {
    job.tell(numbers[0]);
    for ending in job.endings(numbers) {
        assert_eq!(ending, Ending::Done("all results exact".into()));
    }
    job.finish();
}

/// Ends the endless sequence and expects that all was well.
fn stop(job: Job, size: usize) {
    stop_these(job, &all_of(size));
}

/// Each rank on a host of its own: all data goes over two rails of TCP.
fn on_hosts(size: u32) -> Job {
    Job::of(size, "endless").on_hosts(2, |rank| rank + 1)
}

fn killing_is_the_loss_of(victim: usize, job: Job) {
    let size = job.size();
    let mut job = underway(job, size);
    let start = Instant::now();
    job.kill(victim);
    for ending in job.endings(&all_but(size, victim)) {
        let Ending::Lost { rank, text } = &ending else { panic!("{ending:?}") };
        assert_eq!(*rank as usize, victim, "{text}");
    }
    note(&format!("rank {victim} was killed; all others knew after {:?}", start.elapsed()));
    job.finish();
}

#[test]
fn a_killed_rank_is_lost_to_all_others() {
    killing_is_the_loss_of(2, Job::of(4, "endless"));
}

/// Four ranks in the middle of an endless sequence, with a host for each if they are apart. Who waits for the others as long as it may when
/// communicators are made waits longer than the test.
fn four_underway(role: &str, are_apart: bool) -> Job {
    let job = Job::of(4, role).with("R2CCL_BOOTSTRAP_TIMEOUT", "300");
    underway(if are_apart { job.on_hosts(2, |rank| rank + 1) } else { job }, 4)
}

/// Rank 0 takes the place with it at which all ranks have met, so that nobody is told of others that are killed with it.
#[test]
fn who_is_left_goes_on_whichever_ranks_are_killed() {
    let cases: [(&[usize], bool); 5] =
        [(&[0], false), (&[2], false), (&[0], true), (&[0, 2], false), (&[0, 1], true)];
    for (victims, are_apart) in cases {
        let mut job = four_underway("endless without who is lost", are_apart);
        let start = Instant::now();
        victims.iter().for_each(|victim| job.kill(*victim));
        let left: Vec<usize> = (0..4).filter(|number| !victims.contains(number)).collect();
        job.underway(&left).expect("nothing that a host may refuse");
        note(&format!(
            "ranks {victims:?} were killed; the others were at it after {:?}",
            start.elapsed()
        ));
        stop_these(job, &left);
    }
}

/// Wherever they have come to: finding out, meeting, or joining where they go on.
#[test]
fn who_is_left_goes_on_when_another_one_is_killed_meanwhile() {
    let pauses = [0, 2, 5, 10, 15, 20, 30, 40, 60].map(Duration::from_millis);
    for (pause, victims) in pauses.iter().zip([[0, 1], [2, 0], [3, 1]].iter().cycle()) {
        let mut job = four_underway("endless without who is lost", false);
        job.kill(victims[0]);
        thread::sleep(*pause);
        job.kill(victims[1]);
        let start = Instant::now();
        let left: Vec<usize> = (0..4).filter(|number| !victims.contains(number)).collect();
        job.underway(&left).expect("nothing that a host may refuse");
        note(&format!(
            "rank {} was killed {pause:?} after rank {}; the others were at it after {:?}",
            victims[1],
            victims[0],
            start.elapsed()
        ));
        stop_these(job, &left);
    }
}

/// The others grow to as many as before.
#[test]
fn a_killed_rank_is_replaced_by_another_process() {
    for (victim, are_apart) in [(0, false), (2, false), (3, true)] {
        let mut job = four_underway("endless with a rank in its place", are_apart);
        let start = Instant::now();
        job.kill(victim);
        let left = all_but(4, victim);
        job.await_id(left[0]);
        let newcomer = job.spawn(3);
        let all = [&left[..], &[newcomer]].concat();
        job.underway(&all).expect("nothing that a host may refuse");
        note(&format!(
            "rank {victim} was killed; the others and a new one were at it after {:?}",
            start.elapsed()
        ));
        stop_these(job, &all);
    }
}

/// Wherever they have come to: telling each other what they want, meeting, or connecting.
#[test]
fn a_rank_killed_while_all_split_is_lost_to_all_others() {
    let cases = [(2, false), (0, false), (2, true), (0, true)];
    for (pause, (victim, are_apart)) in (0..12).zip(cases.into_iter().cycle()) {
        let mut job = four_underway("endless splits", are_apart);
        thread::sleep(Duration::from_millis(pause * 3));
        let start = Instant::now();
        job.kill(victim);
        for ending in job.endings(&all_but(4, victim)) {
            let Ending::Lost { rank, text } = &ending else { panic!("{ending:?}") };
            assert_eq!(*rank as usize, victim, "{text}");
        }
        note(&format!("rank {victim} was killed; all others knew after {:?}", start.elapsed()));
        job.finish();
    }
}

#[test]
fn a_rank_killed_while_all_work_in_its_memory_is_lost_to_all_others() {
    killing_is_the_loss_of(2, Job::of(4, "endless in memory of the library"));
}

fn copying_by_the_system(size: u32) -> Job {
    Job::of(size, "endless copies by the system").with("R2CCL_CMA", "always")
}

#[test]
fn a_rank_killed_while_all_read_its_memory_is_lost_to_all_others() {
    killing_is_the_loss_of(2, copying_by_the_system(4));
}

#[test]
fn one_of_two_ranks_that_read_all_of_each_other_is_lost_to_the_other() {
    killing_is_the_loss_of(0, copying_by_the_system(2));
    killing_is_the_loss_of(1, copying_by_the_system(2));
}

#[test]
fn a_killed_rank_that_has_the_store_is_lost_to_all_others() {
    killing_is_the_loss_of(0, Job::of(4, "endless"));
}

#[test]
fn a_rank_killed_on_another_host_is_lost_to_all_others() {
    killing_is_the_loss_of(2, on_hosts(4));
    killing_is_the_loss_of(0, on_hosts(4));
}

fn freezing_is_a_deadline_that_names(victim: usize, job: Job) {
    let size = job.size();
    // Everybody waits for everybody: a survivor that waits for another survivor would name that one.
    let job = if size > 2 { job.with("R2CCL_ALGO", "allreduce:one_shot") } else { job };
    let mut job = underway(job.with("R2CCL_TIMEOUT", "1.5"), size);
    let start = Instant::now();
    job.freeze(victim);
    for ending in job.endings(&all_but(size, victim)) {
        let Ending::Deadline { waiting, text } = &ending else { panic!("{ending:?}") };
        let mut numbers = waiting.split(|c: char| !c.is_ascii_digit());
        assert!(numbers.any(|number| number == victim.to_string()), "{text}");
    }
    note(&format!("rank {victim} was frozen; all others knew after {:?}", start.elapsed()));
    for survivor in all_but(size, victim) {
        assert!(job.exit_of(survivor).success());
    }
    job.kill(victim);
    job.finish();
}

#[test]
fn a_frozen_rank_is_a_deadline_on_all_others() {
    freezing_is_a_deadline_that_names(2, Job::of(3, "endless"));
}

#[test]
fn a_rank_frozen_while_all_work_in_its_memory_is_a_deadline_on_all_others() {
    freezing_is_a_deadline_that_names(1, Job::of(3, "endless in memory of the library"));
}

#[test]
fn a_rank_frozen_while_all_read_its_memory_is_a_deadline_on_all_others() {
    freezing_is_a_deadline_that_names(1, copying_by_the_system(3));
    freezing_is_a_deadline_that_names(1, copying_by_the_system(2));
}

#[test]
fn a_frozen_rank_that_has_the_store_is_a_deadline_on_all_others() {
    freezing_is_a_deadline_that_names(0, Job::of(3, "endless"));
}

#[test]
fn a_rank_frozen_on_another_host_is_a_deadline_on_all_others() {
    freezing_is_a_deadline_that_names(2, on_hosts(3));
    freezing_is_a_deadline_that_names(0, on_hosts(3));
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_that_came() {
    let mut job = Job::of(3, "endless").with("R2CCL_BOOTSTRAP_TIMEOUT", "1");
    let came = [job.launch(0), job.launch(1)];
    for ending in job.endings(&came) {
        let Ending::Deadline { waiting, .. } = &ending else { panic!("{ending:?}") };
        assert_eq!(waiting, "rank 2 did not come");
    }
    job.finish();
}

#[test]
fn two_processes_that_claim_one_rank_are_an_error_on_all() {
    let mut job = Job::of(3, "endless");
    let came = [job.launch(0), job.launch(1), job.launch(1)];
    for ending in job.endings(&came) {
        let Ending::Usage(text) = &ending else { panic!("{ending:?}") };
        assert!(text.contains("rank 1 is claimed by two processes"), "{text}");
    }
    job.finish();
}

#[test]
fn a_late_claim_of_a_rank_fails_alone() {
    let mut job = underway(Job::of(2, "endless"), 2);
    let late = job.launch(1);
    let [Ending::Usage(text)] = &job.endings(&[late])[..] else { panic!("it was let in") };
    assert!(text.contains("rank 1 is claimed by two processes"), "{text}");
    stop(job, 2);
}

#[test]
fn wrong_calls_are_errors_of_the_caller_and_harm_nobody() {
    let mut job = Job::of(2, "misuse").start();
    for Misuse { name, complaint, .. } in MISUSES {
        for ending in job.endings(&[0, 1]) {
            match (&ending, complaint) {
                (Ending::Done(_), None) => {}
                (Ending::Argument(text), Some(part)) => {
                    assert!(text.contains(part), "{name}: {text}");
                }
                _ => panic!("{name}: {ending:?}"),
            }
        }
    }
    assert_eq!(job.endings(&[0, 1]), vec![Ending::Done(String::new()); 2]);
    for claim in ["rank 7 is not a rank of a group of 2", "rank 0 is not a rank of a group of 0"] {
        let ending = Ending::Argument(format!("invalid argument: {claim}"));
        assert_eq!(job.endings(&[0, 1]), vec![ending; 2]);
    }
    job.finish();
}

#[test]
fn different_calls_are_a_disagreement_that_names_both_ranks_on_all() {
    let mut job = Job::of(3, "mismatches").start();
    for (name, _) in MISMATCHES {
        for ending in job.endings(&all_of(3)) {
            let Ending::Disagreement { rank, other, text } = &ending else {
                panic!("{name}: {ending:?}")
            };
            assert!(rank != other && (*rank == 1 || *other == 1), "{name}: {text}");
            let names = |rank: &u32| text.contains(&format!("rank {rank} called"));
            assert!(names(rank) && names(other), "{name}: {text}");
        }
    }
    assert_eq!(job.endings(&all_of(3)), vec![Ending::Done(String::new()); 3]);
    job.finish();
}

/// Sends what no rank would send, and nothing at all, and goes. Tells how many got in.
fn attack(targets: &[SocketAddr]) -> usize {
    let scripts: [&[u8]; 4] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096], b"r2cclnet\x01\0\0\0"];
    let mut got_in = 0;
    for target in targets {
        for script in scripts {
            if let Ok(mut stranger) = TcpStream::connect(reachable(*target)) {
                // It may be thrown out before it is done.
                let _ = stranger.write_all(script);
                got_in += 1;
            }
        }
    }
    got_in
}

/// Where to connect to for a socket that listens at `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip =
        if address.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

/// A stranger who says as much as a rank would is thrown out at once, and learns nothing.
fn stranger_is_refused(target: SocketAddr) {
    let mut stranger = TcpStream::connect(reachable(target)).expect("a port");
    stranger.set_read_timeout(Some(DEADLINE)).expect("a socket");
    stranger.write_all(&[b'x'; 256]).expect("room in the socket");
    let mut answer = Vec::new();
    match stranger.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(cause) => assert_eq!(cause.kind(), ErrorKind::ConnectionReset),
    }
    assert_eq!(answer, [0u8; 0]);
}

#[test]
fn strangers_at_the_store_disturb_nobody() {
    let mut job = Job::of(3, "endless");
    job.launch(0);
    let store = job.listeners();
    assert_eq!(store.len(), 1, "{store:?}");
    let silent = TcpStream::connect(reachable(store[0])).unwrap();
    assert_eq!(attack(&store), 4);
    stranger_is_refused(store[0]);
    job.launch(1);
    attack(&store);
    job.launch(2);
    job.underway(&all_of(3)).unwrap();
    assert_eq!(attack(&store), 4);
    stranger_is_refused(store[0]);
    drop(silent);
    stop(job, 3);
}

/// Ports for data stay open, so that a rail that died can connect again.
#[test]
fn strangers_at_the_rails_disturb_nobody() {
    let mut job = Job::of(3, "endless").on_hosts(4, |rank| rank + 1).start();
    job.underway(&all_of(3)).unwrap();
    let ports = Job::rail_ports();
    assert_eq!(ports.len(), 12, "{ports:?}");
    assert!(attack(&ports) > 0);
    ports.iter().for_each(|port| stranger_is_refused(*port));
    stop(job, 3);
    assert_eq!(Job::rail_ports(), [], "ports for data outlive their processes");
}

#[test]
fn a_full_dev_shm_does_not_matter() {
    let mut job = Job::of(3, "endless without /dev/shm").start();
    match job.underway(&all_of(3)) {
        Ok(()) => stop(job, 3),
        Err(reason) => skip(&format!("a full /dev/shm: {reason}")),
    }
}

#[test]
fn memory_that_cannot_be_had_is_an_error_that_names_the_call() {
    // A file may have 32 KiB; without the trap the kernel ends a process that wants more.
    let job = Job::of(3, "endless").after_shell(1, "trap '' XFSZ; ulimit -f 64");
    let mut job = job.start();
    let [mine] = &job.endings(&[1])[..] else { unreachable!() };
    let Ending::System { call, text } = mine else { panic!("{mine:?}") };
    assert!(call.contains("allocate") && text.contains("too large"), "{text}");
    for ending in job.endings(&[0, 2]) {
        let Ending::Aborted { rank: 1, text } = &ending else { panic!("{ending:?}") };
        assert!(text.contains("allocate"), "{text}");
    }
    job.finish();
}

#[test]
fn a_nic_that_does_not_exist_is_named_with_those_that_do() {
    let mut job = Job::of(3, "endless").with_at(1, "R2CCL_NIC", "=doesnotexist0").start();
    let complaint = "R2CCL_NIC==doesnotexist0 matches no interface that is up; there are ";
    let [mine] = &job.endings(&[1])[..] else { unreachable!() };
    let Ending::Usage(text) = mine else { panic!("{mine:?}") };
    assert!(text.contains(complaint) && text.contains("lo (127.0.0.1)"), "{text}");
    for ending in job.endings(&[0, 2]) {
        let Ending::Aborted { rank: 1, text } = &ending else { panic!("{ending:?}") };
        assert!(text.contains(complaint), "{text}");
    }
    job.finish();
}

#[test]
fn an_abort_ends_the_calls_of_all() {
    for hosts in [|_| 1, |rank| rank + 1] {
        let mut job = Job::of(4, "abort").on_hosts(2, hosts).start();
        job.underway(&all_of(4)).unwrap();
        job.tell(2);
        let mut endings = job.endings(&[0, 1, 2]);
        job.tell(3);
        endings.extend(job.endings(&[3]));
        for ending in endings {
            let Ending::Aborted { rank: 2, text } = &ending else { panic!("{ending:?}") };
            assert!(text.ends_with(": enough"), "{text}");
        }
        job.finish();
    }
}

#[test]
fn communicators_come_and_go_without_a_trace() {
    for hosts in [|_| 1, |rank| rank + 1] {
        let mut job = Job::of(3, "churn").on_hosts(2, hosts).start();
        for ending in job.endings(&all_of(3)) {
            let Ending::Done(counts) = ending else { panic!("{ending:?}") };
            note(&counts);
        }
        job.finish();
    }
}

#[test]
fn results_are_exact_on_every_pretended_cluster() {
    for hosts in [|_| 1, |rank| 1 + rank / 2, |rank| 1 + rank % 2, |rank| 1 + rank] {
        let mut job = Job::of(4, "every collective").on_hosts(2, hosts).start();
        for ending in job.endings(&all_of(4)) {
            assert_eq!(ending, Ending::Done("all results exact".into()));
        }
        job.finish();
    }
}
