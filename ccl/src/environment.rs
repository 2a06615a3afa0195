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
    /// Identity of the parent process: its number and when it started. Ranks that one launcher started
    /// on one host have it in common.
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
    let number = std::os::unix::process::parent_id();
    let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    format!("{number}-{}", start_time(&status).unwrap_or("0"))
}

/// Field 22 of `/proc/<pid>/stat`. The name of the program, field 2, may contain spaces and brackets.
fn start_time(status: &str) -> Option<&str> {
    let (_, after_name) = status.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_an_odd_name() {
        let status = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3";
        assert_eq!(start_time(status), Some("98765"));
        assert_eq!(start_time("nonsense"), None);
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
