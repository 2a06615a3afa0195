//! Operations with the buffers they use, from their call to their end.
//!
//! While an operation goes on the library reads and writes its buffers. So they stay with it, whatever
//! becomes of the objects that the program has: what is dropped too early goes to the [`ORPHANS`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl::{Error, Group, Operation, Pending};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::device::{Device, DeviceCall};
use crate::errors::{exception, invalid_usage};
use crate::interrupts::{self, INTERRUPTED, Signals};
use crate::memory::Registered;

/// Operations whose requests the program has dropped, and which may still go on.
static ORPHANS: Mutex<Vec<Started>> = Mutex::new(Vec::new());

/// One operation that has not started.
#[derive(Debug)]
pub(crate) struct Call {
    /// What is to be done.
    pub(crate) operation: Operation<'static>,
    /// The memory in it.
    pub(crate) buffers: Vec<Buffer>,
}

/// A communicator, and what was started on it last.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) communicator: ccl::Communicator,
    /// For calls on memory of a device.
    pub(crate) device: Device,
    /// Operations run in the order in which they were started: if this is done, all are.
    latest: Mutex<Option<Pending>>,
    /// Threads that do calls themselves now.
    callers: AtomicU32,
    /// Buffers that the communicator knows of.
    pub(crate) registered: Mutex<Vec<Arc<Registered>>>,
}

/// A thread that does a call itself, while this lives.
#[derive(Debug)]
struct Calling<'a>(&'a Member);

/// Calls that start together.
#[derive(Debug, Default)]
pub(crate) struct Work {
    parts: Vec<(Arc<Member>, Vec<Operation<'static>>)>,
    buffers: Vec<Buffer>,
    on_devices: Vec<(Arc<Member>, Vec<DeviceCall>)>,
}

/// Operations that have started.
#[derive(Debug)]
pub(crate) struct Started {
    operations: Vec<Pending>,
    buffers: Mutex<Vec<Buffer>>,
    process: u32,
}

impl Member {
    /// A communicator on which nothing was started.
    pub(crate) fn new(communicator: ccl::Communicator) -> Arc<Self> {
        Arc::new(Self {
            communicator,
            device: Device::default(),
            latest: Mutex::default(),
            callers: AtomicU32::new(0),
            registered: Mutex::default(),
        })
    }

    /// What ended the communicator, if something did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.device.failure().or_else(|| self.communicator.async_error())
    }

    /// Waits for everything that was started, and takes leave.
    pub(crate) fn finalize(&self) -> Result<(), Error> {
        self.device.finalize(&self.communicator)
    }

    /// Whether a call would begin at once.
    fn is_idle(&self) -> bool {
        let is_done = |operation: &Pending| operation.test().is_some();
        self.callers.load(Ordering::SeqCst) == 0
            && locked(&self.latest).as_ref().is_none_or(is_done)
    }
}

