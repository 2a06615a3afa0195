//! Memory of ranks of this host that peers read *and write* in place.
//!
//! A [`Window`] tells peers where bytes of an [`Allocation`] lie; it is passed on as plain bytes. A peer opens it and
//! has the bytes in its own address space. Who touches which of them when is agreed on outside of here: a collective
//! in which every rank offers windows, each rank writes its own slice of all of them, and nobody returns before all
//! have finished.
//!
//! If a call ends early, a peer might still write what the application already uses for something else. So who writes says
//! so ([`Link::begin_to_write`](crate::Link::begin_to_write)), and a rank whose call fails waits for those that do.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ring::loan;
pub use crate::shm::Writing;
use crate::shm::{Allocation, Map, SegmentAddress, open};
use crate::{Loan, TransportError};

/// Memory of peers that stays mapped for the next window in it, as long as they have not freed it.
const REMEMBERED: usize = 64;

/// Pages are entered in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of own memory that peers on this host may read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    loan: Loan,
}

impl Window {
    /// Size of an encoded window.
    pub const ENCODED_BYTES: usize = loan::LOAN_BYTES;

    /// The window on the `bytes` bytes at `address`, if they lie in a published [`Allocation`].
    #[must_use]
    pub fn on(address: usize, bytes: usize) -> Option<Self> {
        let allocation = Allocation::containing(address, bytes)?;
        Some(Self { loan: allocation.part(address, bytes) })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.loan.bytes
    }

    /// As bytes for a peer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        loan::encode(&self.loan)
    }

    /// What a peer has encoded; nothing if it cannot have been a window.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self { loan: loan::decode(bytes)? })
    }
}

/// Memory of peers that is mapped here.
///
/// Readers need no permission, and the owner does not wait for them. When they have read they ask whether it has
/// [renounced](crate::Link::has_renounced): then its call has ended early, and they throw away what they have.
#[derive(Debug, Default)]
pub struct Windows {
    /// The latest last.
    mapped: Vec<Mapped>,
}

/// Memory of one peer.
#[derive(Debug)]
struct Mapped {
    segment: SegmentAddress,
    map: Arc<Map>,
    /// Of each piece, whether its pages have been entered.
    entered: Vec<bool>,
}

impl Mapped {
    fn new(segment: SegmentAddress, map: Map) -> Self {
        let entered = vec![false; map.memory_bytes().div_ceil(PIECE_BYTES)];
        Self { segment, map: Arc::new(map), entered }
    }

    /// Enters the pages of bytes that are touched for the first time: of large memory a rank touches a part only.
    fn enter(&mut self, touched: Range<usize>) {
        let pieces = touched.start / PIECE_BYTES..touched.end.div_ceil(PIECE_BYTES);
        for piece in pieces.filter(|_| !touched.is_empty()) {
            if !std::mem::replace(&mut self.entered[piece], true) {
                self.map.populate_memory(piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES);
            }
        }
    }
}

impl Windows {
    /// Shows what is in a window of a peer, of which the bytes in `read` will be read.
    ///
    /// # Errors
    /// [`TransportError::Protocol`]: its memory is not what it has told. [`TransportError::System`]: it cannot be opened.
    pub fn view(&mut self, window: &Window, read: Range<usize>) -> Result<View, TransportError> {
        let Loan { segment, offset, bytes } = window.loan;
        let mapped = self.mapped(&segment)?;
        let start = mapped.map.memory_at(offset, bytes).ok_or_else(|| {
            TransportError::Protocol(format!("a window of {bytes} bytes at {offset} is not there"))
        })?;
        assert!(read.start <= read.end && read.end <= bytes, "{read:?} of {bytes} bytes");
        let view = View { _map: Arc::clone(&mapped.map), start, bytes };
        mapped.enter(offset + read.start..offset + read.end);
        Ok(view)
    }

    /// Opens a window of a peer, to write the bytes in `written`, as the peer is [told](crate::Link::begin_to_write) by
    /// `writing`.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn open(
        &mut self,
        window: &Window,
        written: Range<usize>,
        writing: Option<Writing>,
    ) -> Result<Opened, TransportError> {
        Ok(Opened { view: self.view(window, written)?, _writing: writing })
    }

    fn mapped(&mut self, segment: &SegmentAddress) -> Result<&mut Mapped, TransportError> {
        let known = self.mapped.iter().position(|mapped| mapped.segment == *segment);
        let index = match known {
            Some(index) => index,
            None => {
                self.mapped.retain(|mapped| !mapped.map.is_freed());
                if self.mapped.len() >= REMEMBERED {
                    self.mapped.remove(0);
                }
                self.mapped.push(Mapped::new(*segment, open(segment, 0)?));
                self.mapped.len() - 1
            }
        };
        Ok(&mut self.mapped[index])
    }
}

