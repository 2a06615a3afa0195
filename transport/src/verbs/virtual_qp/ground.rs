//! The devices below a domain, and when they are opened.
//!
//! The default device is opened with the domain. That of a backup is opened, and everything registered with
//! it, when its rail is to be connected for the first time: by a thread of a [`Shadow`](super::Shadow), in
//! the background. So neither the number of backups nor the memory that has to be registered with them shows
//! in the time that a program waits for its first request. From then on the rail is *open*: what is
//! registered later is registered with its device at once.
//!
//! A rail is connected only when it is open. So whoever is connected over it finds all regions in its table.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::super::{Access, Device, Domain, Memory, MemoryRegion};
use super::control::WORD;
use super::keys::Keys;
use crate::TransportError;

/// What all queue pairs of a domain use.
#[derive(Debug)]
pub(super) struct Shared {
    grounds: Vec<Ground>,
    pub(super) keys: Keys,
    /// The records of the atomics of all clients.
    records: Memory,
    pub(super) record_count: u64,
    clients: AtomicU64,
    /// Why backups cannot be used, as of the last attempt, by rail.
    obstacles: Mutex<BTreeMap<usize, TransportError>>,
}

/// The device of a rail.
#[derive(Debug)]
struct Ground {
    device: Arc<dyn Device>,
    opened: OnceLock<Opened>,
    /// Held by who opens it, or registers with it what is missing.
    opening: Mutex<()>,
}

/// What there is of a device that has been opened.
#[derive(Debug)]
pub(super) struct Opened {
    domain: Mutex<Box<dyn Domain>>,
    /// The key tables.
    pub(super) table: MemoryRegion,
    pub(super) records: MemoryRegion,
}

impl Opened {
    pub(super) fn domain(&self) -> MutexGuard<'_, Box<dyn Domain>> {
        lock(&self.domain)
    }
}

impl Shared {
    /// Opens the default device.
    pub(super) fn new(devices: &[Arc<dyn Device>], clients: u64) -> Result<Self, TransportError> {
        let ground = |device: &Arc<dyn Device>| Ground {
            device: Arc::clone(device),
            opened: OnceLock::new(),
            opening: Mutex::default(),
        };
        let shared = Self {
            grounds: devices.iter().map(ground).collect(),
            keys: Keys::new(devices.len())?,
            records: Memory::allocate(clients as usize * 2 * WORD)?,
            record_count: clients,
            clients: AtomicU64::new(0),
            obstacles: Mutex::default(),
        };
        shared.prepare(0)?;
        Ok(shared)
    }

    pub(super) fn rails(&self) -> usize {
        self.grounds.len()
    }

    /// The device of a rail that is open.
    pub(super) fn opened(&self, rail: usize) -> &Opened {
        self.grounds[rail].opened.get().expect("a rail is opened before it is used")
    }

    /// Makes a rail one that can be used, unless it is. It may take as long as registering all memory takes.
    ///
    /// # Errors
    /// The device refused. It is remembered as an [obstacle](Self::obstacles), and may be tried again.
    pub(super) fn open(&self, rail: usize) -> Result<(), TransportError> {
        if self.keys.is_open(rail) {
            return Ok(());
        }
        let outcome = self.prepare(rail);
        self.note(rail, outcome.as_ref().err());
        outcome
    }

    fn prepare(&self, rail: usize) -> Result<(), TransportError> {
        let Ground { device, opened, opening } = &self.grounds[rail];
        let _alone = lock(opening);
        if opened.get().is_none() {
            let domain = device.domain()?;
            let table = domain.register(self.keys.memory(), Access::READ)?;
            let records = domain.register(&self.records, Access::ALL)?;
            let first = opened.set(Opened { domain: Mutex::new(domain), table, records });
            assert!(first.is_ok(), "one thread at a time opens a device");
        }
        while !self.keys.declare_open(rail) {
            for missing in self.keys.missing(rail) {
                let region =
                    self.opened(rail).domain().register(&missing.memory, missing.access)?;
                self.keys.put(rail, missing.serial, region);
            }
        }
        Ok(())
    }

