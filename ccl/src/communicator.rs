//! Groups of ranks and the calls on them.

mod core;
#[cfg(feature = "cuda")]
mod correspondence;
mod lineage;
mod parts;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccl_core::collective::Request;
use ccl_core::error::Error;
use ccl_core::health::RailHealth;
use ccl_core::ids::{Epoch, Rank};
use ccl_core::topology::Topology;
use ccl_core::tuning::Tuning;
use ccl_transport::biased::Biased;
use ccl_transport::clock;
use ccl_transport::wait::Ladder;

use self::core::{Core, announce, nanoseconds};
#[cfg(feature = "cuda")]
pub(crate) use self::correspondence::Correspondence;
use self::lineage::{Descent, Origin};
pub use self::parts::Shrink;
use crate::bootstrap::{Control, Listener, UniqueId, rendezvous};
use crate::calibration;
use crate::config::Config;
use crate::driver::{Pending, Queue, Work, lock};
use crate::engine::{Ended, Engine, Limits, Watch};
use crate::environment::Environment;
use crate::executor::Executor;
use crate::guardian::Guardian;
use crate::health::{Health, HealthBoard};
use crate::operation::{Operation, check_own_messages};
use crate::plans::{self, Planner};
use crate::setup;
use crate::timeline::RailRecord;

/// One member of a group of ranks. Clones are the same member.
///
/// Calls on it are collective: all ranks make the same calls in the same order. When a call fails
/// for any other reason than its arguments, the communicator is unusable, on all ranks; see
/// [`Self::async_error`].
#[derive(Clone, Debug)]
pub struct Communicator {
    handle: Arc<Handle>,
}

/// Ends the driver thread and takes leave of the others when the last clone goes.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
    driver: Mutex<Option<JoinHandle<()>>>,
    guardian: Mutex<Option<Guardian>>,
}

impl Communicator {
    /// Becomes rank `rank` of the `size` ranks that call this with the same `id`.
    ///
    /// # Errors
    /// The rank is out of range or claimed twice; a rank does not come before the bootstrap
    /// deadline; a NIC or the shared memory is not there; ranks are on other hosts and no NIC leads there.
    pub fn create(id: &UniqueId, rank: u32, size: u32, config: &Config) -> Result<Self, Error> {
        if size == 0 || rank >= size {
            let text = format!("rank {rank} is not a rank of a group of {size}");
            return Err(Error::InvalidArgument(text));
        }
        let join = |deadline| Control::join(id, Rank(rank), size, deadline);
        Self::of(id, config, None, join).map_err(|error| config.named(error))
    }

    /// That of the ranks that `join` the group of `id` before a deadline, made of another one if it has an `origin`.
    fn of(
        id: &UniqueId,
        config: &Config,
        origin: Option<Origin>,
        join: impl FnOnce(Instant) -> Result<Control, Error>,
    ) -> Result<Self, Error> {
        plans::check(&config.settings)?;
        let began = clock::now();
        let deadline = began + config.settings.bootstrap_timeout;
        id.await_way(&config.settings, deadline)?;
        let control = join(deadline)?;
        let (rank, size) = (control.rank(), control.size());
        let (settings, key) = (&config.settings, id.key());
        let connected = setup::connect(&control, rank, id.communicator(), &key, settings, deadline)
            .inspect_err(|error| {
                if control.fault().is_none() {
                    announce(&control, rank, error);
                }
                control.leave(0);
            })?;
        let findings = connected.findings(rank);
        let planner = Planner::new(rank, connected.topology, settings.clone());
        let executor = Executor::new(rank, connected.links).caching(connected.machine.caches);
        let ladder = Ladder::new(connected.machine.ranks, connected.machine.cores, connected.bell);
        let health = Health::new(rank, &connected.rails, connected.board, control.letters());
        let listener: Arc<dyn Listener> = health.clone();
        control.listen(&listener);
        let engine = Engine::new(rank, size, executor, planner, Arc::clone(&health), ladder);
        let core = Core {
            rank,
            size,
            config: config.clone(),
            control,
            queue: Queue::default(),
            engine: Biased::new(engine),
            timeline: connected.timeline,
            dumped: AtomicBool::new(false),
            health,
            finalized: AtomicBool::new(false),
            children: AtomicU32::new(0),
            growth: Mutex::new(None),
            reunion: connected.reunion,
            descent: Descent::from(origin),
            tried: OnceLock::new(),
            #[cfg(feature = "cuda")]
            correspondences: AtomicU32::new(0),
            #[cfg(feature = "cuda")]
            key,
            timeout_ns: AtomicU64::new(nanoseconds(config.timeout.unwrap_or(settings.timeout))),
            activity: AtomicU64::new(0),
        };
        let core = Arc::new(core);
        let guardian = Core::guardian(&core).inspect_err(|error| core.fail(error))?;
        let handle = Handle { core, driver: Mutex::new(None), guardian: Mutex::new(guardian) };
        let communicator = Self { handle: Arc::new(handle) };
        if let Some(file) = &config.settings.tuning {
            calibration::tune(&communicator, file)?;
        }
        if let Some(part) = connected.part {
            part.drill().begin();
        }
        communicator.core().descent.tell(&communicator.core().control);
        findings.tell(rank, config.name.as_deref(), began);
        Ok(communicator)
    }

