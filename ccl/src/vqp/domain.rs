//! Devices, memory, and the queue pairs over them.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::fault::Rehearsal;
use ccl_transport::auth::JobKey;
use ccl_transport::nics::Lookout;
use ccl_transport::verbs::soft::socket::Binding;
use ccl_transport::verbs::virtual_qp::{
    Evidence, Limits, Standing, Switchboard, VirtualDevice, VirtualDomain, VirtualSettings,
};
use ccl_transport::verbs::{self, Access, Depth, Domain as _, Memory, MemoryRegion};

use super::devices::{Nature, Port, ports};
use super::drill::{Drill, Fragile};
use super::{Error, Key, QueuePair};
use crate::driver::lock;
use crate::hosts::BYTES_PER_MEGABIT;

/// The deepest queue pair.
pub const MAX_DEPTH: usize = 1 << 16;

/// What a domain is made over.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainConfig {
    /// The devices in the order of the rails, the default one first: `soft` for a software device on
    /// every NIC that `R2CCL_NIC` and `R2CCL_RAILS` admit; `verbs` for all RDMA devices that
    /// `R2CCL_IB_HCA` admits; or names, separated by commas: of RDMA devices (`mlx5_0`, `mlx5_0:1`), and
    /// of interfaces or addresses, which get software devices; or a filter as in `R2CCL_NIC` that begins
    /// with `^` or `=`. An interface goes before an RDMA device of the same name, which can be named with
    /// its port. A rail has devices of the same kind at both ends. Backups are tried by
    /// their distance from the default one, then by capacity, and in this order where both are equal.
    pub devices: String,
    /// Queue pairs with atomics that the domain serves over its life, at most; further ones cannot be
    /// made.
    pub queue_pairs: usize,
    /// Faults to rehearse; the same at both ends. Host 0 is the end that accepts, host 1 the one that
    /// connects, and the time counts from when the first queue pair is connected.
    pub faults: Option<Rehearsal>,
}

impl Default for DomainConfig {
    fn default() -> Self {
        Self { devices: super::SOFT.into(), queue_pairs: 1024, faults: None }
    }
}

impl DomainConfig {
    /// All devices, and the faults of `R2CCL_FAULT`.
    ///
    /// # Errors
    /// A setting is impossible.
    pub fn from_environment() -> Result<Self, Error> {
        let settings = crate::environment::settings()?;
        Ok(Self { faults: settings.rehearsal, ..Self::default() })
    }

    /// Faults in the language of `R2CCL_FAULT`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is not understood.
    pub fn with_faults(self, text: &str) -> Result<Self, Error> {
        let faults = text
            .parse()
            .map_err(|cause| Error::InvalidArgument(format!("faults {text:?}: {cause}")))?;
        Ok(Self { faults: Some(faults), ..self })
    }
}

/// How one queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How the ends learn, after a fault, what has been executed: which semantics hold then. `None`: a
    /// plain queue pair of the default device, which ends with its rail. The same at both ends.
    pub evidence: Option<Evidence>,
    /// Requests and receives that are posted and not completed, at most.
    pub depth: Depth,
    /// How long the peer's host may confirm nothing of what is on its way before a rail is given up.
    pub silence: Duration,
    /// How long repairs and returns may take.
    pub limits: Limits,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            evidence: Some(Evidence::Handshake),
            depth: Depth { sends: 128, receives: 128 },
            silence: Duration::from_secs(1),
            limits: Limits::default(),
        }
    }
}

impl Terms {
    fn checked(&self) -> Result<(), Error> {
        let Depth { sends, receives } = self.depth;
        let is_possible = (1..=MAX_DEPTH).contains(&sends) && receives <= MAX_DEPTH;
        if is_possible {
            return Ok(());
        }
        let text = format!(
            "a depth of {sends} requests and {receives} receives: at least one request, at most \
             {MAX_DEPTH} of each"
        );
        Err(Error::InvalidArgument(text))
    }
}

/// Devices, the memory that is registered with all of them, and the queue pairs over them. A peer
/// reaches the memory of a domain through its queue pairs, and nothing else.
#[derive(Debug)]
pub struct Domain {
    pub(super) inner: VirtualDomain,
    names: Vec<String>,
    pub(super) wiring: Arc<Wiring>,
}

