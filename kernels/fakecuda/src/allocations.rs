//! Memory that the driver knows: of devices, pinned, registered, and opened from other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};

use ccl_emulator::Rights;

use crate::codes::{Code, Result};
use crate::device::Device;
use crate::ipc::Handle;
use crate::outside::{self, Mapping, register};

/// What memory of a device holds before it is written.
const GARBAGE: u8 = 0xa5;

/// What a range of addresses is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Memory of a device, in a file that others can map.
    Device(OwnedFd),
    /// Memory of the host that the driver made.
    Pinned,
    /// Memory of the program that it registered.
    Registered,
    /// Memory of a device that belongs to another process, and how often it was opened.
    Opened(Handle, usize),
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) kind: Kind,
    /// The device that it belongs to, or for which it was opened or made.
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    pub(crate) number: u64,
    _mapping: Option<Mapping>,
}

impl Allocation {
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.kind, Kind::Device(_) | Kind::Opened(..))
    }
}

/// All of it, by where it begins.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    ranges: BTreeMap<u64, Allocation>,
    /// Who may touch whose memory: first the one that may.
    peers: BTreeSet<(usize, usize)>,
    made: u64,
}

impl Allocations {
    /// New memory of a device: whatever was there before, and never zeros.
    pub(crate) fn allocate(&mut self, device: &Device, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let file = outside::file(bytes)?;
        let mapping = Mapping::file(&file, bytes)?;
        mapping.fill(GARBAGE);
        self.insert(mapping.start(), bytes, device.ordinal, Kind::Device(file), Some(mapping))
    }

    /// New memory of the host.
    pub(crate) fn pin(&mut self, device: &Device, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let mapping = Mapping::anonymous(bytes)?;
        self.insert(mapping.start(), bytes, device.ordinal, Kind::Pinned, Some(mapping))
    }

    /// Memory of the program.
    pub(crate) fn register(&mut self, device: &Device, start: u64, bytes: usize) -> Result<u64> {
        if start == 0 || bytes == 0 {
            return Err(Code::InvalidValue);
        }
        self.insert(start, bytes, device.ordinal, Kind::Registered, None)
    }

    /// Memory of another process; the same again if it is open.
    pub(crate) fn open(&mut self, device: &Device, handle: Handle) -> Result<u64> {
        let is_same = |allocation: &Allocation| matches!(&allocation.kind, Kind::Opened(known, _) if *known == handle);
        let known = self
            .ranges
            .iter_mut()
            .find(|(_, allocation)| allocation.device == device.ordinal && is_same(allocation));
        if let Some((start, allocation)) = known {
            if let Kind::Opened(_, times) = &mut allocation.kind {
                *times += 1;
            }
            return Ok(*start);
        }
        let file = handle.open()?;
        let bytes = handle.bytes as usize;
        let mapping = Mapping::file(&file, bytes)?;
        self.insert(mapping.start(), bytes, device.ordinal, Kind::Opened(handle, 1), Some(mapping))
    }

    fn insert(
        &mut self,
        start: u64,
        bytes: usize,
        device: usize,
        kind: Kind,
        mapping: Option<Mapping>,
    ) -> Result<u64> {
        self.made += 1;
        let number = self.made;
        let allocation = Allocation { kind, device, bytes, number, _mapping: mapping };
        let viewers = self.viewers(&allocation);
        for (index, viewer) in viewers.iter().enumerate() {
            if register(&viewer.memory, start, bytes, Rights::ReadWrite).is_err() {
                for registered in &viewers[..index] {
                    registered.memory.unregister(start);
                }
                return Err(Code::HostRegistered);
            }
        }
        self.ranges.insert(start, allocation);
        Ok(start)
    }

    /// The devices whose kernels may touch it: all for memory of the host.
    fn viewers(&self, allocation: &Allocation) -> Vec<&'static Device> {
        let owner = allocation.device;
        let may = |device: &&Device| {
            !allocation.is_on_device()
                || device.ordinal == owner
                || self.peers.contains(&(device.ordinal, owner))
        };
        Device::all().iter().filter(may).collect()
    }

    fn remove(&mut self, start: u64) {
        if let Some(allocation) = self.ranges.remove(&start) {
            for viewer in self.viewers(&allocation) {
                viewer.memory.unregister(start);
            }
        }
    }

    /// Frees what begins there, if it is of the kind that is meant.
    pub(crate) fn free(&mut self, start: u64, is_meant: fn(&Kind) -> bool) -> Result<()> {
        let known = self.ranges.get(&start).filter(|allocation| is_meant(&allocation.kind));
        known.ok_or(Code::InvalidValue)?;
        self.remove(start);
        Ok(())
    }

    /// Closes what was opened, when this was the last time.
    pub(crate) fn close(&mut self, start: u64) -> Result<()> {
        let allocation = self.ranges.get_mut(&start).ok_or(Code::InvalidValue)?;
        let Kind::Opened(_, times) = &mut allocation.kind else { return Err(Code::InvalidValue) };
        *times -= 1;
        if *times == 0 {
            self.remove(start);
        }
        Ok(())
    }

    /// The memory that an address is in.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.ranges.range(..=address).next_back()?;
        (address - start < allocation.bytes as u64).then_some((*start, allocation))
    }

    /// Whether all bytes are in one piece of known memory.
    pub(crate) fn has(&self, address: u64, bytes: usize) -> bool {
        self.find(address).is_some_and(|(start, allocation)| {
            bytes <= allocation.bytes - (address - start) as usize
        })
    }

    /// How another process finds memory of a device.
    pub(crate) fn handle(&self, address: u64) -> Result<Handle> {
        let (_, allocation) = self.find(address).ok_or(Code::InvalidValue)?;
        let Kind::Device(file) = &allocation.kind else { return Err(Code::InvalidValue) };
        Handle::of(file, file.as_raw_fd(), allocation.bytes, allocation.device)
    }

    /// Memory of a device as a file, which begins where the memory does.
    pub(crate) fn file(&self, address: u64, bytes: usize) -> Result<&OwnedFd> {
        let (start, allocation) = self.find(address).ok_or(Code::InvalidValue)?;
        match &allocation.kind {
            Kind::Device(file) if address == start && bytes <= allocation.bytes => Ok(file),
            Kind::Device(_) | Kind::Pinned | Kind::Registered | Kind::Opened(..) => {
                Err(Code::InvalidValue)
            }
        }
    }

    /// Lets one device touch the memory of another, or no longer.
    pub(crate) fn set_peer(&mut self, device: &Device, owner: usize, may: bool) -> Result<()> {
        let pair = (device.ordinal, owner);
        if may && !self.peers.insert(pair) {
            return Err(Code::PeerEnabled);
        }
        if !may && !self.peers.remove(&pair) {
            return Err(Code::PeerNotEnabled);
        }
        for (start, allocation) in &self.ranges {
            if !allocation.is_on_device() || allocation.device != owner {
                continue;
            }
            if may {
                let bytes = allocation.bytes;
                let registered = register(&device.memory, *start, bytes, Rights::ReadWrite);
                registered.map_err(|_| Code::MapFailed)?;
            } else {
                device.memory.unregister(*start);
            }
        }
        Ok(())
    }
}
