//! What stands behind a communicator: how a call is run, and how everything ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_transport::biased::{Biased, Guard};
use ccl_transport::clock;

use super::lineage::Descent;
use crate::bootstrap::{Control, ControlEvent, Place, Reunion};
use crate::config::Config;
use crate::driver::{Queue, Work, lock};
use crate::engine::{Ended, Engine, Limits, Watch};
use crate::guardian::{Found, Guardian};
use crate::health::Health;
use crate::operation::Operation;
use crate::recorder::Dump;
use crate::timeline::Timeline;

/// What the calls of a communicator, its driver thread and its guardian share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) config: Config,
    pub(super) control: Control,
    pub(super) queue: Queue,
    pub(super) engine: Biased<Engine>,
    pub(super) timeline: Arc<Timeline>,
    pub(super) dumped: AtomicBool,
    pub(super) health: Arc<Health>,
    pub(super) finalized: AtomicBool,
    /// Communicators that all ranks together have made of this one, or tried to.
    pub(super) children: AtomicU32,
    /// Where new ranks meet those of this one, once this rank has been asked for the id.
    pub(super) growth: Mutex<Option<Place>>,
    /// The doors of all ranks, if there are others.
    pub(super) reunion: Option<Reunion>,
    pub(super) descent: Descent,
    /// Who had left when this rank first tried to go on in another communicator.
    pub(super) tried: OnceLock<BTreeSet<Rank>>,
    #[cfg(feature = "cuda")]
    pub(super) correspondences: AtomicU32,
    /// What connections between the ranks prove.
    #[cfg(feature = "cuda")]
    pub(super) key: ccl_transport::auth::JobKey,
    /// Deadline of every call.
    pub(super) timeout_ns: AtomicU64,
    /// Calls made so far, of any kind: who looks after the links sees whether one came between.
    pub(super) activity: AtomicU64,
}

