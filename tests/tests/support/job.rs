//! The side of the parent: starts ranks, listens to them, disturbs them and cleans up.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::child::{self, Ending, Line, MARK};
use super::footprint::{self, Footprint, Inode};

/// Nothing that a job waits for takes longer, or it hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Between two looks at something that is about to happen outside this process.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// The variable that all processes of one job have in common, and no other process has.
const MARKER: &str = "CCL_TESTS_JOB";

/// Jobs look at the whole process and share its processors, so there is one at a time.
static TURN: Mutex<()> = Mutex::new(());
static JOBS: AtomicU32 = AtomicU32::new(0);

/// A group of processes of one test. What is left of it is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    role: String,
    size: u32,
    id: Option<String>,
    /// Why this host does not allow it.
    refusal: Option<String>,
    marker: String,
    settings: Vec<(Option<u32>, String, String)>,
    /// A line of shell that runs before a rank.
    preludes: Vec<(u32, String)>,
    processes: Vec<Process>,
    /// Sockets on which ranks were seen to listen.
    listening: BTreeSet<Inode>,
    folder: TempDir,
    before: Footprint,
    _turn: MutexGuard<'static, ()>,
}

/// A rank's process.
#[derive(Debug)]
struct Process {
    rank: u32,
    child: std::process::Child,
    lines: Receiver<Line>,
    reader: JoinHandle<()>,
    was_killed: bool,
}

impl Job {
    /// A group of `size` ranks that will play `role`. Nobody is there yet.
    pub(crate) fn of(size: u32, role: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        Self {
            role: role.to_owned(),
            size,
            id: None,
            refusal: None,
            marker: format!("{}-{number}", std::process::id()),
            settings: Vec::new(),
            preludes: Vec::new(),
            processes: Vec::new(),
            listening: BTreeSet::new(),
            folder: tempfile::tempdir().expect("a folder for temporary files"),
            before: Footprint::now(),
            _turn: turn,
        }
        .with("R2CCL_TIMEOUT", "10")
        .with("R2CCL_BOOTSTRAP_TIMEOUT", "20")
    }

    /// How many ranks it has.
    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// Sets a variable of all ranks.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((None, name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable of one rank.
    pub(crate) fn with_at(mut self, rank: u32, name: &str, value: &str) -> Self {
        self.settings.push((Some(rank), name.to_owned(), value.to_owned()));
        self
    }

    /// Runs a line of shell in the process of `rank` before it becomes that rank.
    pub(crate) fn after_shell(mut self, rank: u32, line: &str) -> Self {
        self.preludes.push((rank, line.to_owned()));
        self
    }

    /// Puts every rank on the pretended host that `host_of` says, each with `rails` rails.
    pub(crate) fn on_hosts(self, rails: u8, host_of: impl Fn(u32) -> u32) -> Self {
        (0..self.size).fold(self, |job, rank| {
            let host = host_of(rank);
            let rails: Vec<String> = (1..=rails).map(|rail| rail_address(host, rail)).collect();
            job.with_at(rank, "R2CCL_HOST_ID", &format!("pretended-{host}")).with_at(
                rank,
                "R2CCL_RAILS",
                &rails.join(","),
            )
        })
    }

    /// Starts every rank; the first one makes the id, or says why this host does not allow it.
    pub(crate) fn start(mut self) -> Self {
        for rank in 0..self.size {
            if self.refusal.is_none() {
                self.launch(rank);
            }
        }
        self
    }

    /// Starts one more process, which claims `rank`, and returns its number. The first one of a job
    /// makes the id.
    pub(crate) fn launch(&mut self, rank: u32) -> usize {
        let number = self.spawn(rank);
        if number == 0 {
            match self.next_line(number) {
                Line::Id(id) => self.id = Some(id),
                Line::Skipped(reason) => self.refusal = Some(reason),
                other @ (Line::Underway { .. } | Line::Ended(_)) => {
                    panic!("rank {rank} has no id but {other:?}")
                }
            }
        }
        number
    }

