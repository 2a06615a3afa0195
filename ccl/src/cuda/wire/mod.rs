//! Collectives on memory of devices between hosts, of groups in which every rank is on a host of its own: kernels
//! combine, NICs carry, and a thread tells each when it is its turn. See docs/cuda.md.
//!
//! Ranks are a ring ([`ring`]). Of every tile that comes, one kernel combines what the ranks before have with what this
//! rank has, in memory of the program, and puts the result into a slot from which a NIC takes it, or into the output, or
//! into both ([`script`]). Slots are memory of the device if NICs reach that, else pinned memory of the host, which
//! kernels reach. The processor touches no element.
//!
//! Always true: a kernel is launched when its tile has come and its slot is free, so no kernel waits; a stream goes
//! on when the call is over, however it ended; and whoever launches is not the driver thread, which a driver could keep from
//! ending a call ([`super::envoy`]).

mod connect;
mod passage;
mod recipe;
mod ring;
mod script;
mod slots;

pub(super) use connect::{Means, Offer, Place, Shape};

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ccl_core::collective::Request;
use ccl_core::error::Error;
use ccl_kernels::cuda::gpu::{self, Buffer, DeviceRegion, Gpu, Stream};
use ccl_transport::clock;

use super::deadline::Deadline;
use super::envoy::patience;
use super::error::error as from_device;
use super::staging::Turn;
use crate::driver::lock;
use crate::guardian::{Found, Guardian};
use passage::Passage;
use ring::{Ring, SLOTS};
use script::Script;

/// What is copied to one place only is for the copy engine from this length on, which leaves the processors of the
/// device to the program. A guess: nothing was measured.
const COPY_ENGINE_BYTES: usize = 64 << 10;
/// Polls of a guardian in one look.
const POLLS_PER_LOOK: u32 = 64;

/// Who has not answered by then has left, or does not come to the call for a while: it has its tiles.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);
/// Between two looks whether neighbours have everything.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// A rank that is connected with its neighbours.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Polls between calls: a neighbour may need that of this rank, to hear that something has come, or for a repair. Ends
    /// before the ring does.
    _guardian: Guardian,
    ring: Arc<Mutex<Ring>>,
    gpu: Arc<Gpu>,
    stream: Stream,
    place: Place,
    shape: Shape,
    /// Calls that are not larger go through the host.
    small_bytes: usize,
    obstacle: Option<String>,
    needs_flush: bool,
    repairs: AtomicU64,
}

/// What one call works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) request: Request,
    /// Its number among the collectives of the communicator.
    pub(super) sequence: u64,
    pub(super) input: Option<DeviceRegion<'static>>,
    pub(super) output: Option<DeviceRegion<'static>>,
    /// Bytes from one block to the next in a buffer that has the blocks of all ranks.
    pub(super) pitch: usize,
    /// A mean is of so many contributions.
    pub(super) contributions: usize,
    /// What the program has called.
    pub(super) called: Request,
}

impl Call {
    /// What the program has called, as it is.
    pub(super) fn new(
        request: Request,
        sequence: u64,
        (input, output): (Option<DeviceRegion<'static>>, Option<DeviceRegion<'static>>),
        ranks: usize,
    ) -> Self {
        let (pitch, contributions, called) = (request.bytes(), ranks, request);
        Self { request, sequence, input, output, pitch, contributions, called }
    }

    fn name(&self) -> &'static str {
        self.called.collective.name()
    }
}

/// What the driver thread does for a call.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) turn: Turn,
    pub(super) wire: Arc<Wire>,
    pub(super) call: Call,
    /// Memory of the library, beside that of the wire, on which it may work.
    pub(super) scratch: Option<Arc<Buffer>>,
}

impl Job {
    /// Waits for the stream, and does the call, in at most `timeout`. What ended the communicator, which `fault` tells,
    /// ends it, and what ends it is told to `fail`.
    ///
    /// # Errors
    /// Whatever ended it, which is kept.
    pub(crate) fn run(
        self,
        fault: &dyn Fn() -> Option<Error>,
        fail: &dyn Fn(&Error),
        timeout: Duration,
    ) -> Result<(), Error> {
        let result = self.take(&|| None, fault, &Deadline::new(timeout));
        if let Err(error) = &result {
            fail(error);
            self.turn.keep(error);
        }
        result
    }

    /// As [`Self::run`], and what ends it is for whoever calls to tell. What ends what is before it on the stream, which
    /// `hindrance` tells, ends it too.
    pub(super) fn take(
        &self,
        hindrance: &dyn Fn() -> Option<Error>,
        fault: &dyn Fn() -> Option<Error>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        let hopeless = || fault().or_else(hindrance);
        self.turn.begin(self.call.name(), &hopeless)?;
        self.run_errand(fault, deadline)
    }

