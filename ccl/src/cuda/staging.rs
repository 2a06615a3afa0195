//! Pinned memory between a device and the collectives, and who may touch it when.
//!
//! A slot goes round: the stream copies a piece into it and opens a gate; the driver thread does the
//! piece and writes its number into a word; the stream, which waits for that, copies the result out;
//! and whichever stream uses the slot next waits for that. Pieces are done in the order of their
//! numbers. Every piece gets its number written, whatever becomes of it: no stream is left waiting.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu::{self, DeviceRegion, Event, Gpu, Pinned, Stream};

use super::direct::overdue;
use super::envoy::Envoy;
use super::error::{described, error as from_device};
use super::pieces::{Piece, Stretch};
use super::sentinel::Sentinel;
use super::uneven::{Aside, Census};
use crate::driver::lock;
use crate::operation::{Operation, OperationOn};

/// One is filled or emptied while the collective works in the other.
pub(crate) const SLOTS: usize = 2;

/// Between two looks at what ends a wait for a stream before the stream has come.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The memory.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: [Pinned; SLOTS],
    /// One word: the number of the last piece that is over.
    over: Pinned,
    /// Numbers behind that which are over, too.
    early: Mutex<BTreeSet<u32>>,
    /// The numbers of the last calls to which streams have come, and that have ended on them: written by the streams.
    seen: Pinned,
    sentinel: Sentinel,
    envoy: Envoy,
    failure: Mutex<Option<Error>>,
    /// For how long streams are waited for, once no further call may come.
    patience: OnceLock<Duration>,
}

impl Staging {
    pub(crate) fn new(gpu: &Gpu, slot_bytes: usize) -> Result<Self, Error> {
        let pin = |bytes| gpu.pin(bytes).map_err(from_device);
        let slots = [pin(slot_bytes)?, pin(slot_bytes)?];
        Ok(Self {
            slots,
            over: pin(size_of::<u32>())?,
            early: Mutex::default(),
            seen: pin(2 * size_of::<u32>())?,
            sentinel: Sentinel::new(gpu).map_err(from_device)?,
            envoy: Envoy::default(),
            failure: Mutex::default(),
            patience: OnceLock::new(),
        })
    }

    /// The first thing that went wrong.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// No stream is waited for any longer than this, from now on.
    pub(crate) fn close(&self, patience: Duration) {
        // The first time counts.
        let _ = self.patience.set(patience);
    }

    /// An error if the communicator was closed, and a stream has not come for too long.
    pub(crate) fn is_overdue(&self, call: &str, first_look: &mut Option<Instant>) -> Option<Error> {
        overdue(call, self.patience.get().copied(), first_look)
    }

    /// Keeps what went wrong, if it is the first.
    pub(crate) fn keep(&self, error: &Error) {
        lock(&self.failure).get_or_insert_with(|| error.clone());
    }

    /// What asks the driver for the driver thread.
    pub(super) fn envoy(&self) -> &Envoy {
        &self.envoy
    }

    /// What is wrong with the device, as far as that is known. It never waits for the driver.
    pub(super) fn broken(&self) -> Option<Error> {
        self.sentinel.failure()
    }

    fn part(&self, slot: usize, stretch: Stretch) -> DeviceRegion<'_> {
        self.slots[slot].region().part(stretch.offset, stretch.bytes)
    }
}

/// A moment in the streams of a communicator that the driver thread sees without asking the driver. Its calls follow each other, whichever streams
/// they are on, so numbers only grow.
#[derive(Debug)]
pub(super) struct Milestone {
    staging: Arc<Staging>,
    offset: usize,
    number: u32,
}

impl Milestone {
    /// Lets it happen when the work of the stream so far has ended.
    pub(super) fn mark(&self, stream: &Stream) -> Result<(), gpu::Error> {
        stream.write_word(&self.staging.seen, self.offset, self.number)
    }

    /// Whether it has happened.
    pub(super) fn has_happened(&self) -> bool {
        let seen = self.staging.seen.word(self.offset).load(Ordering::Acquire);
        is_past(seen, self.number)
    }

    /// What is wrong with the device, as far as that is known.
    pub(super) fn broken(&self) -> Option<Error> {
        self.staging.broken()
    }
}

