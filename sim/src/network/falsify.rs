//! What the network does wrong on purpose; see [`crate::mutation`].

use ccl_transport::verbs::RemoteAddress;

use super::link::{CONTROL, GOODBYE};
use super::{EndId, Network};
use crate::mutation::Mutation;

/// Bits of a fence that say which incarnations it means.
const INCARNATION_BITS: u32 = (1 << 24) - 1;
/// Where the sequence number stands in front of a tile.
const SEQUENCE_AT: usize = 24;
/// What stands in front of a tile.
const HEADER_BYTES: u64 = 64;
/// Receives that a renewed queue pair keeps under [`Mutation::LostReceives`].
const RECEIVES_KEPT: usize = 6;

fn is_fence(immediate: u32) -> bool {
    immediate & CONTROL != 0 && immediate & GOODBYE == 0
}

impl Network {
    fn is_renewed(&self, end: EndId) -> bool {
        self.ends[end].place.incarnation > 0
    }

    /// Whether a receive is not kept.
    pub(super) fn loses_receive(&self, end: EndId) -> bool {
        self.is_mutant(Mutation::LostReceives)
            && self.is_renewed(end)
            && self.ends[end].arrived as usize + self.ends[end].receives.len() >= RECEIVES_KEPT
    }

    /// Whether a credit is not written.
    pub(super) fn forgets_credit(&self, end: EndId) -> bool {
        self.is_mutant(Mutation::ForgottenCredit) && self.is_renewed(end)
    }

    /// A fence that hits nothing, or nothing but the first connection of its path.
    pub(super) fn falsify_immediate(&self, immediate: u32) -> u32 {
        let below = immediate & INCARNATION_BITS;
        match self.mutation {
            Some(Mutation::IgnoredFence) if is_fence(immediate) => immediate - below,
            Some(Mutation::FenceWithoutIncarnation) if is_fence(immediate) => {
                immediate - below + below.min(1)
            }
            Some(_) | None => immediate,
        }
    }

    /// Puts what has just arrived before what came last, where that is the mutation.
    pub(super) fn falsify_order(&mut self, end: EndId) {
        let is_disorder = self.is_mutant(Mutation::WrongOrder) && self.is_renewed(end);
        let inbox = &mut self.ends[end].inbox;
        if is_disorder && inbox.len() > 1 {
            let last = inbox.len() - 1;
            inbox.swap(last, last - 1);
        }
    }

    /// Takes a tile that has landed again for the next one, if that has not come.
    pub(super) fn falsify_repeat(
        &mut self,
        end: EndId,
        target: RemoteAddress,
        immediate: u32,
    ) -> u32 {
        if !self.is_mutant(Mutation::AcceptedDuplicate) || immediate & CONTROL != 0 {
            return immediate;
        }
        let place = self.ends[end].place;
        let link = &mut self.links[place.link];
        let tile = u64::from(immediate);
        let slot = usize::try_from(tile % link.slots).unwrap_or(0);
        let is_first = std::mem::replace(&mut link.seen[place.side][slot], tile + 1) != tile + 1;
        let is_last_slot = tile % link.slots + 1 == link.slots;
        if is_first || is_last_slot || link.committed[1 - place.side] <= tile + 1 {
            return immediate;
        }
        self.write_as_next(end, target, tile);
        immediate + 1
    }

    /// Copies a tile into the slot behind its own, under the next number.
    fn write_as_next(&self, end: EndId, target: RemoteAddress, tile: u64) {
        let stride = HEADER_BYTES + self.tile_bytes;
        let next = RemoteAddress { address: target.address + stride, ..target };
        let bytes = usize::try_from(stride).unwrap_or(0);
        let (Some((memory, from)), Some((_, to))) =
            (self.remote(end, target, bytes), self.remote(end, next, bytes))
        else {
            return;
        };
        let mut copy = vec![0; bytes];
        memory.read(from, &mut copy);
        copy[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&(tile + 1).to_le_bytes());
        memory.write(to, &copy);
    }
}
