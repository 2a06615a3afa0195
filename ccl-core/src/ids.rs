//! Small integers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Position of a process in its communicator, `0..size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// Index of a host among the hosts of a communicator, in order of their lowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// Index of one network path (a NIC pair) between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rail(pub u8);

/// Index of one part of the data of a collective; see [`crate::layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk(pub u32);

/// Version of the plan that all ranks agreed on; it grows when the health of the rails changes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u32);

/// A moment, in nanoseconds since some start that is the same for everybody who compares.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The moment `nanoseconds` later.
    #[must_use]
    pub fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds from `earlier` to this moment; zero if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Rank {
    /// The rank as an index into per-rank tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Node {
    /// The node as an index into per-node tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Rail {
    /// The rail as an index into per-rail tables.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Chunk {
    /// The chunk as an index into per-chunk tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
