//! What the kernel tells the launcher: that processes have ended, or that somebody wants it to end.
//!
//! Handlers are for this process only: what it starts has those that it would have without a launcher.

use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use procfs::process::Process;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use crate::Failure;

/// Signals by which a program is asked to end.
const REQUESTS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// One child has ended, or several.
    Ended,
    /// The launcher is to end.
    Request {
        /// The signal that said so.
        signal: i32,
        /// Whether it comes from the terminal, which has sent it to the ranks, too.
        is_for_all: bool,
    },
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
                let _ = sender.send(match signal.si_signo {
                    SIGCHLD => Notice::Ended,
                    number => Notice::Request {
                        signal: number,
                        is_for_all: signal.si_code == libc::SI_KERNEL,
                    },
                });
            }
        })?;
        Ok(Self { notices })
    }

    /// Waits for the next.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(crate) fn next(&self) -> Result<Notice, Failure> {
        self.notices.recv().map_err(|_| Failure::system("hearing signals", ErrorKind::BrokenPipe))
    }

    /// The same, if it comes within `limit`.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<Notice> {
        self.notices.recv_timeout(limit).ok()
    }
}

/// Signals that this process ignores: signal n is bit n - 1. None where there is no `/proc`.
fn ignored() -> u64 {
    let status = Process::myself().and_then(|process| process.status());
    status.map_or(0, |status| status.sigign)
}
