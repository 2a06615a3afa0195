//! The testbed command as other programs see it.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use ccl_tests::testbed::failure::STATUS_UNAVAILABLE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub(crate) use super::program::Finished;
use super::program::drain;

const TESTBED: &str = env!("CARGO_BIN_EXE_testbed");

/// The variable that all processes of one testbed have in common.
pub(crate) const MARKER: &str = "CCL_TESTS_BED";

/// Every testbed ends itself long before, and no other program takes nearly as long on an idle machine.
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
