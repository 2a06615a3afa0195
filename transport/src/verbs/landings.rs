//! Writes of the peer that go elsewhere than they say: to where the application wants their bytes.

use crate::HEADER_BYTES;

/// Where the bytes of a write go.
#[derive(Debug)]
pub enum Place<'a> {
    /// Where it says.
    There,
    /// All but its first [`HEADER_BYTES`] bytes, here.
    At(&'a mut [u8]),
    /// That cannot be told now, of a write of which some bytes have gone elsewhere already: it has to wait.
    Later,
}

/// Who knows where writes with an immediate go. Their first [`HEADER_BYTES`] bytes go where they say in any case, and tell.
pub trait Landings {
    /// Where the rest of a write goes that comes with this immediate, these first bytes, and has so many in all. Of one that
    /// `is_begun` some were put into what was returned at an earlier call.
    fn place(
        &mut self,
        immediate: u32,
        head: &[u8; HEADER_BYTES],
        bytes: usize,
        is_begun: bool,
    ) -> Place<'_>;

    /// A write of which no byte but the first has gone where it says is complete.
    fn landed(&mut self, immediate: u32);
}

/// All writes go where they say.
#[derive(Debug)]
pub struct Nowhere;

impl Landings for Nowhere {
    fn place(&mut self, _: u32, _: &[u8; HEADER_BYTES], _: usize, is_begun: bool) -> Place<'_> {
        if is_begun { Place::Later } else { Place::There }
    }

    fn landed(&mut self, _: u32) {}
}
