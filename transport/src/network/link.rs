//! One end of a link: staging, posting, delivery in order, credits. [`super::repair`] is what it does
//! when a path dies.

mod beginning;
mod ending;
mod posting;
mod unstaged;

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use ccl_core::failover::fence::{Fence, Fences};
use ccl_core::failover::window::Window;
use ccl_core::ids::Timestamp;
use ccl_core::queue::tile_bytes;

use self::ending::Farewell;
pub use self::ending::LINGER;
use super::RailTraffic;
use super::carrier::{Awaited, CONTROL, Carrier, Live, Unmet, Wire};
use super::census::Census;
use super::inbound::{Arrived, Inbound};
use super::keeper::Keeper;
use super::landing::{Landing, Runway};
use super::layout::{Geometry, Notice, TileHeader};
use super::looks::{self, Expectation};
use super::repair::{Repair, Terms};
use super::split::Split;
use crate::verbs::{Completion, Memory, Opcode, State, Status};
use crate::{EncodedStamp, HEADER_BYTES, Link, Stamp, Stretch, Tile, TransportError, clock};

/// One end of a link over the rails between two hosts.
pub(super) struct NetworkLink {
    pub(super) carriers: Vec<Carrier>,
    pub(super) geometry: Geometry,
    /// Filled by this end, read by the queue pairs.
    pub(super) outbound: Memory,
    pub(super) inbound: Inbound,
    expectation: Expectation,
    pub(super) split: Split,
    census: Census,
    /// What was sent, and where it is.
    pub(super) window: Window,
    unstaged: unstaged::Slots,
    pub(super) fences: Fences,
    pub(super) repair: Repair,
    /// The largest tile that is sent; larger ones may come.
    tile_bytes: usize,
    /// Bytes of the tile that is reserved.
    reserved: Option<usize>,
    /// Tiles the peer was told that this end has consumed.
    credited: u64,
    /// A path is gone, and with it perhaps the last credit.
    pub(super) owes_credit: bool,
    /// The peer has said that it closes the link.
    pub(super) peer_left: bool,
    farewell: Farewell,
    completions: Vec<Completion>,
    pub(super) failure: Option<TransportError>,
}

