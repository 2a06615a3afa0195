//! A link under observation: every tile must come out once, in order, with the bytes that went in.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_transport::{EncodedStamp, Link, Stamp, Stretch, Tile, TransportError};

use crate::network::Shared;

/// Stands for a descriptor, so that the executor lets the link work. Nobody waits on it.
const NO_DESCRIPTOR: RawFd = -1;

/// What went into one direction of a link and has not come out.
pub(crate) type Journal = Arc<Mutex<VecDeque<Record>>>;

/// One tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    stamp: EncodedStamp,
    bytes: usize,
    digest: u64,
}

impl Record {
    fn of(stamp: &EncodedStamp, payload: &[u8]) -> Self {
        Self { stamp: *stamp, bytes: payload.len(), digest: digest(payload) }
    }
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: Box<dyn Link>,
    network: Shared,
    link: usize,
    side: usize,
    /// Bytes of the tile that is reserved.
    reserved: usize,
    sent: Journal,
    received: Journal,
}

impl Watched {
    pub(crate) fn new(
        inner: Box<dyn Link>,
        network: Shared,
        (link, side): (usize, usize),
        [sent, received]: [Journal; 2],
    ) -> Self {
        Self { inner, network, link, side, reserved: 0, sent, received }
    }
}

impl Link for Watched {
    fn tile_bytes(&self) -> usize {
        self.inner.tile_bytes()
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        self.reserved = bytes;
        self.inner.reserve(bytes)
    }

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        if let Some(slot) = self.inner.reserve(self.reserved)? {
            let record = Record::of(&stamp.encode(), slot);
            self.sent.lock().unwrap_or_else(PoisonError::into_inner).push_back(record);
        }
        self.network.lock().link(self.link).committed[self.side] += 1;
        self.inner.commit(stamp)
    }

    fn unstaged_bytes(&self) -> usize {
        self.inner.unstaged_bytes()
    }

    fn send_unstaged(
        &mut self,
        stamp: &Stamp,
        bytes: Stretch<'_>,
    ) -> Result<Option<(usize, u64)>, TransportError> {
        let mut whole = vec![0; bytes.bytes()];
        bytes.read_from(0, &mut whole);
        let sent = self.inner.send_unstaged(stamp, bytes)?;
        for tile in whole[..sent.map_or(0, |(bytes, _)| bytes)].chunks(self.tile_bytes()) {
            let record = Record::of(&stamp.encode(), tile);
            self.sent.lock().unwrap_or_else(PoisonError::into_inner).push_back(record);
            self.network.lock().link(self.link).committed[self.side] += 1;
        }
        Ok(sent)
    }

    fn wanted(&self) -> Option<u64> {
        self.inner.wanted()
    }

    fn supply(&mut self, tile: u64, bytes: Stretch<'_>) {
        self.network.lock().tally.supplied += u64::from(self.inner.wanted() == Some(tile));
        self.inner.supply(tile, bytes);
    }

    fn returned(&mut self) -> u64 {
        self.inner.returned()
    }

    fn peek(&self) -> Option<Tile<'_>> {
        self.inner.peek()
    }

    /// The tile is compared when it is used up: whatever happened to it while it lay there shows.
    fn release(&mut self) -> Result<(), TransportError> {
        let mut found = self.inner.peek().map(|tile| Record::of(tile.stamp, tile.payload));
        let expected = self.received.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let (Some(found), Some(expected)) = (&mut found, expected)
            && self.inner.peek().is_some_and(|tile| tile.has_landed)
        {
            // The bytes are where the result of the call is, which is checked as a whole.
            found.digest = expected.digest;
        }
        if found != expected {
            let text = format!("a tile came out as {found:?}, and went in as {expected:?}");
            self.network.lock().violate(text);
        }
        self.inner.release()
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        self.inner.progress()
    }

    fn progress_into(
        &mut self,
        stamp: &EncodedStamp,
        landing: &mut [u8],
    ) -> Result<bool, TransportError> {
        self.inner.progress_into(stamp, landing)
    }

    fn leave(&mut self) -> bool {
        self.inner.leave()
    }

    fn flushed(&self) -> bool {
        self.inner.flushed()
    }

    fn delivered(&self) -> bool {
        self.inner.delivered()
    }

    fn settled(&self) -> bool {
        self.inner.settled()
    }

    fn is_out_of_reach(&self) -> bool {
        self.inner.is_out_of_reach()
    }

    fn spare(&mut self) {
        self.inner.spare();
    }

    fn confirm(&mut self) {
        self.inner.confirm();
    }

    fn revision(&self) -> u32 {
        self.inner.revision()
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(NO_DESCRIPTOR);
    }
}

/// A fast hash; nobody tries to fool it.
fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    hash
}
