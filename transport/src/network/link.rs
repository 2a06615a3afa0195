//! One end of a link: staging, posting, delivery in order, credits.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::layout::{ANNOUNCEMENT_BYTES, Announcement, CREDIT_BYTES, Geometry, TileHeader};
use super::split::Split;
use super::{MAX_RAILS, RailTraffic};
use crate::verbs::{
    Access, Completion, Domain, Memory, MemoryRegion, Opcode, Operation, PostError, QueuePair,
    ReceiveRequest, RemoteAddress, State, Status, WorkId, WorkRequest,
};
use crate::{EncodedStamp, HEADER_BYTES, Link, Stamp, Tile, TransportError, clock};

/// From so many rails on, one look at all descriptors is cheaper than a read from each.
const LOOK_FIRST_RAILS: usize = 3;
/// How long a link that is dropped waits for the peer's host to confirm what it has sent.
const LINGER: Duration = Duration::from_millis(100);
const LINGER_PAUSE: Duration = Duration::from_micros(50);

/// Names of operations that carry no tile; tiles are named by their sequence.
const CREDIT: WorkId = WorkId(u64::MAX);
const ANNOUNCEMENT: WorkId = WorkId(u64::MAX - 1);

/// What a link is told about one of its rails.
#[derive(Debug)]
pub(super) struct Path {
    /// For messages.
    pub(super) name: String,
    /// Index among the rails of this rank.
    pub(super) rail: usize,
    /// Bytes per second.
    pub(super) capacity: f64,
    pub(super) domain: Box<dyn Domain>,
    pub(super) traffic: Arc<[RailTraffic]>,
}

/// A rail in use. The fields are dropped in this order: what uses memory before what registers it.
#[derive(Debug)]
struct RailPath {
    pair: Box<dyn QueuePair>,
    outbound: MemoryRegion,
    inbound: MemoryRegion,
    path: Path,
    /// The block of the peer that this end fills, once announced.
    block: Option<RemoteAddress>,
}

/// A tile that was posted and is not known to have arrived.
#[derive(Clone, Copy, Debug)]
struct OnTheWay {
    path: usize,
    bytes: usize,
}

/// A tile that has arrived.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    stamp: EncodedStamp,
    payload_bytes: usize,
}

/// One end of a link over the rails between two hosts.
///
/// Tiles are counted from 0. Of what this end sends, `freed <= posted <= staged <= freed + slots`: the
/// peer has consumed those before `freed`, a queue pair has those before `posted`, the application has
/// committed those before `staged`.
pub(super) struct NetworkLink {
    paths: Vec<RailPath>,
    geometry: Geometry,
    /// Filled by this end, read by the queue pairs.
    outbound: Memory,
    /// Filled by the peer.
    inbound: Memory,
    split: Split,
    is_reserved: bool,
    staged: u64,
    posted: u64,
    freed: u64,
    /// By slot.
    on_the_way: Vec<Option<OnTheWay>>,
    /// Tiles the application has released.
    consumed: u64,
    /// Tiles the peer was told of.
    credited: u64,
    /// By slot.
    arrived: Vec<Option<Arrived>>,
    completions: Vec<Completion>,
    failure: Option<TransportError>,
}