/// Opened by a stream, for the driver thread.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *lock(&self.is_open) = true;
        self.changed.notify_all();
    }

    /// Waits; gives up when `hopeless` returns an error.
    fn pass(&self, mut hopeless: impl FnMut() -> Option<Error>) -> Result<(), Error> {
        let mut is_open = lock(&self.is_open);
        while !*is_open {
            if let Some(error) = hopeless() {
                return Err(error);
            }
            let waited = self.changed.wait_timeout(is_open, LOOK_PAUSE);
            is_open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// The time between a stream's coming to a call and its going on. Dropping it lets the stream go on, once the turns in
/// front of it were dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    staging: Arc<Staging>,
    gate: Arc<Gate>,
    number: u32,
}

impl Turn {
    /// Waits for the stream; what ended the communicator, which `fault` tells, ends that too.
    pub(crate) fn begin(&self, call: &str, fault: &dyn Fn() -> Option<Error>) -> Result<(), Error> {
        let mut first_look = None;
        let hopeless = || {
            let failed = || self.staging.broken();
            fault().or_else(failed).or_else(|| self.staging.is_overdue(call, &mut first_look))
        };
        // What has ended the communicator may have let the stream come here with nothing.
        self.gate.pass(hopeless).and_then(|()| fault().map_or(Ok(()), Err))
    }

    /// Keeps what went wrong, if it is the first.
    pub(crate) fn keep(&self, error: &Error) {
        self.staging.keep(error);
    }

    /// What asks the driver for the driver thread.
    pub(super) fn envoy(&self) -> &Envoy {
        self.staging.envoy()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if thread::panicking() {
            // Whoever catches it does so when the stream has gone on. It may be a thread of the program.
            let what = "a thread panicked in a call; its message is on standard error";
            self.keep(&Error::Internal(what.to_owned()));
        }
        advance(self.staging.over.word(0), &mut lock(&self.staging.early), self.number);
    }
}

/// Brings a word on by the number of a turn that is over, counting around, and by those that were over `early`. Where a call
/// cannot be put on its stream its turn is dropped before the ones in front of it are over: their streams would go on with
/// results that are not there.
fn advance(word: &AtomicU32, early: &mut BTreeSet<u32>, number: u32) {
    early.insert(number);
    let mut over = word.load(Ordering::Relaxed);
    while early.remove(&over.wrapping_add(1)) {
        over = over.wrapping_add(1);
    }
    word.store(over, Ordering::Release);
}

/// Whether a word has come to a number, counting around.
fn is_past(word: u32, number: u32) -> bool {
    word.wrapping_sub(number) < 1 << 31
}

/// What the driver thread does for one piece.
#[derive(Debug)]
pub(crate) struct Job {
    turn: Turn,
    slot: usize,
    census: Option<Census>,
    operations: Vec<OperationOn<Stretch>>,
}

impl Job {
    /// Waits for the stream and runs the operations, of which the last collective has the number `sequence`; what ended
    /// the communicator, which `fault` tells, ends it too. A device that fails ends the communicator through `fail`,
    /// and so do ranks that disagree.
    ///
    /// # Errors
    /// Whatever ended it, which is kept.
    pub(crate) fn run(
        self,
        fault: &dyn Fn() -> Option<Error>,
        fail: &dyn Fn(&Error),
        sequence: &dyn Fn() -> u64,
        mut run: impl FnMut(&[Operation<'_>]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let call = self.operations.first().map_or("a call", OperationOn::name);
        let arrived = self.turn.begin(call, fault);
        let census = || self.census.as_ref();
        let told = arrived
            .and_then(|()| census().map_or(Ok(()), |census| census.take(sequence, &mut run)));
        let result = told.inspect_err(fail).and_then(|()| {
            let mut lent = self.turn.staging.slots[self.slot].lend();
            let region = lent.region();
            let part = |stretch: Stretch| region.part(stretch.offset, stretch.bytes);
            let operations = self.operations.iter().map(|operation| operation.clone().map(part));
            run(&operations.collect::<Vec<Operation<'_>>>())
        });
        if let Err(error) = &result {
            self.turn.keep(error);
        }
        result
    }
}

/// A piece that a stream has been given the first half of.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    slot: usize,
    number: u32,
    out_of: Vec<super::pieces::Move<DeviceRegion<'a>>>,
}

/// Gives streams their part of the work. Whoever has it decides what comes next on all ranks.
#[derive(Debug)]
pub(crate) struct Issue {
    staging: Arc<Staging>,
    /// How many pieces there were.
    number: u32,
    /// How many calls there were whose moments are seen.
    seen: u32,
    next_slot: usize,
    /// When the result of the last piece in each slot was copied out.
    ends: [Option<Arc<Event>>; SLOTS],
    /// When the last call had ended, whichever way it went.
    pub(crate) last: Option<Arc<Event>>,
    pub(super) aside: Aside,
}

impl Issue {
    pub(crate) fn new(staging: Arc<Staging>) -> Self {
        let (ends, aside) = ([const { None }; SLOTS], Aside::default());
        Self { staging, number: 0, seen: 0, next_slot: 0, ends, last: None, aside }
    }

    /// Lets the stream fill the next slot, and gives what is left to do for the stream and the driver.
    /// There are never more than [`SLOTS`] pieces that have begun and not ended.
    pub(crate) fn begin<'a>(
        &mut self,
        stream: &Stream,
        piece: Piece<DeviceRegion<'a>>,
    ) -> Result<(Begun<'a>, Box<Job>), gpu::Error> {
        let slot = self.next_slot;
        if let Some(end) = &self.ends[slot] {
            stream.wait(end)?;
        }
        for moved in &piece.into {
            stream.copy(moved.device, self.staging.part(slot, moved.slot))?;
        }
        let turn = self.turn(stream)?;
        self.next_slot = (slot + 1) % SLOTS;
        let number = turn.number;
        let Piece { census, operations, .. } = piece;
        let job = Job { turn, slot, census, operations };
        Ok((Begun { slot, number, out_of: piece.out_of }, Box::new(job)))
    }

    /// Lets the stream tell that it has come, and gives what the driver thread waits with.
    fn turn(&mut self, stream: &Stream) -> Result<Turn, gpu::Error> {
        let gate = Arc::new(Gate::default());
        let opened = Arc::clone(&gate);
        stream.call(move || opened.open())?;
        self.number = self.number.wrapping_add(1);
        let (staging, number) = (Arc::clone(&self.staging), self.number);
        Ok(Turn { staging, gate, number })
    }

    /// The moment in which a stream comes to a call, which begins here.
    pub(super) fn enter(&mut self, stream: &Stream) -> Result<Milestone, gpu::Error> {
        self.seen = self.seen.wrapping_add(1);
        let entered = self.moment(0);
        entered.mark(stream).map(|()| entered)
    }

    /// The moment in which that call has ended on the stream.
    pub(super) fn leave(&self, stream: &Stream) -> Result<Milestone, gpu::Error> {
        let ended = self.end_of_call();
        ended.mark(stream).map(|()| ended)
    }

    /// The same moment, which is still to be marked.
    pub(super) fn end_of_call(&self) -> Milestone {
        self.moment(size_of::<u32>())
    }

    fn moment(&self, offset: usize) -> Milestone {
        Milestone { staging: Arc::clone(&self.staging), offset, number: self.seen }
    }

    /// Lets the stream come to a call that works on memory where it is, and wait for its end. The memory stays as long,
    /// because whoever frees it waits for the stream.
    pub(crate) fn hold<const N: usize>(
        &mut self,
        stream: &Stream,
        memory: [Option<DeviceRegion<'_>>; N],
    ) -> Result<(Turn, [Option<DeviceRegion<'static>>; N]), gpu::Error> {
        let turn = self.turn(stream)?;
        let held = self.hold_for(&turn, stream, memory);
        // The turn ends here, and nobody must take that for a result.
        let held = held.inspect_err(|error| turn.keep(&described(error)))?;
        Ok((turn, held))
    }

    fn hold_for<const N: usize>(
        &mut self,
        turn: &Turn,
        stream: &Stream,
        memory: [Option<DeviceRegion<'_>>; N],
    ) -> Result<[Option<DeviceRegion<'static>>; N], gpu::Error> {
        let held = stream.hold_until(&self.staging.over, 0, turn.number, memory)?;
        self.last = Some(Arc::new(stream.mark()?));
        Ok(held)
    }

    /// Lets the stream wait for the result, and copy it out.
    pub(crate) fn end(&mut self, stream: &Stream, begun: &Begun<'_>) -> Result<(), gpu::Error> {
        stream.wait_for_word(&self.staging.over, 0, begun.number)?;
        for moved in &begun.out_of {
            stream.copy(self.staging.part(begun.slot, moved.slot), moved.device)?;
        }
        let end = Arc::new(stream.mark()?);
        self.ends[begun.slot] = Some(Arc::clone(&end));
        self.last = Some(end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_once_those_in_front_of_it_are() {
        let (word, mut early) = (AtomicU32::new(u32::MAX - 1), BTreeSet::new());
        let after = |number| {
            advance(&word, &mut early, number);
            word.load(Ordering::Relaxed)
        };
        assert_eq!(
            [u32::MAX, 2, 1, 0, 3, 5, 4].map(after),
            [u32::MAX, u32::MAX, u32::MAX, 2, 3, 3, 5]
        );
        assert_eq!(early, BTreeSet::new());
    }
}
