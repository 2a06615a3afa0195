//! The testbed itself: traffic passes, faults are what they claim to be, nothing is left behind.
#![allow(clippy::disallowed_methods, reason = "a test waits by the clock of its host")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benchmarks;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use benchmarks::ALL_REDUCE;
use ccl_tests::testbed::bed::Bed;
use ccl_tests::testbed::clock::now_ns;
use ccl_tests::testbed::control;
use ccl_tests::testbed::failure::Failure;
use ccl_tests::testbed::fault::{Action, Direction, Fault, Turn};
use ccl_tests::testbed::journal::Event;
use ccl_tests::testbed::shape::{Cable, Rate, Shape, rail_address};

use support::bed::{MARKER, Testbed, until, wait_for_end};
use support::{footprint, skip};

const RATE: Rate = Rate::Limited { bytes_per_second: 25_000_000 };
/// How long a packet that was lost is waited for. One that was not takes a thousandth.
const SILENCE: Duration = Duration::from_millis(100);
/// Between two attempts to get a packet through.
const ATTEMPT: Duration = Duration::from_millis(20);

/// A bed, or nothing and a report.
fn bed(hosts: usize, rails: usize) -> Option<Bed> {
    match Bed::build(Shape { hosts, rails, rate: RATE }) {
        Ok(bed) => Some(bed),
        Err(failure @ Failure::Unavailable { .. }) => {
            skip(&format!("testbed: {failure}"));
            None
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn every_rail_carries_a_connection() {
    let Some(bed) = bed(2, 2) else { return };
    for rail in 0..2 {
        let address = rail_address(Cable { host: 1, rail });
        let listener = bed.on_host(1, || TcpListener::bind((address, 0))).unwrap().unwrap();
        let target = listener.local_addr().unwrap();
        let mut here = bed.on_host(0, || TcpStream::connect(target)).unwrap().unwrap();
        let (mut there, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), rail_address(Cable { host: 0, rail }));
        here.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        there.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
}

/// A way for packets from one host to another over one rail.
struct Path {
    from: UdpSocket,
    to: UdpSocket,
    sent: u64,
}

impl Path {
    fn new(bed: &Bed, rail: usize, from: usize, to: usize) -> Self {
        let socket = |host| {
            let address = (rail_address(Cable { host, rail }), 0);
            bed.on_host(host, || UdpSocket::bind(address)).unwrap().unwrap()
        };
        let (from, to) = (socket(from), socket(to));
        to.set_read_timeout(Some(ATTEMPT)).unwrap();
        Self { from, to, sent: 0 }
    }

    /// Sends until something that was sent from now on arrives.
    fn passes(&mut self) {
        let first = self.sent;
        until("a packet", || {
            self.send();
            self.receive().filter(|number| *number >= first)
        });
    }

    /// Whether everything that is sent from now on is lost.
    fn is_cut(&mut self) -> bool {
        let first = self.sent;
        (0..3).for_each(|_| self.send());
        self.to.set_read_timeout(Some(SILENCE)).unwrap();
        // What was under way may still arrive.
        let received = std::iter::from_fn(|| self.receive()).filter(|number| *number >= first);
        let is_cut = received.count() == 0;
        self.to.set_read_timeout(Some(ATTEMPT)).unwrap();
        is_cut
    }

    fn send(&mut self) {
        // Without a way there is an error, which is one way to be lost.
        let _ = self.from.send_to(&self.sent.to_ne_bytes(), self.to.local_addr().unwrap());
        self.sent += 1;
    }

    fn receive(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        match self.to.recv(&mut bytes) {
            Ok(_) => Some(u64::from_ne_bytes(bytes)),
            Err(cause) => {
                assert!(matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
                None
            }
        }
    }
}

/// What a host sees of the state of a network card.
fn state(bed: &Bed, Cable { host, rail }: Cable) -> String {
    let path = format!("/sys/class/net/rail{rail}/operstate");
    bed.on_host(host, || fs::read_to_string(path)).unwrap().unwrap().trim().to_owned()
}

#[test]
fn faults_are_what_they_claim_and_heal() {
    let Some(mut bed) = bed(2, 2) else { return };
    let cable = Cable { host: 0, rail: 1 };
    let (outgoing, incoming) = (Direction::Outgoing, Direction::Incoming);
    // Which directions are lost, and whether the host is told.
    let table = [
        (Fault::Silent, true, true, false),
        (Fault::Oneway(outgoing), true, false, false),
        (Fault::Oneway(incoming), false, true, false),
        (Fault::Carrier, true, true, true),
        (Fault::Admin, true, true, true),
    ];
    let mut paths = [Path::new(&bed, 1, 0, 1), Path::new(&bed, 1, 1, 0)];
    let mut other = Path::new(&bed, 0, 0, 1);
    for (fault, loses_outgoing, loses_incoming, is_told) in table {
        paths.iter_mut().for_each(Path::passes);
        until("a carrier", || (state(&bed, cable) == "up").then_some(()));
        let before_ns = now_ns();
        let moment = bed.apply(Action { turn: Turn::Cut, fault, cable }).unwrap();
        assert!(before_ns <= moment.began_ns && moment.began_ns <= moment.ended_ns);
        assert!(moment.ended_ns <= now_ns());
        for (path, loses) in paths.iter_mut().zip([loses_outgoing, loses_incoming]) {
            if loses {
                assert!(path.is_cut(), "{fault}");
            } else {
                path.passes();
            }
        }
        other.passes();
        if is_told {
            until("loss of the carrier", || (state(&bed, cable) != "up").then_some(()));
        } else {
            assert_eq!(state(&bed, cable), "up", "{fault}");
        }
        bed.apply(Action { turn: Turn::Heal, fault, cable }).unwrap();
    }
    paths.iter_mut().for_each(Path::passes);
}

#[test]
fn a_silent_cut_survives_a_carrier_that_comes_and_goes() {
    let Some(mut bed) = bed(2, 1) else { return };
    let cable = Cable { host: 1, rail: 0 };
    let mut path = Path::new(&bed, 0, 0, 1);
    path.passes();
    for (turn, fault) in
        [(Turn::Cut, Fault::Silent), (Turn::Cut, Fault::Carrier), (Turn::Heal, Fault::Carrier)]
    {
        bed.apply(Action { turn, fault, cable }).unwrap();
    }
    until("a carrier", || (state(&bed, cable) == "up").then_some(()));
    assert!(path.is_cut());
    bed.apply(Action { turn: Turn::Heal, fault: Fault::Silent, cable }).unwrap();
    path.passes();
}

#[test]
fn cables_that_do_not_exist_are_refused() {
    let Some(mut bed) = bed(1, 1) else { return };
    let action =
        Action { turn: Turn::Cut, fault: Fault::Silent, cable: Cable { host: 1, rail: 0 } };
    assert!(matches!(bed.apply(action), Err(Failure::Input(_))));
    assert!(bed.on_host(1, || ()).is_err());
}

#[test]
fn ranks_are_told_who_they_are_and_the_worst_status_counts() {
    let script = r#"echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $R2CCL_HOST_ID $(uname -n) $(pwd -P)"; exit $((RANK + 3))"#;
    let flags = ["--hosts", "2", "--rails", "1", "--ranks-per-host", "2", "--limit", "60s"];
    let testbed = Testbed::start(&flags, &["sh", "-c", script], &marker("told"));
    let Some(finished) = testbed.finish() else { return };
    assert_eq!(finished.status.code(), Some(6), "{}", finished.errors);
    let lines: BTreeSet<&str> = finished.output.lines().collect();
    let expected = [
        "0 4 0 10.255.0.1 host0 host0",
        "[host0 rank 1] 1 4 1 10.255.0.1 host0 host0",
        "[host1 rank 2] 2 4 0 10.255.0.1 host1 host1",
        "[host1 rank 3] 3 4 1 10.255.0.1 host1 host1",
    ];
    let folder = std::env::current_dir().unwrap().canonicalize().unwrap();
    let expected = expected.map(|line| format!("{line} {}", folder.display()));
    assert_eq!(lines, expected.iter().map(String::as_str).collect());
}

#[test]
fn what_takes_too_long_is_ended() {
    let flags = ["--hosts", "1", "--rails", "1", "--limit", "100ms"];
    let marker = marker("limit");
    let testbed = Testbed::start(&flags, &["sh", "-c", "sleep 1000 & sleep 1000"], &marker);
    let Some(finished) = testbed.finish() else { return };
    assert_eq!(finished.status.code(), Some(124), "{}", finished.errors);
    assert_eq!(footprint::processes_with(&format!("{MARKER}={marker}")), [0; 0]);
}

#[test]
fn requests_are_obeyed_and_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (begin, end, journal) = (path("begin"), path("end"), path("journal"));
    let name = marker("control");
    let flags = [
        "--hosts",
        "2",
        "--rails",
        "2",
        "--limit",
        "200s",
        "--json",
        &journal,
        "--control",
        &name,
        "--from",
        "ready",
        "--fault",
        "slow:host=1,rail=0,at=0s,rate=1mbit",
    ];
    // It waits until it is told to go on, and tells that it has done so.
    let script =
        format!("mkfifo {begin}.$RANK {end}.$RANK; cat {begin}.$RANK; echo ready; cat {end}.$RANK");
    let testbed = Testbed::start(&flags, &["sh", "-c", &script], &name);
    let request = "cut silent:host=0,rail=1";
    let Some(answer) = first_answer(testbed, &name, request) else { return };
    let (testbed, Event::Fault { turn, fault, host: 0, rail: 1, began_ns, ended_ns }) = answer
    else {
        panic!("{:?}", answer.1)
    };
    assert_eq!((turn.as_str(), fault.as_str()), ("cut", "silent"));
    assert!(began_ns < ended_ns && ended_ns < now_ns());
    for (request, why) in [("cut silent:host=0,rail=7", "host 0 rail 7"), ("dance", "dance")] {
        let Event::Refused { reason } = control::tell(&name, request).unwrap() else { panic!() };
        assert!(reason.contains(why), "{reason}");
    }
    for fifo in [&begin, &end] {
        for rank in 0..2 {
            let fifo = PathBuf::from(format!("{fifo}.{rank}"));
            until("a rank", || fifo.exists().then_some(()));
            fs::write(fifo, "\n").unwrap();
        }
        until("the slow cable", || recorded(&journal).contains("slow").then_some(()));
    }
    let finished = testbed.finish().unwrap();
    assert!(finished.status.success(), "{}", finished.errors);
    let events: Vec<Event> =
        recorded(&journal).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(events[0], Event::Started { hosts: 2, rails: 2, ranks: 2, .. }));
    let has = |wanted: &dyn Fn(&Event) -> bool| events.iter().any(wanted);
    assert!(has(&|event| matches!(event, Event::Fault { began_ns: at, .. } if *at == began_ns)));
    assert!(has(&|event| matches!(event, Event::Ended { rank: 1, status: 0, .. })));
}

/// Asks as soon as somebody listens; `None` if this machine cannot have a testbed.
fn first_answer(mut testbed: Testbed, name: &str, request: &str) -> Option<(Testbed, Event)> {
    let answer = until("an answer", || match control::tell(name, request) {
        Ok(event) => Some(Some(event)),
        Err(_) => testbed.child.try_wait().unwrap().map(|_| None),
    });
    match answer {
        Some(event) => Some((testbed, event)),
        None => {
            assert!(testbed.finish().is_none(), "it ended before it was told to");
            None
        }
    }
}

fn recorded(journal: &str) -> String {
    fs::read_to_string(journal).unwrap_or_default()
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let marker = marker("killed");
    let cards = footprint::names_in("/sys/class/net");
    let here = |rank| folder.path().join(format!("here{rank}"));
    let script = format!("sleep 1000 & touch {}/here$RANK; wait", folder.path().display());
    let mut testbed = Testbed::start(&["--hosts", "2"], &["sh", "-c", &script], &marker);
    let has_begun = until("a rank", || match testbed.child.try_wait().unwrap() {
        Some(_) => Some(false),
        None => (0..2).all(|rank| here(rank).exists()).then_some(true),
    });
    if !has_begun {
        assert!(testbed.finish().is_none(), "it ended before it was killed");
        return;
    }
    let variable = format!("{MARKER}={marker}");
    // Both processes of the testbed, and on each host a shell and what it started. A process has no
    // variables while the kernel gives it its program, so the last may be seen late.
    let processes = until("all processes", || {
        let processes = footprint::processes_with(&variable);
        (processes.len() >= 6).then_some(processes)
    });
    let namespace = |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let places: BTreeSet<PathBuf> = processes.iter().filter_map(namespace).collect();
    assert_eq!(places.len(), 3, "two hosts and the network of this test: {places:?}");
    testbed.child.kill().unwrap();
    processes.iter().for_each(|pid| wait_for_end(*pid));
    assert_eq!(footprint::processes_with(&variable), [0; 0]);
    assert_eq!(footprint::names_in("/sys/class/net"), cards);
}

#[test]
fn a_benchmark_finds_its_rails_by_itself() {
    let flags = ["--hosts", "3", "--rails", "4", "--limit", "200s"];
    let command = [ALL_REDUCE, "-b", "1K", "-e", "1M", "-f", "8", "-n", "3"];
    let testbed = Testbed::start(&flags, &command, &marker("perf"));
    let Some(finished) = testbed.finish() else { return };
    finished.assert_right("all_reduce_perf");
    assert!(finished.output.contains("[host2] CPU"), "{}", finished.output);
}

/// A name that no other testbed has.
fn marker(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}
