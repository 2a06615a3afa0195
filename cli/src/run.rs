//! `r2ccl run`: a program as the ranks of a job on this machine.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use ccl_launcher::{Failure, Member, Processes, pretended};

use crate::arguments::{Rank, Run};
use crate::environment::{JOB_KEY, has_job_key};
use crate::meeting::{self, Meeting};

/// Exit status when the ranks could not be started.
const STATUS_SYSTEM: u8 = 125;
/// As shells have it: there is such a file, but it is no program.
const STATUS_NO_PROGRAM: u8 = 126;
/// As shells have it: there is no such file.
const STATUS_NOT_FOUND: u8 = 127;

/// Starts the ranks and returns when all have ended well, or one if the others may fail.
///
/// # Errors
/// Ranks could not be started, one failed, or all if they may, or a signal came; all have ended then.
pub(crate) fn run(wish: &Run) -> Result<(), Failure> {
    let meeting = Meeting::reserve()?;
    let key = if has_job_key() { None } else { Some(meeting::key()?) };
    let this = std::env::current_exe();
    let this = this.map_err(|cause| Failure::system("finding this program", cause))?;
    let count = wish.ranks.get();
    let mut processes = Processes::new()?;
    for index in 0..count {
        let mut command = Command::new(&this);
        command
            .args(line(wish, Member::of_this_process(index, count)))
            .envs(pretended((index, count), wish.hosts, wish.rails))
            .envs(launched(index, count, meeting.port))
            .envs(key.iter().map(|key| (JOB_KEY, key)));
        if index > 0 {
            command.stdin(Stdio::null());
        }
        processes.start(index, &mut command)?;
    }
    if wish.no_kill { processes.wait_for_all(tell) } else { processes.wait() }
}

/// Tells of a rank that has failed, and whether others go on.
fn tell(failure: &Failure, others: usize) {
    let rest = if others > 0 { "; the others go on" } else { "" };
    // As one, since ranks write there, too. There is nobody left to tell when stderr is gone.
    let _ = io::stderr().write_all(format!("r2ccl: {failure}{rest}\n").as_bytes());
}

/// What this program is told that is to become a rank.
fn line(wish: &Run, member: Member) -> Vec<OsString> {
    let binding = clap::ValueEnum::to_possible_value(&wish.binding);
    let binding = binding.map_or_else(String::new, |value| value.get_name().to_owned());
    let own = ["rank".to_owned(), member.to_string(), binding, "--".to_owned()];
    own.into_iter().map(OsString::from).chain(wish.program.iter().cloned()).collect()
}

/// The variables of torchrun, which this library, PyTorch and others read.
fn launched(index: usize, count: usize, port: u16) -> [(&'static str, String); 7] {
    [
        ("RANK", index.to_string()),
        ("WORLD_SIZE", count.to_string()),
        ("LOCAL_RANK", index.to_string()),
        ("LOCAL_WORLD_SIZE", count.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
        // A torchrun around this command has a store for its own workers; rank 0 of PyTorch makes one here.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
    ]
}

/// Takes the place of a rank and becomes the program; returns why that failed, and the exit status.
pub(crate) fn become_program(wish: &Rank) -> (Failure, u8) {
    if let Err(failure) = wish.member.take_place(wish.binding) {
        return (failure, STATUS_SYSTEM);
    }
    let Some((program, arguments)) = wish.program.split_first() else {
        return (Failure::system("starting a program", io::ErrorKind::NotFound), STATUS_NOT_FOUND);
    };
    let cause = Command::new(program).args(arguments).exec();
    let is_there = cause.kind() != io::ErrorKind::NotFound;
    let status = if is_there { STATUS_NO_PROGRAM } else { STATUS_NOT_FOUND };
    let call = format!("rank {}: starting {}", wish.member.index, program.display());
    (Failure::system(call, cause), status)
}

/// What a run that failed like this exits with.
pub(crate) fn exit_status(failure: &Failure) -> u8 {
    failure.status().unwrap_or(STATUS_SYSTEM)
}
