//! Collectives on memory of devices without the host: ranks on one host map each other's memory, and their
//! kernels do the rest, in the order of streams. See docs/cuda.md.
//!
//! Always true: all ranks take this way for the same calls, because they count them and have agreed
//! from which on; a rank says to the others what lies in memory that they have mapped only; and no kernel
//! waits when the communicator has failed.

mod agreement;
mod buffers;
mod meeting;
mod parts;
mod watch;
mod wish;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::ids::Rank;
use ccl_core::settings::CudaPeers;
use ccl_kernels::cuda::gpu::{
    self, DeviceRegion, Event, Exchange, Gpu, Layout, Own, Part, Protocol, Shown, Side, Stream,
    Supply, Told,
};
use ccl_kernels::cuda::{Entry, Family, MOST_RANKS, Module};

use super::Operation;
use super::staging::Staging;
use super::uneven::Party;
use crate::communicator::Communicator;
use crate::driver::lock;
use crate::hosts::HostIdentity;
use agreement::Facts;
use buffers::Buffers;
use meeting::{Host, Meeting, Step};
use parts::{Cast, Roles, Spot, Stretch, Work};
pub(crate) use watch::Watch;
pub(super) use watch::overdue;
use wish::{Wish, module_of};

/// Calls with low latency are not larger.
const MOST_SMALL_BYTES: usize = 32 << 10;
/// Nor than this part of the staging memory.
const SMALL_PART: usize = 4;
/// Buffers are shown at calls with numbers that are powers of two, and from here on at every multiple of this.
const SHOW_INTERVAL: u64 = 64;

/// How many collectives went which way, on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Through memory of the host.
    pub host: u64,
    /// By kernels alone, with low latency.
    pub low_latency: u64,
    /// By kernels alone, on mapped memory.
    pub push: u64,
    /// By kernels alone, as messages between all ranks.
    pub pull: u64,
    /// Buffers of these that others worked on where they are; all other ones were staged.
    pub mapped_buffers: u64,
}

/// What goes which way.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Collectives so far, whichever way they went.
    calls: u64,
    /// Those that have not been compared.
    untold: VecDeque<Signature>,
    /// Modules of kernels that were asked for.
    asked: BTreeSet<&'static str>,
    /// For modules that all ranks have: the last call that goes through the host.
    behind: BTreeMap<&'static str, u64>,
    exchange: Option<Arc<Exchange>>,
    buffers: Buffers,
    refused: Option<String>,
    paths: Paths,
}

impl Routes {
    fn count(&mut self, call: Signature) {
        self.calls += 1;
        // Without an exchange nobody compares, and the host does it for every call.
        if self.refused.is_none() {
            self.untold.push_back(call);
        }
    }

    /// The calls that have not been compared, up to this one, and the number of the first of them.
    fn called(&mut self, number: u64) -> (u64, Vec<String>) {
        let later = (self.calls - number) as usize;
        let told = self.untold.len().saturating_sub(later);
        let first = number + 1 - told as u64;
        (first, self.untold.drain(..told).map(|call| described(&call)).collect())
    }

    fn refuse(&mut self, reason: &str) {
        self.untold.clear();
        self.refused.get_or_insert_with(|| reason.to_owned());
    }
}

/// One rank's way without the host.
#[derive(Debug)]
pub(super) struct Direct {
    gpu: Arc<Gpu>,
    staging: Arc<Staging>,
    me: usize,
    ranks: usize,
    routes: Arc<Mutex<Routes>>,
    meeting: Mutex<Meeting>,
}

/// A call on its way to the stream.
struct Call<'a, 'b> {
    exchange: &'b Exchange,
    cast: Cast,
    work: Work,
    input: Option<DeviceRegion<'a>>,
    output: Option<DeviceRegion<'a>>,
}

/// Where the others find the blocks of a buffer.
enum Ground {
    /// In staging memory, without gaps.
    Staged(Side),
    /// Where they are.
    Mapped(Shown, usize),
}

