//! The testbed command as other programs see it.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ccl_tests::testbed::failure::STATUS_UNAVAILABLE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const TESTBED: &str = env!("CARGO_BIN_EXE_testbed");

/// The variable that all processes of one testbed have in common.
pub(crate) const MARKER: &str = "CCL_TESTS_BED";

/// Every testbed ends itself long before.
const DEADLINE: Timespec = Timespec { tv_sec: 300, tv_nsec: 0 };

/// Between two looks at something that is about to happen outside this process.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// A testbed that runs. Dropping it kills it, and with it everything on it.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) child: Child,
    output: Receiver<String>,
    errors: Receiver<String>,
}

/// A testbed that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Testbed {
    /// Starts `testbed FLAGS -- COMMAND`; `marker` tells its processes from all others.
    pub(crate) fn start(flags: &[&str], command: &[&str], marker: &str) -> Self {
        Self::of(TESTBED, &[flags, &["--"], command].concat(), marker)
    }

    /// Starts a program that becomes a testbed.
    pub(crate) fn of(program: &str, words: &[&str], marker: &str) -> Self {
        let mut testbed = Command::new(program);
        testbed.args(words).env(MARKER, marker);
        testbed.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = testbed.spawn().expect("the testbed can be started");
        let output = drain(child.stdout.take().expect("a pipe"));
        let errors = drain(child.stderr.take().expect("a pipe"));
        Self { child, output, errors }
    }

    /// Waits for its end; `None` if this machine cannot have a testbed, which is reported.
    pub(crate) fn finish(mut self) -> Option<Finished> {
        wait_for_end(self.child.id());
        let status = self.child.wait().expect("it is a child of this process");
        let text = |from: &Receiver<String>| from.recv().expect("the reading thread lives");
        let (output, errors) = (text(&self.output), text(&self.errors));
        if status.code() == Some(i32::from(STATUS_UNAVAILABLE)) {
            super::skip(&format!("testbed: {}", errors.trim_start_matches("testbed: ").trim_end()));
            return None;
        }
        Some(Finished { status, output, errors })
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Requires that a benchmark ended well and that every row of its table is right.
    pub(crate) fn assert_right(&self, what: &str) {
        let Self { status, output, errors } = self;
        assert!(status.success(), "{what}: {status}\n{output}\n{errors}");
        assert!(output.contains("# Out of bounds values : 0 OK\n"), "{what}: {output}\n{errors}");
        let mut rows = 0;
        for row in output.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            // Size, count, type, operation, root; then time, two bandwidths and #wrong, twice.
            let words: Vec<&str> = row.split_whitespace().collect();
            let [.., out_of_place, _, _, _, in_place] = words[..] else { panic!("{what}: {row}") };
            assert!(out_of_place == "0" && ["0", "N/A"].contains(&in_place), "{what}: {row}");
            rows += 1;
        }
        assert!(rows > 0, "{what}: {output}");
    }
}

/// Waits until a process has ended.
pub(crate) fn wait_for_end(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    // What cannot be opened has ended and was waited for.
    let Ok(open) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let ended = poll(&mut [PollFd::new(&open, PollFlags::IN)], Some(&DEADLINE));
    assert_eq!(ended.expect("a process can be polled"), 1, "process {pid:?} does not end");
}

/// Looks again and again until there is something to see.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Duration::from_secs(DEADLINE.tv_sec.unsigned_abs());
    let end = std::time::Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(std::time::Instant::now() < end, "{what} does not happen");
        thread::sleep(LOOK_PAUSE);
    }
}

/// Reads to the end on a thread of its own, so that a full pipe stops nobody.
fn drain(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read before an error is still worth a look, if anybody looks.
        let _ = from.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
