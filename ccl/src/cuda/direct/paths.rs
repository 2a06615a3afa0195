//! Which way calls went.

use ccl_kernels::cuda::gpu::Protocol;

use crate::cuda::wire::Wire;

/// How many collectives went which way, on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Through memory of the host.
    pub host: u64,
    /// By kernels alone, with low latency.
    pub low_latency: u64,
    /// By kernels alone, on mapped memory.
    pub push: u64,
    /// By kernels alone, as messages between all ranks.
    pub pull: u64,
    /// By copy engines alone, in windows.
    pub copied: u64,
    /// By kernels and NICs, between hosts.
    pub wire: u64,
    /// By kernels inside hosts, and by kernels and NICs between them.
    pub columns: u64,
    /// Those of `wire` and `columns` in which NICs read and wrote memory of the device.
    pub gpudirect: u64,
    /// How often queue pairs have gone on over another rail, in these calls and between them.
    pub repairs: u64,
    /// Buffers of those by kernels alone, and inside hosts, that others worked on where they are; all other ones were
    /// staged.
    pub mapped_buffers: u64,
}

impl Paths {
    pub(super) fn count_wire(&mut self, wire: &Wire) {
        self.wire += 1;
        self.gpudirect += u64::from(wire.obstacle().is_none());
    }

    pub(super) fn count_columns(&mut self, wire: &Wire) {
        self.columns += 1;
        self.gpudirect += u64::from(wire.obstacle().is_none());
    }

    pub(super) fn count(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::LowLatency => self.low_latency += 1,
            Protocol::Push => self.push += 1,
            Protocol::Pull => self.pull += 1,
        }
    }
}
