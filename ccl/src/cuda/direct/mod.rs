//! Collectives on memory of devices without the host: ranks on one host map each other's memory, and their
//! kernels do the rest, in the order of streams; ranks that are each on a host of their own have NICs that carry
//! ([`super::wire`]); ranks that are several on each of several hosts do both in turn ([`columns`]). Here they agree on
//! one of these. See docs/cuda.md.
//!
//! Always true: all ranks take this way for the same calls, because they count them and have agreed
//! from which on; a rank says to the others what lies in memory that they have mapped only; and no kernel
//! waits when the communicator has failed.

mod agreement;
mod buffers;
mod call;
mod columns;
mod copies;
mod grid;
mod hold;
mod legs;
mod meeting;
mod opening;
mod parts;
mod paths;
mod routes;
mod watch;
mod windows;
mod wish;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::collective::{Request, Signature};
use ccl_core::ids::Rank;
use ccl_core::settings::{CudaCache, CudaPeers, Settings};
use ccl_kernels::cuda::gpu::{
    self, DeviceRegion, EventPool, Exchange, Gpu, Layout, Own, Protocol, Shown, Stream, Supply,
};
use ccl_kernels::cuda::{MOST_RANKS, Module};

use super::Operation;
use super::staging::{Issue, Staging};
use super::uneven::Party;
use super::wire::{self, Wire};
use crate::communicator::Communicator;
use crate::driver::{Work, lock};
use crate::hosts::HostIdentity;
use agreement::Facts;
use buffers::Buffers;
use call::Call;
use columns::Columns;
pub(crate) use columns::Job as ColumnsJob;
use copies::Copied;
use hold::Releases;
use meeting::{Host, Meeting, Step};
use parts::Cast;
pub use paths::Paths;
use routes::Routes;
use watch::Means;
pub(crate) use watch::Watch;
pub(super) use watch::overdue;
pub use windows::{Promise, Window};
use wish::{Wish, module_of};

/// Calls with low latency are not larger.
const MOST_SMALL_BYTES: usize = 32 << 10;
/// Nor than this part of the staging memory.
const SMALL_PART: usize = 4;
/// Buffers are shown at calls with numbers that are powers of two, and from here on at every multiple of this.
const SHOW_INTERVAL: u64 = 64;

/// A call that was counted, and how it may go.
struct Counted {
    number: u64,
    /// If copy engines can do it.
    copied: Option<Copied>,
    /// If kernels can, on all ranks.
    way: Option<Way>,
}

/// How collectives are done without the host.
#[derive(Clone, Debug)]
enum Way {
    /// By kernels of ranks on one host.
    Near(Arc<Exchange>),
    /// By kernels and NICs of ranks that are each on a host of their own.
    Far(Arc<Wire>),
    /// By both, of ranks that are several on each of several hosts.
    Columns(Arc<Columns>),
}

impl Way {
    fn exchange(&self) -> Option<&Arc<Exchange>> {
        match self {
            Self::Near(exchange) => Some(exchange),
            Self::Columns(columns) => Some(&columns.exchange),
            Self::Far(_) => None,
        }
    }

    fn wire(&self) -> Option<&Arc<Wire>> {
        match self {
            Self::Far(wire) => Some(wire),
            Self::Columns(columns) => Some(&columns.wire),
            Self::Near(_) => None,
        }
    }
}

/// Where kernels come from. A cache that cannot be used costs time, and nothing else.
fn supply(settings: &Settings) -> Supply {
    let cache = match &settings.cuda_cache {
        CudaCache::Folder(folder) => Some(folder.clone()),
        CudaCache::Off | CudaCache::OfUser => None,
    };
    let supply = Supply { prebuilt: settings.cuda_kernels.clone(), cache, nvrtc: None };
    match supply.prepare_cache() {
        Ok(()) => supply,
        Err(error) => {
            tracing::info!(%error, "compiled kernels are not kept");
            Supply { cache: None, ..supply }
        }
    }
}

