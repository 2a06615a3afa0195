//! A process as one of those that the launcher has started.
//!
//! Where there are more processes than processors, each is bound to one of them, as `mpirun` does: the
//! kernel spreads processes that started a moment ago unevenly, and one crowded processor sets the pace
//! of all ranks.

use std::fmt;
use std::str::FromStr;

use rustix::process::{self, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Failure;

/// Which of the processes this is: `index:count:launcher`.
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

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.index, self.count, self.launcher)
    }
}

/// Where the processes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Binding {
    /// Each bound to one processor unless there are more processors than processes.
    #[default]
    Core,
    /// Where the kernel puts them.
    None,
}

impl Member {
    /// A process of which this one is the launcher.
    #[must_use]
    pub fn of_this_process(index: usize, count: usize) -> Self {
        Self { index, count, launcher: process::getpid().as_raw_nonzero().get() }
    }

    /// Makes this process, which is the member, end with its launcher even if that is killed, and binds it. Both
    /// outlast `execve`, but the first not that of a program that is set-user-ID or has capabilities of its file;
    /// processes that this one starts have only the second.
    ///
    /// # Errors
    /// The launcher is gone, or the kernel refuses a processor.
    pub fn take_place(self, binding: Binding) -> Result<(), Failure> {
        process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|cause| Failure::system("tying this process to its launcher", cause))?;
        // The launcher may have ended before that call.
        let parent = process::getppid().map(|pid| pid.as_raw_nonzero().get());
        if parent != Some(self.launcher) {
            return Err(Failure::Orphaned);
        }
        match binding {
            Binding::Core => {
                self.bind().map_err(|cause| Failure::system("binding to a processor", cause))
            }
            Binding::None => Ok(()),
        }
    }

    /// Binds this process to one processor unless there are more of those than members.
    fn bind(self) -> rustix::io::Result<()> {
        let allowed = sched_getaffinity(None)?;
        let processors: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let Some(processor) = self.processor(&processors) else { return Ok(()) };
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one)
    }

    /// Its processor, which it shares with as few others as possible; none where all have room.
    fn processor(self, processors: &[usize]) -> Option<usize> {
        let is_full = self.count >= processors.len();
        processors.get(self.index % processors.len().max(1)).copied().filter(|_| is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_from_the_command_line() {
        assert_eq!("2:4:77".parse(), Ok(Member { index: 2, count: 4, launcher: 77 }));
        let member = Member::of_this_process(2, 4);
        assert_eq!(member.to_string().parse(), Ok(member));
        for text in ["", "1:2", "4:4:1", "a:4:1", "1:2:3:4", "-1:2:3"] {
            assert!(text.parse::<Member>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_crowd_shares_the_processors_evenly() {
        let places = |count, processors: &[usize]| -> Vec<_> {
            (0..count)
                .map(|index| Member { index, count, launcher: 1 }.processor(processors))
                .collect()
        };
        assert_eq!(places(5, &[3, 8]), [Some(3), Some(8), Some(3), Some(8), Some(3)]);
        assert_eq!(places(2, &[0, 1]), [Some(0), Some(1)]);
        assert_eq!(places(2, &[0, 1, 2]), [None, None]);
    }
}
