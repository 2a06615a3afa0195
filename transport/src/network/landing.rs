//! Tiles that go right to where the application wants them.

use super::inbound::Inbound;
use super::layout::Notice;
use crate::verbs::{Landings, Place};
use crate::{EncodedStamp, HEADER_BYTES};

/// Where the payloads of the next tiles go that carry this stamp.
#[derive(Debug)]
pub(super) struct Landing<'a> {
    pub(super) stamp: Option<&'a EncodedStamp>,
    pub(super) memory: &'a mut [u8],
}

impl Landing<'_> {
    /// Tiles go into their slots.
    pub(super) fn none() -> Self {
        Self { stamp: None, memory: &mut [] }
    }
}

/// That, for what has arrived so far.
#[derive(Debug)]
pub(super) struct Runway<'a, 'b> {
    pub(super) inbound: &'a mut Inbound,
    pub(super) landing: &'a mut Landing<'b>,
}

impl Landings for Runway<'_, '_> {
    fn place(
        &mut self,
        immediate: u32,
        head: &[u8; HEADER_BYTES],
        bytes: usize,
        is_begun: bool,
    ) -> Place<'_> {
        // What comes a second time, on another path, goes into its slot, from where nobody takes it.
        let Notice::Tile(low) = Notice::decode(immediate) else { return Place::There };
        let Some(header) = self.inbound.preview(low, head, bytes) else { return Place::There };
        let is_wanted = self.landing.stamp == Some(&header.stamp);
        let range = is_wanted.then(|| self.inbound.range(&header)).flatten();
        match range.and_then(|range| self.landing.memory.get_mut(range)) {
            Some(place) => {
                self.inbound.begin_landing(&header);
                Place::At(place)
            }
            None if is_begun => Place::Later,
            None => Place::There,
        }
    }

    fn landed(&mut self, immediate: u32) {
        if let Notice::Tile(low) = Notice::decode(immediate) {
            self.inbound.end_landing(low);
        }
    }
}