impl fmt::Debug for NetworkLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkLink")
            .field("paths", &self.paths.iter().map(|path| &path.path.name).collect::<Vec<_>>())
            .field("staged", &self.staged)
            .field("posted", &self.posted)
            .field("freed", &self.freed)
            .field("consumed", &self.consumed)
            .field("credited", &self.credited)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl NetworkLink {
    /// A link over connected queue pairs, which has told the peer where its memory is.
    pub(super) fn open(
        geometry: Geometry,
        connected: Vec<(Path, Box<dyn QueuePair>)>,
    ) -> Result<Self, TransportError> {
        let (outbound, inbound) =
            (Memory::allocate(geometry.bytes())?, Memory::allocate(geometry.bytes())?);
        let capacities: Vec<f64> = connected.iter().map(|(path, _)| path.capacity).collect();
        let mut paths = Vec::new();
        for (path, pair) in connected {
            let local = path.domain.register(&outbound, Access::LOCAL)?;
            let remote = path.domain.register(&inbound, Access::WRITE)?;
            paths.push(RailPath { pair, outbound: local, inbound: remote, path, block: None });
        }
        let mut link = Self {
            paths,
            geometry,
            outbound,
            inbound,
            split: Split::new(&capacities, geometry.window_bytes()),
            is_reserved: false,
            staged: 0,
            posted: 0,
            freed: 0,
            on_the_way: vec![None; geometry.shape.slots],
            consumed: 0,
            credited: 0,
            arrived: vec![None; geometry.shape.slots],
            completions: Vec::with_capacity(4 * geometry.shape.slots),
            failure: None,
        };
        for path in 0..link.paths.len() {
            link.announce(path)?;
        }
        Ok(link)
    }

    /// Posts all receives of a rail, the first of them for the peer's announcement, and announces the
    /// memory of this end.
    fn announce(&mut self, index: usize) -> Result<(), TransportError> {
        let geometry = self.geometry;
        let place = geometry.announcement(index);
        let RailPath { pair, outbound, inbound, .. } = &mut self.paths[index];
        let target = Some(inbound.segment(place, ANNOUNCEMENT_BYTES));
        let announcement = Announcement { geometry, block: inbound.remote(0) };
        self.outbound.write(place, &announcement.encode());
        let source = outbound.segment(place, ANNOUNCEMENT_BYTES);
        let operation = Operation::Send { source };
        let posted =
            pair.post_receive(ReceiveRequest { id: ANNOUNCEMENT, target }).and_then(|()| {
                for _ in 1..geometry.depth().receives {
                    pair.post_receive(ReceiveRequest { id: CREDIT, target: None })?;
                }
                pair.post_send(WorkRequest { id: ANNOUNCEMENT, operation, signalled: false })
            });
        posted.map_err(|cause| TransportError::system("announce a ring", cause))
    }

    /// The rails whose other end has not announced its memory.
    pub(super) fn unannounced(&self) -> Vec<usize> {
        let silent = self.paths.iter().filter(|path| path.block.is_none());
        silent.map(|path| path.path.rail).collect()
    }

    /// Progress before the link is in use.
    pub(super) fn settle(&mut self) -> Result<(), TransportError> {
        self.poll_paths();
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn poll_paths(&mut self) -> bool {
        let mut ready = [true; MAX_RAILS];
        if self.paths.len() >= LOOK_FIRST_RAILS {
            look(&self.paths, &mut ready);
        }
        let mut moved = false;
        for (index, &ready) in (0..self.paths.len()).zip(&ready) {
            if ready {
                moved |= self.poll_path(index);
            }
        }
        moved
    }

    fn poll_path(&mut self, index: usize) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let moved = self.paths[index].pair.poll(&mut completions);
        for completion in completions.drain(..) {
            if let Err(failure) = self.complete(index, &completion) {
                self.failure.get_or_insert(failure);
            }
        }
        self.completions = completions;
        if self.paths[index].pair.state() == State::Error {
            self.rail_failed(index);
        }
        moved
    }

    /// A rail does not work any more. The rail's fault is the link's: this is where a failover machine
    /// gets its evidence, and where what is between `freed` and `posted` is posted again elsewhere.
    fn rail_failed(&mut self, index: usize) {
        if self.failure.is_some() {
            return;
        }
        let RailPath { pair, path, .. } = &self.paths[index];
        let name = &path.name;
        self.failure = Some(match pair.fault() {
            Some(TransportError::Protocol(text)) => {
                TransportError::Protocol(format!("{name}: {text}"))
            }
            Some(fault) => TransportError::PeerGone(format!("{name}: {fault}")),
            None => TransportError::PeerGone(name.clone()),
        });
    }

    fn complete(&mut self, path: usize, completion: &Completion) -> Result<(), TransportError> {
        match (completion.status, completion.opcode) {
            (Status::Success, Opcode::Write) if completion.id != CREDIT => {
                self.landed(completion.id.0);
                Ok(())
            }
            (Status::Success, Opcode::ReceiveWriteWithImmediate) => {
                let request = ReceiveRequest { id: CREDIT, target: None };
                // A full queue means that the immediate did not use up a receive.
                let _ = self.paths[path].pair.post_receive(request);
                let immediate = completion.immediate.unwrap_or_default();
                self.deliver(path, immediate, completion.bytes)
            }
            (Status::Success, Opcode::Receive) => self.announced(path, completion.bytes),
            // Of errors the state of the queue pair tells.
            _ => Ok(()),
        }
    }

    /// The peer has said where its memory is.
    fn announced(&mut self, path: usize, bytes: usize) -> Result<(), TransportError> {
        let mut announcement = [0; ANNOUNCEMENT_BYTES];
        self.inbound.read(self.geometry.announcement(path), &mut announcement);
        let announcement = Announcement::decode(&announcement)
            .filter(|_| bytes == ANNOUNCEMENT_BYTES)
            .ok_or_else(|| self.broken(path, "not an announcement"))?;
        if announcement.geometry != self.geometry {
            let text = format!("{:?} there, {:?} here", announcement.geometry, self.geometry);
            return Err(self.broken(path, &text));
        }
        self.paths[path].block = Some(announcement.block);
        Ok(())
    }

    /// A tile has been written into its slot: notes it, whatever its place in the order. A tile that
    /// is there already, or was consumed, has come twice and is ignored.
    fn deliver(&mut self, path: usize, low: u32, bytes: usize) -> Result<(), TransportError> {
        let ahead = low.wrapping_sub(self.consumed as u32);
        if u64::from(ahead) >= self.geometry.slots() {
            let is_old = ahead > u32::MAX / 2;
            return if is_old { Ok(()) } else { Err(self.broken(path, "a tile out of turn")) };
        }
        let sequence = self.consumed + u64::from(ahead);
        let slot = self.geometry.index(sequence);
        if self.arrived[slot].is_some() {
            return Ok(());
        }
        let mut header = [0; HEADER_BYTES];
        self.inbound.read(self.geometry.slot(sequence), &mut header);
        let header = TileHeader::decode(&header)
            .filter(|header| header.sequence == sequence)
            .filter(|header| header.payload_bytes <= self.geometry.shape.tile_bytes)
            .filter(|header| header.payload_bytes + HEADER_BYTES == bytes)
            .ok_or_else(|| self.broken(path, "a tile that is not what was announced"))?;
        let TileHeader { stamp, payload_bytes, consumed, .. } = header;
        self.free(path, consumed)?;
        self.arrived[slot] = Some(Arrived { stamp, payload_bytes });
        Ok(())
    }

    fn broken(&self, path: usize, what: &str) -> TransportError {
        TransportError::Protocol(format!("{}: {what}", self.paths[path].path.name))
    }

    /// A tile is in the peer's memory.
    fn landed(&mut self, sequence: u64) {
        if (self.freed..self.posted).contains(&sequence) {
            let slot = self.geometry.index(sequence);
            if let Some(OnTheWay { path, bytes }) = self.on_the_way[slot].take() {
                self.split.finished(path, bytes);
            }
        }
    }

    /// Looks at the word into which the peer writes what it has consumed.
    fn take_credit(&mut self) {
        let consumed = self.inbound.load(self.geometry.credit());
        if let Err(failure) = self.free(0, consumed) {
            self.failure.get_or_insert(failure);
        }
    }

    /// Frees the slots of the tiles that the peer says it has consumed. Credits come over all rails, so
    /// an older one may come later; it is smaller.
    fn free(&mut self, path: usize, consumed: u64) -> Result<(), TransportError> {
        if consumed > self.posted {
            let text = format!("{consumed} tiles consumed of {} sent", self.posted);
            return Err(self.broken(path, &text));
        }
        while self.freed < consumed {
            self.landed(self.freed);
            self.freed += 1;
        }
        Ok(())
    }

    /// Hands staged tiles to the rails, as far as they take them.
    fn post_staged(&mut self) {
        while self.posted < self.staged && self.failure.is_none() && self.post_tile() {}
    }

    fn post_tile(&mut self) -> bool {
        let sequence = self.posted;
        let (slot, place) = (self.geometry.index(sequence), self.geometry.slot(sequence));
        let bytes = self.staged_bytes(place);
        let index = self.split.choose(bytes);
        let RailPath { pair, outbound, path, block, .. } = &mut self.paths[index];
        let Some(block) = block else { return false };
        let target = RemoteAddress { address: block.address + place as u64, ..*block };
        let source = outbound.segment(place, bytes);
        let immediate = sequence as u32;
        let operation = Operation::WriteWithImmediate { source, target, immediate };
        let request = WorkRequest { id: WorkId(sequence), operation, signalled: true };
        if pair.post_send(request).is_err() {
            return false;
        }
        path.traffic[path.rail].count(bytes);
        self.split.give(index, bytes);
        self.on_the_way[slot] = Some(OnTheWay { path: index, bytes });
        self.posted += 1;
        true
    }

    /// Length of a staged tile with its header, which this end has written.
    fn staged_bytes(&self, place: usize) -> usize {
        let mut header = [0; HEADER_BYTES];
        self.outbound.read(place, &mut header);
        let header = TileHeader::decode(&header).expect("staged tiles have a header");
        HEADER_BYTES + header.payload_bytes
    }

    /// Tells the peer what was consumed when so many tiles have gathered, unless a tile that went its
    /// way has told it.
    fn post_credit(&mut self, batch: u64) {
        if self.consumed - self.credited < batch.max(1) || self.failure.is_some() {
            return;
        }
        let place = self.geometry.credit();
        self.outbound.store(place, self.consumed);
        let RailPath { pair, outbound, block, .. } =
            &mut self.paths[self.split.choose(CREDIT_BYTES)];
        let Some(block) = block else { return };
        let target = RemoteAddress { address: block.address + place as u64, ..*block };
        let operation = Operation::Write { source: outbound.segment(place, CREDIT_BYTES), target };
        match pair.post_send(WorkRequest { id: CREDIT, operation, signalled: false }) {
            Ok(()) => self.credited = self.consumed,
            // The next progress tries again, or finds the fault.
            Err(PostError::QueueFull | PostError::WrongState(_)) => {}
        }
    }

    fn oldest(&self) -> Option<&Arrived> {
        self.arrived[self.geometry.index(self.consumed)].as_ref()
    }

    fn is_settled(&self) -> bool {
        self.posted == self.staged && self.paths.iter().all(|path| !path.pair.in_flight())
    }
}