    /// The call itself, once its stream has come. Where the device or the driver is silent when it has failed, a kernel
    /// may still work on the memory of the call after this: that of the library stays as long, and for that of the program
    /// whoever drops the communicator waits.
    fn run_errand(
        &self,
        fault: &dyn Fn() -> Option<Error>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        deadline.begin();
        let ending = Ending::default();
        let errand = {
            let (wire, call) = (Arc::clone(&self.wire), self.call);
            let (deadline, ending) = (deadline.clone(), ending.clone());
            let scratch = self.scratch.clone();
            move || {
                let _scratch = scratch;
                wire.run(&call, &ending, &deadline)
            }
        };
        let mut is_over = None;
        let hopeless = || {
            if let Some(error) = fault() {
                ending.tell(&error);
            }
            if ending.told().is_none() && !deadline.is_past() {
                return None;
            }
            is_over.get_or_insert_with(patience)().then(|| {
                let silent = "its own device, or the driver of that".to_owned();
                ending.tell(&deadline.error(self.call.name(), silent))
            })
        };
        let result = self.turn.envoy().send(errand, hopeless)?;
        // Whatever else went wrong, that came first.
        result.map_err(|error| fault().unwrap_or(error))
    }
}

/// What ends a call early, whoever finds it first: the driver thread, or the thread that does the call.
#[derive(Clone, Debug, Default)]
struct Ending(Arc<OnceLock<Error>>);

impl Ending {
    /// What was told first.
    fn tell(&self, error: &Error) -> Error {
        self.0.get_or_init(|| error.clone()).clone()
    }

    fn told(&self) -> Option<Error> {
        self.0.get().cloned()
    }
}

impl Wire {
    /// Connects this rank with its neighbours, of which the next one listens there, unless that `is_over`. Calls that
    /// are not larger than `small_bytes` are not for it.
    ///
    /// # Errors
    /// One of them does not come, or is somebody else.
    pub(super) fn connect(
        gpu: &Arc<Gpu>,
        offer: Offer,
        next: SocketAddr,
        (place, shape, small_bytes): (Place, Shape, usize),
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let (obstacle, needs_flush) = (offer.obstacle.clone(), offer.needs_flush);
        let stream = gpu.stream().map_err(from_device)?;
        let ring = Arc::new(Mutex::new(offer.connect(next, is_over)?));
        let watched = Arc::downgrade(&ring);
        let _guardian = Guardian::start(move || {
            let Some(ring) = watched.upgrade() else { return Found::Gone };
            let Ok(mut ring) = ring.try_lock() else { return Found::Busy };
            tend(&mut ring)
        })?;
        let (gpu, repairs) = (Arc::clone(gpu), AtomicU64::new(0));
        Ok(Self {
            _guardian,
            ring,
            gpu,
            stream,
            place,
            shape,
            small_bytes,
            obstacle,
            needs_flush,
            repairs,
        })
    }

    /// Whether calls like this are for it: the same on all ranks.
    pub(super) fn takes(&self, request: &Request) -> bool {
        request.bytes() > self.small_bytes && script::is_possible(request.collective)
    }

    /// Copies a tile. A kernel reads it once for two destinations.
    fn copy(
        &self,
        source: DeviceRegion<'_>,
        destinations: &[DeviceRegion<'_>],
    ) -> Result<(), gpu::Error> {
        match destinations {
            [destination] if source.bytes() >= COPY_ENGINE_BYTES => {
                self.stream.copy(source, *destination)
            }
            _ => self.gpu.copy(&self.stream, source, destinations),
        }
    }

    /// Why slots are in pinned memory; None if they are in memory of the device.
    pub(super) fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// How often queue pairs have gone on over another rail.
    pub(super) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    /// Waits until the neighbours have everything and have said so, but not much longer than [`SETTLE_LIMIT`], nor when
    /// that `is_over`: before this rank leaves, which they could take for a fault.
    pub(super) fn settle(&self, is_over: impl Fn() -> bool) {
        let begin = clock::now();
        while !is_over() && clock::now().saturating_duration_since(begin) < SETTLE_LIMIT {
            let mut ring = lock(&self.ring);
            if !ring.poll() && ring.is_settled() {
                return;
            }
            ring.rest(SETTLE_PAUSE);
        }
    }

    fn run(&self, call: &Call, ending: &Ending, deadline: &Deadline) -> Result<(), Error> {
        let place = (self.place.me, self.place.ranks());
        let slots = (SLOTS * self.shape.lanes, self.shape.slot_bytes);
        let script =
            Script::new(&call.request, place, slots).map(|script| script.spread(call.pitch));
        let none = || Error::Internal(format!("{:?} has no ring", call.request));
        let script = script.ok_or_else(none)?;
        let mut ring = lock(&self.ring);
        let result = Passage::new(self, &mut ring, call, script).run(ending, deadline);
        self.repairs.store(ring.repairs(), Ordering::Relaxed);
        result
    }
}

/// Does between calls what neighbours may need.
fn tend(ring: &mut Ring) -> Found {
    for _ in 0..POLLS_PER_LOOK {
        if !ring.poll() && ring.is_settled() {
            return Found::Settled;
        }
    }
    Found::Unsettled
}
