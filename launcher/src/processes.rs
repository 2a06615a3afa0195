//! The processes that were started, and what they have started themselves.
//!
//! Whatever has lost its parent becomes a child of the launcher. So a rank may be a shell that waits for
//! the program, and that program ends with the others. Each process is asked first: it may tell why it ends,
//! and end what it has started in its own way.

use std::process::Command;
use std::time::Duration;

use procfs::process::{Process, all_processes};
use rustix::process::{self, Pid, Signal, WaitOptions, WaitStatus};
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::failure::STATUS_OF_SIGNAL;
use crate::signals::{Notice, Signals};

/// How long the others may go on when a rank has failed: they notice it, and tell why they cannot.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long processes may take to end when they are asked, and to be gone when they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// The processes of a job. Those left when it is dropped are killed. A process has one such value.
#[derive(Debug)]
pub struct Processes {
    /// Ranks that have not ended.
    running: Vec<(usize, Pid)>,
    /// Children that this process had before: not ours to end.
    others: Vec<Pid>,
    signals: Signals,
}

impl Processes {
    /// None yet. From now on this process hears what [`Self::wait`] acts on, and adopts what ranks leave.
    ///
    /// # Errors
    /// The kernel refuses that.
    pub fn new() -> Result<Self, Failure> {
        process::set_child_subreaper(Some(process::getpid()))
            .map_err(|cause| Failure::system("adopting what ranks leave", cause))?;
        let signals =
            Signals::listen().map_err(|cause| Failure::system("listening to signals", cause))?;
        Ok(Self { running: Vec::new(), others: children(), signals })
    }

    /// Starts the process of a rank.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, rank: usize, command: &mut Command) -> Result<(), Failure> {
        let child = command.spawn();
        let child =
            child.map_err(|cause| Failure::system(format!("starting rank {rank}"), cause))?;
        self.running.push((rank, Pid::from_child(&child)));
        Ok(())
    }

    /// Waits until all ranks have ended, one badly, or somebody wants the launcher to end. Ends what is left
    /// then: a signal is passed on; where a rank has failed, the others have 3 seconds to notice it before
    /// they are asked to end. What is there 5 seconds later is killed; a further signal cuts all of that short.
    ///
    /// # Errors
    /// [`Failure::Member`] of the first that ended with another status than 0, or [`Failure::Request`].
    pub fn wait(mut self) -> Result<(), Failure> {
        while !self.running.is_empty() {
            match self.signals.next()? {
                Notice::Ended => {
                    if let Err(failure) = self.reap() {
                        self.end(None, PATIENCE);
                        self.end(Some(Signal::TERM), GRACE);
                        return Err(failure);
                    }
                }
                Notice::Request { signal, is_for_all } => {
                    let unheard = Signal::from_named_raw(signal).filter(|_| !is_for_all);
                    self.end(unheard, GRACE);
                    return Err(Failure::Request { signal });
                }
            }
        }
        self.end(Some(Signal::TERM), GRACE);
        Ok(())
    }

    /// Sends `signal` once to everything that is left and waits until that has ended, but no longer than
    /// `limit` or until somebody is in a hurry.
    fn end(&mut self, signal: Option<Signal>, limit: Duration) {
        let until = now() + limit;
        let mut told = Vec::new();
        loop {
            // The run has its outcome: how the others end changes nothing.
            let _ = self.reap();
            let left = self.left();
            if left.is_empty() {
                return;
            }
            for pid in left.iter().filter(|pid| !told.contains(*pid)) {
                // It may be one of another user.
                let _ = signal.map(|signal| process::kill_process(*pid, signal));
            }
            // Who ends leaves what it had started to this process, which is told in the next round.
            told = left;
            if self.signals.next_within(until.saturating_sub(now())) != Some(Notice::Ended) {
                return;
            }
        }
    }

    /// What has not been waited for, so that its number is still its own: the ranks, and what they have left.
    fn left(&self) -> Vec<Pid> {
        let mut left: Vec<Pid> = self.running.iter().map(|(_, pid)| *pid).collect();
        let adopted: Vec<Pid> = children()
            .into_iter()
            .filter(|pid| !self.others.contains(pid) && !left.contains(pid))
            .collect();
        left.extend(adopted);
        left
    }

    /// Takes note of all that have ended.
    ///
    /// # Errors
    /// A rank has ended badly; the first that is found.
    fn reap(&mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        while let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG) {
            outcome = outcome.and(self.ended(pid, status));
        }
        outcome
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Result<(), Failure> {
        let Some(place) = self.running.iter().position(|(_, of_rank)| *of_rank == pid) else {
            return Ok(());
        };
        let (rank, _) = self.running.swap_remove(place);
        let (code, how) = match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => return Ok(()),
            (Some(code), _) => (code, format!("ended with status {code}")),
            (None, Some(signal)) => {
                (STATUS_OF_SIGNAL + signal, format!("was ended by signal {signal}"))
            }
            (None, None) => return Ok(()),
        };
        let pid = pid.as_raw_nonzero().get();
        Err(Failure::Member { rank, pid, how, status: u8::try_from(code).unwrap_or(u8::MAX) })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end(Some(Signal::KILL), GRACE);
    }
}

/// The children of this process. None where there is no `/proc`, or it is that of another namespace, where
/// processes have other numbers.
fn children() -> Vec<Pid> {
    let own = process::getpid().as_raw_nonzero().get();
    let knows_us = Process::myself().is_ok_and(|process| process.pid == own);
    let all = all_processes().ok().filter(|_| knows_us).into_iter().flatten().flatten();
    let stats = all.filter_map(|process| process.stat().ok());
    stats.filter(|stat| stat.ppid == own).filter_map(|stat| Pid::from_raw(stat.pid)).collect()
}

/// Since the machine started.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
