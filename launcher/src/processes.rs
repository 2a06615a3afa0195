//! The processes that were started and have not ended.

use std::process::{Child, Command};

use rustix::process::{self, Pid, WaitOptions, WaitStatus};

use crate::Failure;
use crate::failure::STATUS_OF_SIGNAL;

/// The processes that have not ended. Those left when it is dropped are killed.
#[derive(Debug, Default)]
pub struct Processes {
    running: Vec<(usize, Child)>,
}

impl Processes {
    /// Starts the process of a rank.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, rank: usize, command: &mut Command) -> Result<(), Failure> {
        let child = command.spawn();
        let child =
            child.map_err(|cause| Failure::system(format!("starting rank {rank}"), cause))?;
        self.running.push((rank, child));
        Ok(())
    }

    /// Waits until all have ended, or one badly.
    ///
    /// # Errors
    /// [`Failure::Member`] of the first that ended with another status than 0.
    pub fn wait(&mut self) -> Result<(), Failure> {
        while !self.running.is_empty() {
            let ended = process::wait(WaitOptions::empty())
                .map_err(|cause| Failure::system("waiting for the ranks", cause))?;
            if let Some((pid, status)) = ended {
                self.ended(pid, status)?;
            }
        }
        Ok(())
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Result<(), Failure> {
        let pid = pid.as_raw_nonzero().get();
        let of_ours = |(_, child): &(usize, Child)| i32::try_from(child.id()) == Ok(pid);
        let Some(place) = self.running.iter().position(of_ours) else { return Ok(()) };
        let (rank, _) = self.running.swap_remove(place);
        let (code, how) = match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => return Ok(()),
            (Some(code), _) => (code, format!("ended with status {code}")),
            (None, Some(signal)) => {
                (STATUS_OF_SIGNAL + signal, format!("was ended by signal {signal}"))
            }
            (None, None) => return Ok(()),
        };
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