impl Link for NetworkLink {
    fn tile_bytes(&self) -> usize {
        self.geometry.shape.tile_bytes
    }

    fn reserve(&mut self) -> Result<Option<&mut [u8]>, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.staged - self.freed >= self.geometry.slots() {
            return Ok(None);
        }
        self.is_reserved = true;
        let start = self.geometry.slot(self.staged) + HEADER_BYTES;
        let range = start..start + self.geometry.shape.tile_bytes;
        // SAFETY: the peer has consumed the last tile of this slot, so no queue pair reads it; queue
        // pairs are polled, and other slices of this block made, only through a `&mut` of this link.
        Ok(Some(unsafe { self.outbound.lend_mut(range) }))
    }

    fn commit(&mut self, stamp: &Stamp, bytes: usize) -> Result<(), TransportError> {
        assert!(self.is_reserved, "a tile is reserved before it is committed");
        assert!(bytes <= self.geometry.shape.tile_bytes, "{bytes} bytes in a tile");
        self.is_reserved = false;
        let (sequence, consumed) = (self.staged, self.consumed);
        let header = TileHeader { stamp: stamp.encode(), sequence, payload_bytes: bytes, consumed };
        self.outbound.write(self.geometry.slot(sequence), &header.encode());
        self.staged += 1;
        self.credited = consumed;
        self.post_staged();
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn peek(&self) -> Option<Tile<'_>> {
        let Arrived { stamp, payload_bytes } = self.oldest()?;
        let start = self.geometry.slot(self.consumed) + HEADER_BYTES;
        // SAFETY: the memory is registered with queue pairs of this link only, and those write into it
        // only when they are polled, which takes a `&mut` of this link.
        let payload = unsafe { self.inbound.lend(start..start + payload_bytes) };
        Some(Tile { stamp, payload })
    }

    /// Never fails: if the peer is gone, the next `progress` says so.
    fn release(&mut self) -> Result<(), TransportError> {
        let slot = self.geometry.index(self.consumed);
        self.arrived[slot].take().expect("a tile has arrived before it is released");
        self.consumed += 1;
        // An answer usually follows and takes the credit along. Whoever releases many tiles and then
        // does something else must not leave the peer with less than a quarter of the window.
        self.post_credit(self.geometry.slots() * 3 / 4);
        Ok(())
    }

    /// Fails only when nothing is left to deliver: a peer that has said everything and left is no
    /// reason to lose what it said.
    fn progress(&mut self) -> Result<bool, TransportError> {
        let moved = self.poll_paths();
        if moved {
            self.take_credit();
        }
        self.post_staged();
        self.post_credit(self.geometry.slots() / 2);
        match &self.failure {
            Some(failure) if self.oldest().is_none() => Err(failure.clone()),
            Some(_) | None => Ok(moved),
        }
    }

    fn flushed(&self) -> bool {
        self.posted == self.staged && self.paths.iter().all(|path| path.pair.flushed())
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.extend(self.paths.iter().filter_map(|path| path.pair.descriptor()));
    }
}