/// How connections are made.
#[derive(Debug)]
pub(super) struct Wiring {
    pub(super) bindings: Vec<Binding>,
    /// What its devices are, by rail.
    pub(super) natures: Vec<Nature>,
    /// What this end thinks that its rails are worth.
    pub(super) standings: Vec<Standing>,
    pub(super) drill: Option<Arc<Drill>>,
    /// Watches the NICs.
    pub(super) lookout: Arc<Lookout>,
    /// Where this process listens for connections of rails, once it accepts any.
    switchboard: Mutex<Option<Arc<Switchboard>>>,
    pub(super) key: JobKey,
}

impl Wiring {
    /// Opened when it is first needed.
    pub(super) fn switchboard(&self) -> Result<Arc<Switchboard>, Error> {
        let mut open = lock(&self.switchboard);
        if let Some(switchboard) = &*open {
            return Ok(Arc::clone(switchboard));
        }
        let opened = Arc::new(Switchboard::open(&self.bindings, self.key.clone())?);
        *open = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

impl Domain {
    /// A domain over the devices of `config`, whose connections prove `key`. All of them are looked at; the
    /// default one is opened.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a device that does not exist, or a fault of one; [`Error::System`] for
    /// one that cannot be used, backups included: it names the device and the reason.
    pub fn open(config: &DomainConfig, key: &Key) -> Result<Self, Error> {
        let found = ports(&config.devices, &crate::environment::settings()?)?;
        tell(&found);
        let drill = config.faults.clone().map(|plan| Drill::new(plan, found.len())).transpose()?;
        Self::over(&found, config, drill, key)
    }

    /// The same over devices that were found, where `drill` is imitated.
    pub(super) fn over(
        found: &[Port],
        config: &DomainConfig,
        drill: Option<Drill>,
        key: &Key,
    ) -> Result<Self, Error> {
        let drill = drill.map(Arc::new);
        let standings = standings(found);
        let settings = VirtualSettings {
            standings: standings.clone(),
            clients: config.queue_pairs,
            ..VirtualSettings::new(Evidence::Handshake, found.len())
        };
        let bindings: Vec<_> = found.iter().map(|port| port.binding.clone()).collect();
        let lookout = Lookout::over(bindings.clone())?;
        let device = VirtualDevice::new(devices(found, &lookout, drill.as_ref()), settings);
        let natures: Vec<_> = found.iter().map(|port| port.nature.clone()).collect();
        let names = natures.iter().map(|nature| nature.name.clone()).collect();
        let (switchboard, key) = (Mutex::default(), key.0.clone());
        let wiring = Wiring { bindings, natures, standings, drill, lookout, switchboard, key };
        Ok(Self { inner: device.virtual_domain()?, names, wiring: Arc::new(wiring) })
    }

    /// The devices, by rail.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.names
    }

    /// Why backups cannot be used, by rail, as of the last attempt to open their devices and to register
    /// memory with them. Such a rail is down, and is tried again as long as a queue pair wants it; the log
    /// says so too, as a warning.
    #[must_use]
    pub fn obstacles(&self) -> Vec<(usize, String)> {
        let obstacles = self.inner.obstacles().into_iter();
        obstacles.map(|(rail, reason)| (rail, reason.to_string())).collect()
    }

    /// Makes `memory` known to the queue pairs of this domain, on all devices, until the region is
    /// dropped. The peer may do with it what `access` says.
    ///
    /// Devices of backups are opened in the background, when the first queue pair connects: what is
    /// registered before that is registered with them then. If one refuses it is an
    /// [obstacle](Self::obstacles).
    ///
    /// # Errors
    /// [`Error::System`]: a device that is open refused, as RDMA devices do when more memory would have to
    /// stay in place than the process may lock; or 64 regions are registered already.
    pub fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, Error> {
        Ok(self.inner.register(memory, access)?)
    }

    /// New memory of `bytes` bytes, zeroed and registered.
    ///
    /// # Errors
    /// As for [`Self::register`]; there is none, or `bytes` is 0.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, Error> {
        if bytes == 0 {
            return Err(Error::InvalidArgument("a region of 0 bytes".into()));
        }
        self.register(&Memory::allocate(bytes)?, access)
    }

    /// Opens the devices of all backups, as far as they can be.
    pub(super) fn open_backups(&self) {
        // What is in the way is an obstacle, which the log has.
        let _ = self.inner.open_backups();
    }

