//! The table of settings: every name, range, default and explanation, in one place.
//!
//! A setting is one row of [`TABLE`]. Parsing, the errors, the defaults and `docs/configuration.md`
//! are all read from that row, so they cannot disagree. The names and values come in as an
//! argument; where they come from (the process environment) is not known here.

mod hca;
mod table;
mod tiles;
mod values;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use hca::HcaFilter;
pub use table::TABLE;
pub use values::{
    AlgorithmChoice, CrossMemoryAttach, CudaCache, CudaNetwork, CudaPeers, Endpoint,
    InterfaceFilter, Network, PassPhrase,
};

use crate::error::Error;
use crate::fault::Rehearsal;

/// Names that others read: the backend for PyTorch.
const ELSEWHERE: [&str; 2] = ["R2CCL_LIBRARY", "R2CCL_TORCH_CACHE"];

/// Names that settings would have if they were called as those of NCCL are, and what they are called.
const AS_IN_NCCL: [(&str, &str); 9] = [
    ("R2CCL_DEBUG", "R2CCL_LOG"),
    ("R2CCL_SOCKET_IFNAME", "R2CCL_NIC"),
    ("R2CCL_COMM_ID", "R2CCL_BOOTSTRAP"),
    ("R2CCL_HOSTID", "R2CCL_HOST_ID"),
    ("R2CCL_SHM_DISABLE", "R2CCL_SHM"),
    ("R2CCL_P2P_DISABLE", "R2CCL_CUDA_P2P"),
    ("R2CCL_IB_DISABLE", "R2CCL_NET"),
    ("R2CCL_NSOCKS_PERTHREAD", "R2CCL_NET_CONNECTIONS"),
    ("R2CCL_BUFFSIZE", "R2CCL_TILE_BYTES"),
];

/// Every name of a setting starts with this.
pub const PREFIX: &str = "R2CCL_";

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The parsed settings of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How long a collective may take before it fails with the ranks it waited for.
    pub timeout: Duration,
    /// How long the ranks of a new communicator wait for each other.
    pub bootstrap_timeout: Duration,
    /// Payload of a tile inside a host, in bytes; 0: [as it suits](Self::pair_tile_bytes).
    pub tile_bytes: usize,
    /// Tiles in flight in each direction between two ranks of a host; 0: [as it suits](Self::pair_slots).
    pub shm_slots: usize,
    /// Connections between two ranks over each pair of NICs.
    pub net_connections: usize,
    /// Payload of a tile between hosts, in bytes.
    pub net_tile_bytes: usize,
    /// Tiles in flight in each direction between two hosts' ranks.
    pub net_slots: usize,
    /// Pinned memory for a piece of a collective on memory of a GPU, in bytes.
    pub cuda_staging_bytes: usize,
    /// What ranks on one host do without the host.
    pub cuda_peers: CudaPeers,
    /// Blocks of so many bytes are for copy engines, where they can do it; 0: none are.
    pub cuda_copy_engine_bytes: usize,
    /// What ranks on several hosts do without the processor.
    pub cuda_network: CudaNetwork,
    /// A folder with compiled kernels.
    pub cuda_kernels: Option<PathBuf>,
    /// Where kernels are kept that were compiled.
    pub cuda_cache: CudaCache,
    /// Whether the death of a rail is survived.
    pub hot_repair: bool,
    /// Silence that makes a rail suspect.
    pub rail_suspicion: Duration,
    /// How long a suspect may be silent after a sibling has answered.
    pub rail_grace: Duration,
    /// How long a suspect may be silent in any case.
    pub rail_last: Duration,
    /// How long a call waits when all rails to a peer are dead.
    pub rail_patience: Duration,
    /// How long a rail that flaps stays out of use the first time.
    pub rail_hold: Duration,
    /// Algorithms chosen by hand, in order of priority; empty: the planner chooses.
    pub algorithms: Vec<AlgorithmChoice>,
    /// Which network interfaces are used.
    pub interfaces: InterfaceFilter,
    /// How long a rank waits for an interface that is about to come up.
    pub nic_wait: Duration,
    /// What carries tiles between hosts.
    pub network: Network,
    /// Which RDMA devices are used.
    pub rdma_devices: HcaFilter,
    /// Replaces the identity of the host.
    pub host_identity: Option<String>,
    /// Addresses to use as NICs in place of the discovered ones.
    pub rails: Vec<IpAddr>,
    /// Where rank 0 waits for the others.
    pub bootstrap: Option<Endpoint>,
    /// What proves that a process belongs to the job.
    pub job_key: Option<PassPhrase>,
    /// Whether ranks of one host use shared memory.
    pub shared_memory: bool,
    /// Whether the system copies between the processes of a host.
    pub cross_memory_attach: CrossMemoryAttach,
    /// Measurements that plans are made with.
    pub tuning: Option<PathBuf>,
    /// Faults that the library imitates, to see how a program takes them.
    pub rehearsal: Option<Rehearsal>,
    /// Folder for what a rank knows when it fails.
    pub dump: Option<PathBuf>,
    /// Filter of the log on standard error, in the syntax of tracing.
    pub log: String,
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// The full name, with [`PREFIX`].
    pub name: &'static str,
    /// The value if nobody sets it, in the syntax of the setting.
    pub default: &'static str,
    /// One sentence for the reader of `docs/configuration.md`.
    pub help: &'static str,
    field: Field,
}

