//! The connections of a rank to its neighbours in the ring: tiles go to the next rank and come from the previous one.
//!
//! There is a lane for each rail, and tiles take the lanes in turn. A lane is a queue pair in each direction, with all
//! other rails as backups. A tile is one write with an immediate, from a slot of this rank into the slot of the next one
//! that has the same number. Slots are used again when the tile that was there has left, and when the next rank has
//! said that it has taken it: in empty writes whose immediate counts what was taken.
//!
//! Always true: what a peer sends is checked before it is used, its place in the sequence, its call and its length; no
//! more tiles are on the way in a lane than it has slots; and a queue pair that has ended ends a call only if that needs
//! something of it: a neighbour that has everything, and owes nothing, may have left.

use std::collections::VecDeque;

use ccl_core::error::Error;
use ccl_core::ids::Rank;

use super::slots::Slots;
use crate::vqp::{
    Completion, Domain, Opcode, Operation, PeerRegion, QueuePair, ReceiveRequest, Status, WorkId,
    WorkRequest,
};

/// Slots of each end of a lane.
pub(super) const SLOTS: usize = 8;
/// Requests and receives beside those of tiles.
pub(super) const SPARE: usize = 4;
/// Bits of an immediate that say which call a tile is of; the others say which tile of its lane it is.
const CALL_BITS: u32 = 16;

/// Which of the queue pairs of a lane tiles come from.
const INWARDS: usize = 1;

/// What a tile is: which call it is of, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) call: u16,
    pub(super) bytes: usize,
}

/// A slot of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) lane: usize,
    pub(super) slot: usize,
}

/// One rail's part of the ring.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) outlet: Outlet,
    pub(super) inlet: Inlet,
    /// What the queue pairs are of: outwards and inwards.
    pub(super) _domains: [Domain; 2],
}

/// The end at which tiles leave.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) slots: Slots,
    /// The slots of the next rank.
    pub(super) target: PeerRegion,
    /// Tiles whose slots are filled, or will be.
    begun: u64,
    /// Tiles that were given to the NIC.
    posted: u64,
    /// Those of them that are with the next rank.
    delivered: u64,
    /// Those that the next rank has taken.
    taken: u64,
}

/// The end at which tiles arrive.
#[derive(Debug)]
pub(super) struct Inlet {
    pub(super) slots: Slots,
    /// Memory of the previous rank, into which nothing is written.
    pub(super) target: PeerRegion,
    /// Immediates and lengths of those that nobody has begun to take.
    arrived: VecDeque<(u32, usize)>,
    begun: u64,
    taken: u64,
    /// How many of these the previous rank was told.
    told: u64,
    /// Messages about that which are on the way.
    telling: usize,
}

impl Outlet {
    pub(super) fn new(slots: Slots, target: PeerRegion) -> Self {
        Self { slots, target, begun: 0, posted: 0, delivered: 0, taken: 0 }
    }

    fn has_room(&self) -> bool {
        self.begun - self.delivered.min(self.taken) < SLOTS as u64
    }

    /// What has ended at the queue pair outwards, if it is what may end there.
    fn note(&mut self, completion: &Completion) -> Option<()> {
        match (completion.opcode, completion.immediate) {
            (Opcode::Write, _) => self.delivered += 1,
            (Opcode::ReceiveWriteWithImmediate, Some(count)) => {
                let newly = count.wrapping_sub(self.taken as u32);
                let taken = self.taken + u64::from(newly);
                (completion.bytes == 0 && taken <= self.posted).then_some(())?;
                self.taken = taken;
            }
            _ => return None,
        }
        Some(())
    }
}

impl Inlet {
    pub(super) fn new(slots: Slots, target: PeerRegion) -> Self {
        let (arrived, begun, taken, told, telling) = Default::default();
        Self { slots, target, arrived, begun, taken, told, telling }
    }

    /// As [`Outlet::note`], inwards.
    fn note(&mut self, completion: &Completion) -> Option<()> {
        match (completion.opcode, completion.immediate) {
            (Opcode::Write, _) => self.telling = self.telling.checked_sub(1)?,
            (Opcode::ReceiveWriteWithImmediate, Some(immediate)) => {
                let is_due = self.begun - self.taken + (self.arrived.len() as u64) < SLOTS as u64;
                is_due.then_some(())?;
                self.arrived.push_back((immediate, completion.bytes));
            }
            _ => return None,
        }
        Some(())
    }
}

/// All lanes of a rank.
#[derive(Debug)]
pub(super) struct Ring {
    /// Of each lane: outwards, inwards.
    pairs: Vec<QueuePair>,
    lanes: Vec<Lane>,
    /// The next rank and the previous one.
    neighbours: [Rank; 2],
    /// Tiles that have left, and that have come, over all lanes.
    sent: u64,
    received: u64,
    /// Something has arrived since this was last asked.
    has_news: bool,
    completions: Vec<Completion>,
    /// What has ended each of the queue pairs.
    faults: Vec<Option<Error>>,
}

