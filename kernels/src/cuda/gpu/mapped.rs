//! Memory of other ranks on this host: of this process, or of another one.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, result, sys};

use super::error::Error;
use super::memory::{Buffer, DeviceRegion, Handle, Imported, region_at};
use super::place::{self, Place};
use super::{Gpu, Told};

/// What somebody needs to map memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The process that it belongs to, as processes of its namespace number it.
    pub process: u32,
    /// What that process has drawn: one of another namespace may have the same number.
    pub word: u64,
    /// Its number among the devices that the process sees.
    pub device: u32,
    /// Where it begins in that process.
    pub address: u64,
    /// Its name for other processes.
    pub handle: Handle,
}

/// What tells this process from others of the host with the same number.
static WORD: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// Buffers that other ranks of this process may map.
static SHARED: Mutex<Vec<(u64, Weak<Buffer>)>> = Mutex::new(Vec::new());

/// A buffer that stays as long as some rank of this process has mapped it.
#[derive(Debug)]
pub(super) struct Shared(Arc<Buffer>);

impl Shared {
    pub(super) fn new(buffer: Buffer) -> Self {
        let buffer = Arc::new(buffer);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, other)| other.strong_count() > 0);
        shared.push((buffer.region().address(), Arc::downgrade(&buffer)));
        Self(buffer)
    }

    pub(super) fn region(&self) -> DeviceRegion<'_> {
        self.0.region()
    }

    pub(super) fn invitation(&self) -> Result<Invitation, Error> {
        Ok(Invitation {
            process: process::id(),
            word: *WORD,
            device: self.0.ordinal() as u32,
            address: self.0.region().address(),
            handle: self.0.export()?,
        })
    }

    fn find(address: u64) -> Option<Arc<Buffer>> {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared
            .iter()
            .filter(|(known, _)| *known == address)
            .find_map(|(_, buffer)| buffer.upgrade())
    }
}

/// Memory of another rank, as it is found here.
#[derive(Debug)]
pub enum Mapped {
    /// Of this process; kept.
    Kept(Arc<Buffer>),
    /// Of this process, and its owner's to keep.
    Near(u64),
    /// Of another process.
    Far(Imported),
}

impl Mapped {
    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self {
            Self::Kept(buffer) => buffer.region().address(),
            Self::Near(address) => *address,
            Self::Far(imported) => imported.region().address(),
        }
    }
}

/// As many bytes of memory of every other rank, mapped as long as this lives.
#[derive(Debug)]
pub struct Window {
    /// By rank: the allocation, and how far into it the bytes begin. None for this rank.
    views: Vec<Option<(Mapped, usize)>>,
    bytes: usize,
}

impl Window {
    /// Of what was mapped: the bytes are inside each allocation, and whoever owns it keeps it.
    ///
    /// # Panics
    ///
    /// If an allocation of another process is smaller.
    #[must_use]
    pub fn new(views: Vec<Option<(Mapped, usize)>>, bytes: usize) -> Self {
        for (mapped, offset) in views.iter().flatten() {
            if let Mapped::Far(imported) = mapped {
                let _inside = imported.region().part(*offset, bytes);
            }
        }
        Self { views, bytes }
    }

    /// Bytes of another rank; None of this one.
    ///
    /// # Panics
    ///
    /// If they are not all in the window.
    #[must_use]
    pub fn part(&self, rank: usize, offset: usize, bytes: usize) -> Option<DeviceRegion<'_>> {
        let (mapped, start) = self.views[rank].as_ref()?;
        Some(region_at(mapped.address() + *start as u64, self.bytes).part(offset, bytes))
    }
}

/// Memory that was allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Never given to another one, also not at the same address.
    pub number: u64,
    /// Where it begins.
    pub start: u64,
    /// Its size in bytes.
    pub bytes: usize,
}

/// Where other ranks have mapped an allocation of this one, by rank; its own address for this rank.
#[derive(Clone, Debug)]
pub struct Shown(Vec<u64>);

impl Shown {
    /// What the others have answered.
    #[must_use]
    pub fn new(seen: Vec<u64>) -> Self {
        Self(seen)
    }

    /// The byte at `offset` of it, as a rank has mapped it.
    #[must_use]
    pub fn told(&self, rank: usize, offset: usize) -> Told {
        Told(self.0[rank] + offset as u64)
    }
}

impl Gpu {
    /// Maps memory of another rank.
    ///
    /// # Errors
    ///
    /// The driver refuses it: for example, devices do not reach each other.
    pub fn map(&self, invitation: &Invitation) -> Result<Mapped, Error> {
        if (invitation.process, invitation.word) != (process::id(), *WORD) {
            return self.import(&invitation.handle).map(Mapped::Far);
        }
        self.reach(invitation.device as usize)?;
        let kept = Shared::find(invitation.address);
        Ok(kept.map_or(Mapped::Near(invitation.address), Mapped::Kept))
    }

    /// The allocation that an address is in.
    ///
    /// # Errors
    ///
    /// It is in none that others can map.
    pub fn allocation(&self, address: u64) -> Result<Allocation, Error> {
        match self.place(address)? {
            Place::Device(ordinal) if ordinal == self.ordinal() => place::allocation(address),
            other @ (Place::Device(_) | Place::Pinned | Place::Unknown) => {
                Err(Error::Misuse(format!("{address:#x} is {other:?}")))
            }
        }
    }

    /// What others need to map an allocation of this device.
    ///
    /// # Errors
    ///
    /// The driver refuses it: memory of pools, for example.
    pub fn invitation(&self, allocation: &Allocation) -> Result<Invitation, Error> {
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; Handle::BYTES] };
        // SAFETY: the driver checks the address.
        unsafe { sys::cuIpcGetMemHandle(&raw mut handle, allocation.start) }
            .result()
            .map_err(Error::driver("export memory"))?;
        let bytes = handle.reserved.map(|character| character as u8);
        Ok(Invitation {
            process: process::id(),
            word: *WORD,
            device: self.ordinal() as u32,
            address: allocation.start,
            handle: Handle { bytes, size: allocation.bytes },
        })
    }

    /// Lets kernels of this device reach memory of another one of this process.
    fn reach(&self, other: usize) -> Result<(), Error> {
        if other == self.ordinal() {
            return Ok(());
        }
        let peer = CudaContext::new(other).map_err(Error::driver("open a device"))?;
        let mut can = 0;
        // SAFETY: both devices exist; the answer is written where it is told.
        unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, self.context.cu_device(), peer.cu_device())
        }
        .result()
        .map_err(Error::driver("ask whether devices reach each other"))?;
        if can == 0 {
            let text = format!("device {} does not reach device {other}", self.ordinal());
            return Err(Error::Misuse(text));
        }
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        // SAFETY: the context is that of a device, and is current nowhere but where it is bound.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.cu_ctx(), 0) }.result() {
            Ok(()) => Ok(()),
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => {
                Ok(())
            }
            Err(error) => Err(Error::driver("let devices reach each other")(error)),
        }
    }
}