/// Where a value goes, and which values are allowed.
#[derive(Debug)]
enum Field {
    Seconds { of: fn(&mut Settings) -> &mut Duration, least: f64, most: f64 },
    Bytes { of: fn(&mut Settings) -> &mut usize, least: usize, most: usize, multiple: usize },
    Count { of: fn(&mut Settings) -> &mut usize, least: usize, most: usize },
    Switch { of: fn(&mut Settings) -> &mut bool },
    Syntax { set: fn(&mut Settings, &str) -> Result<(), String>, allowed: &'static str },
}

/// Settings, and the names that were meant to be settings and are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The settings.
    pub settings: Settings,
    /// One sentence for each unknown name with [`PREFIX`].
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the settings among `variables`; names without [`PREFIX`] are not looked at.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the variable, the value and what is allowed.
    pub fn parse<I, N, V>(variables: I) -> Result<Parsed, Error>
    where
        I: IntoIterator<Item = (N, V)>,
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut settings = Self::default();
        let mut warnings = Vec::new();
        for (name, value) in variables {
            let (name, value) = (name.as_ref(), value.as_ref());
            match TABLE.iter().find(|setting| setting.name == name) {
                Some(setting) => setting.apply(&mut settings, value)?,
                None if ELSEWHERE.contains(&name) => {}
                None if name.starts_with(PREFIX) => warnings.push(unknown(name)),
                None => {}
            }
        }
        warnings.sort();
        Ok(Parsed { settings, warnings })
    }

    /// A value for every field, to be overwritten by the defaults of the table.
    fn blank() -> Self {
        Self {
            timeout: Duration::ZERO,
            bootstrap_timeout: Duration::ZERO,
            tile_bytes: 0,
            shm_slots: 0,
            net_connections: 0,
            net_tile_bytes: 0,
            net_slots: 0,
            cuda_staging_bytes: 0,
            cuda_peers: CudaPeers::Mapped,
            cuda_copy_engine_bytes: 0,
            cuda_network: CudaNetwork::Off,
            cuda_kernels: None,
            cuda_cache: CudaCache::Off,
            hot_repair: false,
            rail_suspicion: Duration::ZERO,
            rail_grace: Duration::ZERO,
            rail_last: Duration::ZERO,
            rail_patience: Duration::ZERO,
            rail_hold: Duration::ZERO,
            algorithms: Vec::new(),
            interfaces: InterfaceFilter::default(),
            nic_wait: Duration::ZERO,
            network: Network::default(),
            rdma_devices: HcaFilter::default(),
            host_identity: None,
            rails: Vec::new(),
            bootstrap: None,
            job_key: None,
            shared_memory: false,
            cross_memory_attach: CrossMemoryAttach::Never,
            tuning: None,
            rehearsal: None,
            dump: None,
            log: String::new(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self::blank();
        for setting in TABLE {
            let applied = setting.apply(&mut settings, setting.default);
            assert!(applied.is_ok(), "the table has an impossible default: {applied:?}");
        }
        settings
    }
}

impl Setting {
    /// What may be written, for people.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self.field {
            Field::Seconds { least, most, .. } => format!("seconds, {least} to {most}"),
            Field::Bytes { least, most, multiple: 1, .. } => {
                format!("bytes, {least} to {most}")
            }
            Field::Bytes { least, most, multiple, .. } => {
                format!("bytes, {least} to {most}, a multiple of {multiple}")
            }
            Field::Count { least, most, .. } => format!("{least} to {most}"),
            Field::Switch { .. } => "0 or 1".to_owned(),
            Field::Syntax { allowed, .. } => allowed.to_owned(),
        }
    }

    fn apply(&self, settings: &mut Settings, value: &str) -> Result<(), Error> {
        self.field.set(settings, value.trim()).map_err(|cause| {
            let cause = if cause.is_empty() { cause } else { format!(" ({cause})") };
            Error::InvalidArgument(format!(
                "{}={value:?} is not allowed{cause}; allowed: {}",
                self.name,
                self.allowed()
            ))
        })
    }
}

