//! One direction of one NIC.
//!
//! The links that compete for it take turns, one tile each; what one link has waiting leaves in order.

use std::collections::{BTreeMap, VecDeque};

use ccl_transport::HEADER_BYTES;

use super::parcel::{Load, Parcel};
use super::{Picos, picos};

/// A credit is one word.
const CREDIT_BYTES: usize = 8;

/// One direction of one NIC, and what waits for it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) bytes_per_second: f64,
    /// The wires that have something waiting, in the order of their turns.
    turns: VecDeque<usize>,
    waiting: BTreeMap<usize, VecDeque<Parcel>>,
    is_busy: bool,
    /// Bytes that went through, and for how long it was busy with them.
    pub(super) bytes: u64,
    pub(super) busy: Picos,
}

impl Port {
    pub(super) fn new(bytes_per_second: f64) -> Self {
        let (turns, waiting) = (VecDeque::new(), BTreeMap::new());
        Self { bytes_per_second, turns, waiting, is_busy: false, bytes: 0, busy: 0 }
    }

    /// Lets a parcel wait for its turn.
    pub(super) fn queue(&mut self, parcel: Parcel) {
        let line = self.waiting.entry(parcel.wire).or_default();
        if line.is_empty() {
            self.turns.push_back(parcel.wire);
        }
        line.push_back(parcel);
    }

    /// Has finished what it was busy with.
    pub(super) fn finish(&mut self) {
        self.is_busy = false;
    }

    /// Begins with the next parcel, if it is idle and one waits; tells for how long it is busy.
    pub(super) fn begin(&mut self) -> Option<(Parcel, Picos)> {
        if self.is_busy {
            return None;
        }
        let wire = self.turns.pop_front()?;
        let line = self.waiting.get_mut(&wire)?;
        let parcel = line.pop_front()?;
        if !line.is_empty() {
            self.turns.push_back(wire);
        }
        let bytes = match parcel.load {
            Load::Tile { payload, .. } => HEADER_BYTES + payload,
            Load::Credit => CREDIT_BYTES,
        };
        let duration = picos(bytes as f64 / self.bytes_per_second);
        self.is_busy = true;
        self.bytes += bytes as u64;
        self.busy += duration;
        Some((parcel, duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(wire: usize, sequence: u64) -> Parcel {
        let load = Load::Tile { sequence, payload: 1000 - HEADER_BYTES };
        Parcel { wire, path: 0, load, consumed: 0, tail: 0 }
    }

    #[test]
    fn links_take_turns_tile_by_tile() {
        let mut port = Port::new(1e9);
        for parcel in [tile(1, 0), tile(1, 1), tile(1, 2), tile(7, 0), tile(3, 0), tile(7, 1)] {
            port.queue(parcel);
        }
        let mut order = Vec::new();
        while let Some((parcel, duration)) = port.begin() {
            assert_eq!(duration, 1_000_000, "a thousand bytes take a microsecond");
            assert!(port.begin().is_none(), "one at a time");
            order.push(parcel.wire);
            port.finish();
        }
        assert_eq!(order, [1, 7, 3, 1, 7, 1]);
        assert_eq!((port.bytes, port.busy), (6000, 6_000_000));
    }
}