    /// A queue pair that is not connected yet; receives can be posted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an impossible depth; or a device refused.
    pub fn queue_pair(&self, terms: &Terms) -> Result<QueuePair, Error> {
        terms.checked()?;
        match terms.evidence {
            None => QueuePair::plain(self, self.inner.plain_queue_pair(terms.depth)?, terms),
            Some(evidence) => {
                let settings = VirtualSettings {
                    limits: terms.limits,
                    standings: self.wiring.standings.clone(),
                    silence: terms.silence,
                    ..VirtualSettings::new(evidence, self.wiring.standings.len())
                };
                let pair = self.inner.virtual_queue_pair_with(&settings, terms.depth)?;
                QueuePair::surviving(self, pair, terms)
            }
        }
    }
}

/// What the devices are worth: near ones first, as seen from the default one, then fast ones.
fn standings(found: &[Port]) -> Vec<Standing> {
    let standing = |port: &Port| Standing {
        distance: found[0].place.distance(&port.place),
        capacity: Reverse(port.bytes_per_second),
    };
    found.iter().map(standing).collect()
}

/// Tells the log where the devices are.
fn tell(found: &[Port]) {
    for (rail, port) in found.iter().enumerate() {
        tracing::info!(
            rail,
            name = port.nature.name,
            pci = port.place.address(),
            numa_node = port.place.numa_node(),
            megabits_per_second = port.bytes_per_second / BYTES_PER_MEGABIT,
            distance = found[0].place.distance(&port.place).name(),
            "a rail of virtual queue pairs"
        );
    }
}

/// The devices on NICs that are watched, over the cables of a drill where there is one.
fn devices(
    found: &[Port],
    lookout: &Arc<Lookout>,
    drill: Option<&Arc<Drill>>,
) -> Vec<Arc<dyn verbs::Device>> {
    let wrap = |(rail, port): (usize, &Port)| -> Arc<dyn verbs::Device> {
        let device = port.device(lookout.nic(rail));
        match drill {
            Some(drill) => Arc::new(Fragile { device, rail, drill: Arc::clone(drill) }),
            None => device,
        }
    };
    found.iter().enumerate().map(wrap).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ccl_core::settings::Settings;
    use ccl_transport::place::{Distance, Sysfs};

    use super::*;

    /// Two are below one switch, one on another port of the host bridge above it, one on the other socket.
    #[test]
    fn near_devices_go_before_fast_ones() {
        let tree = tempfile::tempdir().unwrap();
        let switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        let found = [
            (10, format!("{switch}/0000:3c:00.0/0000:3d:00.0")),
            (400, "pci0000:ae/0000:ae:00.0/0000:af:00.0".to_owned()),
            (100, "pci0000:3a/0000:3a:02.0/0000:50:00.0".to_owned()),
            (25, format!("{switch}/0000:3c:04.0/0000:3e:00.0")),
        ];
        let names = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";
        let mut ports = ports(names, &Settings::default()).unwrap();
        fs::create_dir_all(tree.path().join("class/net")).unwrap();
        for (index, (port, (speed, device))) in ports.iter_mut().zip(found).enumerate() {
            let folder = tree.path().join("class/net").join(format!("eth{index}"));
            let device = tree.path().join("devices").join(device);
            fs::create_dir_all(&device).unwrap();
            fs::create_dir(&folder).unwrap();
            fs::write(device.join("numa_node"), format!("{}\n", index % 2)).unwrap();
            symlink(&device, folder.join("device")).unwrap();
            port.place = Sysfs::at(tree.path()).interface(&format!("eth{index}"));
            port.bytes_per_second = speed;
        }
        let key = Key::from_passphrase("a test of distances");
        let domain = Domain::over(&ports, &DomainConfig::default(), None, &key).unwrap();
        let distances: Vec<_> = domain.wiring.standings.iter().map(|rail| rail.distance).collect();
        assert_eq!(distances, [Distance::Loc, Distance::Sys, Distance::Phb, Distance::Pix]);
        let mut backups = [1, 2, 3];
        backups.sort_by_key(|rail| domain.wiring.standings[*rail]);
        assert_eq!(backups, [3, 2, 1]);
    }

    #[test]
    fn devices_that_are_nowhere_go_by_speed() {
        let mut ports = ports("127.0.0.1,127.0.0.2,127.0.0.3", &Settings::default()).unwrap();
        ports[2].bytes_per_second = ports[1].bytes_per_second + 1;
        let standings = standings(&ports);
        assert!(standings.iter().all(|standing| standing.distance == Distance::Unknown));
        assert!(standings[2] < standings[1]);
    }
}