impl Field {
    /// Stores `text`; the error is the cause, or empty where the range says it all.
    fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        match *self {
            Self::Seconds { of, least, most } => {
                let seconds: f64 = text.parse().map_err(|_| String::new())?;
                // Written so that NaN, which compares with nothing, is refused.
                let inside = seconds >= least && seconds <= most;
                *of(settings) =
                    inside.then(|| Duration::from_secs_f64(seconds)).ok_or_else(String::new)?;
            }
            Self::Bytes { of, least, most, multiple } => {
                let bytes = whole(text, least, most)?;
                *of(settings) =
                    bytes.is_multiple_of(multiple).then_some(bytes).ok_or_else(String::new)?;
            }
            Self::Count { of, least, most } => *of(settings) = whole(text, least, most)?,
            Self::Switch { of } => {
                *of(settings) = match text {
                    "0" => false,
                    "1" => true,
                    _ => return Err(String::new()),
                }
            }
            Self::Syntax { set, .. } => set(settings, text)?,
        }
        Ok(())
    }
}

fn whole(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().map_err(|_| String::new())?;
    (least..=most).contains(&number).then_some(number).ok_or_else(String::new)
}

/// Says that there is no such setting, and which one may have been meant.
fn unknown(name: &str) -> String {
    let known = AS_IN_NCCL.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| (0, *ours));
    let nearest = TABLE.iter().map(|row| (differences(name, row.name), row.name)).min();
    match known.or(nearest) {
        Some((distance, meant)) if distance <= 3 => {
            format!("{name} is not a setting; is {meant} meant?")
        }
        _ => format!("{name} is not a setting"),
    }
}

/// The number of characters to insert, remove or replace to get from `left` to `right`.
fn differences(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

/// The text of `docs/configuration.md`.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Settings are environment variables, read once when a communicator is created. A value that is\n\
         not allowed is an error; a name with the prefix that is not in this table is reported in the\n\
         log. Set them alike on all ranks, except `R2CCL_HOST_ID`, `R2CCL_NIC`, `R2CCL_IB_HCA` and\n\
         `R2CCL_RAILS`.\n\n\
         This file is generated from the table in `ccl-core/src/settings.rs`:\n\n\
         ```sh\n\
         cargo run -q -p ccl --example configuration > docs/configuration.md\n\
         ```\n\n\
         | setting | default | allowed | meaning |\n\
         |---|---|---|---|\n",
    );
    for setting in TABLE {
        let default = match setting.default {
            "" => "(empty)".to_owned(),
            default => format!("`{default}`"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {default} | {} | {} |",
            setting.name,
            setting.allowed(),
            setting.help
        );
    }
    text.push_str(LAUNCHERS);
    text
}

