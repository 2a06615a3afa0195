//! Who this process is among the ranks, and where they meet, from what the launcher left behind.
//!
//! Pure: the environment comes in as a value. The first launcher that left a trace wins, in the
//! order of [`resolve`]; it goes from the most to the least specific, because `mpirun` inside a
//! Slurm allocation leaves the variables of both.

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::{Endpoint, Settings};

use crate::environment::Environment;

/// First port of the range from which Slurm jobs get theirs; below the kernel's ephemeral ports.
const SLURM_FIRST_PORT: u64 = 20_000;
/// Ports in that range.
const SLURM_PORTS: u64 = 10_000;

/// Rank and size given by the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The rank of this process.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: u32,
}

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// The program says so itself.
    Arguments,
    /// `torchrun`, `r2ccl run`, or whoever sets the same variables.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH or Intel MPI.
    Hydra,
    /// `srun`.
    Slurm,
}

/// Where ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// There is only one rank.
    Alone,
    /// Rank 0 listens here.
    At {
        /// Address and port.
        endpoint: Endpoint,
        /// Identity of the job, from which the key is derived if there is no pass phrase.
        job: String,
    },
    /// Rank 0 leaves a private file on the host that all ranks share.
    File {
        /// Identity of the job, which names the file.
        job: String,
    },
}

/// Who this process is among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who said so.
    pub launcher: Launcher,
    /// The rank of this process.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: u32,
    /// The rank among those of the same host, if the launcher tells.
    pub local_rank: Option<u32>,
    /// Where the ranks meet.
    pub meeting: Meeting,
}

/// Names of the variables of a launcher.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// The launchers, in order of priority.
const LAUNCHERS: [Names; 4] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Names {
        launcher: Launcher::Hydra,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
    },
];

/// Finds out who this process is: from `arguments`, else torchrun, Open MPI, MPICH or Intel MPI, Slurm.
///
/// # Errors
/// [`Error::InvalidUsage`] if no launcher left a trace, if one variable of a pair is missing, or if
/// the ranks have nowhere to meet; it says which variable to set. [`Error::InvalidArgument`] if a
/// value is impossible.
pub fn resolve(
    arguments: Option<Arguments>,
    environment: &Environment,
    settings: &Settings,
) -> Result<Launch, Error> {
    if let Some(Arguments { rank, size }) = arguments {
        check_rank(rank.0, size, "rank", "size")?;
        let meeting = meeting(Launcher::Arguments, size, None, environment, settings)?;
        return Ok(Launch { launcher: Launcher::Arguments, rank, size, local_rank: None, meeting });
    }
    for names in &LAUNCHERS {
        if let Some(launch) = from_launcher(names, environment, settings)? {
            return Ok(launch);
        }
    }
    Err(Error::InvalidUsage(
        "this process does not know its rank: start it with `r2ccl run`, torchrun, mpirun or srun, or \
         set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            .to_owned(),
    ))
}

fn from_launcher(
    names: &Names,
    environment: &Environment,
    settings: &Settings,
) -> Result<Option<Launch>, Error> {
    let launcher = names.launcher;
    if launcher == Launcher::Hydra && is_srun_with_pmi(environment) {
        return Ok(None);
    }
    let (rank, size) = match (number(environment, names.rank)?, number(environment, names.size)?) {
        (None, None) => return Ok(None),
        // An allocation of Slurm sets the size for its shell, too, which is no task.
        (None, Some(_)) if launcher == Launcher::Slurm => return Ok(None),
        (None, Some(_)) => return Err(half(names.size, names.rank)),
        (Some(_), None) => return Err(half(names.rank, names.size)),
        (Some(rank), Some(size)) => (rank, size),
    };
    check_rank(rank, size, names.rank, names.size)?;
    let local_size = match launcher {
        // Its value is a list such as `2(x3)`, and Slurm names a host to meet on anyway.
        Launcher::Slurm => None,
        Launcher::Arguments | Launcher::Torchrun | Launcher::OpenMpi | Launcher::Hydra => {
            number(environment, names.local_size)?
        }
    };
    Ok(Some(Launch {
        launcher,
        rank: Rank(rank),
        size,
        local_rank: number(environment, names.local_rank)?,
        meeting: meeting(launcher, size, local_size, environment, settings)?,
    }))
}

/// `srun --mpi=pmi2` sets the variables of PMI, too, but only Hydra numbers the ranks of a host.
fn is_srun_with_pmi(environment: &Environment) -> bool {
    let is_set = |name: &str| environment.variables.contains_key(name);
    is_set("SLURM_PROCID") && !is_set("MPI_LOCALRANKID")
}

fn half(present: &str, missing: &str) -> Error {
    Error::InvalidUsage(format!("{present} is set but {missing} is missing; set both or neither"))
}

fn check_rank(rank: u32, size: u32, rank_name: &str, size_name: &str) -> Result<(), Error> {
    if rank < size {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "{rank_name}={rank} is not below {size_name}={size}; allowed: 0 to {size_name} - 1"
    )))
}