/// One rank's way without the host.
#[derive(Debug)]
pub(super) struct Direct {
    gpu: Arc<Gpu>,
    staging: Arc<Staging>,
    me: usize,
    ranks: usize,
    /// All ranks.
    members: Arc<[Rank]>,
    /// Locked while ranks settle from which call on kernels do the work. So nobody keeps it who asks the driver anything: that may take
    /// until another rank has made its next call.
    routes: Arc<Mutex<Routes>>,
    way: Arc<Mutex<Option<Way>>>,
    buffers: Arc<Mutex<Buffers>>,
    paths: Mutex<Paths>,
    meeting: Mutex<Meeting>,
    /// What lets streams go that wait for ranks which do not come.
    releases: Arc<Releases>,
    events: EventPool,
}

impl Direct {
    /// Allocates what the others will map, if this way may be taken.
    pub(super) fn new(host: &Communicator, gpu: &Arc<Gpu>, staging: &Arc<Staging>) -> Self {
        let (me, ranks) = (host.rank().index(), host.size() as usize);
        let settings = host.settings();
        let staging_bytes = settings.cuda_staging_bytes;
        let small_bytes = (staging_bytes / SMALL_PART).min(MOST_SMALL_BYTES);
        let layout = Layout { ranks, small_bytes, staging_bytes };
        let (facts, own) = facts(settings, gpu, layout);
        let routes = Arc::<Mutex<Routes>>::default();
        let (way, buffers) = <(Arc<Mutex<Option<Way>>>, Arc<Mutex<Buffers>>)>::default();
        let correspondence = Arc::new(host.correspondence());
        let supply = supply(settings);
        let host = Host {
            gpu: Arc::clone(gpu),
            name: format!("cuda {}", correspondence.number()),
            correspondence,
            routes: Arc::clone(&routes),
            way: Arc::clone(&way),
            buffers: Arc::clone(&buffers),
            supply,
            me,
            facts,
            own,
            small_bytes,
            gathered: 0,
            maps_buffers: false,
            company: Vec::new(),
            mapped: BTreeMap::new(),
        };
        let meeting = Mutex::new(Meeting::new(host));
        let (gpu, staging) = (Arc::clone(gpu), Arc::clone(staging));
        let members = (0..ranks as u32).map(Rank).collect();
        let (releases, events, paths) = Default::default();
        Self {
            gpu,
            staging,
            me,
            ranks,
            members,
            routes,
            way,
            buffers,
            paths,
            meeting,
            releases,
            events,
        }
    }

