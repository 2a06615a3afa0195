//! Starts the ranks of `--ranks` as processes of this machine and watches over them.
//!
//! Every process gets one end of a socket as its standard input. Over it, rank 0 tells the launcher
//! where the ranks meet, and the launcher tells the others. A process that ends with an error ends
//! all; one whose launcher is gone is killed by the kernel.
//!
//! Where there are more processes than processors, each is bound to one of them, as `mpirun` does: the
//! kernel spreads processes that started a moment ago unevenly, and one crowded processor sets the pace
//! of all ranks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use rustix::process::{self, Pid, Signal, WaitOptions, WaitStatus};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Outcome;
use crate::arguments::Arguments;
use crate::error::Failure;
use crate::testbed::failure::STATUS_OF_SIGNAL;

/// Bytes of what the ranks need to meet.
pub const MEETING_BYTES: usize = 128;

/// Which process of `--ranks` this is: `index:count:launcher`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    launcher: i32,
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
        let (index, count, launcher) = (next(), next(), next());
        match (index, count, launcher.and_then(|pid| i32::try_from(pid).ok()), parts.next()) {
            (Some(index), Some(count), Some(launcher), None) if index < count => {
                Ok(Self { index: index as usize, count: count as usize, launcher })
            }
            _ => Err("expected index:count:launcher".to_owned()),
        }
    }
}

/// Runs this program `ranks` times and returns when all have ended.
///
/// # Errors
/// A process could not be started, or one failed; the others are ended then.
pub fn run(arguments: &Arguments, ranks: NonZeroUsize) -> Outcome<()> {
    let mut group = Processes { running: Vec::new() };
    let mut sockets = Vec::new();
    for index in 0..ranks.get() {
        let (ours, theirs) =
            UnixStream::pair().map_err(|cause| Failure::system("creating a socket", cause))?;
        group.running.push((index, start(arguments, index, ranks.get(), theirs.into())?));
        sockets.push(ours);
    }
    // A process that fails before it gets this far closes its socket; waiting tells why.
    let _ = introduce(&mut sockets);
    group.wait()
}

fn start(arguments: &Arguments, index: usize, count: usize, socket: OwnedFd) -> Outcome<Child> {
    let program =
        std::env::current_exe().map_err(|cause| Failure::system("finding this program", cause))?;
    let launcher = process::getpid().as_raw_nonzero();
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .arg(format!("--member={index}:{count}:{launcher}"))
        .envs(pretended(arguments, index, count))
        .stdin(Stdio::from(socket));
    if index > 0 {
        command.stdout(Stdio::null());
    }
    command.spawn().map_err(|cause| Failure::system(format!("starting rank {index}"), cause))
}

/// The settings that make a process believe in its host and its network interfaces.
fn pretended(arguments: &Arguments, index: usize, count: usize) -> Vec<(&'static str, OsString)> {
    if arguments.hosts.is_none() && arguments.rails.is_none() {
        return Vec::new();
    }
    let hosts = arguments.hosts.map_or(1, NonZeroUsize::get);
    let host = index * hosts / count;
    let mut settings = vec![("R2CCL_HOST_ID", format!("host{host}").into())];
    if let Some(rails) = arguments.rails {
        let address = |rail: usize| format!("127.1.{}.{}", host + 1, rail + 1);
        let addresses: Vec<String> = (0..rails.get()).map(address).collect();
        settings.push(("R2CCL_RAILS", addresses.join(",").into()));
    }
    settings
}

/// Passes what rank 0 says on to the others.
fn introduce(sockets: &mut [UnixStream]) -> std::io::Result<()> {
    let mut meeting = [0; MEETING_BYTES];
    let Some((first, others)) = sockets.split_first_mut() else { return Ok(()) };
    first.read_exact(&mut meeting)?;
    others.iter_mut().try_for_each(|socket| socket.write_all(&meeting))
}

/// The processes that have not ended. Those left when it is dropped are killed.
#[derive(Debug)]
struct Processes {
    running: Vec<(usize, Child)>,
}

