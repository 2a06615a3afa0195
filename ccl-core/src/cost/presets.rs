//! Clusters of GPUs whose constants are known, for plans of clusters that one does not have.
//!
//! Latencies are those of the tuning tables of NCCL 2.23 (`src/graph/tuning.cc`), protocol Simple on a
//! ring: 8.4 µs for a call, 3.4 µs for a hop over NVLink, 14 µs for a hop over the network. Rates are the
//! effective ones of SimAI (`calbusbw.h`): what remains of a link's nominal rate.

use super::{CoreRate, CostModel, LinkCost};

/// Constants of a kind of cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Bytes per second of one NIC, in each direction.
    pub rail_bytes_per_second: f64,
    /// Bytes per second of one GPU to the others of its host.
    pub local_bytes_per_second: f64,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 2] = [
        Self { name: "nccl-ampere", rail_bytes_per_second: 23.5e9, local_bytes_per_second: 240e9 },
        Self {
            name: "nccl-hopper",
            rail_bytes_per_second: 48.5e9,
            local_bytes_per_second: 370.8e9,
        },
    ];

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name == name)
    }

    /// The model for hosts with so many NICs.
    #[must_use]
    pub fn model(self, rails: u32) -> CostModel {
        let memory = CoreRate { cached: 1e12, memory: 1e12 };
        CostModel {
            local: LinkCost {
                alpha: 3.4e-6,
                overhead: 0.0,
                bytes_per_second: self.local_bytes_per_second,
            },
            network: LinkCost {
                alpha: 14e-6,
                overhead: 0.5e-6,
                bytes_per_second: self.rail_bytes_per_second * f64::from(rails),
            },
            tile_overhead: 0.0,
            copy: memory,
            reduce: memory,
            network_cpu_bytes_per_second: f64::INFINITY,
            cache_bytes: 0.0,
            tile_bytes: 512 * 1024,
            network_tile_bytes: 128 * 1024,
            call: 8.4e-6,
        }
    }
}
