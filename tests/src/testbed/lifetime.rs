//! Nothing outlives the testbed, however it ends.
//!
//! The process that makes the bed is the first of a process namespace: when it ends, the kernel kills
//! every process in it, and the networks go with the last of them. The process that the user started
//! holds one end of a pipe, and the other reads it: when the user's is gone, even by SIGKILL, the pipe
//! is closed.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Signal, getpid, set_parent_process_death_signal};

use super::failure::{Failure, Outcome};
use super::namespace::own_mounts;
use super::ranks::status_of;

/// The flag of the process that makes the bed.
pub const INSIDE: &str = "--inside";

/// Runs this program again with the same arguments as the first process of a new namespace, and
/// returns its exit status.
///
/// # Errors
/// This machine does not allow namespaces.
pub(super) fn run_inside() -> Outcome<u8> {
    let program =
        std::env::current_exe().map_err(|cause| Failure::making("finding this program", cause))?;
    unshare(CloneFlags::CLONE_NEWPID)
        .map_err(|cause| Failure::making("making a process namespace", cause))?;
    let mut child = Command::new(program)
        .arg(INSIDE)
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|cause| Failure::system("starting this program again", cause))?;
    // The pipe is taken out so that waiting does not close it.
    let _alive = child.stdin.take();
    let status = child.wait().map_err(|cause| Failure::system("waiting for the bed", cause))?;
    Ok(status_of(status))
}

/// Ties this process, the first of its namespace, to the one that started it, and gives it a `/proc`
/// that shows the processes of the bed.
///
/// # Errors
/// This is not the first process of a namespace.
pub(super) fn settle() -> Outcome<()> {
    if !getpid().is_init() {
        return Err(Failure::Input("--inside is for the testbed itself".to_owned()));
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|cause| Failure::system("tying this process to its parent", cause))?;
    // The parent may have ended before that.
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(i32::from(u8::MAX));
    });
    own_proc().map_err(|cause| Failure::making("mounting /proc", cause))
}

/// Affects the calling thread, and those that it starts.
fn own_proc() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    own_mounts()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(io::Error::from)
}
