//! What the kernel tells the launcher: that processes have ended, or that somebody wants it to end.
//!
//! Handlers are for this process only: what it starts has those that it would have without a launcher.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self, Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

/// Signals by which a program is asked to end.
const REQUESTS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// How often this process looks for children that have ended although it heard of none: whoever has started it may have
/// blocked SIGCHLD.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// That processes end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The signal that says so.
    pub(crate) signal: Signal,
    /// Whether the kernel has sent it to all of this process group.
    is_for_group: bool,
}

impl Request {
    pub(crate) const TERM: Self = Self { signal: Signal::TERM, is_for_group: false };
    pub(crate) const KILL: Self = Self { signal: Signal::KILL, is_for_group: false };

    /// What a signal asks for; nothing if it tells of a child.
    fn of(signal: &libc::siginfo_t) -> Option<Self> {
        let number = Signal::from_named_raw(signal.si_signo)?;
        let is_for_group =
            signal.si_code == libc::SI_KERNEL && (number != Signal::HUP || !leads_session());
        (number != Signal::CHILD).then_some(Self { signal: number, is_for_group })
    }

    /// The same, for processes that may not have been there when the group got it.
    pub(crate) fn to_each(self) -> Self {
        Self { is_for_group: false, ..self }
    }

    /// Sends it to a process, unless that has got it.
    pub(crate) fn pass_on(self, pid: Pid) {
        if self.is_for_group && process::getpgid(Some(pid)) == Ok(process::getpgrp()) {
            return;
        }
        // The process may be one of another user.
        let _ = process::kill_process(pid, self.signal);
    }
}

/// The signals that this process gets.
#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, WithRawSiginfo>,
}

impl Signals {
    /// Hears signals from now on. Requests that it was told to ignore, as by `nohup`, are ignored.
    ///
    /// # Errors
    /// The kernel refuses a handler or its socket.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let heard = REQUESTS.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        // With a handler, ends of children can be waited for also where whoever started this process ignored them.
        let heard = heard.chain([SIGCHLD]);
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, WithRawSiginfo, heard)?;
        Ok(Self { delivery })
    }

    /// Waits until it is time to look for children that have ended, but no longer than `limit`, or for a request.
    pub(crate) fn request_within(&mut self, limit: Duration) -> Option<Request> {
        let limit = Timespec::try_from(limit.min(LOOK_PERIOD)).ok();
        let mut signals = [PollFd::new(self.delivery.get_read(), PollFlags::IN)];
        // A handler interrupts it.
        let _ = poll(&mut signals, limit.as_ref());
        self.request()
    }

    /// What has been asked since the last look; signals that have come at once are one.
    pub(crate) fn request(&mut self) -> Option<Request> {
        let requests = self.delivery.pending().filter_map(|signal| Request::of(&signal));
        requests.reduce(|first, _| first)
    }
}

/// Whether this process is the first of its session: of a terminal that is gone it alone hears, and when it ends, all
/// that the terminal was for.
fn leads_session() -> bool {
    let stat = Process::myself().and_then(|process| process.stat());
    stat.map_or(true, |stat| stat.session == stat.pid)
}

/// Signals that this process ignores: signal n is bit n - 1. None where there is no `/proc`.
fn ignored() -> u64 {
    let status = Process::myself().and_then(|process| process.status());
    status.map_or(0, |status| status.sigign)
}