fn number(environment: &Environment, name: &str) -> Result<Option<u32>, Error> {
    let Some(text) = environment.variables.get(name) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| {
        Error::InvalidArgument(format!("{name}={text:?} is not a whole number below 4294967296"))
    })
}

fn meeting(
    launcher: Launcher,
    size: u32,
    local_size: Option<u32>,
    environment: &Environment,
    settings: &Settings,
) -> Result<Meeting, Error> {
    if size == 1 {
        return Ok(Meeting::Alone);
    }
    let job = job(launcher, environment);
    if let Some(endpoint) = settings.bootstrap.clone() {
        return Ok(Meeting::At { endpoint, job });
    }
    match launcher {
        Launcher::Torchrun => Ok(Meeting::At { endpoint: torchrun_endpoint(environment)?, job }),
        Launcher::Slurm => Ok(Meeting::At { endpoint: slurm_endpoint(environment)?, job }),
        Launcher::OpenMpi | Launcher::Hydra if local_size.is_none_or(|local| local == size) => {
            Ok(Meeting::File { job })
        }
        Launcher::Arguments | Launcher::OpenMpi | Launcher::Hydra => Err(Error::InvalidUsage(
            "the ranks have nowhere to meet: set R2CCL_BOOTSTRAP=host:port, where host is the one \
             on which rank 0 runs and port is free there"
                .to_owned(),
        )),
    }
}

/// What the ranks of a job have in common, and other jobs of the same user have not.
fn job(launcher: Launcher, environment: &Environment) -> String {
    let value = |name: &str| environment.variables.get(name).map_or("", String::as_str);
    match launcher {
        Launcher::Arguments => "arguments".to_owned(),
        Launcher::Torchrun => format!("torchrun:{}", value("TORCHELASTIC_RUN_ID")),
        Launcher::OpenMpi => {
            let jobs = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].map(value);
            let named = jobs.into_iter().find(|job| !job.is_empty());
            format!("openmpi:{}", named.unwrap_or(&environment.parent))
        }
        // It gives its job no name, but starts all ranks of a host from one process, perhaps inside scripts.
        Launcher::Hydra => format!("hydra:{}", environment.parent),
        Launcher::Slurm => format!("slurm:{}.{}", value("SLURM_JOB_ID"), value("SLURM_STEP_ID")),
    }
}

/// One port above torchrun's own store.
fn torchrun_endpoint(environment: &Environment) -> Result<Endpoint, Error> {
    let host = required(environment, "MASTER_ADDR", "RANK")?.to_owned();
    let text = required(environment, "MASTER_PORT", "RANK")?;
    let port = text.parse::<u16>().ok().and_then(|port| port.checked_add(1));
    let port = port.ok_or_else(|| {
        Error::InvalidArgument(format!("MASTER_PORT={text:?} is not allowed; allowed: 0 to 65534"))
    })?;
    Ok(Endpoint { host, port })
}

/// The first host of the step, and a port derived from the numbers of job and step.
fn slurm_endpoint(environment: &Environment) -> Result<Endpoint, Error> {
    let step = environment.variables.get("SLURM_STEP_NODELIST");
    let list = match step {
        Some(list) => list,
        None => required(environment, "SLURM_JOB_NODELIST", "SLURM_PROCID")?,
    };
    let host = first_host(list).ok_or_else(|| {
        Error::InvalidArgument(format!("the node list {list:?} of Slurm names no host"))
    })?;
    let text = required(environment, "SLURM_JOB_ID", "SLURM_PROCID")?;
    let job: u32 = text.parse().map_err(|_| {
        Error::InvalidArgument(format!("SLURM_JOB_ID={text:?} is not a whole number"))
    })?;
    let step = environment.variables.get("SLURM_STEP_ID").and_then(|text| text.parse::<u32>().ok());
    // Steps of one job get neighbouring ports, jobs that follow each other distant ones.
    let offset = (u64::from(job) * 97 + u64::from(step.unwrap_or(0))) % SLURM_PORTS;
    let port = u16::try_from(SLURM_FIRST_PORT + offset)
        .map_err(|_| Error::Internal("the ports for Slurm leave the range".to_owned()))?;
    Ok(Endpoint { host, port })
}

fn required<'a>(environment: &'a Environment, name: &str, because: &str) -> Result<&'a str, Error> {
    environment.variables.get(name).map(String::as_str).ok_or_else(|| {
        Error::InvalidUsage(format!(
            "{because} is set but {name} is missing; set it, or R2CCL_BOOTSTRAP=host:port"
        ))
    })
}