impl Direct {
    /// Allocates what the others will map, if this way may be taken.
    pub(super) fn new(host: &Communicator, gpu: &Arc<Gpu>, staging: &Arc<Staging>) -> Self {
        let (me, ranks) = (host.rank().index(), host.size() as usize);
        let settings = host.settings();
        let staging_bytes = settings.cuda_staging_bytes;
        let small_bytes = (staging_bytes / SMALL_PART).min(MOST_SMALL_BYTES);
        let layout = Layout { ranks, small_bytes, staging_bytes };
        let is_possible = is_possible(ranks);
        let region = match settings.cuda_peers {
            _ if !is_possible => Err(format!("{ranks} ranks do not do it")),
            CudaPeers::Off => Err("R2CCL_CUDA_P2P is 0".to_owned()),
            CudaPeers::Staged | CudaPeers::Mapped => {
                let own = Own::new(gpu, layout);
                own.and_then(|own| own.invitation().map(|invitation| (own, invitation.into())))
                    .map_err(|error| error.to_string())
            }
        };
        let bus = gpu.bus().map_err(|error| error.to_string());
        let (own, region) = match (region, &bus) {
            (Ok((own, letter)), Ok(_)) => (Some(own), Ok(letter)),
            (Err(reason), _) => (None, Err(reason)),
            (_, Err(reason)) => (None, Err(reason.clone())),
        };
        let facts = Facts {
            host: HostIdentity::of_this_process(settings).to_string(),
            bus: bus.unwrap_or_default(),
            processors: gpu.processors(),
            staging_bytes,
            maps_buffers: settings.cuda_peers == CudaPeers::Mapped,
            region,
        };
        let routes = Arc::<Mutex<Routes>>::default();
        let correspondence = Arc::new(host.correspondence());
        let supply = Supply { prebuilt: settings.cuda_kernels.clone(), ..Supply::default() };
        let host = Host {
            gpu: Arc::clone(gpu),
            name: format!("cuda {}", correspondence.number()),
            correspondence,
            routes: Arc::clone(&routes),
            supply,
            me,
            facts,
            own,
            gathered: 0,
            maps_buffers: false,
            mapped: BTreeMap::new(),
        };
        let meeting = Mutex::new(Meeting::new(host));
        let (gpu, staging) = (Arc::clone(gpu), Arc::clone(staging));
        Self { gpu, staging, me, ranks, routes, meeting }
    }