impl Ring {
    /// Of queue pairs that are connected, in which receives are posted.
    pub(super) fn new(pairs: Vec<QueuePair>, lanes: Vec<Lane>, neighbours: [Rank; 2]) -> Self {
        assert_eq!(pairs.len(), 2 * lanes.len(), "a lane has two queue pairs");
        let (sent, received, has_news, completions) = Default::default();
        let faults = vec![None; pairs.len()];
        Self { pairs, lanes, neighbours, sent, received, has_news, completions, faults }
    }

    /// Does what can be done without waiting; tells whether anything happened.
    pub(super) fn poll(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.pairs.len() {
            if self.faults[index].is_some() {
                continue;
            }
            match self.poll_one(index) {
                Ok(has_moved) => moved |= has_moved,
                Err(error) => {
                    tracing::debug!(%error, "a queue pair of a ring has ended");
                    self.faults[index] = Some(error);
                }
            }
        }
        moved
    }

    fn poll_one(&mut self, index: usize) -> Result<bool, Error> {
        let was_over = self.pairs[index].is_over();
        self.completions.clear();
        let moved = self.pairs[index].poll(&mut self.completions);
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            self.note(index, &completion)?;
        }
        if was_over && self.completions.is_empty() {
            return Err(self.lost(index));
        }
        if index % 2 == INWARDS { self.tell(index / 2).map(|()| moved) } else { Ok(moved) }
    }

    fn note(&mut self, index: usize, completion: &Completion) -> Result<(), Error> {
        if completion.status != Status::Success {
            return Err(self.lost(index));
        }
        let lane = &mut self.lanes[index / 2];
        let is_outwards = index.is_multiple_of(2);
        let noted =
            if is_outwards { lane.outlet.note(completion) } else { lane.inlet.note(completion) };
        noted.ok_or_else(|| self.strange(index, "it counts tiles that there are not"))?;
        if completion.opcode == Opcode::ReceiveWriteWithImmediate {
            self.has_news |= !is_outwards;
            let receive = ReceiveRequest { id: WorkId(0), target: None };
            self.pairs[index].post_receive(receive).map_err(|cause| self.strange(index, &cause))?;
        }
        Ok(())
    }

    /// Says which tiles were taken.
    fn tell(&mut self, lane: usize) -> Result<(), Error> {
        let inlet = &mut self.lanes[lane].inlet;
        if inlet.told == inlet.taken || inlet.telling == SLOTS {
            return Ok(());
        }
        let (source, target) = (inlet.slots.segment(0, 0), inlet.target.at(0));
        let immediate = inlet.taken as u32;
        inlet.told = inlet.taken;
        inlet.telling += 1;
        let operation = Operation::WriteWithImmediate { source, target, immediate };
        self.post(2 * lane + INWARDS, operation)
    }

    fn post(&mut self, index: usize, operation: Operation) -> Result<(), Error> {
        let request = WorkRequest { id: WorkId(0), operation, signalled: true };
        self.pairs[index].post_send(request).map_err(|cause| self.strange(index, &cause))
    }

    /// Whether the next tile has arrived.
    ///
    /// # Errors
    /// It cannot any more.
    pub(super) fn has_come(&self) -> Result<bool, Error> {
        let lane = self.coming();
        match &self.faults[2 * lane + INWARDS] {
            _ if !self.lanes[lane].inlet.arrived.is_empty() => Ok(true),
            Some(fault) => Err(fault.clone()),
            None => Ok(false),
        }
    }

    /// Whether there is a slot for the next tile that leaves.
    ///
    /// # Errors
    /// It cannot leave any more.
    pub(super) fn has_room(&self) -> Result<bool, Error> {
        let lane = self.leaving();
        let fault = self.faults[2 * lane].clone();
        fault.map_or_else(|| Ok(self.lanes[lane].outlet.has_room()), Err)
    }

    /// Whether something has arrived since this was last asked.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Where the next tile lies, which has arrived, if it is what is expected: else what it says that it is.
    ///
    /// # Errors
    /// It is not the next of its lane.
    pub(super) fn take(&mut self, expected: Label) -> Result<Result<Spot, Label>, Error> {
        let lane = self.coming();
        let inlet = &mut self.lanes[lane].inlet;
        let arrived = inlet.arrived.pop_front();
        let (immediate, bytes) = arrived.unwrap_or_default();
        let found = Label { call: (immediate >> CALL_BITS) as u16, bytes };
        let (number, slot) = (inlet.begun as u16, inlet.begun as usize % SLOTS);
        if arrived.is_none() || immediate as u16 != number {
            return Err(self.strange(2 * lane + INWARDS, "its tiles are not in order"));
        }
        if found != expected {
            return Ok(Err(found));
        }
        inlet.begun += 1;
        self.received += 1;
        Ok(Ok(Spot { lane, slot }))
    }

    /// The slot of the next tile that leaves, for which there is room.
    pub(super) fn begin(&mut self) -> Spot {
        let lane = self.leaving();
        let outlet = &mut self.lanes[lane].outlet;
        let slot = outlet.begun as usize % SLOTS;
        outlet.begun += 1;
        self.sent += 1;
        Spot { lane, slot }
    }

    /// Sends what was put into the oldest slot of its lane that was begun and not sent.
    pub(super) fn send(&mut self, spot: Spot, label: Label) -> Result<(), Error> {
        let outlet = &mut self.lanes[spot.lane].outlet;
        assert_eq!(outlet.posted as usize % SLOTS, spot.slot, "tiles leave in order");
        let source = outlet.slots.segment(spot.slot, label.bytes);
        let target = outlet.target.at(source.offset as u64);
        let immediate = u32::from(label.call) << CALL_BITS | u32::from(outlet.posted as u16);
        outlet.posted += 1;
        self.post(2 * spot.lane, Operation::WriteWithImmediate { source, target, immediate })
    }

    /// The tile is not needed any more. In each lane they are taken in order.
    pub(super) fn taken(&mut self, spot: Spot) {
        let inlet = &mut self.lanes[spot.lane].inlet;
        assert_eq!(inlet.taken as usize % SLOTS, spot.slot, "tiles are taken in order");
        inlet.taken += 1;
    }

    /// Slots at which tiles arrive.
    pub(super) fn inward(&self, lane: usize) -> &Slots {
        &self.lanes[lane].inlet.slots
    }

    /// Slots from which they leave.
    pub(super) fn outward(&self, lane: usize) -> &Slots {
        &self.lanes[lane].outlet.slots
    }

    /// Whether everything that was sent is with the next rank.
    ///
    /// # Errors
    /// Nobody will know.
    pub(super) fn is_delivered(&self) -> Result<bool, Error> {
        for (index, lane) in self.lanes.iter().enumerate() {
            if lane.outlet.delivered < lane.outlet.begun {
                return self.faults[2 * index].clone().map_or(Ok(false), Err);
            }
        }
        Ok(true)
    }

    /// Whether a neighbour still needs polls of this rank.
    pub(super) fn owes(&self) -> bool {
        let mut ways = self.pairs.iter().zip(&self.faults).enumerate();
        ways.any(|(index, (pair, fault))| {
            let Inlet { told, taken, .. } = self.lanes[index / 2].inlet;
            fault.is_none() && (pair.owes() || index % 2 == INWARDS && told != taken)
        })
    }

    /// Whether the neighbours have taken everything, know that this rank has, and are owed nothing.
    pub(super) fn is_settled(&self) -> bool {
        let is_open = |lane: usize, way: usize| self.faults[2 * lane + way].is_none();
        let mut lanes = self.lanes.iter().enumerate();
        let is_quiet = lanes.all(|(index, Lane { outlet, inlet, .. })| {
            let is_taken = outlet.delivered == outlet.begun && outlet.taken == outlet.begun;
            (is_taken || !is_open(index, 0)) && (inlet.telling == 0 || !is_open(index, INWARDS))
        });
        is_quiet && !self.owes()
    }

    /// For whom this rank waits, in words.
    pub(super) fn awaited(&self, receives: bool) -> String {
        let [next, previous] = self.neighbours;
        match receives {
            true => format!("no tile has come from rank {previous}"),
            false => format!("rank {next} has not taken what was sent to it"),
        }
    }

    /// How often the queue pairs of this rank have gone on over another rail.
    pub(super) fn repairs(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.counters().repairs).sum()
    }

    /// Sleeps until a poll is worthwhile.
    pub(super) fn rest(&mut self, limit: std::time::Duration) {
        // Whoever cannot sleep polls.
        let _ = QueuePair::rest(&mut self.pairs, limit);
    }

    /// The previous rank.
    pub(super) fn previous(&self) -> Rank {
        self.neighbours[1]
    }

    fn leaving(&self) -> usize {
        (self.sent % self.lanes.len() as u64) as usize
    }

    fn coming(&self) -> usize {
        (self.received % self.lanes.len() as u64) as usize
    }

    fn lost(&self, index: usize) -> Error {
        let cause = self.pairs[index].fault();
        self.strange(index, &cause.unwrap_or_else(|| "the queue pair has failed".to_owned()))
    }

    fn strange(&self, index: usize, what: &(impl std::fmt::Display + ?Sized)) -> Error {
        let (rank, rail) = (self.neighbours[index % 2], index / 2);
        Error::PeerLost { rank, reason: format!("collectives on devices, rail {rail}: {what}") }
    }
}