impl fmt::Debug for NetworkLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.carriers.iter().map(|carrier| (&carrier.name, carrier.live.is_some()));
        f.debug_struct("NetworkLink")
            .field("paths", &names.collect::<Vec<_>>())
            .field("window", &self.window)
            .field("fences", &self.fences)
            .field("consumed", &self.inbound.consumed)
            .field("credited", &self.credited)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl NetworkLink {
    /// A link over connected queue pairs, which has told the peer where its memory is. It begins without those that are not
    /// there.
    pub(super) fn open(
        geometry: Geometry,
        wires: Vec<Result<Wire, Unmet>>,
        traffic: &Arc<[RailTraffic]>,
        terms: Terms,
        keeper: Box<dyn Keeper>,
    ) -> Result<Self, TransportError> {
        let outbound = Memory::allocate(geometry.bytes())?;
        let inbound = Memory::allocate(geometry.bytes())?;
        let capacity = |wire: &Result<Wire, Unmet>| {
            wire.as_ref().map_or_else(|unmet| unmet.capacity, |wire| wire.capacity)
        };
        let capacities: Vec<f64> = wires.iter().map(capacity).collect();
        let start = traffic.first().map_or_else(clock::now, |rail| rail.start);
        let (mut carriers, mut unmet) = (Vec::new(), Vec::new());
        let paths = wires.len();
        for (index, wire) in wires.into_iter().enumerate() {
            let (name, rail, live) = match wire {
                Ok(Wire { name, rail, domain, pair, .. }) => {
                    let mut live = Live::new(domain, pair, (&outbound, &inbound), paths)?;
                    live.announce(index, geometry, &outbound)?;
                    (name, rail, Some(live))
                }
                Err(Unmet { name, rail, evidence, cause, .. }) => {
                    unmet.push((index, evidence, cause));
                    (name, rail, None)
                }
            };
            let (traffic, cause) = (Arc::clone(traffic), String::new());
            let awaited = Awaited::default();
            carriers.push(Carrier { name, rail, traffic, live, cause, awaited });
        }
        let mut link = Self {
            geometry,
            outbound,
            inbound: Inbound::new(geometry, inbound),
            expectation: Expectation::new(),
            split: Split::new(&capacities, geometry.window_bytes()),
            census: Census::new(traffic.len()),
            window: Window::new(geometry.shape.slots),
            unstaged: unstaged::Slots::new(geometry.shape.slots),
            fences: Fences::new(carriers.len()),
            repair: Repair::new(carriers.len(), start, terms, keeper),
            carriers,
            tile_bytes: geometry.shape.tile_bytes,
            reserved: None,
            credited: 0,
            owes_credit: false,
            peer_left: false,
            farewell: Farewell::Open,
            completions: Vec::with_capacity(4 * geometry.shape.slots),
            failure: None,
        };
        for (path, evidence, cause) in unmet {
            link.begin_without(path, evidence, cause);
        }
        Ok(link)
    }

    /// Looks at the rail on which something is expected, and at those that have something to send; or at all.
    fn poll_expected(&mut self, landing: &mut Landing<'_>) -> bool {
        let Some(expected) = self.expectation.look() else { return self.poll_paths(landing) };
        let waits = |live: &Live| !live.pair.flushed();
        let mut moved = false;
        for path in 0..self.carriers.len() {
            if path == expected || self.carriers[path].live.as_ref().is_some_and(waits) {
                moved |= self.poll_path(path, landing);
            }
        }
        moved
    }

    fn poll_paths(&mut self, landing: &mut Landing<'_>) -> bool {
        let ready = looks::ready(&self.carriers);
        let ready = (0..self.carriers.len()).filter(|path| ready[*path]);
        ready.fold(false, |moved, path| self.poll_path(path, landing) | moved)
    }

    fn poll_path(&mut self, path: usize, landing: &mut Landing<'_>) -> bool {
        let Some(live) = &mut self.carriers[path].live else { return false };
        let mut completions = std::mem::take(&mut self.completions);
        let mut runway = Runway { inbound: &mut self.inbound, landing };
        let moved = live.pair.poll_into(&mut completions, &mut runway);
        let is_over = live.pair.state() == State::Error;
        for completion in completions.drain(..) {
            if let Err(what) = self.complete(path, &completion) {
                let name = &self.carriers[path].name;
                let text = format!("{name}: {what}");
                self.failure.get_or_insert(TransportError::Protocol(text));
            }
        }
        self.completions = completions;
        if moved {
            self.take_credit(path);
        }
        if is_over {
            self.path_broke(path);
        }
        moved
    }

    pub(super) fn complete(&mut self, path: usize, completion: &Completion) -> Result<(), String> {
        match (completion.status, completion.opcode) {
            (Status::Success, Opcode::Write) if completion.id != CONTROL => {
                let now = self.repair.now();
                self.carriers[path].awaited.confirmed(now);
                let is_news = {
                    let mut arrived = arrivals(&mut self.split, &self.carriers, now);
                    self.window.landed(completion.id.0, path, &mut arrived)
                };
                if is_news {
                    self.unstaged.set(self.geometry.index(completion.id.0), false);
                    self.resumed();
                }
                Ok(())
            }
            (Status::Success, Opcode::ReceiveWriteWithImmediate) => {
                if let Some(live) = &mut self.carriers[path].live {
                    live.replenish();
                }
                let immediate = completion.immediate.unwrap_or_default();
                self.noticed(path, Notice::decode(immediate), completion.bytes)
            }
            (Status::Success, Opcode::Receive) => self.announced(path, completion.bytes),
            // Of errors the state of the queue pair tells.
            _ => Ok(()),
        }
    }

    fn noticed(&mut self, path: usize, notice: Notice, bytes: usize) -> Result<(), String> {
        match notice {
            Notice::Tile(low) => {
                if let Some(header) = self.inbound.inspect(low, bytes)? {
                    self.free(header.consumed)?;
                    self.inbound.deliver(&header);
                    self.expectation.came(path, bytes);
                    self.resumed();
                }
            }
            Notice::Fence(fence) => self.fenced(path, fence),
            Notice::Goodbye => self.peer_left = true,
        }
        Ok(())
    }

    /// The peer has said where its memory is: the path can carry tiles.
    fn announced(&mut self, path: usize, bytes: usize) -> Result<(), String> {
        let announcement = self.inbound.announcement(path, bytes)?;
        let (theirs, ours) = (announcement.geometry, self.geometry);
        if theirs != ours {
            return Err(format!("{theirs:?} there, {ours:?} here"));
        }
        if let Some(live) = &mut self.carriers[path].live {
            live.block = Some(announcement.block);
            self.closed(Fence { path, below: self.fences.incarnation(path) });
            self.split.open(path);
            self.usable(path);
        }
        Ok(())
    }

    /// Looks at the word into which the peer writes what it has consumed.
    pub(super) fn take_credit(&mut self, path: usize) {
        let consumed = self.inbound.credit(path);
        if let Err(what) = self.free(consumed) {
            let text = format!("{}: {what}", self.carriers[path].name);
            self.failure.get_or_insert(TransportError::Protocol(text));
        }
    }

    /// As [`Self::take_credit`], of all paths on which the peer writes without polls of this end: nothing else tells that it
    /// has. Tells whether there was any.
    fn take_written_credits(&mut self) -> bool {
        let before = self.window.consumed_tiles();
        for path in 0..self.carriers.len() {
            if self.carriers[path].live.as_ref().is_some_and(|live| live.pair.confirms_alone()) {
                self.take_credit(path);
            }
        }
        self.window.consumed_tiles() > before
    }

    /// Frees the slots of the tiles that the peer says it has consumed.
    fn free(&mut self, consumed: u64) -> Result<(), String> {
        let mut arrived = arrivals(&mut self.split, &self.carriers, self.repair.now());
        self.window.consumed(consumed, &mut arrived).map_err(|impossible| impossible.to_string())
    }

    /// The next tile gets its header, and takes the credit along.
    fn stage(&mut self, stamp: &Stamp, payload_bytes: usize) -> u64 {
        let (sequence, consumed) = (self.window.stage(), self.inbound.consumed);
        let header = TileHeader { stamp: stamp.encode(), sequence, payload_bytes, consumed };
        self.outbound.write(self.geometry.slot(sequence), &header.encode());
        self.unstaged.set(self.geometry.index(sequence), false);
        self.credited = consumed;
        sequence
    }

    /// Fails only when nothing is left to deliver: a peer that has said everything and left is no
    /// reason to lose what it said.
    fn advance(&mut self, landing: &mut Landing<'_>) -> Result<bool, TransportError> {
        let mut moved = self.poll_expected(landing);
        moved |= self.take_written_credits();
        if moved {
            self.used();
        }
        moved |= self.mend();
        self.post_staged();
        self.post_credit(self.geometry.slots() / 2);
        match &self.failure {
            Some(failure) if self.inbound.oldest().is_none() => Err(failure.clone()),
            Some(_) | None => Ok(moved),
        }
    }

    /// Whether a fence waits that can be sent: on a path that the peer has not announced there is nothing that it would have
    /// to go before.
    fn owes_fence(&self) -> bool {
        let is_announced =
            |carrier: &Carrier| carrier.live.as_ref().is_some_and(|live| live.block.is_some());
        let mut carriers = self.carriers.iter().enumerate();
        carriers.any(|(path, carrier)| self.fences.due(path).is_some() && is_announced(carrier))
    }
}

