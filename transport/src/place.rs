//! Where network devices are in their host, as sysfs tells it.
//!
//! The kernel shows a PCI device as a folder whose path is the way to it, through the host bridge, the
//! root port, and both ports of every switch:
//!
//! ```text
//!   /sys/class/net/eth1/device
//!     └─▶ /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0
//!                      host bridge  root port    switch: up, and down     the device
//! ```
//!
//! So the distance of two devices is what their paths do not share. The paths are those of
//! `Documentation/filesystems/sysfs.rst` and `Documentation/PCI/sysfs-pci.rst` of Linux, the classes those
//! of NCCL.
//!
//! A device has the place of its physical function if it is a virtual one (`physfn`). An interface that is
//! none itself (bond, VLAN, bridge) has the places of those below it. What is on no PCI bus, as a veth pair
//! or the loopback interface, has none. Whatever sysfs has, nothing here is an error: what cannot be read
//! has no place.

mod flows;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use ccl_core::topology::Distance;

/// Interfaces that are looked at for the place of one, at most.
const MOST_INTERFACES: usize = 64;
/// How much of a file is read, in bytes.
const MOST_BYTES: u64 = 4096;

/// A tree like that of sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    /// That of the kernel.
    fn default() -> Self {
        Self::at("/sys")
    }
}

/// Where a device is: no, one or, below a bond, several PCI functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    functions: BTreeSet<Function>,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    /// The names of the host bridge, of all bridges below it, and its own: at least two.
    path: Vec<String>,
    numa_node: Option<u32>,
}

impl Sysfs {
    /// The tree in this folder.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the network interface of this name is. What follows a colon names an address, not a device.
    #[must_use]
    pub fn interface(&self, name: &str) -> Place {
        let function = |folder: PathBuf| self.function(&folder.join("device"));
        Place { functions: self.stack(name).into_iter().filter_map(function).collect() }
    }

    /// How many flows it takes to fill the network interface of this name, as far as the kernel tells: one, but
    /// for bonds that choose a port by the numbers of ports of a flow, and for NICs of clouds that limit a flow.
    #[must_use]
    pub fn flows(&self, name: &str) -> usize {
        self.stack(name).iter().map(|folder| flows::of(folder)).max().unwrap_or(1)
    }

    /// The folders of an interface and, if it is on no PCI bus, of those on which it is made.
    fn stack(&self, name: &str) -> Vec<PathBuf> {
        let mut waiting = vec![name.to_owned()];
        let mut seen = Vec::new();
        while let Some(name) = waiting.pop() {
            if seen.len() == MOST_INTERFACES {
                break;
            }
            let Some(folder) = self.entry("net", &name) else { continue };
            if seen.contains(&folder) {
                continue;
            }
            if self.function(&folder.join("device")).is_none() {
                waiting.extend(below(&folder));
            }
            seen.push(folder);
        }
        seen
    }

    /// Where the RDMA device of this name is. What follows a colon is the number of a port.
    #[must_use]
    pub fn rdma_device(&self, name: &str) -> Place {
        let folder = self.entry("infiniband", name);
        let function = folder.and_then(|folder| self.function(&folder.join("device")));
        Place { functions: function.into_iter().collect() }
    }

    /// The folder of a device of a class, if the name can be that of one.
    fn entry(&self, class: &str, name: &str) -> Option<PathBuf> {
        let name = name.split_once(':').map_or(name, |(device, _)| device);
        let is_name = !matches!(name, "" | "." | "..") && !name.contains('/');
        is_name.then(|| self.root.join("class").join(class).join(name))
    }

    /// The physical PCI function behind the link of a device.
    fn function(&self, link: &Path) -> Option<Function> {
        let device = self.pci_folder(link)?;
        let (folder, path) = self.pci_folder(&device.0.join("physfn")).unwrap_or(device);
        Some(Function { path, numa_node: number(&folder.join("numa_node")) })
    }