impl Drop for NetworkLink {
    /// Waits a little for the peer's host to confirm what was sent: a connection that is closed with
    /// bytes unread, such as a credit for the last tile, throws away what has not arrived.
    fn drop(&mut self) {
        let deadline = clock::now() + LINGER;
        while self.failure.is_none() && !self.is_settled() && clock::now() < deadline {
            self.poll_paths();
            self.take_credit();
            self.post_staged();
            clock::sleep(LINGER_PAUSE);
        }
    }
}

/// Finds out with one call which rails are worth a poll.
fn look(paths: &[RailPath], ready: &mut [bool; MAX_RAILS]) {
    let descriptors: [Option<BorrowedFd<'_>>; MAX_RAILS] = std::array::from_fn(|index| {
        let descriptor = paths.get(index)?.pair.descriptor()?;
        // SAFETY: the queue pair owns the descriptor and is borrowed as long as this is.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    });
    let Some(any) = descriptors.iter().flatten().next() else { return };
    let mut polled: [PollFd<'_>; MAX_RAILS] = std::array::from_fn(|index| {
        let descriptor = descriptors[index].as_ref().unwrap_or(any);
        PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)
    });
    if poll(&mut polled[..paths.len()], Some(&Timespec::default())).is_err() {
        return;
    }
    for (index, path) in paths.iter().enumerate() {
        let is_readable = !polled[index].revents().is_empty();
        ready[index] = is_readable || descriptors[index].is_none() || path.pair.needs_poll();
    }
}