/// What to do with copies of tiles that have arrived.
pub(super) fn arrivals<'a>(
    split: &'a mut Split,
    carriers: &'a [Carrier],
    now: Timestamp,
) -> impl FnMut(usize, usize) + 'a {
    move |path, bytes| {
        let since = split.finished(path, bytes, now);
        carriers[path].arrived(bytes, since, now);
    }
}

impl Link for NetworkLink {
    fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        assert!(bytes <= self.tile_bytes, "{bytes} bytes in a tile");
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if !self.window.has_room() {
            return Ok(None);
        }
        self.reserved = Some(bytes);
        let start = self.geometry.slot(self.window.staged()) + HEADER_BYTES;
        let range = start..start + bytes;
        // SAFETY: every copy of the last tile of this slot has arrived or is fenced, so no queue pair
        // reads it; queue pairs are polled, and other slices of this block made, only through a
        // `&mut` of this link.
        Ok(Some(unsafe { self.outbound.lend_mut(range) }))
    }

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        let Some(bytes) = self.reserved.take() else {
            panic!("a tile is reserved before it is committed")
        };
        self.stage(stamp, bytes);
        self.post_staged();
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn unstaged_bytes(&self) -> usize {
        self.most_unstaged_bytes()
    }

    fn send_unstaged(
        &mut self,
        stamp: &Stamp,
        bytes: Stretch<'_>,
    ) -> Result<Option<(usize, u64)>, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let sent = self.give_unstaged(stamp, bytes);
        Ok((sent > 0).then(|| (sent, self.window.staged())))
    }

    fn returned(&mut self) -> u64 {
        self.count_returned()
    }

    fn wanted(&self) -> Option<u64> {
        self.lacking().map(|sequence| sequence + 1)
    }

    fn supply(&mut self, tile: u64, bytes: Stretch<'_>) {
        self.fill(tile - 1, bytes);
    }

    fn peek(&self) -> Option<Tile<'_>> {
        let Arrived { stamp, payload_bytes, has_landed } = self.inbound.oldest()?;
        let payload = self.inbound.payload(*payload_bytes);
        Some(Tile { stamp, payload, has_landed: *has_landed })
    }

    /// Never fails: if the peer is gone, the next `progress` says so.
    fn release(&mut self) -> Result<(), TransportError> {
        self.inbound.release();
        // An answer usually follows and takes the credit along. Whoever releases many tiles and then
        // does something else must not leave the peer with less than a quarter of the window.
        self.post_credit(self.geometry.slots() * 3 / 4);
        Ok(())
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        self.advance(&mut Landing::none())
    }

    fn progress_into(
        &mut self,
        stamp: &EncodedStamp,
        memory: &mut [u8],
    ) -> Result<bool, TransportError> {
        self.advance(&mut Landing { stamp: Some(stamp), memory })
    }

    fn divide(&mut self, proportions: &[u16]) {
        self.split.divide(proportions);
    }

    fn tune(&mut self, rates: &[f64], sharing: usize) {
        let least = self.split.tune(rates, sharing);
        self.tile_bytes = tile_bytes(least, self.geometry.shape.tile_bytes);
    }

    fn flushed(&self) -> bool {
        let mut live = self.carriers.iter().filter_map(|carrier| carrier.live.as_ref());
        self.window.is_posted() && !self.owes_fence() && live.all(|live| live.pair.flushed())
    }

    fn delivered(&self) -> bool {
        self.flushed() && !self.is_anything_on_the_way()
    }

    fn settled(&self) -> bool {
        self.failure.is_some() || self.peer_left || self.window.is_settled()
    }

    fn leave(&mut self) -> bool {
        self.part()
    }

    fn is_out_of_reach(&self) -> bool {
        self.is_severed()
    }

    fn spare(&mut self) {
        self.begin_anew_to_wait();
    }

    fn confirm(&mut self) {
        self.post_credit(1);
        self.expectation.give_up();
        let live = self.carriers.iter_mut().filter_map(|carrier| carrier.live.as_mut());
        live.for_each(|live| live.pair.acknowledge());
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        let live = self.carriers.iter().filter_map(|carrier| carrier.live.as_ref());
        into.extend(live.filter_map(|live| live.pair.descriptor()));
    }

    fn revision(&self) -> u32 {
        self.repair.revision
    }
}
