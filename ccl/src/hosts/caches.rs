//! The caches of the processors, as sysfs tells of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel describes its processors.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Bytes of all caches of the last level of this host together; nothing if the kernel does not tell.
pub(crate) fn last_level_bytes() -> Option<usize> {
    last_level_bytes_at(Path::new(PROCESSORS))
}

fn last_level_bytes_at(processors: &Path) -> Option<usize> {
    // By level and by the processors that share it, so that a cache counts once.
    let mut caches: BTreeMap<u32, BTreeMap<String, usize>> = BTreeMap::new();
    for processor in entries(processors, "cpu") {
        for cache in entries(&processor.join("cache"), "index") {
            let read = |name: &str| {
                let text = fs::read_to_string(cache.join(name)).ok()?;
                Some(text.trim().to_owned())
            };
            let known =
                || Some((read("level")?.parse().ok()?, read("shared_cpu_list")?, read("size")?));
            if let Some((level, sharers, size)) = known()
                && let Some(bytes) = bytes_of(&size)
            {
                caches.entry(level).or_default().insert(sharers, bytes);
            }
        }
    }
    caches.pop_last().map(|(_, caches)| caches.values().sum())
}

/// Entries of a folder whose names are this word and a number.
fn entries(folder: &Path, word: &str) -> Vec<PathBuf> {
    let is_numbered =
        |name: &str| name.strip_prefix(word).is_some_and(|rest| rest.parse::<u32>().is_ok());
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter(|entry| is_numbered(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

/// Of a size as the kernel writes it: `32768K`.
fn bytes_of(size: &str) -> Option<usize> {
    let (number, unit) = match size.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => size.strip_suffix('M').map_or((size, 1), |number| (number, 1 << 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose processors have these caches: processor, level, sharers, size.
    fn host(name: &str, caches: &[(u32, u32, &str, &str)]) -> Option<usize> {
        let root = std::env::temp_dir().join(format!("r2ccl-caches-{name}-{}", std::process::id()));
        for (number, (processor, level, sharers, size)) in caches.iter().enumerate() {
            let folder = root.join(format!("cpu{processor}/cache/index{number}"));
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in [
                ("level", level.to_string().as_str()),
                ("shared_cpu_list", sharers),
                ("size", size),
            ] {
                fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
        }
        let bytes = last_level_bytes_at(&root);
        let _ = fs::remove_dir_all(root);
        bytes
    }

    #[test]
    fn caches_of_the_last_level_count_once_each() {
        let two_dies = [
            (0, 1, "0", "32K"),
            (0, 3, "0-1", "32768K"),
            (1, 2, "1", "1M"),
            (1, 3, "0-1", "32768K"),
            (2, 3, "2-3", "16M"),
        ];
        assert_eq!(host("two-dies", &two_dies), Some(48 << 20));
        assert_eq!(host("small", &[(0, 1, "0", "48K")]), Some(48 << 10));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_unknown() {
        assert_eq!(host("none", &[]), None);
        assert_eq!(host("strange", &[(0, 3, "0", "much")]), None);
    }

    #[test]
    fn this_host_has_a_cache_of_some_size_or_does_not_tell() {
        assert!(last_level_bytes().is_none_or(|bytes| bytes >= 4096));
    }
}
