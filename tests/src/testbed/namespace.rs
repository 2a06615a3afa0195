//! Places of their own for hosts and switches: network, host name and view of `/sys`.
//!
//! A namespace has no name in the file system: it lives as long as an open file, a socket or a process
//! that belongs to it. So nothing has to be cleaned up, however a process ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};

use super::failure::{Failure, Outcome};
use super::netlink::{LOOPBACK, Netlink};

/// Control groups are mounted below `/sys`; they stay visible, because they limit processors.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Settings of every network: an interface speaks for its own addresses only, as on real networks of
/// separate rails, and there is no IPv6 that announces itself.
const NETWORK_SETTINGS: [(&str, &str); 5] = [
    ("ipv4/conf/all/arp_ignore", "1"),
    ("ipv4/conf/all/arp_announce", "2"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// The namespaces of one host, or of the switches.
#[derive(Debug)]
pub(super) struct Namespace {
    network: File,
    mounts: File,
    name: File,
}

impl Namespace {
    /// Makes a place called `name` with nothing but a loopback device, and connects to its network.
    pub(super) fn create(name: &str) -> Outcome<(Self, Netlink)> {
        // A thread that left for other namespaces is not used for anything else.
        thread::scope(|scope| scope.spawn(|| enter_new(name)).join())
            .unwrap_or_else(|_| Err(Failure::system("a new namespace", "the thread ended")))
    }

    /// The network, for requests of other namespaces.
    pub(super) fn network(&self) -> RawFd {
        self.network.as_raw_fd()
    }

    /// Does `work` as if it ran here: sockets that it opens and processes that it starts belong here.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Outcome<T> {
        let enter = || -> io::Result<()> {
            let folder = std::env::current_dir()?;
            // Threads of a process share their idea of the file system, until one of them does not.
            unshare(CloneFlags::CLONE_FS)?;
            setns(self.mounts.as_fd(), CloneFlags::CLONE_NEWNS)?;
            setns(self.name.as_fd(), CloneFlags::CLONE_NEWUTS)?;
            setns(self.network.as_fd(), CloneFlags::CLONE_NEWNET)?;
            // Other mounts, other root: the working folder is lost with the old ones.
            std::env::set_current_dir(folder)
        };
        let visit = || {
            enter().map_err(|cause| Failure::system("entering a namespace", cause))?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(visit).join())
            .unwrap_or_else(|_| Err(Failure::system("entering a namespace", "the thread ended")))
    }
}

/// Makes the calling thread the first inhabitant of a new place.
fn enter_new(name: &str) -> Outcome<(Namespace, Netlink)> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(|cause| Failure::making("making a namespace", cause))?;
    rustix::system::sethostname(name.as_bytes())
        .map_err(|cause| Failure::making("naming a host", cause))?;
    own_mounts().map_err(|cause| Failure::making("separating mounts", cause))?;
    own_sys().map_err(|cause| Failure::making("mounting /sys", cause))?;
    for (setting, value) in NETWORK_SETTINGS {
        set(setting, value)?;
    }
    let mut netlink = Netlink::open().map_err(|cause| Failure::making("netlink", cause))?;
    netlink.power(LOOPBACK, true).map_err(|cause| Failure::making("loopback", cause))?;
    let open = |kind: &str| {
        let path = format!("/proc/thread-self/ns/{kind}");
        File::open(&path).map_err(|cause| Failure::making(path, cause))
    };
    let namespace = Namespace { network: open("net")?, mounts: open("mnt")?, name: open("uts")? };
    Ok((namespace, netlink))
}

/// What the calling thread mounts from now on is not seen elsewhere. It must have mounts of its own.
pub(super) fn own_mounts() -> rustix::io::Result<()> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
}

/// Shows the network cards of this network in `/sys/class/net`, where their speed is looked up.
fn own_sys() -> rustix::io::Result<()> {
    let groups: Option<OwnedFd> = open_tree(
        CWD,
        CONTROL_GROUPS,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None)?;
    match groups {
        Some(groups) => {
            move_mount(groups, "", CWD, CONTROL_GROUPS, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        }
        None => Ok(()),
    }
}

/// Changes a setting of the network of the calling thread. A kernel without IPv6 lacks some.
fn set(setting: &str, value: &str) -> Outcome<()> {
    let path = Path::new("/proc/sys/net").join(setting);
    match std::fs::write(&path, value) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(Failure::making(path.display().to_string(), cause)),
        Ok(()) => Ok(()),
    }
}
