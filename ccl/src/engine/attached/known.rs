//! Which buffers of this rank the system copies, as others ask it to.
//!
//! It copies no registers of devices and no secret memory, although their process can read them. Whether a buffer is such memory
//! takes a system call to find out, so it is not asked in every call. If a program unmaps a buffer and maps such memory in its
//! place, that is not found out here, and the call fails.

use ccl_kernels::Region;

/// Programs call with the same few buffers over and over.
const BUFFERS: usize = 16;

/// The buffers of which it was found out last that they are copied.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Addresses and bytes.
    buffers: [(usize, usize); BUFFERS],
    /// Which of them is forgotten next.
    oldest: usize,
}

impl Known {
    /// Whether the system copies a buffer; `ask` finds out, for an address and so many bytes.
    pub(super) fn is_copied(
        &mut self,
        buffer: &Region<'_>,
        ask: impl FnOnce(u64, usize) -> bool,
    ) -> bool {
        let place @ (address, bytes) = (buffer.address(), buffer.bytes());
        if bytes == 0 || self.buffers.contains(&place) {
            return true;
        }
        let is_copied = ask(address as u64, bytes);
        if is_copied {
            self.buffers[self.oldest] = place;
            self.oldest = (self.oldest + 1) % BUFFERS;
        }
        is_copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_buffers_that_are_copied_are_not_asked_for_again() {
        let bytes = [0u8; BUFFERS + 2];
        let all = Region::of(&bytes);
        let mut known = Known::default();
        let mut is_asked = |buffer: Region<'_>, is_copied: bool| {
            let mut is_asked = false;
            let found = known.is_copied(&buffer, |address, bytes| {
                assert_eq!((address, bytes), (buffer.address() as u64, buffer.bytes()));
                is_asked = true;
                is_copied
            });
            assert_eq!(found, is_copied || !is_asked);
            is_asked
        };
        assert!(!is_asked(all.part(3, 0), false), "nothing is everywhere");
        assert!((0..2).all(|_| is_asked(all, false)), "it may be mapped anew");
        for asked in [true, false] {
            assert!((0..BUFFERS).all(|at| is_asked(all.part(at, 1), true) == asked), "{asked}");
        }
        assert!(is_asked(all.part(0, 2), true), "another one at the same place");
        assert!(!is_asked(all.part(1, 1), true) && is_asked(all.part(0, 1), true));
    }
}
