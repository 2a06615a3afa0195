//! A command as a process of its own: it has a deadline, and is killed with all that it has started when its test
//! fails.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Between two lines, and until the last; much longer than a launcher waits for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// A process with a group of its own.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: Receiver<String>,
    errors: Receiver<String>,
}

/// A process that has ended, as has everything that could write where it wrote.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Running {
    /// Starts it; its output is for the test.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the program can be started");
        let output = lines(child.stdout.take().expect("a pipe"));
        let errors = lines(child.stderr.take().expect("a pipe"));
        Self { child, output, errors }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        self.output.recv_timeout(DEADLINE).expect("it says something")
    }

    /// Sends a signal to it alone.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it was not waited for");
    }

    /// What it has printed since, and how it ended.
    pub(crate) fn finish(mut self) -> Finished {
        let (output, errors) = (rest(&self.output), rest(&self.errors));
        let status = self.child.wait().expect("it is a child of this process");
        Finished { status, output, errors }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            // Its pipes may be open because of what it has left in the group.
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Reads on a thread of its own, so that a full pipe stops nobody.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        // Nobody listens when a test has failed.
        lines.into_iter().try_for_each(|line| sender.send(line))
    });
    receiver
}

fn rest(from: &Receiver<String>) -> String {
    let mut text = String::new();
    loop {
        match from.recv_timeout(DEADLINE) {
            Ok(line) => text = text + &line + "\n",
            Err(RecvTimeoutError::Disconnected) => return text,
            Err(RecvTimeoutError::Timeout) => panic!("something does not end; until now: {text}"),
        }
    }
}
