//! One path of a link: its connection, while it has one, and what is posted on it.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::failover::watch::{self, Sight};
use ccl_core::ids::Timestamp;

use super::RailTraffic;
use super::events::Evidence;
use super::layout::{ANNOUNCEMENT_BYTES, Announcement, CREDIT_BYTES, Geometry, Notice};
use crate::TransportError;
use crate::verbs::{
    Access, Domain, Memory, MemoryRegion, Operation, QueuePair, ReceiveRequest, RemoteAddress,
    Silence, WorkId, WorkRequest,
};

/// Names of operations that carry no tile; tiles are named by their sequence.
pub(super) const CONTROL: WorkId = WorkId(u64::MAX);
const ANNOUNCEMENT: WorkId = WorkId(u64::MAX - 1);
/// So many bytes of tiles are handed over at once on all paths of a link together, where they come so fast: copying them into
/// the link's memory takes tens of microseconds, for which the first of them may wait.
const CORK_BYTES: usize = 512 << 10;

/// A connected path.
#[derive(Debug)]
pub struct Wire {
    /// Both ends, for messages.
    pub name: String,
    /// Index among the rails of this rank.
    pub rail: usize,
    /// Bytes per second; only the proportions matter.
    pub capacity: f64,
    /// What memory is registered with.
    pub domain: Box<dyn Domain>,
    /// The queue pair, in `ReadyToSend`.
    pub pair: Box<dyn QueuePair>,
}

/// A path over which the two ends have not met.
#[derive(Debug)]
pub(super) struct Unmet {
    pub(super) name: String,
    pub(super) rail: usize,
    pub(super) capacity: f64,
    pub(super) evidence: Evidence,
    pub(super) cause: String,
}

/// One path of a link.
#[derive(Debug)]
pub(super) struct Carrier {
    pub(super) name: String,
    pub(super) rail: usize,
    pub(super) traffic: Arc<[RailTraffic]>,
    /// While it has a connection.
    pub(super) live: Option<Live>,
    /// Why it has none.
    pub(super) cause: String,
    /// Tiles on the way on it, and since when none has been confirmed.
    pub(super) awaited: Awaited,
}

/// Tiles that a device has to confirm, which does that alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Awaited {
    tiles: usize,
    since: Option<Timestamp>,
}

impl Awaited {
    pub(super) fn posted(&mut self, now: Timestamp) {
        self.tiles += 1;
        self.since.get_or_insert(now);
    }

    pub(super) fn confirmed(&mut self, now: Timestamp) {
        self.tiles = self.tiles.saturating_sub(1);
        self.since = (self.tiles > 0).then_some(now);
    }

    /// For how long nothing was confirmed, if something is awaited.
    fn silence(&self, now: Timestamp) -> Option<Silence> {
        self.since.map(|since| Silence::of(Duration::from_nanos(now.since(since))))
    }
}

impl Carrier {
    /// What is seen of the path, as far as that can be told.
    pub(super) fn sight(&self, now: Timestamp) -> Sight {
        let Some(Live { pair, .. }) = &self.live else { return Sight::Closed };
        let awaited = || self.awaited.silence(now).filter(|_| pair.confirms_alone());
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match pair.silence().or_else(awaited) {
            None => Sight::Calm,
            Some(Silence { is_broken: true, .. }) => Sight::Moving,
            Some(Silence { lasts, usual, .. }) => Sight::Silent(watch::Silence {
                lasts_ns: nanoseconds(lasts),
                usual_ns: nanoseconds(usual),
            }),
        }
    }

    /// So many bytes have arrived, with which the path was busy from `since` until now.
    pub(super) fn arrived(&self, bytes: usize, since: Timestamp, now: Timestamp) {
        self.traffic[self.rail].arrived(bytes, since, now);
    }
}

/// A connection. The fields are dropped in this order: what uses memory before what registers it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) pair: Box<dyn QueuePair>,
    outbound: MemoryRegion,
    inbound: MemoryRegion,
    _domain: Box<dyn Domain>,
    /// The block of the peer that this end fills, once announced.
    pub(super) block: Option<RemoteAddress>,
}

impl Live {
    /// One of so many paths of a link.
    pub(super) fn new(
        domain: Box<dyn Domain>,
        mut pair: Box<dyn QueuePair>,
        (outbound, inbound): (&Memory, &Memory),
        paths: usize,
    ) -> Result<Self, TransportError> {
        pair.cork(CORK_BYTES / paths);
        let outbound = domain.register(outbound, Access::LOCAL)?;
        let inbound = domain.register(inbound, Access::WRITE)?;
        Ok(Self { pair, outbound, inbound, _domain: domain, block: None })
    }

    /// Posts all receives, the first of them for the peer's announcement, and announces the memory of
    /// this end.
    pub(super) fn announce(
        &mut self,
        path: usize,
        geometry: Geometry,
        memory: &Memory,
    ) -> Result<(), TransportError> {
        let place = geometry.announcement(path);
        let Self { pair, outbound, inbound, .. } = self;
        let target = Some(inbound.segment(place, ANNOUNCEMENT_BYTES));
        let announcement = Announcement { geometry, block: inbound.remote(0) };
        memory.write(place, &announcement.encode());
        let source = outbound.segment(place, ANNOUNCEMENT_BYTES);
        let operation = Operation::Send { source };
        let posted =
            pair.post_receive(ReceiveRequest { id: ANNOUNCEMENT, target }).and_then(|()| {
                for _ in 1..geometry.depth().receives {
                    pair.post_receive(ReceiveRequest { id: CONTROL, target: None })?;
                }
                pair.post_send(WorkRequest { id: ANNOUNCEMENT, operation, signalled: false })
            });
        posted.map_err(|cause| TransportError::system("announce a ring", cause))
    }

    /// Puts a receive in place of one that was used up.
    pub(super) fn replenish(&mut self) {
        // A full queue means that nothing was used up.
        let _ = self.pair.post_receive(ReceiveRequest { id: CONTROL, target: None });
    }

    /// Writes a tile into the peer's slot. Tells whether the queue pair took it.
    pub(super) fn post_tile(&mut self, sequence: u64, place: usize, bytes: usize) -> bool {
        let request = self.tile(sequence, place, bytes);
        request.is_some_and(|request| self.pair.post_send(request).is_ok())
    }

    /// What writes a tile into the peer's slot.
    pub(super) fn tile(&self, sequence: u64, place: usize, bytes: usize) -> Option<WorkRequest> {
        let target = self.target(place)?;
        let source = self.outbound.segment(place, bytes);
        let immediate = Notice::of_tile(sequence).encode();
        let operation = Operation::WriteWithImmediate { source, target, immediate };
        Some(WorkRequest { id: WorkId(sequence), operation, signalled: true })
    }

    /// Writes the credit word, and a notice with it if there is one.
    pub(super) fn post_credit(&mut self, place: usize, notice: Option<Notice>) -> bool {
        let Some(target) = self.target(place) else { return false };
        let source = self.outbound.segment(place, CREDIT_BYTES);
        let operation = match notice {
            None => Operation::Write { source, target },
            Some(notice) => {
                Operation::WriteWithImmediate { source, target, immediate: notice.encode() }
            }
        };
        self.pair.post_send(WorkRequest { id: CONTROL, operation, signalled: false }).is_ok()
    }

    fn target(&self, place: usize) -> Option<RemoteAddress> {
        self.block.map(|block| RemoteAddress { address: block.address + place as u64, ..block })
    }
}