impl<'a> Calling<'a> {
    fn on(member: &'a Member) -> Self {
        member.callers.fetch_add(1, Ordering::SeqCst);
        Self(member)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Member {
    /// A program that drops a communicator in the middle of operations has failed elsewhere. It should
    /// end now, and not when the operations do, and the other ranks should not wait for it.
    fn drop(&mut self) {
        let latest = locked(&self.latest).take();
        if latest.is_some_and(|operation| operation.test().is_none()) {
            self.communicator.abort("it was dropped while operations went on");
        }
    }
}

impl Work {
    /// Adds a call on a communicator.
    pub(crate) fn add(&mut self, member: &Arc<Member>, call: Call) {
        let Call { operation, mut buffers } = call;
        self.buffers.append(&mut buffers);
        match self.parts.iter_mut().find(|(other, _)| Arc::ptr_eq(other, member)) {
            Some((_, operations)) => operations.push(operation),
            None => self.parts.push((Arc::clone(member), vec![operation])),
        }
    }

    /// Adds a call on memory of a device.
    pub(crate) fn add_on_device(&mut self, member: &Arc<Member>, call: DeviceCall) {
        match self.on_devices.iter_mut().find(|(other, _)| Arc::ptr_eq(other, member)) {
            Some((_, calls)) => calls.push(call),
            None => self.on_devices.push((Arc::clone(member), vec![call])),
        }
    }

    /// Puts the calls on memory of devices on their streams.
    pub(crate) fn enqueue(&mut self, py: Python<'_>) -> PyResult<()> {
        let is_on_host =
            |member: &Arc<Member>| self.parts.iter().any(|(other, _)| Arc::ptr_eq(other, member));
        // All of them before the first is on its stream.
        if self.on_devices.iter().any(|(member, _)| is_on_host(member)) {
            let text = "a group has calls on memory of the host and on memory of a device on one \
                        communicator: make two groups";
            return Err(invalid_usage(py, text));
        }
        for (member, calls) in std::mem::take(&mut self.on_devices) {
            let enqueued = py.detach(|| member.device.enqueue(&member.communicator, calls));
            enqueued.map_err(|error| exception(py, &error))?;
        }
        Ok(())
    }

    /// Does everything and returns when it is done, and calls on devices are on their streams.
    ///
    /// If the handler of a signal raises, the communicators are aborted, because the buffers are the
    /// library's until the operations end.
    pub(crate) fn run(mut self, py: Python<'_>) -> PyResult<()> {
        self.enqueue(py)?;
        if self.parts.is_empty() {
            return Ok(());
        }
        let begins_at_once = match self.parts.as_slice() {
            [(member, _)] => member.is_idle(),
            _ => false,
        };
        // Where a call has to wait for others before it begins, nobody would look for signals.
        if begins_at_once || !interrupts::can_come() {
            self.run_here(py)
        } else {
            self.run_there(py)
        }
    }

    /// In this thread.
    fn run_here(self, py: Python<'_>) -> PyResult<()> {
        let Self { parts, buffers, .. } = self;
        let members: Vec<_> = parts.iter().map(|(member, _)| Arc::clone(member)).collect();
        let signals = Signals::default();
        let calling: Vec<_> = members.iter().map(|member| Calling::on(member)).collect();
        let looks = interrupts::can_come();
        let result = py.detach(|| match looks {
            true => group(parts).run_watched(&|| signals.look()),
            false => group(parts).run(),
        });
        drop(calling);
        drop(buffers);
        match signals.raised() {
            Some(raised) => Err(raised),
            None => result.map_err(|error| exception(py, &error)),
        }
    }

    /// In the driver threads, while this one waits for them and looks for signals.
    fn run_there(self, py: Python<'_>) -> PyResult<()> {
        let members: Vec<_> = self.parts.iter().map(|(member, _)| Arc::clone(member)).collect();
        let started = self.start(py)?;
        if let Err(raised) = interrupts::wait(py, &started.operations, None) {
            members.iter().for_each(|one| one.communicator.abort(INTERRUPTED));
            // A second signal ends this wait too; the buffers stay with the operations then.
            let _the_first_counts = interrupts::wait(py, &started.operations, None);
            return Err(raised);
        }
        started.outcome(py).unwrap_or(Ok(()))
    }

    /// Starts everything.
    pub(crate) fn start(mut self, py: Python<'_>) -> PyResult<Started> {
        self.enqueue(py)?;
        let Self { parts, buffers, .. } = self;
        let mut started = Started {
            operations: Vec::with_capacity(parts.len()),
            buffers: Mutex::new(buffers),
            process: std::process::id(),
        };
        // One by one: should the second not start, the first goes on, and keeps the buffers.
        for (member, operations) in parts {
            let part = group(vec![(Arc::clone(&member), operations)]);
            let begun = py.detach(|| part.start()).map_err(|error| exception(py, &error))?;
            locked(&member.latest).clone_from(&begun.last().cloned());
            started.operations.extend(begun);
        }
        Ok(started)
    }
}

impl Started {
    /// Waits, see [`interrupts::wait`].
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        self.check_process(py)?;
        interrupts::wait(py, &self.operations, timeout)
    }

    /// Whether everything has worked, if everything is done. Then the buffers are given back.
    pub(crate) fn outcome(&self, py: Python<'_>) -> Option<PyResult<()>> {
        if let Err(error) = self.check_process(py) {
            return Some(Err(error));
        }
        let result = self.result()?;
        let buffers = std::mem::take(&mut *locked(&self.buffers));
        // Giving back may run code of the program, which may come here again.
        drop(buffers);
        Some(result.map_err(|error| exception(py, &error)))
    }

    /// The first error, if everything is done.
    fn result(&self) -> Option<Result<(), Error>> {
        let results = self.operations.iter().map(Pending::test).collect::<Option<Vec<_>>>()?;
        Some(results.into_iter().collect())
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process).map_err(|error| exception(py, &error))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut *locked(&self.buffers));
        if buffers.is_empty() {
            return;
        }
        // A forked child has neither the threads nor a sound state of their locks.
        if check_process(self.process).is_err() {
            std::mem::forget(buffers);
            return;
        }
        if self.result().is_none() {
            let operations = std::mem::take(&mut self.operations);
            let buffers = Mutex::new(buffers);
            locked(&ORPHANS).push(Self { operations, buffers, process: self.process });
        }
    }
}

/// Gives back the buffers of dropped requests that are done by now.
pub(crate) fn sweep() {
    let mut orphans = locked(&ORPHANS);
    // A forked child has those of its parent too, and cannot ask about them.
    let is_done = |one: &mut Started| check_process(one.process).is_ok() && one.result().is_some();
    let done: Vec<Started> = orphans.extract_if(.., is_done).collect();
    // Giving back may run code of the program, which may come here again.
    drop(orphans);
    drop(done);
}

/// What belongs to another process, from which this one was forked, is of no use here.
pub(crate) fn check_process(owner: u32) -> Result<(), Error> {
    if owner == std::process::id() {
        return Ok(());
    }
    Err(Error::InvalidUsage(format!(
        "process {owner} created the communicator: after fork(), a child creates its own"
    )))
}

/// The contents of a mutex; a panic elsewhere leaves nothing half done in the values guarded here.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn group(parts: Vec<(Arc<Member>, Vec<Operation<'static>>)>) -> Group<'static> {
    let mut group = Group::default();
    for (member, operations) in parts {
        operations.into_iter().for_each(|operation| group.add(&member.communicator, operation));
    }
    group
}
