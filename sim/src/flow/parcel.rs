//! What travels: a tile, or a credit that no tile took along.

use super::Picos;

/// A tile or a credit on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parcel {
    /// The wire it travels on.
    pub(super) wire: usize,
    /// Index among the paths of the wire.
    pub(super) path: usize,
    /// What it carries.
    pub(super) load: Load,
    /// Tiles of the opposite wire that its sender has consumed.
    pub(super) consumed: u64,
    /// When its last byte can be there at the earliest.
    pub(super) tail: Picos,
}

/// What a parcel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Load {
    /// The tile with this number, and its payload in bytes.
    Tile { sequence: u64, payload: usize },
    /// Only the number of consumed tiles.
    Credit,
}