/// What is in a window, to be read.
#[derive(Debug)]
pub struct View {
    /// Keeps the bytes mapped.
    _map: Arc<Map>,
    start: NonNull<u8>,
    bytes: usize,
}

impl View {
    /// Where it begins in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Bytes that nobody writes meanwhile, by agreement.
    ///
    /// # Panics
    /// They are outside of the window.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        let start = self.at(&range);
        // SAFETY: inside the mapping, which lives as long as this; by agreement nobody writes these bytes.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        let is_inside = range.start <= range.end && range.end <= self.bytes;
        assert!(is_inside, "{range:?} of {} bytes", self.bytes);
        // SAFETY: inside the window, whose bytes were found to be in the mapping.
        unsafe { self.start.add(range.start) }
    }
}

// SAFETY: the pointer leads into the mapping, which is not bound to a thread.
unsafe impl Send for View {}

/// A window that is open, to be written.
#[derive(Debug)]
pub struct Opened {
    view: View,
    /// Until this is dropped the peer does not have its memory back.
    _writing: Option<Writing>,
}

impl Opened {
    /// Where it begins in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.view.address()
    }

    /// Bytes that nobody else touches meanwhile, by agreement.
    ///
    /// # Panics
    /// They are outside of the window.
    #[must_use]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let start = self.view.at(&range);
        // SAFETY: inside the mapping, which lives as long as this; by agreement nobody else touches these bytes.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(bytes: usize) -> Allocation {
        let allocation = Allocation::new(bytes).unwrap();
        allocation.publish();
        allocation
    }

    fn address(allocation: &Allocation) -> usize {
        allocation.start().addr().get()
    }

    #[test]
    fn what_is_written_through_a_window_is_in_the_memory() {
        let allocation = published(10_000);
        let window = Window::on(address(&allocation) + 100, 50).unwrap();
        let window = Window::decode(&window.encode()).unwrap();
        let mut windows = Windows::default();
        let mut opened = windows.open(&window, 0..window.bytes(), None).unwrap();
        opened.bytes_mut(10..13).copy_from_slice(&[7; 3]);
        // SAFETY: inside the allocation.
        let start = unsafe { allocation.start().add(109) };
        // SAFETY: as above, and nobody writes it now.
        let memory = unsafe { start.cast::<[u8; 5]>().read() };
        assert_eq!(memory, [0, 7, 7, 7, 0]);
        let view = windows.view(&window, 0..50).unwrap();
        assert_eq!((view.address(), view.bytes(10..13)), (opened.address(), &[7; 3][..]));
        drop((opened, view));
        allocation.withdraw();
        assert_eq!(Window::on(address(&allocation), 1), None, "nobody knows it any more");
    }

    #[test]
    fn nothing_outside_of_the_memory_is_opened() {
        let allocation = published(100);
        let mut window = Window::on(address(&allocation), 100).unwrap();
        window.loan.bytes = 1 << 40;
        assert!(matches!(
            Windows::default().open(&window, 0..1, None),
            Err(TransportError::Protocol(_))
        ));
        window.loan.offset = usize::MAX;
        assert!(matches!(
            Windows::default().open(&window, 0..1, None),
            Err(TransportError::Protocol(_))
        ));
        assert_eq!(Window::decode(&[0; 7]), None);
        allocation.withdraw();
    }

    #[test]
    fn a_few_mappings_are_kept_of_memory_that_is_not_freed() {
        let mut windows = Windows::default();
        let mut open = |allocation: &Allocation| {
            let window = Window::on(address(allocation), 10).unwrap();
            drop(windows.open(&window, 0..window.bytes(), None).unwrap());
            allocation.withdraw();
            windows.mapped.len()
        };
        let kept: Vec<Allocation> = (0..REMEMBERED + 5).map(|_| published(10)).collect();
        let mapped: Vec<usize> = kept.iter().map(&mut open).collect();
        assert_eq!(mapped.last(), Some(&REMEMBERED));
        drop(kept);
        let mapped = [(); 5].map(|()| open(&published(10)));
        assert_eq!(mapped, [1; 5], "each time that of before was freed");
    }
}
