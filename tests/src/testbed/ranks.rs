//! The processes of a run: what they are told, what they say, and how they end.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use ccl_launcher::STATUS_OF_SIGNAL;

use super::bed::Bed;
use super::failure::{Failure, Outcome};
use super::run::Notice;
use super::shape::{host_name, management_address};

/// Where rank 0 listens, on its host of its own.
const PORT: u16 = 29_500;

/// Prefix of the network cards that carry data.
const RAILS: &str = "rail";

/// A longer line is passed on in pieces.
const LINE_BYTES: u64 = 64 << 10;

/// What is started.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Processes on every host.
    pub ranks_per_host: usize,
    /// The words of rank 0 from which faults count.
    pub from: Option<&'a str>,
}

impl Job<'_> {
    /// Starts every rank. Each end and each end of output is reported to `notices`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self, bed: &Bed, notices: &Sender<Notice>) -> Outcome<()> {
        for rank in 0..bed.shape().hosts * self.ranks_per_host {
            let host = rank / self.ranks_per_host;
            let mut command = self.command_of(bed.shape().hosts, rank)?;
            let started = bed.on_host(host, || command.spawn())?;
            let child = started.map_err(|cause| {
                let program = self.command.first().map(|word| word.to_string_lossy());
                Failure::Input(format!("{}: {cause}", program.unwrap_or_default()))
            })?;
            self.watch(rank, child, notices);
        }
        Ok(())
    }

    fn command_of(&self, hosts: usize, rank: usize) -> Outcome<Command> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| Failure::Input("no command".to_owned()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(environment(hosts, self.ranks_per_host, rank))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Passes on what a process says and how it ends, on threads that end with it.
    fn watch(&self, rank: usize, mut child: Child, notices: &Sender<Notice>) {
        let label = format!("[{} rank {rank}] ", host_name(rank / self.ranks_per_host));
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        // The table of rank 0 is what the reader wants to see as it is.
        let plain = if rank == 0 { String::new() } else { label.clone() };
        let from = self.from.filter(|_| rank == 0).map(|text| text.as_bytes().to_vec());
        let (to_output, to_errors, to_end) = (notices.clone(), notices.clone(), notices.clone());
        thread::spawn(move || {
            pass_on(output, &plain, io::stdout, from.as_deref(), &to_output);
        });
        thread::spawn(move || pass_on(errors, &label, io::stderr, None, &to_errors));
        thread::spawn(move || {
            let status = child.wait().map_or(u8::MAX, status_of);
            // Nobody listens when the run is over.
            let _ = to_end.send(Notice::Ended { rank, status });
        });
    }
}

/// The variables of torchrun, and the settings that make a host of every namespace.
fn environment(hosts: usize, ranks_per_host: usize, rank: usize) -> Vec<(&'static str, String)> {
    let host = rank / ranks_per_host;
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", (hosts * ranks_per_host).to_string()),
        ("LOCAL_RANK", (rank % ranks_per_host).to_string()),
        ("LOCAL_WORLD_SIZE", ranks_per_host.to_string()),
        ("GROUP_RANK", host.to_string()),
        ("GROUP_WORLD_SIZE", hosts.to_string()),
        ("MASTER_ADDR", management_address(0).to_string()),
        ("MASTER_PORT", PORT.to_string()),
        ("TORCHELASTIC_RUN_ID", "testbed".to_owned()),
        ("R2CCL_HOST_ID", host_name(host)),
        ("R2CCL_NIC", RAILS.to_owned()),
    ]
}

/// Passes on whole lines until there are no more. The first that contains `from` begins the faults.
fn pass_on<W: Write>(
    source: Option<impl Read>,
    label: &str,
    open: impl Fn() -> W,
    from: Option<&[u8]>,
    notices: &Sender<Notice>,
) {
    let mut from = from;
    let mut reader = source.map(BufReader::new);
    let mut line = label.as_bytes().to_vec();
    while let Some(reader) = &mut reader {
        line.truncate(label.len());
        match reader.take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if !label.is_empty() && !line.ends_with(b"\n") => line.push(b'\n'),
            Ok(_) => {}
        }
        // What the process says is read even if nobody wants to hear it.
        let mut target = open();
        let _ = target.write_all(&line).and_then(|()| target.flush());
        if from.take_if(|text| contains(&line, text)).is_some() {
            let _ = notices.send(Notice::Begun);
        }
    }
    let _ = notices.send(Notice::Silent);
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    text.is_empty() || line.windows(text.len()).any(|part| part == text)
}

/// The exit status that a shell has for a process.
pub(super) fn status_of(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| STATUS_OF_SIGNAL + signal);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn ranks_of_a_host_are_neighbours() {
        let value = |rank, name| {
            let variables = environment(3, 2, rank);
            variables.into_iter().find(|variable| variable.0 == name).unwrap().1
        };
        assert_eq!((value(3, "RANK"), value(3, "LOCAL_RANK")), ("3".into(), "1".into()));
        assert_eq!(
            (value(3, "R2CCL_HOST_ID"), value(4, "R2CCL_HOST_ID")),
            ("host1".into(), "host2".into())
        );
        assert_eq!(
            (value(5, "WORLD_SIZE"), value(5, "MASTER_ADDR")),
            ("6".into(), "10.255.0.1".into())
        );
    }

    #[test]
    fn every_line_is_labelled_and_one_begins_the_faults() {
        let (sender, receiver) = mpsc::channel();
        let mut said: Vec<u8> = Vec::new();
        let target = std::cell::RefCell::new(&mut said);
        struct Shared<'a, 'b>(std::cell::RefMut<'a, &'b mut Vec<u8>>);
        impl Write for Shared<'_, '_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let source: &[u8] = b"one\ntwo\n\nthree two";
        pass_on(Some(source), "[x] ", || Shared(target.borrow_mut()), Some(b"two"), &sender);
        assert_eq!(said, b"[x] one\n[x] two\n[x] \n[x] three two\n");
        drop(sender);
        let notices: Vec<Notice> = receiver.iter().collect();
        assert!(matches!(notices[..], [Notice::Begun, Notice::Silent]), "{notices:?}");
    }

    #[test]
    fn signals_are_statuses_as_in_shells() {
        assert_eq!(status_of(ExitStatus::from_raw(0)), 0);
        assert_eq!(status_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_of(ExitStatus::from_raw(9)), 137);
    }
}
