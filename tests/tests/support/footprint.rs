//! What a process leaves behind on its host: looked up in `/proc` before, during and after a test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Identifies a socket for as long as the host runs.
pub(crate) type Inode = u64;

/// What exists on the host around a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    descriptors: usize,
    shared_memory: BTreeSet<String>,
}

impl Footprint {
    /// Of this process, and of the host where it names this library.
    pub(crate) fn now() -> Self {
        let mut shared_memory = names_in("/dev/shm");
        shared_memory.retain(|name| name.contains("ccl"));
        Self { descriptors: descriptors("self"), shared_memory }
    }

    /// Whether nothing is there that was not there before; something of an earlier job may have gone
    /// meanwhile.
    pub(crate) fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.shared_memory.is_subset(&before.shared_memory)
    }
}

/// How many descriptors process `pid` has.
pub(crate) fn descriptors(pid: &str) -> usize {
    names_in(format!("/proc/{pid}/fd")).len()
}

/// How many threads process `pid` has.
pub(crate) fn threads(pid: &str) -> usize {
    names_in(format!("/proc/{pid}/task")).len()
}

/// Names of the entries of a folder; none if it does not exist.
pub(crate) fn names_in(folder: impl AsRef<Path>) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Processes whose environment contains `marker`, except this one.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let numbers = names_in("/proc").into_iter().filter_map(|name| name.parse().ok());
    let has_marker = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
    };
    numbers.filter(|pid| *pid != std::process::id()).filter(has_marker).collect()
}

/// Files that process `pid` has mapped and whose path begins with `folder`.
pub(crate) fn mapped_from(pid: u32, folder: &str) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
    paths.filter(|path| path.starts_with(folder)).collect()
}

/// The listening sockets of this network namespace.
pub(crate) fn listeners() -> BTreeMap<Inode, SocketAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let tables = read("/proc/net/tcp") + &read("/proc/net/tcp6");
    tables.lines().filter_map(parse_listener).collect()
}

/// The listening sockets of process `pid`.
pub(crate) fn listeners_of(pid: u32) -> BTreeMap<Inode, SocketAddr> {
    let folder = format!("/proc/{pid}/fd");
    let inode_of = |name: &String| {
        let target = fs::read_link(format!("{folder}/{name}")).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let own: BTreeSet<Inode> = names_in(&folder).iter().filter_map(inode_of).collect();
    let mut all = listeners();
    all.retain(|inode, _| own.contains(inode));
    all
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`
fn parse_listener(line: &str) -> Option<(Inode, SocketAddr)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != LISTENING {
        return None;
    }
    Some((fields.get(9)?.parse().ok()?, parse_address(fields[1])?))
}

/// Words of four bytes in the order of this processor, then the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        _ => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}