/// The part of the documentation that is not a table of settings.
const LAUNCHERS: &str = include_str!("settings/launchers.md");

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parsed, Error> {
        Settings::parse(pairs.iter().copied())
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let settings = Settings::default();
        assert_eq!(settings.timeout, Duration::from_secs(300));
        assert_eq!(settings.bootstrap_timeout, Duration::from_secs(120));
        assert_eq!((settings.tile_bytes, settings.shm_slots), (0, 0));
        assert_eq!((settings.net_tile_bytes, settings.net_slots), (131_072, 0));
        assert!(settings.shared_memory && settings.algorithms.is_empty());
        assert_eq!(
            (settings.bootstrap, settings.job_key, settings.log),
            (None, None, "warn".into())
        );
    }

    #[test]
    fn values_reach_their_fields() {
        let settings = parse(&[
            ("R2CCL_TIMEOUT", "0.5"),
            ("R2CCL_TILE_BYTES", "8192"),
            ("R2CCL_ALGO", "allreduce:ring, chain"),
            ("R2CCL_RAILS", "127.0.0.2,::1"),
            ("R2CCL_BOOTSTRAP", "[::1]:4000"),
            ("R2CCL_IB_HCA", "^mlx5_1:2"),
            ("R2CCL_SHM", "0"),
            ("R2CCL_CUDA_CACHE", ""),
            ("PATH", "/bin"),
        ])
        .unwrap()
        .settings;
        assert_eq!(settings.timeout, Duration::from_millis(500));
        assert_eq!(settings.tile_bytes, 8192);
        assert_eq!(settings.algorithms.len(), 2);
        assert_eq!(settings.rails, ["127.0.0.2", "::1"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(settings.bootstrap, Some(Endpoint { host: "::1".into(), port: 4000 }));
        assert!(settings.rdma_devices.takes("mlx5_1", 1));
        assert!(!settings.rdma_devices.takes("mlx5_1", 2));
        assert!(!settings.shared_memory);
        assert_eq!(settings.cuda_cache, CudaCache::Off);
        assert_eq!(Settings::default().cuda_cache, CudaCache::OfUser);
    }

    #[test]
    fn an_error_names_the_variable_the_value_and_what_is_allowed() {
        for (name, value) in [
            ("R2CCL_TIMEOUT", "0"),
            ("R2CCL_TIMEOUT", "NaN"),
            ("R2CCL_TIMEOUT", "soon"),
            ("R2CCL_TILE_BYTES", "5000"),
            ("R2CCL_TILE_BYTES", "33554432"),
            ("R2CCL_SHM_SLOTS", "65"),
            ("R2CCL_SHM_SLOTS", "-1"),
            ("R2CCL_SHM", "yes"),
            ("R2CCL_RAILS", "eth0"),
            ("R2CCL_BOOTSTRAP", "host"),
            ("R2CCL_BOOTSTRAP", "host:70000"),
            ("R2CCL_ALGO", "allredduce:ring"),
            ("R2CCL_FAULT", "silent:host=0,rail=1"),
            ("R2CCL_FAULT", "slow:host=0,rail=1,at=1s,rate=1mbit"),
            ("R2CCL_NIC", "eth0,,eth1"),
            ("R2CCL_IB_HCA", "mlx5_0:x"),
        ] {
            let message = parse(&[(name, value)]).unwrap_err().to_string();
            let row = TABLE.iter().find(|row| row.name == name).unwrap();
            assert!(message.contains(name) && message.contains(value), "{message}");
            assert!(message.contains(&row.allowed()), "{message}");
        }
    }

    #[test]
    fn unknown_names_are_reported_with_the_nearest_known_one() {
        let foreign = ELSEWHERE.map(|name| (name, "anything"));
        assert!(Settings::parse(foreign).unwrap().warnings.is_empty());
        let warnings =
            parse(&[("R2CCL_TIMOUT", "3"), ("R2CCL_ZEBRA_CROSSING", "1"), ("CCL_X", "1")])
                .unwrap()
                .warnings;
        assert_eq!(
            warnings,
            [
                "R2CCL_TIMOUT is not a setting; is R2CCL_TIMEOUT meant?",
                "R2CCL_ZEBRA_CROSSING is not a setting"
            ]
        );
    }

    #[test]
    fn names_as_in_nccl_lead_to_ours() {
        for (theirs, ours) in AS_IN_NCCL {
            assert!(TABLE.iter().all(|row| row.name != theirs));
            assert!(TABLE.iter().any(|row| row.name == ours), "{ours}");
            let warnings = parse(&[(theirs, "INFO")]).unwrap().warnings;
            assert_eq!(warnings, [format!("{theirs} is not a setting; is {ours} meant?")]);
        }
    }

    #[test]
    fn the_pass_phrase_is_never_printed() {
        let settings = parse(&[("R2CCL_JOB_KEY", "tulip")]).unwrap().settings;
        assert_eq!(settings.job_key.as_ref().map(PassPhrase::reveal), Some("tulip"));
        assert!(!format!("{settings:?}").contains("tulip"));
    }

    #[test]
    fn the_table_is_consistent() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(row.name.starts_with(PREFIX));
            assert!(row.help.ends_with('.') && !row.help.contains('|'));
            assert!(TABLE[..index].iter().all(|earlier| earlier.name != row.name));
            assert!(reference().contains(&format!("`{}`", row.name)));
        }
    }
}