    /// The folder of the PCI function to which a link leads, or above it, and the names on the way to it.
    fn pci_folder(&self, link: &Path) -> Option<(PathBuf, Vec<String>)> {
        let mut folder = self.root.canonicalize().ok()?;
        let target = link.canonicalize().ok()?;
        let mut path = Vec::new();
        for component in target.strip_prefix(&folder).ok()?.components() {
            let name = component.as_os_str().to_str()?;
            let is_first = path.is_empty();
            if is_host_bridge(name) || (is_function(name) && !is_first) {
                path.push(name.to_owned());
            } else if !is_first {
                break;
            }
            folder.push(name);
        }
        path.last().is_some_and(|name| is_function(name)).then_some((folder, path))
    }
}

impl Place {
    /// Whether it is not known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.functions.is_empty()
    }

    /// How far the other device is. Of several ports the farthest counts, since traffic may take any.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        if self == other && !self.is_unknown() {
            return Distance::Loc;
        }
        let others = |one| other.functions.iter().map(move |other| Function::distance(one, other));
        self.functions.iter().flat_map(others).max().unwrap_or_default()
    }

    /// The PCI address, `domain:bus:device.function`; several ones with commas between them.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        let addresses = self.functions.iter().filter_map(|function| function.path.last());
        let addresses: Vec<&str> = addresses.map(String::as_str).collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }

    /// The NUMA node, if the kernel knows one, and the same for all ports.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let mut nodes = self.functions.iter().map(|function| function.numa_node);
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }
}

impl Function {
    fn distance(&self, other: &Self) -> Distance {
        let both = self.path.iter().zip(&other.path);
        let shared = both.take_while(|(one, other)| one == other).count();
        let (ours, theirs) = (&self.path[shared..], &other.path[shared..]);
        if let ([], []) = (ours, theirs) {
            return Distance::Loc;
        }
        match self.path[..shared].last() {
            // Without NUMA there is one node, which the kernel calls none.
            None if self.numa_node == other.numa_node => Distance::Node,
            None => Distance::Sys,
            Some(_) if is_one_device(ours, theirs) => Distance::Loc,
            Some(bridge) if is_host_bridge(bridge) => Distance::Phb,
            // Below the upstream port of a switch: a downstream port, and the device.
            Some(_) if ours.len().max(theirs.len()) <= 2 => Distance::Pix,
            Some(_) => Distance::Pxb,
        }
    }
}

/// Whether these are functions of one device, as the ports of a card are.
fn is_one_device(ours: &[String], theirs: &[String]) -> bool {
    let ([one], [other]) = (ours, theirs) else { return false };
    let slot = |name: &str| name.split_once('.').map(|(slot, _)| slot.to_owned());
    slot(one) == slot(other)
}

/// The interfaces on which this one is made: `lower_eth0`.
fn below(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let name =
        |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

/// The kernel writes -1 where it does not know.
fn number(file: &Path) -> Option<u32> {
    text(file)?.parse().ok()
}

/// What a file of sysfs says.
fn text(file: &Path) -> Option<String> {
    if !fs::metadata(file).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(file).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Such as `pci0000:3a`.
fn is_host_bridge(name: &str) -> bool {
    let parts = name.strip_prefix("pci").and_then(|bus| bus.split_once(':'));
    parts.is_some_and(|(domain, bus)| is_domain(domain) && is_hexadecimal(bus, 2))
}

/// Such as `0000:3b:00.1`.
fn is_function(name: &str) -> bool {
    let Some((slot, function)) = name.split_once('.') else { return false };
    let parts: Vec<&str> = slot.split(':').collect();
    let [domain, bus, device] = parts[..] else { return false };
    let is_slot = is_domain(domain) && is_hexadecimal(bus, 2) && is_hexadecimal(device, 2);
    is_slot && is_hexadecimal(function, 1)
}

/// Those of volume management devices have five digits.
fn is_domain(text: &str) -> bool {
    (4..=8).any(|digits| is_hexadecimal(text, digits))
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