    /// Has the processes that are started from now on join where process `number` says.
    pub(crate) fn await_id(&mut self, number: usize) {
        match self.next_line(number) {
            Line::Id(id) => self.id = Some(id),
            other @ (Line::Underway { .. } | Line::Ended(_) | Line::Skipped(_)) => {
                panic!("process {number} has no id but {other:?}")
            }
        }
    }

    /// As [`Self::launch`], for a process that is not expected to make an id.
    pub(crate) fn spawn(&mut self, rank: u32) -> usize {
        let mut child = self.command(rank).spawn().expect("the test can start itself");
        let (lines, reader) = listen(child.stdout.take().expect("a pipe"));
        let process = Process { rank, child, lines, reader, was_killed: false };
        self.processes.push(process);
        self.processes.len() - 1
    }

    fn command(&self, rank: u32) -> Command {
        let executable = env::current_exe().expect("the path of the test");
        let prelude = self.preludes.iter().find(|(only, _)| *only == rank);
        let mut command = match prelude {
            None => Command::new(executable),
            Some((_, line)) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("{line}; exec \"$@\""), "sh"]).arg(executable);
                shell
            }
        };
        command.args(["--exact", child::ENTRY, "--nocapture", "--test-threads=1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env(MARKER, &self.marker).env(child::ROLE, &self.role);
        command.env(child::RANK, rank.to_string()).env(child::SIZE, self.size.to_string());
        command.envs(self.id.as_ref().map(|id| (child::ID, id)));
        command.env("TMPDIR", self.folder.path()).env("XDG_RUNTIME_DIR", self.folder.path());
        for (_, name, value) in
            self.settings.iter().filter(|(only, ..)| only.is_none_or(|only| only == rank))
        {
            command.env(name, value);
        }
        command
    }

    /// Waits until each of these processes says that it is in the middle of its work with just these, or reports why
    /// this host does not allow it.
    pub(crate) fn underway(&mut self, numbers: &[usize]) -> Result<(), String> {
        if let Some(reason) = self.refusal.take() {
            return Err(reason);
        }
        let mut refusal = Ok(());
        let with_these = |of: u32| of as usize == numbers.len();
        for number in numbers {
            refusal = refusal.and(loop {
                match self.next_line(*number) {
                    Line::Underway { of } if with_these(of) => break Ok(()),
                    Line::Underway { of } => {
                        super::note(&format!("process {number} is under way with {of}"))
                    }
                    Line::Skipped(reason) => break Err(reason),
                    other @ (Line::Id(_) | Line::Ended(_)) => {
                        panic!("process {number} is not under way: {other:?}")
                    }
                }
            });
        }
        self.observe();
        refusal
    }

    /// Looks at what the ranks have while they work.
    fn observe(&mut self) {
        for process in &self.processes {
            let pid = process.child.id();
            self.listening.extend(footprint::listeners_of(pid).into_keys());
            let mapped = footprint::mapped_from(pid, "/dev/shm");
            assert!(mapped.is_empty(), "rank {} uses named files: {mapped:?}", process.rank);
        }
    }

    /// Ports on the rails of pretended hosts that are open now.
    pub(crate) fn rail_ports() -> Vec<SocketAddr> {
        let network = loopback_network();
        let is_ours = |ip| matches!(ip, IpAddr::V4(v4) if v4.octets()[..2] == [127, network]);
        let open = footprint::listeners().into_values();
        open.filter(|address| is_ours(address.ip())).collect()
    }

    /// Where the processes of this job listen now.
    pub(crate) fn listeners(&self) -> Vec<SocketAddr> {
        let of = |process: &Process| footprint::listeners_of(process.child.id()).into_values();
        self.processes.iter().flat_map(of).collect()
    }

    /// How each of these processes ended what it did.
    pub(crate) fn endings(&mut self, numbers: &[usize]) -> Vec<Ending> {
        let ending = |number: &usize| match self.next_line(*number) {
            Line::Ended(ending) => ending,
            other @ (Line::Id(_) | Line::Underway { .. } | Line::Skipped(_)) => {
                panic!("process {number} has not ended: {other:?}")
            }
        };
        numbers.iter().map(ending).collect()
    }

    /// The next line of a process, within the deadline.
    fn next_line(&mut self, number: usize) -> Line {
        let process = &mut self.processes[number];
        match process.lines.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("process {number} says nothing: it hangs"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = process.child.wait().expect("an own child");
                panic!("process {number} ended without a word: {status}")
            }
        }
    }

    /// Says a word to a process.
    pub(crate) fn tell(&mut self, number: usize) {
        let stdin = self.processes[number].child.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"\n").expect("the process lives");
    }

    /// Ends a process as `kill -9` does.
    pub(crate) fn kill(&mut self, number: usize) {
        self.processes[number].was_killed = true;
        self.signal(number, Signal::KILL);
    }

    /// Stops a process; only the kernel can do it something afterwards.
    pub(crate) fn freeze(&self, number: usize) {
        self.signal(number, Signal::STOP);
    }

    fn signal(&self, number: usize, signal: Signal) {
        let pid = i32::try_from(self.processes[number].child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process number"), signal).expect("the process exists");
    }

    /// Waits for the end of a process that reports nothing.
    pub(crate) fn exit_of(&mut self, number: usize) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        let process = &mut self.processes[number];
        loop {
            if let Some(status) = process.child.try_wait().expect("an own child") {
                return status;
            }
            assert!(Instant::now() < end, "rank {} does not end", process.rank);
            thread::sleep(LOOK_PAUSE);
        }
    }

    /// Waits for all processes, of which only killed ones may fail, and looks for what they left behind.
    pub(crate) fn finish(mut self) {
        for number in 0..self.processes.len() {
            let status = self.exit_of(number);
            let process = &mut self.processes[number];
            assert_eq!(status.success(), !process.was_killed, "rank {}: {status}", process.rank);
        }
        self.check_leftovers();
    }

    /// As [`Self::finish`], for processes that have ended.
    pub(crate) fn check_leftovers(&mut self) {
        for process in self.processes.drain(..) {
            assert!(process.close(), "a line was not understood");
        }
        let marker = format!("{MARKER}={}", self.marker);
        assert_eq!(footprint::processes_with(&marker), [0u32; 0], "processes live on");
        let files = footprint::names_in(self.folder.path());
        assert!(files.is_empty(), "files are left behind: {files:?}");
        let open = footprint::listeners();
        let kept: Vec<_> = self.listening.iter().filter_map(|inode| open.get(inode)).collect();
        assert!(kept.is_empty(), "sockets of dead ranks still listen: {kept:?}");
        let now = Footprint::now();
        assert!(now.is_within(&self.before), "left behind: {now:?} after {:?}", self.before);
    }
}

impl Process {
    /// Lets go of a process that has ended; tells whether all its lines were understood.
    fn close(self) -> bool {
        drop(self.child);
        self.reader.join().is_ok()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for mut process in self.processes.drain(..) {
            // It may have ended by itself.
            let _ = process.child.kill();
            let _ = process.child.wait();
            process.close();
        }
    }
}

fn rail_address(host: u32, rail: u8) -> String {
    format!("127.{}.{host}.{rail}", loopback_network())
}

/// Second byte of the addresses of pretended rails: other tests on this host have another one.
fn loopback_network() -> u8 {
    u8::try_from(2 + std::process::id() % 250).expect("at most 251")
}

/// Passes on the lines of a process that are meant for us, until it ends.
fn listen(stdout: ChildStdout) -> (Receiver<Line>, JoinHandle<()>) {
    let (sender, receiver) = channel();
    let reader = thread::spawn(move || {
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Some((_, line)) = text.split_once(MARK) else { continue };
            let line = serde_json::from_str(line).expect("a line of ours");
            // The test may have failed already.
            let _ = sender.send(line);
        }
    });
    (receiver, reader)
}
