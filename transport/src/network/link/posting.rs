//! What a link hands to its paths: tiles, fences, credits, and its goodbye.

use smallvec::SmallVec;

use super::super::MAX_RAILS;
use super::super::carrier::Carrier;
use super::super::layout::{Notice, TileHeader};
use super::NetworkLink;
use crate::HEADER_BYTES;

impl NetworkLink {
    /// Hands fences and staged tiles to the paths, as far as they take them.
    pub(super) fn post_staged(&mut self) {
        if self.fences.any_due() {
            (0..self.carriers.len()).for_each(|path| self.post_fences(path));
        }
        while self.failure.is_none()
            && let Some(sequence) = self.window.next()
            && self.post_tile(sequence)
        {}
    }

    fn post_tile(&mut self, sequence: u64) -> bool {
        if self.unstaged.lacks(self.geometry.index(sequence)) {
            return false;
        }
        let place = self.geometry.slot(sequence);
        let bytes = self.staged_bytes(place);
        let Some(path) = self.split.choose(bytes) else { return false };
        let is_free = self.fences.due(path).is_none();
        let Some(live) = self.carriers[path].live.as_mut().filter(|_| is_free) else {
            return false;
        };
        if !live.post_tile(sequence, place, bytes) {
            return false;
        }
        self.given(sequence, path, bytes);
        true
    }

    /// A tile, which is the next one, was given to a path.
    pub(super) fn given(&mut self, sequence: u64, path: usize, bytes: usize) {
        let now = self.repair.now();
        let carrier = &mut self.carriers[path];
        carrier.awaited.posted(now);
        carrier.traffic[carrier.rail].posted(bytes);
        self.census.count(bytes, self.split.metered_bytes(), &carrier.traffic);
        self.posted();
        self.split.give(path, bytes, now);
        if self.split.is_measured() {
            let paths = 0..self.carriers.len();
            let nics: SmallVec<[f64; MAX_RAILS]> =
                paths.map(|path| self.part_of_nic(path)).collect();
            if let Some((path, share)) = self.split.news(&nics) {
                self.measured(path, share);
            }
        }
        if self.window.post(sequence, path, bytes) {
            self.resent(bytes);
        }
    }

    /// The part of its nominal capacity that the NIC of a path carries, over the best such part of any.
    fn part_of_nic(&self, path: usize) -> f64 {
        let Carrier { rail, traffic, .. } = &self.carriers[path];
        let nominal = |rail: usize| {
            let path = self.carriers.iter().position(|carrier| carrier.rail == rail);
            path.map_or(f64::INFINITY, |path| self.split.nominal(path))
        };
        self.census.share(*rail, traffic, nominal)
    }

    /// Says on a path what was given up, before anything else is sent on it.
    fn post_fences(&mut self, path: usize) {
        while let Some(fence) = self.fences.due(path) {
            if !self.post_credit_on(path, Some(Notice::Fence(fence))) {
                return;
            }
            self.fences.sent(path);
        }
    }

    /// Length of a staged tile with its header, which this end has written.
    pub(super) fn staged_bytes(&self, place: usize) -> usize {
        let mut header = [0; HEADER_BYTES];
        self.outbound.read(place, &mut header);
        let header = TileHeader::decode(&header).expect("staged tiles have a header");
        HEADER_BYTES + header.payload_bytes
    }

    /// Tells the peer what was consumed when so many tiles have gathered, unless a tile that went its
    /// way has told it.
    pub(super) fn post_credit(&mut self, batch: u64) {
        let is_due = self.inbound.consumed - self.credited >= batch.max(1) || self.owes_credit;
        if !is_due || self.failure.is_some() {
            return;
        }
        let Some(path) = self.split.choose(0) else { return };
        // If it is not taken, the next progress tries again, or finds the fault.
        if self.post_credit_on(path, None) {
            self.credited = self.inbound.consumed;
            self.owes_credit = false;
        }
    }

    fn post_credit_on(&mut self, path: usize, notice: Option<Notice>) -> bool {
        self.posted();
        let place = self.geometry.credit(path);
        self.outbound.store(place, self.inbound.consumed);
        let live = &mut self.carriers[path].live;
        live.as_mut().is_some_and(|live| live.post_credit(place, notice))
    }

    /// Says that what comes next is the end and no fault.
    pub(super) fn say_goodbye(&mut self) {
        for path in 0..self.carriers.len() {
            self.post_credit_on(path, Some(Notice::Goodbye));
        }
    }
}
