//! Memory of the application, from which the kernel sends.

use std::fmt;
use std::ops::Range;

/// Memory that this crate makes no slice of, because nobody here knows who else writes it. The kernel reads it by its
/// address, which can do no harm wherever that points; all else that is read of it the owner copies.
pub trait Origin: fmt::Debug {
    /// Where it begins.
    fn address(&self) -> usize;

    /// Its length.
    fn bytes(&self) -> usize;

    /// Copies what is there from `offset` on, as much as fits into `target`.
    ///
    /// # Panics
    /// It ends before that.
    fn read(&self, offset: usize, target: &mut [u8]);
}

/// A part of such memory.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    origin: &'a dyn Origin,
    offset: usize,
    bytes: usize,
}

impl<'a> Stretch<'a> {
    /// These bytes of it.
    ///
    /// # Panics
    /// They are not all inside.
    #[must_use]
    pub fn new(origin: &'a dyn Origin, range: Range<usize>) -> Self {
        let is_inside = range.start <= range.end && range.end <= origin.bytes();
        assert!(is_inside, "{range:?} is outside of {origin:?}");
        Self { origin, offset: range.start, bytes: range.len() }
    }

    /// Pieces of so many bytes, but for the last.
    pub(crate) fn pieces(self, bytes: usize) -> impl Iterator<Item = Self> {
        let end = self.offset + self.bytes;
        let pieces = (self.offset..end).step_by(bytes);
        pieces.map(move |offset| Self { offset, bytes: bytes.min(end - offset), ..self })
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> usize {
        self.origin.address() + self.offset
    }

    /// Copies what is there from `offset` on, all of it.
    ///
    /// # Panics
    /// That is not as long as `target`.
    pub fn read_from(&self, offset: usize, target: &mut [u8]) {
        assert_eq!(offset + target.len(), self.bytes, "not all of it");
        self.origin.read(self.offset + offset, target);
    }
}

/// Memory of this process that nobody writes.
impl Origin for &[u8] {
    fn address(&self) -> usize {
        self.as_ptr().expose_provenance()
    }

    fn bytes(&self) -> usize {
        self.len()
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(&self[offset..offset + target.len()]);
    }
}