    /// Takes rank, size and meeting place from the environment of `torchrun`, `mpirun` (Open MPI,
    /// MPICH, Intel MPI) or Slurm.
    ///
    /// # Errors
    /// As [`Self::create`], or the environment is not that of a launcher.
    pub fn from_environment(config: &Config) -> Result<Self, Error> {
        let environment = Environment::of_this_process();
        let (place, rank, size) = rendezvous(&environment, &config.settings)?;
        Self::create(place.id(), rank.0, size, config)
    }

    /// This member's position in the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.core().rank
    }

    /// Number of members.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.core().size
    }

    /// Sets the deadline of the calls that begin from now on; one that has begun keeps its own. Each rank
    /// has a deadline of its own: the first that passes ends the communicator.
    ///
    /// # Errors
    /// The timeout is zero.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Error> {
        if timeout.is_zero() {
            return Err(Error::InvalidArgument("the timeout is zero".into()));
        }
        self.core().timeout_ns.store(nanoseconds(timeout), Ordering::Relaxed);
        Ok(())
    }

    /// The deadline of the calls that begin now.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.core().timeout()
    }

    /// Waits for everything that was started and takes leave. No calls may follow.
    ///
    /// # Errors
    /// What ended the communicator, if something did.
    pub fn finalize(&self) -> Result<(), Error> {
        let core = self.core();
        core.queue.drain();
        core.leave();
        self.async_error().map_or(Ok(()), Err)
    }

    /// Ends all pending and future calls, on all ranks, with [`Error::Aborted`], a [`Self::grow`] in which some have not come yet,
    /// too, and a [`Self::shrink`] that waits for others.
    pub fn abort(&self, reason: &str) {
        let core = self.core();
        core.reunion.iter().for_each(|reunion| reunion.end(reason));
        core.descent.end_meeting(reason);
        let error = Error::Aborted { rank: core.rank, reason: reason.to_owned() };
        core.fail(&error);
        drop(core.end_growth());
    }

    /// What ended the communicator, if something did.
    #[must_use]
    pub fn async_error(&self) -> Option<Error> {
        self.core().fault()
    }

    /// Runs one operation; its buffers may be used again when it returns.
    ///
    /// # Errors
    /// The arguments are impossible, or the communicator failed; see [`Error`].
    #[inline(always)]
    pub fn run(&self, operation: Operation<'_>) -> Result<(), Error> {
        self.run_all(std::slice::from_ref(&operation), None)
    }

    /// Runs operations as one group; see [`crate::Group`].
    #[inline(always)]
    pub(crate) fn run_all(
        &self,
        operations: &[Operation<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<(), Error> {
        self.usable()?;
        self.validate(operations)?;
        self.with_engine(watch, |engine, limits| engine.run(operations, limits))
    }

    /// Has the engine do something, after all that was started before.
    #[inline(always)]
    pub(crate) fn with_engine(
        &self,
        watch: Option<Watch<'_>>,
        work: impl FnOnce(&mut Engine, Limits<'_>) -> Ended,
    ) -> Result<(), Error> {
        let core = self.core();
        core.queue.drain();
        core.with_engine(watch, work)
    }

    /// Starts one operation. Operations run in the order in which they were started.
    ///
    /// The operation has its memory until [`Pending`] tells that it is done, dropped or not, so there is no safe
    /// form for memory that is borrowed: the program answers for it. Without `unsafe`, a thread of
    /// [`std::thread::scope`] can make a call that waits while this thread does something else.
    ///
    /// ```no_run
    /// use ccl::{Collective, Communicator, DataType, Error, Operation, Rank, ReduceOp, Region, Request};
    ///
    /// fn sum(communicator: &Communicator, mut data: Vec<f32>) -> Result<Vec<f32>, Error> {
    ///     let request = Request {
    ///         collective: Collective::AllReduce,
    ///         count: data.len(),
    ///         datatype: DataType::Float32,
    ///         reduction: ReduceOp::Sum.into(),
    ///         root: Rank(0),
    ///     };
    ///     // SAFETY: the vector is there and left alone until the call is done: nothing in between returns.
    ///     let all = unsafe { Region::new(data.as_mut_ptr().cast(), size_of_val(&data[..])) };
    ///     let sum = Operation::Collective { request, input: Some(all), output: Some(all) };
    ///     let pending = communicator.start(sum)?;
    ///     // Something else is done here.
    ///     pending.wait()?;
    ///     Ok(data)
    /// }
    /// ```
    ///
    /// # Errors
    /// The arguments are impossible, or the communicator failed before.
    pub fn start(&self, operation: Operation<'static>) -> Result<Pending, Error> {
        self.start_all(vec![operation])
    }

    pub(crate) fn start_all(&self, operations: Vec<Operation<'static>>) -> Result<Pending, Error> {
        self.check_start(&operations)?;
        Ok(self.push(operations))
    }

    /// Whether these operations can be [started](Self::push).
    pub(crate) fn check_start(&self, operations: &[Operation<'_>]) -> Result<(), Error> {
        self.usable()?;
        self.validate(operations)?;
        self.handle.ensure_driver()
    }

    /// Starts operations that were [checked](Self::check_start). If the communicator has failed since, that is how they end.
    pub(crate) fn push(&self, operations: Vec<Operation<'static>>) -> Pending {
        self.core().queue.push(Work::Operations(operations))
    }

    /// Starts the driver thread, if that was not done: before streams are told to wait for it.
    #[cfg(feature = "cuda")]
    pub(crate) fn ensure_driver(&self) -> Result<(), Error> {
        self.handle.ensure_driver()
    }

    /// Starts what the driver thread, which [is there](Self::ensure_driver), does for a call on memory of a device, in order
    /// with all other calls.
    #[cfg(feature = "cuda")]
    pub(crate) fn start_on_device(&self, work: Work) -> Pending {
        self.core().queue.push(work)
    }

    /// What a thread needs that meets other ranks beside the calls. The same number of times on all ranks.
    #[cfg(feature = "cuda")]
    pub(crate) fn correspondence(&self) -> Correspondence {
        let number = self.core().correspondences.fetch_add(1, Ordering::Relaxed);
        Correspondence::new(Arc::clone(&self.handle.core), number)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn settings(&self) -> &ccl_core::settings::Settings {
        &self.core().config.settings
    }

    /// What went wrong outside of its calls, as the program is to hear of it.
    #[cfg(feature = "cuda")]
    pub(crate) fn named(&self, error: Error) -> Error {
        self.core().config.named(error)
    }

    /// Ends the communicator because of something that was noticed outside of its calls.
    #[cfg(feature = "cuda")]
    pub(crate) fn fail(&self, error: &Error) {
        self.core().fail(error);
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.run(Operation::Barrier)
    }

    /// The candidates for `request` with their predicted times, and the choice, as text.
    ///
    /// # Errors
    /// The settings force an algorithm that does not exist.
    pub fn explain(&self, request: &Request) -> Result<String, Error> {
        self.core().engine.lock().explain(request)
    }

    /// How many seconds an operation would take, as the planner predicts: infinitely many if hosts that have no rail in
    /// common would have to exchange something.
    ///
    /// # Errors
    /// The arguments are impossible, or the settings force an algorithm that does not exist.
    pub fn predict(&self, operation: &Operation<'_>) -> Result<f64, Error> {
        // A message may be one of a group.
        operation.validate(self.rank(), self.size())?;
        self.core().engine.lock().predict(operation)
    }

    /// What happened to the rails between this rank and others since the last call, oldest first.
    #[must_use]
    pub fn rail_records(&self) -> Vec<RailRecord> {
        self.core().timeline.take()
    }

    /// How all rails of all ranks are, in order of rank and rail. What is said of other ranks is as of
    /// their last report, which comes with every change.
    #[must_use]
    pub fn health(&self) -> Vec<RailHealth> {
        self.core().health.rails()
    }

    /// The epoch of the plans of the last collective: how often plans have changed because rails did.
    /// Waits for a collective that is under way.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.core().engine.lock().epoch()
    }

    /// Where this rank's rails are reported, by the transport or by somebody who knows better: an
    /// operator who is about to pull a cable.
    #[must_use]
    pub fn health_board(&self) -> Arc<HealthBoard> {
        Arc::clone(self.core().health.board())
    }

    /// The topology before anything failed.
    pub(crate) fn introduced(&self) -> Topology {
        self.core().engine.lock().introduced().clone()
    }

    /// Plans are made with these measurements from now on; the same on all ranks, between two calls.
    pub(crate) fn tuned(&self, tuning: &Tuning) {
        let core = self.core();
        let topology = core.engine.lock().tuned(tuning);
        core.health.tuned(&topology);
    }

    /// Whether both are the same member of the same group.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// The latest epoch that was agreed on, whichever call it begins with.
    #[cfg(test)]
    pub(crate) fn agreed_epoch(&self) -> Epoch {
        self.core().health.agreed_epoch()
    }

    /// Lets no collective start any more.
    #[cfg(test)]
    pub(crate) fn hold_back(&self) {
        self.core().health.hold_back();
    }

    /// Makes this rank's plans change without asking the others.
    #[cfg(test)]
    pub(crate) fn expect_epoch(&self, commit: ccl_core::epoch::Commit) {
        self.core().engine.lock().expect(commit);
    }

    fn core(&self) -> &Core {
        &self.handle.core
    }

    #[inline]
    pub(crate) fn usable(&self) -> Result<(), Error> {
        let core = self.core();
        if let Some(fault) = core.fault() {
            return Err(fault);
        }
        if core.finalized.load(Ordering::Acquire) {
            return Err(Error::InvalidUsage("the communicator was finalized".into()));
        }
        Ok(())
    }

    #[inline(always)]
    fn validate(&self, operations: &[Operation<'_>]) -> Result<(), Error> {
        let core = self.core();
        let mut are_messages = false;
        for operation in operations {
            operation.validate(core.rank, core.size)?;
            are_messages |= operation.is_message();
        }
        if are_messages { check_own_messages(operations, core.rank) } else { Ok(()) }
    }
}

impl Handle {
    fn ensure_driver(&self) -> Result<(), Error> {
        let mut driver = lock(&self.driver);
        if driver.is_some() {
            return Ok(());
        }
        let core = Arc::clone(&self.core);
        let serve = move || {
            let run = |work: Work| core.work(work);
            core.queue.serve(run, |error| core.fail(error));
        };
        let thread = std::thread::Builder::new().name("r2ccl-driver".into()).spawn(serve);
        *driver = Some(thread.map_err(|cause| Error::system("start the driver thread", cause))?);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.guardian).take();
        self.core.queue.close();
        let driver = lock(&self.driver).take();
        if driver.is_some_and(|driver| driver.join().is_err()) {
            tracing::error!(rank = self.core.rank.0, "the driver thread panicked");
        }
        self.core.leave();
    }
}