    /// Remembers what is in the way of a rail, and says it if it is something new.
    pub(super) fn note(&self, rail: usize, obstacle: Option<&TransportError>) {
        let mut obstacles = lock(&self.obstacles);
        let Some(reason) = obstacle else {
            obstacles.remove(&rail);
            return;
        };
        let before = obstacles.insert(rail, reason.clone());
        if before.is_none_or(|before| before.to_string() != reason.to_string()) {
            let device = self.grounds[rail].device.name();
            tracing::warn!(rail, device, %reason, "a backup cannot be used, and is tried again");
        }
    }

    pub(super) fn obstacles(&self) -> BTreeMap<usize, TransportError> {
        lock(&self.obstacles).clone()
    }

    /// A number that no other client of this domain has or had.
    pub(super) fn next_client(&self) -> Result<u64, TransportError> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        if number < self.record_count {
            return Ok(number);
        }
        let text = format!("the domain has served {} already", self.record_count);
        Err(TransportError::system("make a virtual queue pair", text))
    }

    /// Registers `memory` with the default device and all that are open.
    pub(super) fn register(
        self: &Arc<Self>,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, TransportError> {
        let region = self.opened(0).domain().register(memory, access)?;
        let (local, remote) = (region.segment(0, 0).key, region.remote(0));
        let (serial, open) = self.keys.insert(region, access)?;
        let registration = Registration { shared: Arc::clone(self), serial };
        for rail in open {
            self.prepare(rail)?;
        }
        let keys = (local, remote.key);
        Ok(MemoryRegion::new(memory.clone(), keys, remote.address, Box::new(registration)))
    }
}

