//! What the kernel tells the launcher: that processes have ended, or that somebody wants it to end.
//!
//! Handlers are for this process only: what it starts has those that it would have without a launcher.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use procfs::process::Process;
use rustix::process::{self, Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

/// Signals by which a program is asked to end.
const REQUESTS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// How often this process looks for children that have ended although it heard of none: whoever has started it may have
/// blocked SIGCHLD.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What a signal means.
#[derive(Debug)]
enum Notice {
    /// One child has ended, or several.
    Ended,
    /// The launcher is to end.
    Asked(Request),
}

/// That processes end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The signal that says so.
    pub(crate) signal: Signal,
    /// Whether a terminal has sent it to all of this process group.
    is_for_group: bool,
}

impl Request {
    pub(crate) const TERM: Self = Self { signal: Signal::TERM, is_for_group: false };
    pub(crate) const KILL: Self = Self { signal: Signal::KILL, is_for_group: false };

    /// Sends it to a process, unless that has got it.
    pub(crate) fn pass_on(self, pid: Pid) {
        if self.is_for_group && process::getpgid(Some(pid)) == Ok(process::getpgrp()) {
            return;
        }
        // The process may be one of another user.
        let _ = process::kill_process(pid, self.signal);
    }
}

/// The signals that this process gets, in their order.
#[derive(Debug)]
pub(crate) struct Signals {
    notices: Receiver<Notice>,
}

impl Signals {
    /// Hears signals from now on, for as long as this process lives. Requests that it was told to ignore, as by
    /// `nohup`, are ignored.
    ///
    /// # Errors
    /// The kernel refuses a handler or a thread.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let heard = REQUESTS.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        // With a handler, ends of children can be waited for also where whoever started this process ignored them.
        let mut signals = SignalsInfo::<WithRawSiginfo>::new(heard.chain([SIGCHLD]))?;
        let (sender, notices) = channel();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                // Nobody listens when the ranks are over.
                let _ = sender.send(match Signal::from_named_raw(signal.si_signo) {
                    None | Some(Signal::CHILD) => Notice::Ended,
                    Some(number) => Notice::Asked(Request {
                        signal: number,
                        // Of a terminal that is gone only the first process of its session hears.
                        is_for_group: signal.si_code == libc::SI_KERNEL && number != Signal::HUP,
                    }),
                });
            }
        })?;
        Ok(Self { notices })
    }

    /// Waits until it is time to look for children that have ended, but no longer than `limit`, or for a request.
    pub(crate) fn request_within(&self, limit: Duration) -> Option<Request> {
        match self.notices.recv_timeout(limit.min(LOOK_PERIOD)) {
            Ok(Notice::Asked(request)) => Some(request),
            Ok(Notice::Ended) | Err(_) => None,
        }
    }
}

/// Signals that this process ignores: signal n is bit n - 1. None where there is no `/proc`.
fn ignored() -> u64 {
    let status = Process::myself().and_then(|process| process.status());
    status.map_or(0, |status| status.sigign)
}
