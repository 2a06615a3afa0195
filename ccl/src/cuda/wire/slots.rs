//! Where tiles lie between a kernel and a NIC.

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu::{Buffer, DeviceRegion, Gpu, PinnedFile};
use ccl_transport::verbs::{Access, Memory, MemoryRegion, Segment};

use crate::cuda::error::error as from_device;
use crate::vqp::Domain;

/// What a GPU allocates at once: smaller memory could be part of an allocation of the program.
const ALLOCATION_BYTES: usize = 2 << 20;

/// Slots of one end of a lane, known to its device and to all NICs of its domain.
#[derive(Debug)]
pub(super) struct Slots {
    /// Forgotten by the NICs before the memory goes.
    region: MemoryRegion,
    ground: Ground,
    slot_bytes: usize,
}

/// Whose memory it is.
#[derive(Debug)]
enum Ground {
    Device(Buffer),
    Host(PinnedFile),
}

impl Slots {
    /// So many slots, in memory of the device, or else in pinned memory, in which the peer may do that.
    ///
    /// # Errors
    /// There is not so much; or the device, its driver or a NIC refuse that NICs use it.
    pub(super) fn new(
        gpu: &Gpu,
        domain: &Domain,
        (count, slot_bytes): (usize, usize),
        (access, is_on_device): (Access, bool),
    ) -> Result<Self, Error> {
        let bytes = (count * slot_bytes).next_multiple_of(ALLOCATION_BYTES);
        let (memory, ground) = if is_on_device {
            let buffer = gpu.reserve(bytes).map_err(from_device)?;
            let dmabuf = buffer.dmabuf().map_err(from_device)?;
            let memory = Memory::of_dmabuf(dmabuf, 0, bytes).map_err(refused)?;
            (memory, Ground::Device(buffer))
        } else {
            let (memory, file) = Memory::in_file(bytes).map_err(refused)?;
            (memory, Ground::Host(gpu.pin_file(&file, bytes).map_err(from_device)?))
        };
        let region = domain.register(&memory, access).map_err(refused)?;
        Ok(Self { region, ground, slot_bytes })
    }

    /// The first bytes of the slot of a tile, for kernels.
    pub(super) fn tile(&self, slot: usize, bytes: usize) -> DeviceRegion<'_> {
        let all = match &self.ground {
            Ground::Device(buffer) => buffer.region(),
            Ground::Host(file) => file.region(),
        };
        all.part(slot * self.slot_bytes, bytes)
    }

    /// The same, for NICs.
    pub(super) fn segment(&self, slot: usize, bytes: usize) -> Segment {
        self.region.segment(slot * self.slot_bytes, bytes)
    }

    /// What the peer has to know.
    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }
}

/// A refusal of the network, as an error of the library.
pub(super) fn refused(cause: impl std::fmt::Display) -> Error {
    Error::system("use NICs for collectives on devices", cause)
}
