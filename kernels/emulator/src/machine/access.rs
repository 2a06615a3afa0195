//! Loads, stores and atomics of the threads of a warp.

use super::turn::{Trouble, Turn};
use super::warp::{Group, Mask, lanes};
use crate::error::{Access, Reason};
use crate::program::{Address, Atomic, Change, Scope, Vector, Window};

impl Turn<'_> {
    /// What an address in a window lacks to a generic one.
    pub(super) fn window(&self, lane: usize, window: Window) -> u64 {
        let local = || self.reach.own.local.start() + (lane * self.reach.own.local_bytes) as u64;
        match window {
            Window::Generic => 0,
            Window::Shared => self.reach.own.shared.start(),
            Window::Local => local(),
            Window::Frame => local() + u64::from(self.warp.frames[lane]),
            Window::Parameter => self.reach.own.parameters.start(),
        }
    }

    /// The generic address that a thread means.
    #[inline]
    fn address(&self, address: &Address, base: u32, lane: usize) -> u64 {
        let value = self.warp.registers[(base + address.base) as usize][lane];
        let value = value.wrapping_add_signed(address.offset);
        match address.window {
            Window::Generic => value,
            Window::Shared => self.reach.own.shared.start() + u64::from(value as u32),
            window @ (Window::Local | Window::Frame | Window::Parameter) => {
                self.window(lane, window).wrapping_add(value)
            }
        }
    }

    /// The address of a vector, if the thread may access all of it.
    #[inline]
    fn checked(
        &mut self,
        vector: &Vector,
        group: Group,
        lane: usize,
        access: Access,
    ) -> Result<u64, Trouble> {
        let address = self.address(&vector.address, group.base, lane);
        let bytes = vector.bytes();
        let wrong = |reason| Trouble { lane, place: group.place, reason };
        if address & (bytes as u64 - 1) != 0 {
            return Err(wrong(Reason::Misaligned { access, address, bytes }));
        }
        if !self.reach.permits(lane, address, bytes, access != Access::Load) {
            return Err(wrong(Reason::OutOfBounds { access, address, bytes }));
        }
        Ok(address)
    }

    /// Draws in which order each thread moves the pieces, when it moves the first.
    fn draw_order(&mut self, vector: &Vector, active: Mask, usual: Mask) {
        if vector.piece.unwrap_or(0) == 0 {
            let drawn = if self.torn { self.random.number() as Mask } else { usual };
            self.warp.swapped = self.warp.swapped & !active | drawn & active;
        }
    }

    /// Which pieces a thread moves now.
    #[inline]
    fn pieces(&self, vector: &Vector, lane: usize) -> std::ops::Range<u8> {
        let pieces = vector.pieces();
        match vector.piece {
            None => 0..pieces,
            Some(piece) if self.warp.swapped >> lane & 1 != 0 => pieces - 1 - piece..pieces - piece,
            Some(piece) => piece..piece + 1,
        }
    }

    /// From the last thread and piece to the first, and stores the other way round: so threads of
    /// other warps and processes see lines whose flag comes last as whole as a GPU shows them.
    pub(super) fn load(
        &mut self,
        vector: &Vector,
        group: Group,
        active: Mask,
    ) -> Result<(), Trouble> {
        self.draw_order(vector, active, Mask::MAX);
        let bits = u32::from(vector.element_bytes) * 8;
        let piece_elements = usize::from(vector.piece_elements);
        let piece_bytes = piece_elements * usize::from(vector.element_bytes);
        for lane in lanes(active).rev() {
            let address = self.checked(vector, group, lane, Access::Load)?;
            for piece in self.pieces(vector, lane).map(usize::from) {
                let at = address + (piece * piece_bytes) as u64;
                let value = self.reach.load(lane, at, piece_bytes).unwrap_or_default();
                let value = self.unseen.seen(at, piece_bytes, value);
                let to = &vector.elements[piece * piece_elements..][..piece_elements];
                for (index, to) in to.iter().enumerate() {
                    let Some(to) = to else { continue };
                    let element = value >> (index as u32 * bits) << (64 - bits);
                    let element = if vector.signed {
                        (element as i64 >> (64 - bits)) as u64
                    } else {
                        element >> (64 - bits)
                    };
                    self.warp.registers[(group.base + to) as usize][lane] = element;
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        vector: &Vector,
        group: Group,
        active: Mask,
    ) -> Result<(), Trouble> {
        self.draw_order(vector, active, 0);
        self.changed = self.executed;
        if let Some(scope) = vector.releases {
            self.unseen.order(&mut self.reach, scope);
        }
        // Who releases for some only is seen by the others like any other store.
        let is_late = self.weak && vector.releases != Some(Scope::System);
        let bits = u32::from(vector.element_bytes) * 8;
        let piece_elements = usize::from(vector.piece_elements);
        let piece_bytes = piece_elements * usize::from(vector.element_bytes);
        for lane in lanes(active) {
            let address = self.checked(vector, group, lane, Access::Store)?;
            for piece in self.pieces(vector, lane).map(usize::from) {
                let from = &vector.elements[piece * piece_elements..][..piece_elements];
                let mut value = 0;
                for (index, from) in from.iter().enumerate() {
                    let Some(from) = from else { continue };
                    let element = self.warp.registers[(group.base + from) as usize][lane];
                    value |= element << (64 - bits) >> (64 - bits) << (index as u32 * bits);
                }
                let at = address + (piece * piece_bytes) as u64;
                if is_late && self.reach.is_registered(at) {
                    self.unseen.push(&mut self.reach, at, piece_bytes, value);
                } else {
                    self.reach.store(lane, at, piece_bytes, value).unwrap_or_default();
                }
            }
        }
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        atomic: &Atomic,
        group: Group,
        active: Mask,
    ) -> Result<(), Trouble> {
        if let Some(scope) = atomic.releases {
            self.unseen.order(&mut self.reach, scope);
        }
        for lane in lanes(active) {
            let address = self.address(&atomic.address, group.base, lane);
            let bytes = atomic.bytes;
            self.unseen.flush_at(&mut self.reach, address, bytes);
            let access = Access::Atomic;
            let wrong = |reason| Trouble { lane, place: group.place, reason };
            if address & (bytes as u64 - 1) != 0 {
                return Err(wrong(Reason::Misaligned { access, address, bytes }));
            }
            let [first, second] = atomic.operands.map(|slot| self.warp.value(lane, slot));
            let mut now = 0;
            let change = |old| {
                now = changed(atomic.change, old, first, second, bytes);
                now
            };
            let old = self.reach.update(lane, address, bytes, change);
            let old = old.ok_or(wrong(Reason::OutOfBounds { access, address, bytes }))?;
            if old != now {
                self.changed = self.executed;
            }
            if let Some(to) = atomic.to {
                self.warp.set(lane, to, old);
            }
        }
        Ok(())
    }
}

/// What an atomic leaves in memory.
fn changed(change: Change, old: u64, first: u64, second: u64, bytes: usize) -> u64 {
    let mask = u64::MAX >> (64 - 8 * bytes);
    let (first, second) = (first & mask, second & mask);
    mask & match change {
        Change::Exchange => first,
        Change::CompareAndSwap => {
            if old == first {
                second
            } else {
                old
            }
        }
        Change::Increment => {
            if old >= first {
                0
            } else {
                old + 1
            }
        }
        Change::Decrement => {
            if old == 0 || old > first {
                first
            } else {
                old - 1
            }
        }
        Change::Apply(apply) => {
            let mut out = [0; 32];
            apply(&mut out, &[old; 32], &[first; 32]);
            out[0]
        }
    }
}