/// Takes the keys out of the tables when the region is dropped, and then the regions themselves. After that
/// nobody here has the memory any more.
#[derive(Debug)]
struct Registration {
    shared: Arc<Shared>,
    serial: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.shared.keys.remove(self.serial));
        // Who opens a backup may just be registering the memory with it, in vain.
        for ground in &self.shared.grounds[1..] {
            drop(lock(&ground.opening));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::super::super::soft::SoftDevice;
    use super::super::super::{Depth, QueuePair};
    use super::*;

    const BYTES: usize = 4096;

    /// A software device that counts how often it is used, and refuses if it is told to.
    #[derive(Clone, Debug)]
    struct Moody {
        device: Arc<SoftDevice>,
        mood: Arc<Mood>,
    }

    #[derive(Debug, Default)]
    struct Mood {
        opened: AtomicUsize,
        registered: AtomicUsize,
        refuses: AtomicBool,
    }

    #[derive(Debug)]
    struct MoodyDomain(Box<dyn Domain>, Arc<Mood>);

    impl Moody {
        fn new() -> Self {
            let device = Arc::new(SoftDevice::new("moody".into(), [127, 0, 0, 1].into()));
            Self { device, mood: Arc::default() }
        }

        fn counts(&self) -> [usize; 2] {
            [&self.mood.opened, &self.mood.registered].map(|count| count.load(Ordering::Relaxed))
        }

        fn refuse(&self, refuses: bool) {
            self.mood.refuses.store(refuses, Ordering::Relaxed);
        }
    }

    impl Device for Moody {
        fn name(&self) -> &str {
            self.device.name()
        }

        fn address(&self) -> IpAddr {
            self.device.address()
        }

        fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
            self.mood.opened.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(MoodyDomain(self.device.domain()?, Arc::clone(&self.mood))))
        }
    }

    impl Domain for MoodyDomain {
        fn register(
            &self,
            memory: &Memory,
            access: Access,
        ) -> Result<MemoryRegion, TransportError> {
            if self.1.refuses.load(Ordering::Relaxed) {
                return Err(TransportError::system("register with moody", "it is gone"));
            }
            self.1.registered.fetch_add(1, Ordering::Relaxed);
            self.0.register(memory, access)
        }

        fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
            self.0.queue_pair(depth)
        }
    }

    fn shared(devices: &[&Moody]) -> Result<Arc<Shared>, TransportError> {
        let device = |device: &&Moody| Arc::new((*device).clone()) as Arc<dyn Device>;
        Shared::new(&devices.iter().map(device).collect::<Vec<_>>(), 8).map(Arc::new)
    }

    fn register(shared: &Arc<Shared>) -> Result<MemoryRegion, TransportError> {
        shared.register(&Memory::allocate(BYTES)?, Access::ALL)
    }

    /// Tables and records are two registrations.
    #[test]
    fn a_backup_is_opened_when_it_is_needed_and_has_everything_then() {
        let (default, backup) = (Moody::new(), Moody::new());
        let shared = shared(&[&default, &backup]).unwrap();
        let [before, dropped] = [0; 2].map(|_| register(&shared).unwrap());
        drop(dropped);
        assert_eq!((default.counts(), backup.counts()), ([1, 4], [0, 0]));
        shared.open(1).unwrap();
        shared.open(1).unwrap();
        assert_eq!((default.counts(), backup.counts()), ([1, 4], [1, 3]));
        let after = register(&shared).unwrap();
        assert_eq!((default.counts(), backup.counts()), ([1, 5], [1, 4]));
        for region in [before, after] {
            let key = region.segment(0, 0).key;
            assert!(shared.keys.local(1, key).is_some());
            drop(region);
            assert!(shared.keys.local(1, key).is_none());
        }
    }

    #[test]
    fn a_backup_that_refuses_is_an_obstacle_until_it_does_not() {
        let (default, backup) = (Moody::new(), Moody::new());
        let shared = shared(&[&default, &backup]).unwrap();
        backup.refuse(true);
        let region = register(&shared).unwrap();
        for _ in 0..2 {
            assert!(shared.open(1).is_err() && !shared.keys.is_open(1));
            let reason = shared.obstacles()[&1].to_string();
            assert_eq!(reason, "register with moody: it is gone");
        }
        backup.refuse(false);
        shared.open(1).unwrap();
        assert!(shared.obstacles().is_empty());
        assert!(shared.keys.local(1, region.segment(0, 0).key).is_some());
    }

    /// As when its NIC disappears.
    #[test]
    fn a_device_that_is_open_and_refuses_is_an_error_that_leaves_nothing() {
        for refusing in [0, 1] {
            let devices = [Moody::new(), Moody::new()];
            let shared = shared(&devices.each_ref()).unwrap();
            shared.open(1).unwrap();
            devices[refusing].refuse(true);
            let error = register(&shared).unwrap_err().to_string();
            assert_eq!(error, "register with moody: it is gone");
            devices[refusing].refuse(false);
            assert!(shared.keys.missing(1).is_empty());
            let regions: Vec<_> =
                (0..super::super::MAX_REGIONS).map(|_| register(&shared)).collect();
            assert!(regions.iter().all(Result::is_ok), "{regions:?}");
            assert!(register(&shared).unwrap_err().to_string().contains("are in use"));
        }
        let gone = Moody::new();
        gone.refuse(true);
        assert!(shared(&[&gone, &Moody::new()]).is_err());
    }

    #[test]
    fn what_is_dropped_while_a_backup_is_opened_is_left_alone() {
        for _ in 0..50 {
            let (default, backup) = (Moody::new(), Moody::new());
            let shared = shared(&[&default, &backup]).unwrap();
            let memory = Memory::allocate(BYTES).unwrap();
            let region = shared.register(&memory, Access::ALL).unwrap();
            let opening = Arc::clone(&shared);
            let thread = std::thread::spawn(move || opening.open(1));
            drop(region);
            assert!(!memory.is_shared());
            thread.join().unwrap().unwrap();
        }
    }

    /// Whoever comes first, a rail that is open has everything.
    #[test]
    fn what_is_registered_while_a_backup_is_opened_is_not_forgotten() {
        for _ in 0..50 {
            let (default, backup) = (Moody::new(), Moody::new());
            let shared = shared(&[&default, &backup]).unwrap();
            let opening = Arc::clone(&shared);
            let thread = std::thread::spawn(move || opening.open(1));
            let regions: Vec<_> = (0..16).map(|_| register(&shared).unwrap()).collect();
            thread.join().unwrap().unwrap();
            for region in &regions {
                assert!(shared.keys.local(1, region.segment(0, 0).key).is_some());
            }
        }
    }
}