impl Core {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns.load(Ordering::Relaxed))
    }

    /// Runs validated operations.
    pub(super) fn run(
        &self,
        operations: &[Operation<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<(), Error> {
        self.with_engine(watch, |engine, limits| engine.run(operations, limits))
    }

    /// Has the engine do something once nobody else has it do anything.
    #[inline(always)]
    pub(super) fn with_engine(
        &self,
        watch: Option<Watch<'_>>,
        work: impl FnOnce(&mut Engine, Limits<'_>) -> Ended,
    ) -> Result<(), Error> {
        let timeout_ns = self.timeout_ns.load(Ordering::Relaxed);
        let limits = Limits { control: &self.control, timeout_ns, watch };
        let mut engine = self.engine.lock();
        // Only who holds the engine counts.
        self.activity.store(self.activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match work(&mut engine, limits) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.after(engine, *error)),
        }
    }

    /// What follows from the error of a call before its caller has it. Peers that write memory of this rank go on until
    /// they hear of it, so they are told before they are waited for.
    #[cold]
    fn after(&self, mut engine: Guard<'_, Engine>, error: Error) -> Error {
        if is_final(&error) {
            engine.renounce();
            self.tell(&error);
            engine.await_writers();
            drop(engine);
            self.dump(&error);
        }
        self.config.named(error)
    }

    /// What a failure of a call means for the communicator.
    #[cold]
    pub(super) fn failed(&self, error: Error) -> Error {
        if is_final(&error) {
            self.fail(&error);
        }
        self.config.named(error)
    }

    /// What ended the communicator, if something did.
    #[inline]
    pub(super) fn fault(&self) -> Option<Error> {
        #[cold]
        fn named(config: &Config, fault: &Error) -> Error {
            config.named(fault.clone())
        }
        self.control.fault().map(|fault| named(&self.config, fault))
    }

    /// Why ranks of this communicator did not come to be in another one, of this `config`, which ended with `error` for them: what has
    /// ended this one, if that is known in a moment.
    #[cold]
    pub(super) fn cause_of(&self, error: Error, config: &Config) -> Error {
        let may_be_of_this_one = match &error {
            Error::PeerLost { rank, .. } | Error::Aborted { rank, .. } => rank.0 < self.size,
            Error::System { .. } => true,
            Error::Deadline { .. }
            | Error::Disagreement { .. }
            | Error::InvalidArgument(_)
            | Error::InvalidUsage(_)
            | Error::Cuda(_)
            | Error::Internal(_) => false,
        };
        if may_be_of_this_one {
            // It is kept.
            let _ = self.control.fault_soon();
        }
        self.fault().unwrap_or_else(|| config.named(error))
    }

    /// What the driver thread does for one call.
    pub(super) fn work(&self, work: Work) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        let fault = || self.control.fault().map(|fault| Error::clone(fault));
        #[cfg(feature = "cuda")]
        let fail = |error: &Error| self.fail(error);
        let done = match work {
            Work::Operations(operations) => self.run(&operations, None),
            #[cfg(feature = "cuda")]
            Work::Staged(job) => {
                let sequence = || self.engine.lock().calls();
                job.run(&fault, &fail, &sequence, |operations| self.run(operations, None))
            }
            #[cfg(feature = "cuda")]
            Work::Direct(watch) => watch.run(&fault, &fail, self.timeout()),
            #[cfg(feature = "cuda")]
            Work::Wire(job) => job.run(&fault, &fail, self.timeout()),
            #[cfg(feature = "cuda")]
            Work::Columns(job) => job.run(&fault, &fail, self.timeout()),
        };
        done.map_err(|error| self.config.named(error))
    }

    /// Remembers what ended the communicator and tells the others, unless they told us.
    pub(super) fn fail(&self, error: &Error) {
        self.tell(error);
        self.dump(error);
    }

    fn tell(&self, error: &Error) {
        if self.control.fault().is_none() {
            announce(&self.control, self.rank, error);
        }
    }

    /// Writes down what this rank knows, the first time, if it is asked to.
    fn dump(&self, error: &Error) {
        let Some(folder) = &self.config.settings.dump else { return };
        if self.dumped.swap(true, Ordering::AcqRel) {
            return;
        }
        let dump = Dump {
            rank: self.rank,
            size: self.size,
            name: self.config.name.as_deref(),
            error,
            calls: self.engine.try_lock().map(|engine| engine.calls()),
            rails: self.health.rails(),
            records: self.timeline.remembered(),
        };
        match dump.write(folder) {
            Ok(file) => tracing::warn!(rank = self.rank.0, file = %file.display(), "dump written"),
            Err(cause) => tracing::warn!(rank = self.rank.0, %cause, "no dump can be written"),
        }
    }

    /// Makes all ranks tell each other of something in the same `call`, which makes others of this communicator: returns what
    /// all have said, in order of rank. [`Error::InvalidUsage`] if they call different things; what keeps them from telling
    /// each other ends the communicator.
    pub(super) fn gatherer(
        &self,
        call: &'static str,
        config: &Config,
    ) -> impl Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let deadline = clock::now() + config.settings.bootstrap_timeout;
        let turn = self.children.fetch_add(1, Ordering::Relaxed);
        move |what, blob| {
            let named = [call.as_bytes(), b" ", blob].concat();
            let name = format!("child {turn} {what}");
            let gathered = self.control.all_gather(&name, &named, deadline);
            let all = gathered.map_err(|error| self.failed(error))?;
            let unnamed =
                (0..).map(Rank).zip(all).map(|(rank, named)| without_call(call, rank, named));
            unnamed.collect::<Result<_, _>>().map_err(|error| self.config.named(error))
        }
    }

    /// Somebody who looks after the links to other hosts between calls, if there are any.
    pub(super) fn guardian(core: &Arc<Self>) -> Result<Option<Guardian>, Error> {
        if !core.engine.lock().is_networked() {
            return Ok(None);
        }
        let (core, mut seen) = (Arc::downgrade(core), 0);
        let look = move || {
            let Some(core) = core.upgrade() else { return Found::Gone };
            let activity = core.activity.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, activity) != activity {
                return Found::Busy;
            }
            let Some(mut engine) = core.engine.try_lock() else { return Found::Busy };
            if engine.tend() { Found::Settled } else { Found::Unsettled }
        };
        Guardian::start(look).map(Some)
    }

    /// This rank begins to go on in another communicator, or tries again.
    pub(super) fn try_to_go_on(&self) {
        self.tried.get_or_init(|| self.control.departed());
    }

    /// The ranks that have left. After a fault those do not count that may have left for a communicator in which this rank has tried to
    /// go on as well.
    fn departed(&self) -> BTreeSet<Rank> {
        let tried = self.tried.get().filter(|_| self.control.fault().is_some());
        tried.cloned().unwrap_or_else(|| self.control.departed())
    }

    /// The ranks that are lost as far as is known.
    pub(super) fn lost(&self) -> BTreeSet<Rank> {
        let mut lost = self.control.lost();
        lost.extend(self.reunion.iter().flat_map(Reunion::lost));
        match self.descent.origin() {
            Some(origin) => origin.correct(&mut lost),
            None => lost.extend(self.departed()),
        }
        lost
    }

    /// New ranks are waited for no longer, and told so when this is dropped.
    pub(super) fn end_growth(&self) -> Option<Place> {
        lock(&self.growth).take()
    }

    pub(super) fn leave(&self) {
        drop(self.end_growth());
        if !self.finalized.swap(true, Ordering::AcqRel) {
            let mut engine = self.engine.lock();
            // A peer may still need what a dying rail has lost.
            let is_over = || self.control.fault().is_some();
            let has_left = |rank| self.control.has_departed(rank);
            engine.settle(self.config.settings.rail_patience, is_over, has_left);
            self.control.leave(engine.calls());
        }
        if self.control.fault().is_some() {
            self.engine.lock().abandon();
        }
    }
}

/// Whether a communicator is over after a call with this error.
fn is_final(error: &Error) -> bool {
    match error {
        Error::InvalidArgument(_) | Error::InvalidUsage(_) => false,
        Error::Disagreement { .. }
        | Error::PeerLost { .. }
        | Error::Deadline { .. }
        | Error::Aborted { .. }
        | Error::System { .. }
        | Error::Cuda(_)
        | Error::Internal(_) => true,
    }
}

/// What `rank` has said behind the name of the same call.
fn without_call(call: &str, rank: Rank, named: Vec<u8>) -> Result<Vec<u8>, Error> {
    let end = named.iter().position(|byte| *byte == b' ');
    match end {
        Some(end) if named[..end] == *call.as_bytes() => Ok(named[end + 1..].to_vec()),
        Some(end) => Err(Error::InvalidUsage(format!(
            "rank {rank} calls {}, and this one {call}",
            String::from_utf8_lossy(&named[..end])
        ))),
        None => Err(Error::Internal(format!("rank {rank} does not say what it calls"))),
    }
}

/// At most 584 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Tells the other ranks what happened here.
pub(super) fn announce(control: &Control, me: Rank, error: &Error) {
    if let Err(cause) = control.announce(&ControlEvent::from_error(me, error)) {
        tracing::warn!(rank = me.0, %cause, "the other ranks could not be told");
    }
}
