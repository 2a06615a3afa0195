//! The processes that were started, and what they have started themselves.
//!
//! Whatever has lost its parent becomes a child of the launcher. So a rank may be a shell that waits for
//! the program, and that program ends with the others. Each process is asked first: it may tell why it ends,
//! and end what it has started in its own way.

use std::process::Command;
use std::time::Duration;

use procfs::process::{Process, all_processes};
use rustix::process::{self, Pid, WaitOptions, WaitStatus};
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::failure::STATUS_OF_SIGNAL;
use crate::signals::{Request, Signals};

/// How long what is left may go on when the run has its outcome. Where a rank has failed the others notice it, and tell
/// why they cannot go on; what ranks have left writes what it has been given.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long processes may take to end when they are asked, and to be gone when they are killed.
const GRACE: Duration = Duration::from_secs(5);
/// From when on somebody who wants processes to end that have been asked is in a hurry. Some send a signal to a process
/// and to its group.
const HURRY: Duration = Duration::from_secs(1);

/// The processes of a job. Those left when it is dropped are killed. A process has one such value.
#[derive(Debug)]
pub struct Processes {
    /// Ranks that have not ended.
    running: Vec<(usize, Pid)>,
    /// Children that this process had before: not ours to end, unlike what they leave.
    others: Vec<Pid>,
    signals: Signals,
    /// What came while ranks were started.
    asked: Option<Request>,
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
        Ok(Self { running: Vec::new(), others: children(), signals, asked: None })
    }

    /// Starts the process of a rank, unless somebody wants the launcher to end: [`Self::wait`] does so then.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, rank: usize, command: &mut Command) -> Result<(), Failure> {
        self.asked = self.asked.or_else(|| self.signals.request().map(Request::to_each));
        if self.asked.is_some() {
            return Ok(());
        }
        let child = command.spawn();
        let child =
            child.map_err(|cause| Failure::system(format!("starting rank {rank}"), cause))?;
        self.running.push((rank, Pid::from_child(&child)));
        Ok(())
    }

    /// Waits until all ranks have ended, one badly, or somebody wants the launcher to end. What is left then has 3
    /// seconds before it is asked to end, but a signal is passed on at once. What is there 5 seconds later is killed;
    /// a further signal that comes a second or more after the first cuts these short.
    ///
    /// # Errors
    /// [`Failure::Member`] of the first that ended with another status than 0, or [`Failure::Request`], also if the
    /// same signal has ended a rank before this process looked.
    pub fn wait(self) -> Result<(), Failure> {
        self.see_through(|failure, _| Err(failure))
    }

    /// Waits until all ranks have ended, also if some end badly, which `tell` is told as it comes, and how many have not ended
    /// yet: all is well if one has ended well. Else as [`Self::wait`].
    ///
    /// # Errors
    /// As [`Self::wait`], but if all have ended badly: [`Failure::Member`] of the first.
    pub fn wait_for_all(self, mut tell: impl FnMut(&Failure, usize)) -> Result<(), Failure> {
        let mut left = self.running.len();
        let mut first = None;
        self.see_through(|failure, running| {
            left -= 1;
            tell(&failure, running);
            first.get_or_insert(failure);
            if left == 0 { first.take().map_or(Ok(()), Err) } else { Ok(()) }
        })
    }

    /// Waits until all ranks have ended, or `judge` says of one that has ended badly that this is the outcome; it is told how many
    /// have not ended.
    fn see_through(
        mut self,
        mut judge: impl FnMut(Failure, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut outcome, mut asked) = (Ok(()), self.asked);
        if asked.is_none() {
            outcome = self.judge_ended(&mut judge);
            // The rank that was started last may not have been there when the group got it.
            asked = self.signals.request().map(Request::to_each);
        }
        while asked.is_none() && outcome.is_ok() && !self.running.is_empty() {
            asked = self.signals.request_within(Duration::MAX);
            if asked.is_none() {
                outcome = self.judge_ended(&mut judge);
            }
        }
        // What has ended ranks of a group has reached this process before they were gone.
        let asked = asked
            .or_else(|| self.signals.request())
            .or_else(|| self.end(None, PATIENCE, Duration::ZERO));
        if let Some(Request { signal, .. }) = asked {
            let request = Failure::Request { signal: signal.as_raw() };
            outcome = match outcome {
                Err(failure) if failure.status() != request.status() => Err(failure),
                _ => Err(request),
            };
        }
        self.end(asked.or(Some(Request::TERM)), GRACE, HURRY);
        outcome
    }

    /// Lets `judge` judge those that have ended badly since the last look.
    fn judge_ended(
        &mut self,
        mut judge: impl FnMut(Failure, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (failures, running) = (self.reap(), self.running.len());
        failures.into_iter().try_for_each(|failure| judge(failure, running))
    }

    /// Passes `request` on once to everything that is left and waits until that has ended, but no longer than
    /// `limit`, or until somebody asks after `deaf`: returns that.
    fn end(
        &mut self,
        request: Option<Request>,
        limit: Duration,
        deaf: Duration,
    ) -> Option<Request> {
        let start = now();
        let mut told = Vec::new();
        loop {
            // The run has its outcome: how the others end changes nothing.
            let _ = self.reap();
            let left = self.left();
            let passed = now() - start;
            if left.is_empty() || passed >= limit {
                return None;
            }
            for pid in left.iter().filter(|pid| !told.contains(*pid)) {
                let _ = request.map(|request| request.pass_on(*pid));
            }
            // Who ends leaves what it had started to this process, which is told in the next round.
            told = left;
            let asked = self.signals.request_within(limit - passed);
            if asked.is_some() && now() - start >= deaf {
                return asked;
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

    /// Takes note of all that have ended: how ranks have that ended badly.
    fn reap(&mut self) -> Vec<Failure> {
        let mut failures = Vec::new();
        while let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG) {
            failures.extend(self.ended(pid, status));
        }
        failures
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Option<Failure> {
        let place = self.running.iter().position(|(_, of_rank)| *of_rank == pid)?;
        let (rank, _) = self.running.swap_remove(place);
        let (code, how) = match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => return None,
            (Some(code), _) => (code, format!("ended with status {code}")),
            (None, Some(signal)) => {
                (STATUS_OF_SIGNAL + signal, format!("was ended by signal {signal}"))
            }
            (None, None) => return None,
        };
        let pid = pid.as_raw_nonzero().get();
        Some(Failure::Member { rank, pid, how, status: u8::try_from(code).unwrap_or(u8::MAX) })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Who is in a hurry could not have it sooner.
        self.end(Some(Request::KILL), GRACE, GRACE);
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

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use signal_hook::consts::SIGTERM;
    use signal_hook::low_level::raise;

    use super::*;

    fn is_request(outcome: &Result<(), Failure>) -> bool {
        matches!(outcome, Err(Failure::Request { signal: SIGTERM }))
    }

    /// One test: signals and children are those of the process. Shells have what they start in the background ignore SIGINT.
    #[test]
    fn a_request_goes_before_what_it_has_done() {
        let mut processes = Processes::new().unwrap();
        raise(SIGTERM).unwrap();
        processes.start(0, &mut Command::new("false")).unwrap();
        assert_eq!(processes.running, [], "somebody wants it to end");
        assert!(is_request(&processes.wait()));

        for (script, goes_before) in [
            ("kill -TERM $$", true),
            ("exit 143", true),
            ("exit 0", true),
            ("exit 1", false),
            ("kill -KILL $$", false),
        ] {
            let mut processes = Processes::new().unwrap();
            processes.start(0, Command::new("sh").args(["-c", script])).unwrap();
            let (_, rank) = processes.running[0];
            waitid(WaitId::Pid(rank), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
            raise(SIGTERM).unwrap();
            assert_eq!(is_request(&processes.wait()), goes_before, "{script}");
        }
    }
}