impl Processes {
    fn wait(&mut self) -> Outcome<()> {
        while !self.running.is_empty() {
            let ended = process::wait(WaitOptions::empty())
                .map_err(|cause| Failure::system("waiting for the ranks", cause))?;
            if let Some((pid, status)) = ended {
                self.ended(pid, status)?;
            }
        }
        Ok(())
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Outcome<()> {
        let pid = pid.as_raw_nonzero().get();
        let of_ours = |(_, child): &(usize, Child)| i32::try_from(child.id()) == Ok(pid);
        let Some(place) = self.running.iter().position(of_ours) else { return Ok(()) };
        let (index, _) = self.running.swap_remove(place);
        let (code, how) = match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => return Ok(()),
            (Some(code), _) => (code, format!("ended with status {code}")),
            (None, Some(signal)) => {
                (STATUS_OF_SIGNAL + signal, format!("was ended by signal {signal}"))
            }
            (None, None) => return Ok(()),
        };
        let rank = u32::try_from(index).unwrap_or(u32::MAX);
        Err(Failure::Member { rank, pid, how, status: u8::try_from(code).unwrap_or(u8::MAX) })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Only processes that nobody has waited for are here, so their numbers are still theirs.
        for (_, child) in &mut self.running {
            let _ = child.kill();
        }
        for (_, child) in &mut self.running {
            let _ = child.wait();
        }
    }
}

/// Where the processes of `--ranks` run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Binding {
    /// Each bound to one processor unless there are more processors than processes.
    #[default]
    Core,
    /// Where the kernel puts them.
    None,
}

/// Binds this process to one processor unless there are more of those than members.
fn bind(member: Member) -> rustix::io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let Some(processor) = processor_of(member, &processors) else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one)
}

/// The processor of a member, which shares it with as few others as possible; none where all have room.
fn processor_of(member: Member, processors: &[usize]) -> Option<usize> {
    let is_full = member.count >= processors.len();
    processors.get(member.index % processors.len().max(1)).copied().filter(|_| is_full)
}

/// The link of a started process to its launcher.
#[derive(Debug)]
pub struct Link {
    member: Member,
    socket: File,
}

impl Link {
    /// Makes this process end with its launcher, and finds the socket.
    ///
    /// # Errors
    /// The launcher is gone, or standard input is not its socket.
    pub fn attach(member: Member, binding: Binding) -> Outcome<Self> {
        process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|cause| Failure::system("tying this process to its launcher", cause))?;
        // The launcher may have ended before that call.
        let parent = process::getppid().map(|pid| pid.as_raw_nonzero().get());
        if parent != Some(member.launcher) {
            return Err(Failure::Input("the launcher of this process is gone".to_owned()));
        }
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|cause| Failure::system("taking over standard input", cause))?;
        if binding == Binding::Core {
            bind(member).map_err(|cause| Failure::system("binding to a processor", cause))?;
        }
        Ok(Self { member, socket: File::from(socket) })
    }

    /// Which process this is.
    #[must_use]
    pub fn member(&self) -> Member {
        self.member
    }

    /// Process 0 says where the ranks meet; the others get to know it.
    ///
    /// # Errors
    /// `create` failed, or the launcher or process 0 are gone.
    pub fn meet(
        &mut self,
        create: impl FnOnce() -> Outcome<[u8; MEETING_BYTES]>,
    ) -> Outcome<[u8; MEETING_BYTES]> {
        let gone = |cause| Failure::system("meeting the other ranks", cause);
        if self.member.index == 0 {
            let meeting = create()?;
            self.socket.write_all(&meeting).map_err(gone)?;
            return Ok(meeting);
        }
        let mut meeting = [0; MEETING_BYTES];
        self.socket.read_exact(&mut meeting).map_err(gone)?;
        Ok(meeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn members_are_read_from_the_command_line() {
        assert_eq!("2:4:77".parse(), Ok(Member { index: 2, count: 4, launcher: 77 }));
        for text in ["", "1:2", "4:4:1", "a:4:1", "1:2:3:4", "-1:2:3"] {
            assert!(text.parse::<Member>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_crowd_shares_the_processors_evenly() {
        let places = |count, processors: &[usize]| -> Vec<_> {
            (0..count)
                .map(|index| processor_of(Member { index, count, launcher: 1 }, processors))
                .collect()
        };
        assert_eq!(places(5, &[3, 8]), [Some(3), Some(8), Some(3), Some(8), Some(3)]);
        assert_eq!(places(2, &[0, 1]), [Some(0), Some(1)]);
        assert_eq!(places(2, &[0, 1, 2]), [None, None]);
    }

    #[test]
    fn neighbours_share_a_host() {
        let line = ["perf", "--ranks", "5", "--hosts", "2", "--rails", "2"];
        let arguments = Arguments::try_parse_from(line).unwrap();
        let hosts: Vec<_> = (0..5)
            .map(|index| pretended(&arguments, index, 5)[0].1.to_string_lossy().into_owned())
            .collect();
        assert_eq!(hosts, ["host0", "host0", "host0", "host1", "host1"]);
        assert_eq!(pretended(&arguments, 4, 5)[1].1, "127.1.2.1,127.1.2.2");
        let plain = Arguments::try_parse_from(["perf", "--ranks", "5"]).unwrap();
        assert!(pretended(&plain, 0, 5).is_empty());
    }
}