    /// Puts a call on the stream, after all calls before, and says what the driver thread is to do; None if the call
    /// goes through the host.
    pub(super) fn issue(
        &self,
        batch: &[Operation<'_>],
        stream: &Stream,
        issue: &mut Issue,
    ) -> Result<Option<Work>, gpu::Error> {
        let Some(wish) = Wish::of(batch, self.ranks) else { return Ok(None) };
        let Counted { number, copied, way } = self.counted(&wish);
        if let Some(copied) = copied.filter(|copied| copied.is_there(&self.gpu)) {
            let watch = self.copy(&wish, number, copied, (stream, issue))?;
            return Ok(Some(Work::Direct(Box::new(watch))));
        }
        let work = way.map(|way| self.take(&way, &wish, number, (stream, issue)));
        let work = work.transpose()?.flatten();
        lock(&self.paths).host += u64::from(work.is_none());
        Ok(work)
    }

    /// Counts a call, and says how it may go: at once, so that ranks can settle from which call on that is another way.
    fn counted(&self, wish: &Wish<'_, '_>) -> Counted {
        let mut routes = lock(&self.routes);
        routes.count(wish.signature());
        self.ask(&mut routes, wish.module());
        let (number, way) = (routes.calls, lock(&self.way).clone());
        let copied = self.copied(wish, way.as_ref(), &routes.windows);
        let is_open = routes.behind.get(wish.module().name()).is_some_and(|last| number > *last);
        Counted { number, copied, way: way.filter(|_| is_open) }
    }

    /// On that way, if it is for such calls.
    fn take(
        &self,
        way: &Way,
        wish: &Wish<'_, '_>,
        number: u64,
        (stream, issue): (&Stream, &mut Issue),
    ) -> Result<Option<Work>, gpu::Error> {
        match (way, wish) {
            (Way::Near(exchange), _) => {
                let place = (wish.name(), Arc::clone(&self.members));
                let launch = || {
                    let launched = self.launch(wish, exchange, number, stream)?;
                    lock(&self.paths).count(launched.0);
                    Ok(launched)
                };
                let watch = self.kernels(Arc::clone(exchange), place, (stream, issue), launch)?;
                Ok(Some(Work::Direct(Box::new(watch))))
            }
            (Way::Far(wire), Wish::Even { request, input, output, .. }) if wire.takes(request) => {
                lock(&self.paths).count_wire(wire);
                let (turn, [input, output]) = issue.hold(stream, [*input, *output])?;
                let call = wire::Call::new(*request, number, (input, output), self.ranks);
                let wire = Arc::clone(wire);
                let job = wire::Job { turn, wire, call, scratch: None };
                Ok(Some(Work::Wire(Box::new(job))))
            }
            (Way::Columns(columns), Wish::Even { request, input, output, .. }) => {
                let Some(legs) = columns.legs(request) else { return Ok(None) };
                let memory = [*input, *output];
                let on = (columns, legs.as_slice());
                let job = self.columns(on, (request, number), memory, (stream, issue))?;
                Ok(Some(Work::Columns(Box::new(job))))
            }
            (Way::Far(_), _) | (Way::Columns(_), Wish::Uneven(_)) => Ok(None),
        }
    }

    /// Kernels of ranks that are on this host, which are the `members` of the exchange.
    fn kernels(
        &self,
        exchange: Arc<Exchange>,
        (call, members): (&'static str, Arc<[Rank]>),
        (stream, issue): (&Stream, &mut Issue),
        launch: impl FnOnce() -> Result<(Protocol, Option<Party>), gpu::Error>,
    ) -> Result<Watch, gpu::Error> {
        if let Some(last) = &issue.last {
            stream.wait(last)?;
        }
        let entered = issue.enter(stream)?;
        let (protocol, party) = launch()?;
        let ended = Arc::new(issue.leave(stream)?);
        // Behind the moment: that of the next call, on whichever stream, comes later.
        issue.last = Some(Arc::new(self.events.mark(stream)?));
        let (staging, means) = (Arc::clone(&self.staging), Means::Kernels(protocol, party));
        Ok(Watch { exchange, staging, call, means, members, entered, ended })
    }

    /// Puts the kernels on the stream.
    fn launch(
        &self,
        wish: &Wish<'_, '_>,
        exchange: &Exchange,
        number: u64,
        stream: &Stream,
    ) -> Result<(Protocol, Option<Party>), gpu::Error> {
        match wish {
            Wish::Even { request, input, output, .. } => {
                let cast = Cast::even(*request, self.me, self.ranks);
                let work = parts::Work::of(request, self.me, self.ranks);
                let call = Call { exchange, cast, work, input: *input, output: *output };
                let protocol = call.protocol();
                if protocol == Protocol::LowLatency {
                    call.low_latency(stream)?;
                } else {
                    let grounds = call.grounds(|region| self.mapped(region));
                    call.push(stream, &grounds)?;
                }
                Ok((protocol, None))
            }
            Wish::Uneven(uneven) => {
                let (sequence, me) = (number, Rank(self.me as u32));
                uneven.pull(exchange, |region| self.mapped(region), stream, self.me)?;
                Ok((Protocol::Pull, Some(Party { sequence, me, datatype: uneven.datatype })))
            }
        }
    }

    /// Where the others have memory of the program, and how far into it the region begins.
    fn mapped(&self, region: &DeviceRegion<'_>) -> Option<(Shown, usize)> {
        let allocation = self.gpu.allocation(region.address()).ok()?;
        let found = lock(&self.buffers).find(allocation, region);
        lock(&self.paths).mapped_buffers += u64::from(found.is_some());
        found
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
        routes.open(&mut meeting);
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
        for region in memory {
            if let Ok(allocation) = self.gpu.allocation(region.address()) {
                // What is new is remembered.
                let _ = lock(&self.buffers).find(allocation, region);
            }
        }
        let (wait, number) = {
            let mut routes = lock(&self.routes);
            for request in requests {
                if let Some(module) = module_of(request, self.ranks) {
                    let is_new = routes.asked.insert(module.name());
                    let mut meeting = lock(&self.meeting);
                    routes.open(&mut meeting);
                    if is_new {
                        meeting.ask(Step::Kernels(module));
                    }
                }
            }
            if routes.asked.is_empty() {
                return true;
            }
            let mut meeting = lock(&self.meeting);
            (meeting.waiter(), meeting.ask(Step::Show(routes.calls)))
        };
        wait(number, patience)
    }

    /// How many calls went which way, and why not without the host, or not in memory of the device.
    pub(super) fn paths(&self) -> (Paths, Option<String>) {
        let (routes, way) = (lock(&self.routes), lock(&self.way).clone());
        let wire = way.as_ref().and_then(Way::wire);
        let repairs = wire.map_or(0, |wire| wire.repairs());
        let paths = Paths { repairs, ..*lock(&self.paths) };
        let obstacle = || wire.and_then(|wire| wire.obstacle()).map(str::to_owned);
        let unused = || routes.windows.obstacle().map(str::to_owned);
        (paths, routes.refused.clone().or_else(obstacle).or_else(unused))
    }

    /// Lets all kernels go, those that come later, too.
    pub(super) fn give_up(&self) {
        let way = lock(&self.way).clone();
        if let Some(exchange) = way.as_ref().and_then(Way::exchange) {
            exchange.give_up();
        }
    }

    /// Waits a moment until neighbours on other hosts have what calls that are over have sent them.
    pub(super) fn settle(&self, host: &Communicator) {
        let way = lock(&self.way).clone();
        if let Some(wire) = way.as_ref().and_then(Way::wire) {
            wire.settle(|| host.async_error().is_some());
        }
    }

    /// Meets nobody any more.
    pub(super) fn stop(&self) {
        let end = lock(&self.meeting).stop();
        end();
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a rank says of itself, and what the others will map.
fn facts(settings: &Settings, gpu: &Arc<Gpu>, layout: Layout) -> (Facts, Option<Own>) {
    let is_possible = is_possible(layout.ranks);
    let off = || "R2CCL_CUDA_P2P is 0".to_owned();
    let region = match settings.cuda_peers {
        _ if !is_possible => Err(format!("{} ranks do not do it", layout.ranks)),
        CudaPeers::Off => Err(off()),
        CudaPeers::Staged | CudaPeers::Mapped => {
            let own = Own::new(gpu, layout);
            own.and_then(|own| own.invitation().map(|invitation| (own, invitation.into())))
                .map_err(|error| error.to_string())
        }
    };
    let bus = gpu.bus().map_err(|error| error.to_string());
    let peers = if settings.cuda_peers == CudaPeers::Off { Err(off()) } else { Ok(()) };
    let peers = peers.and(bus.clone().map(|_| ()));
    let (own, region) = match (region, &bus) {
        (Ok((own, letter)), Ok(_)) => (Some(own), Ok(letter)),
        (Err(reason), _) => (None, Err(reason)),
        (_, Err(reason)) => (None, Err(reason.clone())),
    };
    let facts = Facts {
        host: HostIdentity::of_this_process(settings).to_string(),
        bus: bus.unwrap_or_default(),
        processors: gpu.processors(),
        staging_bytes: layout.staging_bytes,
        maps_buffers: settings.cuda_peers == CudaPeers::Mapped,
        peers,
        region,
        network: Err("it was not looked for".to_owned()),
    };
    (facts, own)
}

/// Whether there are as many ranks as kernels can have.
fn is_possible(ranks: usize) -> bool {
    (2..=MOST_RANKS).contains(&ranks)
}

/// A call in words, without a plan: there is none.
pub(super) fn described(call: &Signature) -> String {
    let text = call.to_string();
    text.split_once(", plan=").map_or_else(|| text.clone(), |(call, _)| format!("{call})"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn kernels_are_kept_where_the_setting_says_if_nobody_else_can_write_there() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("r2ccl/kernels");
        let supply_of = |cuda_cache| supply(&Settings { cuda_cache, ..Settings::default() }).cache;
        assert_eq!(supply_of(CudaCache::Off), None);
        assert_eq!(supply_of(CudaCache::OfUser), None, "the environment was not asked");
        assert_eq!(supply_of(CudaCache::Folder(folder.clone())), Some(folder.clone()));
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(supply_of(CudaCache::Folder(folder)), None);
    }
}