/// The first host of a list such as `node[003-007,9],login1`: brackets hold ranges of numbers.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return (!host.is_empty()).then_some(host);
        }
        let (ranges, after) = rest[at + 1..].split_once(']')?;
        host.push_str(ranges.split([',', '-']).next()?);
        rest = after;
    }
    host.push_str(rest);
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment {
            variables: pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            parent: "77-1234".to_owned(),
            runtime_directory: "/run".into(),
        }
    }

    fn found(pairs: &[(&str, &str)]) -> Result<Launch, Error> {
        resolve(None, &environment(pairs), &Settings::default())
    }

    fn at(host: &str, port: u16, job: &str) -> Meeting {
        Meeting::At { endpoint: Endpoint { host: host.into(), port }, job: job.into() }
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "abc"),
    ];

    const SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "6"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "100"),
        ("SLURM_STEP_ID", "2"),
        ("SLURM_STEP_NODELIST", "gpu[07-08,12]"),
    ];

    #[test]
    fn torchrun_is_recognised() {
        let launch = found(&TORCHRUN).unwrap();
        assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Torchrun, Rank(3), 8));
        assert_eq!(launch.local_rank, Some(1));
        assert_eq!(launch.meeting, at("node0", 29501, "torchrun:abc"));
    }

    #[test]
    fn open_mpi_is_recognised() {
        let mut pairs = vec![
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_MCA_ess_base_jobid", "99"),
        ];
        assert_eq!(found(&pairs).unwrap().meeting, Meeting::File { job: "openmpi:99".into() });
        pairs.push(("PMIX_NAMESPACE", "prterun-9@1"));
        let launch = found(&pairs).unwrap();
        assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::OpenMpi, Rank(0), 4));
        assert_eq!(launch.meeting, Meeting::File { job: "openmpi:prterun-9@1".into() });
    }

    #[test]
    fn hydra_is_recognised_by_its_process() {
        let launch =
            found(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1")]).unwrap();
        assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Hydra, Rank(1), 2));
        assert_eq!(launch.local_rank, Some(1));
        assert_eq!(launch.meeting, Meeting::File { job: "hydra:77-1234".into() });
    }

    #[test]
    fn slurm_is_recognised() {
        let launch = found(&SLURM).unwrap();
        assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Slurm, Rank(5), 6));
        assert_eq!(launch.meeting, at("gpu07", 29702, "slurm:100.2"));
    }

    #[test]
    fn the_more_specific_launcher_wins() {
        let both: Vec<_> = SLURM.into_iter().chain(TORCHRUN).collect();
        assert_eq!(found(&both).unwrap().launcher, Launcher::Torchrun);
        let arguments = Arguments { rank: Rank(1), size: 2 };
        let settings = Settings::parse([("R2CCL_BOOTSTRAP", "h:9")]).unwrap().settings;
        let launch = resolve(Some(arguments), &environment(&both), &settings).unwrap();
        assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Arguments, Rank(1), 2));
        assert_eq!(launch.meeting, at("h", 9, "arguments"));
    }

    #[test]
    fn srun_and_hydra_within_slurm_are_told_apart() {
        let mut both: Vec<_> =
            SLURM.into_iter().chain([("PMI_RANK", "5"), ("PMI_SIZE", "6")]).collect();
        assert_eq!(found(&both).unwrap().launcher, Launcher::Slurm);
        both.push(("MPI_LOCALRANKID", "1"));
        assert_eq!(found(&both).unwrap().launcher, Launcher::Hydra);
    }

    #[test]
    fn the_setting_overrides_where_ranks_meet() {
        let settings = Settings::parse([("R2CCL_BOOTSTRAP", "[::1]:9")]).unwrap().settings;
        let launch = resolve(None, &environment(&TORCHRUN), &settings).unwrap();
        assert_eq!(launch.meeting, at("::1", 9, "torchrun:abc"));
    }

    #[test]
    fn half_a_set_names_what_is_missing() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[("RANK", "0")], "WORLD_SIZE"),
            (&[("WORLD_SIZE", "2")], "RANK"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
            (&TORCHRUN[..4], "MASTER_PORT"),
            (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE"),
            (&[("PMI_SIZE", "2")], "PMI_RANK"),
            (&[("SLURM_PROCID", "0")], "SLURM_NTASKS"),
        ];
        for (pairs, missing) in cases {
            let message = found(pairs).unwrap_err().to_string();
            assert!(message.contains(&format!("{missing} is missing")), "{message}");
        }
    }

    #[test]
    fn nobody_to_meet_and_nowhere_to_meet() {
        assert_eq!(found(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().meeting, Meeting::Alone);
        let spread = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")];
        assert!(found(&spread).unwrap_err().to_string().contains("R2CCL_BOOTSTRAP=host:port"));
        // The shell of an allocation of Slurm is not a task.
        let message = found(&[("SLURM_NTASKS", "4")]).unwrap_err().to_string();
        assert!(message.contains("does not know its rank"), "{message}");
    }

    #[test]
    fn impossible_values_are_named() {
        for (pairs, named) in [
            ([("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2"),
            ([("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK=\"-1\""),
            ([("PMI_RANK", "0"), ("PMI_SIZE", "many")], "PMI_SIZE=\"many\""),
        ] {
            let error = found(&pairs).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn node_lists_are_expanded_to_their_first_host() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[1-4]", "node1"),
            ("node[007,9-12],other", "node007"),
            ("rack[2-3]node[05-06].cluster", "rack2node05.cluster"),
            ("a-b-[3]", "a-b-3"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", ",node1", "node[1-4"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
