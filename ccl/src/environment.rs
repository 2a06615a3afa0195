//! The only reader of the process environment.
//!
//! Everything else gets what it needs as a value: settings as [`Settings`], the variables of the
//! launcher as an [`Environment`], so that launch detection can be tested with any environment.
#![allow(clippy::disallowed_methods, reason = "this is the one place that may")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use ccl_core::Error;
use ccl_core::settings::{CudaCache, Settings};

/// What the process was started with, as far as launch detection looks at it.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// All environment variables.
    pub variables: BTreeMap<String, String>,
    /// Identity of the process that started this rank: its number and when it started. Ranks that one launcher
    /// started on one host have it in common. Scripts around a rank are not meant.
    pub parent: String,
    /// A directory for short-lived files of this user or, if there is none, of everybody.
    pub runtime_directory: PathBuf,
}

impl Environment {
    /// Reads the environment of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let runtime_directory = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|directory| directory.is_dir())
            .unwrap_or_else(std::env::temp_dir);
        Self { variables: variables().collect(), parent: parent(), runtime_directory }
    }
}

/// The settings of this process. Names that are no settings are reported in the log.
///
/// # Errors
/// [`Error::InvalidArgument`] names the variable, its value and what is allowed.
pub fn settings() -> Result<Settings, Error> {
    let parsed = Settings::parse(variables())?;
    for warning in &parsed.warnings {
        tracing::warn!(warning, "unknown setting");
    }
    let mut settings = parsed.settings;
    if settings.cuda_cache == CudaCache::OfUser {
        settings.cuda_cache = cache_of_user(&variables().collect());
    }
    Ok(settings)
}

/// Where compiled kernels of this user are kept. Names that are not absolute do not count, as the XDG
/// Base Directory Specification has it.
fn cache_of_user(variables: &BTreeMap<String, String>) -> CudaCache {
    let folder = |name| variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    caches.map_or(CudaCache::Off, |caches| CudaCache::Folder(caches.join("r2ccl/kernels")))
}

/// Text that is not Unicode cannot be meant for this library; it is kept readable for messages.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    })
}

fn parent() -> String {
    let number = starter(std::os::unix::process::parent_id(), Process::look);
    let started = Process::look(number).map_or_else(|| "0".to_owned(), |process| process.started);
    format!("{number}-{started}")
}

/// The first process from `parent` upwards that is no rank: what a rank was started through was told its rank, too,
/// and so was a launcher inside another one, which its name tells.
fn starter(parent: u32, look: impl Fn(u32) -> Option<Process>) -> u32 {
    let mut number = parent;
    // Parents are older, so this ends.
    while let Some(process) = look(number)
        && process.has_rank
        && !process.name.ends_with(LAUNCHING)
    {
        number = process.parent;
    }
    number
}

/// How the processes end with which Hydra starts the ranks of a host.
const LAUNCHING: &str = "pmi_proxy";

/// A process as `/proc` tells of it.
#[derive(Debug)]
struct Process {
    name: String,
    parent: u32,
    started: String,
    /// Whether Hydra told it a rank.
    has_rank: bool,
}

impl Process {
    fn look(number: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // Nobody else's can be read, and then it is no script of this job.
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let has_rank = variables.any(|variable| variable.starts_with(b"PMI_RANK="));
        Self::parse(&status, has_rank)
    }

    /// Fields 2, 4 and 22 of `/proc/<pid>/stat`. The first, the name of the program, may contain spaces and brackets.
    fn parse(status: &str, has_rank: bool) -> Option<Self> {
        let (before, after) = status.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after.split_whitespace();
        let (parent, started) = (fields.nth(1)?.parse().ok()?, fields.nth(17)?.to_owned());
        Some(Self { name: name.to_owned(), parent, started, has_rank })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_odd_name_is_understood() {
        let status = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3";
        let process = Process::parse(status, false).unwrap();
        assert_eq!((process.name.as_str(), process.parent), ("a) b (c", 7));
        assert_eq!(process.started, "98765");
        assert!(Process::parse("nonsense", false).is_none());
    }

    #[test]
    fn ranks_inside_scripts_were_started_by_the_launcher() {
        let look = |number: u32| {
            let (name, has_rank) = match number {
                2 => ("hydra_pmi_proxy", false),
                5 => ("hydra_pmi_proxy", true),
                _ => ("sh", number > 2),
            };
            let process =
                Process { name: name.into(), parent: number - 1, started: "1".into(), has_rank };
            (number > 1).then_some(process)
        };
        assert_eq!(starter(2, look), 2);
        assert_eq!(starter(4, look), 2, "a script in a script");
        assert_eq!(starter(5, look), 5, "a launcher that a rank has started");
        assert_eq!(starter(7, look), 5);
        assert_eq!(starter(1, look), 1, "nothing is known of it");
    }

    #[test]
    fn kernels_are_kept_among_the_caches_of_the_user() {
        let found = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
            cache_of_user(&variables.collect())
        };
        let folder = |path: &str| CudaCache::Folder(path.into());
        let home = ("HOME", "/home/a");
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "/fast")]), folder("/fast/r2ccl/kernels"));
        assert_eq!(found(&[home]), folder("/home/a/.cache/r2ccl/kernels"));
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "")]), folder("/home/a/.cache/r2ccl/kernels"));
        assert_eq!(found(&[("XDG_CACHE_HOME", "here"), ("HOME", "")]), CudaCache::Off);
    }

    #[test]
    fn the_parent_is_named_with_its_start_time() {
        let parent = Environment::of_this_process().parent;
        let (_, started) = parent.split_once('-').unwrap();
        assert!(started.parse::<u64>().unwrap() > 0, "{parent}");
    }
}
