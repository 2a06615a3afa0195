//! How this process belongs to the job: started by `--ranks`, by a launcher, or alone.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use ccl::{Collective, Communicator, Config, Rank, Settings, UniqueId};

use crate::arguments::Arguments;
use crate::error::Failure;
use crate::launch::Link;
use crate::{Outcome, environment};

/// Who started this process.
#[derive(Debug)]
pub enum Membership {
    /// Nobody who knows of ranks: all ranks are threads of this process.
    Alone,
    /// `r2ccl run`, torchrun, mpirun or Slurm.
    Launched,
    /// `--ranks` of this program.
    Member(Link),
}

impl Membership {
    /// Which of the processes on this machine this is.
    #[must_use]
    pub fn index_here(&self) -> usize {
        match self {
            Self::Alone => 0,
            Self::Launched => environment::local_rank(),
            Self::Member(link) => link.member().index,
        }
    }
}

/// Finds out who started this process.
///
/// # Errors
/// The launcher is gone.
pub fn find(arguments: &Arguments) -> Outcome<Membership> {
    match arguments.member {
        Some(member) => Link::attach(member, arguments.binding).map(Membership::Member),
        None if environment::has_launcher() => Ok(Membership::Launched),
        None => Ok(Membership::Alone),
    }
}

/// The settings of the environment, overridden by the command line. A bare name of an algorithm is
/// meant for `collective`, so that one which does not exist is an error and not ignored.
///
/// # Errors
/// A setting has an impossible value, or an algorithm is named where none is chosen.
pub fn configuration(arguments: &Arguments, collective: Option<Collective>) -> Outcome<Config> {
    let library = |error| Failure::Library { rank: 0, error };
    let mut config = Config::from_environment().map_err(library)?;
    if let Some(algorithm) = &arguments.algorithm {
        let choice = choice(algorithm, collective)?;
        let parsed = Settings::parse([("R2CCL_ALGO", choice)]).map_err(library)?;
        config.settings.algorithms = parsed.settings.algorithms;
    }
    config.timeout = arguments.deadline();
    Ok(config)
}

/// What `--algo` means as a setting.
fn choice(algorithm: &str, collective: Option<Collective>) -> Outcome<String> {
    match collective {
        None => {
            let text = format!(
                "--algo {algorithm}: this benchmark sends messages, there is nothing to choose"
            );
            Err(Failure::Input(text))
        }
        Some(collective) if !algorithm.contains([':', ',']) => {
            Ok(format!("{}:{algorithm}", collective.name()))
        }
        Some(_) => Ok(algorithm.to_owned()),
    }
}

/// How the ranks of this process become members of the communicator of all ranks.
#[derive(Debug)]
pub enum Entrance {
    /// With an id that all processes have; `first` is the rank of the first thread.
    Id {
        /// The id.
        id: Box<UniqueId>,
        /// Rank of the first thread.
        first: u32,
        /// Number of all ranks.
        size: u32,
    },
    /// One rank, which is a member already.
    Ready(Mutex<Option<Communicator>>),
}

impl Entrance {
    /// Opens the way for `threads` ranks of this process.
    ///
    /// # Errors
    /// The processes do not find each other.
    pub fn open(membership: Membership, threads: NonZeroUsize, config: &Config) -> Outcome<Self> {
        let threads = u32::try_from(threads.get()).unwrap_or(u32::MAX);
        match membership {
            Membership::Alone => {
                let id = Box::new(create(config, 0)?);
                Ok(Self::Id { id, first: 0, size: threads })
            }
            Membership::Member(mut link) => {
                let member = link.member();
                let [index, count] =
                    [member.index, member.count].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
                let first = index * threads;
                let mut own = None;
                let meeting = link.meet(|| {
                    let id = own.insert(create(config, first)?);
                    Ok(id.to_bytes())
                })?;
                let id = match own {
                    Some(id) => id,
                    None => parse(&meeting, first)?,
                };
                Ok(Self::Id { id: Box::new(id), first, size: count * threads })
            }
            Membership::Launched => launched(threads, config),
        }
    }

    /// Becomes a member with thread `thread` of this process.
    ///
    /// # Errors
    /// Not all ranks come.
    pub fn enter(&self, thread: u32, config: &Config) -> Outcome<Communicator> {
        match self {
            Self::Id { id, first, size } => {
                let rank = first + thread;
                Communicator::create(id, rank, *size, config)
                    .map_err(|error| Failure::Library { rank, error })
            }
            Self::Ready(communicator) => {
                let taken = communicator.lock().ok().and_then(|mut ready| ready.take());
                taken.ok_or_else(|| Failure::Input("the communicator was taken before".into()))
            }
        }
    }
}

/// Under a launcher each process is one rank; with threads, process 0 invites the threads of all.
fn launched(threads: u32, config: &Config) -> Outcome<Entrance> {
    let processes = Communicator::from_environment(config)
        .map_err(|error| Failure::Library { rank: 0, error })?;
    if threads == 1 {
        return Ok(Entrance::Ready(Mutex::new(Some(processes))));
    }
    let rank = processes.rank().0;
    let library = |error| Failure::Library { rank: rank * threads, error };
    let own = if rank == 0 { Some(create(config, 0)?) } else { None };
    let mut meeting = own.as_ref().map_or([0; crate::launch::MEETING_BYTES], UniqueId::to_bytes);
    processes.broadcast(&mut meeting, Rank(0)).map_err(library)?;
    let id = match own {
        Some(id) => id,
        None => parse(&meeting, rank * threads)?,
    };
    let size = processes.size() * threads;
    processes.finalize().map_err(library)?;
    Ok(Entrance::Id { id: Box::new(id), first: rank * threads, size })
}

fn create(config: &Config, rank: u32) -> Outcome<UniqueId> {
    UniqueId::create(&config.settings).map_err(|error| Failure::Library { rank, error })
}

fn parse(bytes: &[u8; crate::launch::MEETING_BYTES], rank: u32) -> Outcome<UniqueId> {
    UniqueId::from_bytes(bytes).map_err(|error| Failure::Library { rank, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{ALL_REDUCE, ALLTOALLV, HYPERCUBE, SENDRECV};

    #[test]
    fn a_bare_name_is_meant_for_the_collective_of_the_benchmark() {
        for (benchmark, name, meant) in [
            (&ALL_REDUCE, "ring", "allreduce:ring"),
            (&ALLTOALLV, "nonsense", "alltoallv:nonsense"),
            (&ALL_REDUCE, "barrier:one_shot,ring", "barrier:one_shot,ring"),
        ] {
            assert_eq!(choice(name, benchmark.collective).unwrap(), meant);
        }
    }

    #[test]
    fn benchmarks_of_messages_have_no_algorithm() {
        for benchmark in [&SENDRECV, &HYPERCUBE] {
            let refused = choice("ring", benchmark.collective).unwrap_err();
            assert!(refused.to_string().contains("--algo ring"), "{refused}");
        }
    }
}
