//! Starts the ranks of `--ranks` as processes of this machine.
//!
//! Every process gets one end of a socket as its standard input. Over it, rank 0 tells the launcher
//! where the ranks meet, and the launcher tells the others.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use ccl_launcher::{Binding, Member, Processes, pretended};

use crate::Outcome;
use crate::arguments::Arguments;
use crate::error::Failure;

/// Bytes of what the ranks need to meet.
pub const MEETING_BYTES: usize = 128;

/// Runs this program `ranks` times and returns when all have ended.
///
/// # Errors
/// A process could not be started, or one failed; the others are ended then.
pub fn run(arguments: &Arguments, ranks: NonZeroUsize) -> Outcome<()> {
    let mut group = Processes::new()?;
    let mut sockets = Vec::new();
    for index in 0..ranks.get() {
        let (ours, theirs) =
            UnixStream::pair().map_err(|cause| Failure::system("creating a socket", cause))?;
        group.start(index, &mut command(arguments, index, ranks.get(), theirs.into())?)?;
        sockets.push(ours);
    }
    // The sockets are open until all have ended: one that closes is an error of its own.
    let _introduced = thread::spawn(move || {
        // A process that fails before it gets this far closes its socket; waiting tells why.
        let _ = introduce(&mut sockets);
        sockets
    });
    Ok(group.wait()?)
}

fn command(arguments: &Arguments, index: usize, count: usize, socket: OwnedFd) -> Outcome<Command> {
    let program =
        std::env::current_exe().map_err(|cause| Failure::system("finding this program", cause))?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .arg(format!("{MEMBER}{}", Member::of_this_process(index, count)))
        .envs(pretended((index, count), arguments.hosts, arguments.rails))
        .stdin(Stdio::from(socket));
    if index > 0 {
        command.stdout(Stdio::null());
    }
    Ok(command)
}

/// With it begins the argument that tells a process which of `--ranks` it is.
pub const MEMBER: &str = "--member=";

/// Passes what rank 0 says on to the others.
fn introduce(sockets: &mut [UnixStream]) -> std::io::Result<()> {
    let mut meeting = [0; MEETING_BYTES];
    let Some((first, others)) = sockets.split_first_mut() else { return Ok(()) };
    first.read_exact(&mut meeting)?;
    others.iter_mut().try_for_each(|socket| socket.write_all(&meeting))
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
        member.take_place(binding)?;
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|cause| Failure::system("taking over standard input", cause))?;
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