    /// Puts a call on the stream, after `last`, and says what the driver thread is to watch; None if the call goes
    /// through the host.
    pub(super) fn issue(
        &self,
        batch: &[Operation<'_>],
        stream: &Stream,
        last: &mut Option<Arc<Event>>,
    ) -> Result<Option<Box<Watch>>, gpu::Error> {
        let Some(wish) = Wish::of(batch, self.me, self.ranks) else { return Ok(None) };
        let mut routes = lock(&self.routes);
        routes.count(wish.signature());
        self.ask(&mut routes, wish.module());
        let sequence = routes.calls;
        let is_open = |behind: &u64| sequence > *behind;
        let exchange = routes
            .exchange
            .clone()
            .filter(|_| routes.behind.get(wish.module().name()).is_some_and(is_open));
        let Some(exchange) = exchange else {
            routes.paths.host += 1;
            return Ok(None);
        };
        if let Some(last) = &*last {
            stream.wait(last)?;
        }
        let entered = stream.mark()?;
        let (protocol, party) = self.launch(&wish, &exchange, &mut routes, stream)?;
        routes.paths.count(protocol);
        let ended = Arc::new(stream.mark()?);
        *last = Some(Arc::clone(&ended));
        let (staging, call) = (Arc::clone(&self.staging), wish.name());
        Ok(Some(Box::new(Watch { exchange, staging, call, protocol, party, entered, ended })))
    }

    /// Puts the kernels on the stream.
    fn launch(
        &self,
        wish: &Wish<'_, '_>,
        exchange: &Exchange,
        routes: &mut Routes,
        stream: &Stream,
    ) -> Result<(Protocol, Option<Party>), gpu::Error> {
        match wish {
            Wish::Even { request, work, input, output } => {
                let cast = Cast { request: *request, me: self.me, ranks: self.ranks };
                let call = Call { exchange, cast, work: *work, input: *input, output: *output };
                let protocol = call.protocol();
                if protocol == Protocol::LowLatency {
                    call.low_latency(stream)?;
                } else {
                    let grounds = call.grounds(&self.gpu, routes);
                    call.push(stream, &grounds)?;
                }
                Ok((protocol, None))
            }
            Wish::Uneven(uneven) => {
                let (sequence, me) = (routes.calls, Rank(self.me as u32));
                uneven.pull(exchange, (&self.gpu, routes), stream, self.me)?;
                Ok((Protocol::Pull, Some(Party { sequence, me, datatype: uneven.datatype })))
            }
        }
    }

    /// Asks for what later calls of the type need. The same calls ask for the same on all ranks.
    fn ask(&self, routes: &mut Routes, module: Module) {
        let number = routes.calls;
        let is_new = routes.asked.insert(module.name());
        let shows = number.is_power_of_two() && number < SHOW_INTERVAL
            || number.is_multiple_of(SHOW_INTERVAL);
        if !is_new && !shows {
            return;
        }
        let mut meeting = lock(&self.meeting);
        if is_new && routes.asked.len() == 1 {
            meeting.ask(Step::Open);
        }
        if is_new {
            meeting.ask(Step::Kernels(module));
        }
        if shows {
            meeting.ask(Step::Show(number));
        }
    }

    /// Waits until all ranks have called this, at most so long, else false; then kernels do what they can do with the
    /// requests.
    pub(super) fn prepare(
        &self,
        requests: &[Request],
        memory: &[DeviceRegion<'_>],
        patience: Duration,
    ) -> bool {
        let (wait, number) = {
            let mut routes = lock(&self.routes);
            for request in requests {
                if let Some(module) = module_of(request, self.me, self.ranks) {
                    let is_first = routes.asked.is_empty();
                    let is_new = routes.asked.insert(module.name());
                    let mut meeting = lock(&self.meeting);
                    if is_first {
                        meeting.ask(Step::Open);
                    }
                    if is_new {
                        meeting.ask(Step::Kernels(module));
                    }
                }
            }
            for region in memory {
                // What is new is remembered.
                let _ = routes.buffers.find(&self.gpu, region);
            }
            if routes.asked.is_empty() {
                return true;
            }
            let mut meeting = lock(&self.meeting);
            (meeting.waiter(), meeting.ask(Step::Show(routes.calls)))
        };
        wait(number, patience)
    }

    /// How many calls went which way, and why not without the host.
    pub(super) fn paths(&self) -> (Paths, Option<String>) {
        let routes = lock(&self.routes);
        (routes.paths, routes.refused.clone())
    }

    /// Lets all kernels go, those that come later, too.
    pub(super) fn give_up(&self) {
        let exchange = lock(&self.routes).exchange.clone();
        if let Some(exchange) = exchange {
            exchange.give_up();
        }
    }

    /// Meets nobody any more.
    pub(super) fn stop(&self) {
        lock(&self.meeting).stop();
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Paths {
    fn count(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::LowLatency => self.low_latency += 1,
            Protocol::Push => self.push += 1,
            Protocol::Pull => self.pull += 1,
        }
    }
}

impl Call<'_, '_> {
    fn protocol(&self) -> Protocol {
        let Request { collective, .. } = self.cast.request;
        let is_small = self.cast.request.bytes() <= self.exchange.small_bytes();
        if collective == Collective::AllReduce && is_small {
            Protocol::LowLatency
        } else {
            Protocol::Push
        }
    }

    fn entry(&self, family: Family) -> Entry {
        let Work { operation, datatype, .. } = self.work;
        Entry::Elements { family, operation, datatype }
    }

    fn low_latency(&self, stream: &Stream) -> Result<(), gpu::Error> {
        let (Some(input), Some(output)) = (self.input, self.output) else {
            return Err(gpu::Error::Misuse("there is no buffer".into()));
        };
        let bytes = self.cast.request.bytes();
        let memory = (input.part(0, bytes), output.part(0, bytes));
        let entry = self.entry(Family::LowLatency);
        self.exchange.low_latency(stream, entry, self.work.arithmetic, memory)
    }

    /// Where the others find the input and the output.
    fn grounds(&self, gpu: &Gpu, routes: &mut Routes) -> [Ground; 2] {
        let (blocks, block) = (self.cast.blocks(), self.cast.request.bytes());
        let address = |region: Option<DeviceRegion<'_>>| region.map(|region| region.address());
        let is_overwritten = self.cast.needs_copy() && address(self.input) == address(self.output);
        let input = self.input.filter(|_| !is_overwritten);
        let mut ground = |side, region: Option<DeviceRegion<'_>>, blocks: usize| {
            let used = region.filter(|_| blocks > 0).map(|region| region.part(0, blocks * block));
            let found = used.and_then(|region| routes.buffers.find(gpu, &region));
            found.map_or(Ground::Staged(side), |(shown, offset)| {
                routes.paths.mapped_buffers += 1;
                Ground::Mapped(shown, offset)
            })
        };
        [ground(Side::Input, input, blocks.input), ground(Side::Output, self.output, blocks.output)]
    }

    fn push(&self, stream: &Stream, grounds: &[Ground; 2]) -> Result<(), gpu::Error> {
        let entry = self.entry(Family::Push);
        let blocks = self.cast.blocks();
        for piece in self.cast.pieces(self.exchange.staging_bytes()) {
            for block in 0..blocks.input {
                if let (Ground::Staged(side), Some(input)) = (&grounds[0], self.input) {
                    let (there, staged) = self.both(input, *side, block, piece);
                    stream.copy(there, staged)?;
                }
            }
            for turn in 0..self.cast.turns() {
                let roles = self.cast.roles(&self.work, piece.bytes, turn);
                self.exchange.push(stream, entry, &self.part(&roles, grounds, piece))?;
            }
            for block in 0..blocks.output {
                if let (Ground::Staged(side), Some(output)) = (&grounds[1], self.output) {
                    let (there, staged) = self.both(output, *side, block, piece);
                    stream.copy(staged, there)?;
                }
            }
        }
        Ok(())
    }

    /// A piece of a block in a buffer, and in staging memory.
    fn both<'c>(
        &'c self,
        buffer: DeviceRegion<'c>,
        side: Side,
        block: usize,
        piece: Stretch,
    ) -> (DeviceRegion<'c>, DeviceRegion<'c>) {
        let there = block * self.cast.request.bytes() + piece.start;
        let staged = self.exchange.staging(side).part(block * piece.bytes, piece.bytes);
        (buffer.part(there, piece.bytes), staged)
    }

    fn part(&self, roles: &Roles, grounds: &[Ground; 2], piece: Stretch) -> Part {
        let size = self.work.datatype.bytes();
        let told =
            |ground: &Ground, spots: &[Option<Spot>; MOST_RANKS]| -> [Option<Told>; MOST_RANKS] {
                std::array::from_fn(|rank| {
                    let spot = spots[rank]?;
                    Some(match ground {
                        Ground::Staged(side) => {
                            let offset = spot.block * piece.bytes + spot.offset;
                            self.exchange.told_staging(*side, rank).at(offset)
                        }
                        Ground::Mapped(shown, start) => {
                            let block = self.cast.request.bytes();
                            shown.told(rank, start + spot.block * block + piece.start + spot.offset)
                        }
                    })
                })
            };
        Part {
            sources: told(&grounds[0], &roles.sources),
            destinations: told(&grounds[1], &roles.destinations),
            count: roles.bytes / size,
            largest: roles.largest / size,
            arithmetic: self.work.arithmetic,
        }
    }
}

/// Whether there are as many ranks as kernels can have.
fn is_possible(ranks: usize) -> bool {
    (2..=MOST_RANKS).contains(&ranks)
}

/// A call in words, without a plan: there is none.
fn described(call: &Signature) -> String {
    let text = call.to_string();
    text.split_once(", plan=").map_or_else(|| text.clone(), |(call, _)| format!("{call})"))
}
