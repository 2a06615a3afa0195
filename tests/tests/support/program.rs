//! A program as a process of its own: it has a deadline, and is killed with all that it has started when its test is over.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::bed::wait_for_end;

/// What a program has left may hold its pipes open, but not longer than this after its end.
const FAREWELL: Duration = Duration::from_secs(60);

/// A process with its own group, which is killed with the value.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Running {
    /// Starts a program that reads nothing, and whose output is for the test.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::try_start(command).expect("the program can be started")
    }

    /// The same, of a program that may not be there.
    pub(crate) fn try_start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).spawn().map(|child| Self { child })
    }

    /// What it printed, and how it ended.
    pub(crate) fn finish(mut self) -> Finished {
        let output = drain(self.child.stdout.take().expect("a pipe"));
        let errors = drain(self.child.stderr.take().expect("a pipe"));
        wait_for_end(self.child.id());
        let status = self.child.wait().expect("it is a child of this process");
        let text =
            |from: Receiver<String>| from.recv_timeout(FAREWELL).expect("its pipes are closed");
        Finished { status, output: text(output), errors: text(errors) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group is there as long as one of its processes is, or the first was not waited for.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Finished {
    /// The rows of the table of a benchmark as words.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        let rows = self.output.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        rows.map(|row| row.split_whitespace().collect()).collect()
    }

    /// Requires that a benchmark ended well and that every row of its table is right.
    pub(crate) fn assert_right(&self, what: &str) {
        let Self { status, output, errors } = self;
        assert!(status.success(), "{what}: {status}\n{output}\n{errors}");
        assert!(output.contains("# Out of bounds values : 0 OK\n"), "{what}: {output}\n{errors}");
        assert!(!output.contains('\x1b') && !errors.contains('\x1b'), "{what}: colours");
        let rows = self.rows();
        assert!(!rows.is_empty(), "{what}: {output}");
        for row in rows {
            // Size, count, type, perhaps an operation, root; then time, two bandwidths, #wrong, twice.
            let [.., out_of_place, _, _, _, in_place] = row.as_slice() else {
                panic!("{what}: {row:?}");
            };
            assert!(*out_of_place == "0" && ["0", "N/A"].contains(in_place), "{what}: {row:?}");
        }
    }
}

/// Reads to the end on a thread of its own, so that a full pipe stops nobody.
pub(crate) fn drain(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read before an error is still worth a look, if anybody looks.
        let _ = from.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
