//! The calls that a thread collects between `ccl_group_start` and `ccl_group_end`.
//!
//! Operations are collected and run at the end. Calls that wait for other ranks by themselves
//! (creation, split, windows, the end of a communicator) begin at once, in a thread for each communicator: those of
//! one go one after the other, as all ranks call them. The end of the group waits for them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ccl::{Error, Operation};

use crate::device;
use crate::member::Member;
use crate::outcome::{Outcome, Status};

type Work = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// The thread that does what a communicator has to do, in order.
#[derive(Debug)]
struct Worker {
    member: Arc<Member>,
    orders: Sender<Work>,
    thread: JoinHandle<Result<(), Error>>,
}

/// What an open group has so far.
#[derive(Debug, Default)]
struct Collected {
    failure: Option<Error>,
    operations: Vec<(Arc<Member>, Operation<'static>)>,
    device_calls: Vec<(Arc<Member>, device::Call)>,
    workers: Vec<Worker>,
    in_progress: bool,
}

thread_local! {
    /// So many groups are open, one in another. Every call looks at this.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static OPEN: RefCell<Collected> = RefCell::default();
}

/// Opens a group, or one more level of it.
pub(crate) fn start() {
    DEPTH.set(DEPTH.get() + 1);
}

/// Whether this thread collects calls.
#[inline]
pub(crate) fn is_open() -> bool {
    DEPTH.get() > 0
}

/// Closes one level; the outermost runs what was collected.
pub(crate) fn end() -> Outcome {
    close()?.map_or(Ok(Status::Done), Collected::run)
}

/// Closes one level and runs nothing: tells how many seconds what was collected would take.
pub(crate) fn simulate_end() -> Result<f64, Error> {
    close()?.map_or(Ok(0.0), Collected::predict)
}

/// Closes one level; what was collected, if it was the outermost.
fn close() -> Result<Option<Collected>, Error> {
    let depth = DEPTH.get().checked_sub(1).ok_or_else(|| {
        Error::InvalidUsage("ccl_group_end without a ccl_group_start in this thread".into())
    })?;
    DEPTH.set(depth);
    Ok((depth == 0).then(|| OPEN.take()))
}

/// Notes that a call of the open group failed, so that the group will.
pub(crate) fn note_failure(error: &Error) {
    if is_open() {
        OPEN.with_borrow_mut(|open| _ = open.failure.get_or_insert_with(|| error.clone()));
    }
}

/// Runs an operation as its communicator wants it, or collects it.
pub(crate) fn submit(member: &Arc<Member>, operation: Operation<'static>) -> Outcome {
    if is_open() {
        return collect(member, operation);
    }
    let communicator = member.ready()?;
    if member.blocking {
        return communicator.run(operation).map(|()| Status::Done);
    }
    member.watch(vec![communicator.start(operation)?])
}

#[cold]
fn collect(member: &Arc<Member>, operation: Operation<'static>) -> Outcome {
    let communicator = member.communicator()?;
    operation.validate(communicator.rank(), communicator.size())?;
    let entry = (Arc::clone(member), operation);
    OPEN.with_borrow_mut(|open| open.operations.push(entry));
    Ok(Status::Done)
}

/// Puts a call on memory of a device on its stream, or collects it.
pub(crate) fn submit_on_device(member: &Arc<Member>, call: device::Call) -> Outcome {
    let entry = (Arc::clone(member), call);
    if is_open() {
        OPEN.with_borrow_mut(|open| open.device_calls.push(entry));
        return Ok(Status::Done);
    }
    device::enqueue(&[entry]).map(|()| Status::Done)
}

/// Does something that waits for other ranks: here, or elsewhere where the caller must not wait.
pub(crate) fn perform(
    member: &Arc<Member>,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Outcome {
    if !member.blocking {
        if is_open() {
            OPEN.with_borrow_mut(|open| open.in_progress = true);
        }
        return member.work_in_background(work);
    }
    wait_for(member, work)
}

/// Does something that waits for other ranks before this call returns, or the end of the open group.
pub(crate) fn wait_for(
    member: &Arc<Member>,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Outcome {
    if !is_open() {
        return work().map(|()| Status::Done);
    }
    OPEN.with_borrow_mut(|open| open.order(member, Box::new(work))).map(|()| Status::Done)
}

/// Does what is ordered, one after the other: also after an error, because what was begun has to end somehow. The first error
/// counts.
fn serve(orders: &Receiver<Work>) -> Result<(), Error> {
    let mut result = Ok(());
    for work in orders {
        result = result.and(work());
    }
    result
}

impl Collected {
    /// Has a member do something after all that it was told to do before.
    fn order(&mut self, member: &Arc<Member>, work: Work) -> Result<(), Error> {
        let known = self.workers.iter().position(|worker| Arc::ptr_eq(&worker.member, member));
        let index = match known {
            Some(index) => index,
            None => {
                let (orders, ordered) = channel();
                let serve = move || serve(&ordered);
                let thread = std::thread::Builder::new().name("r2ccl-group".into()).spawn(serve);
                let thread = thread.map_err(|cause| Error::system("start a thread", cause))?;
                self.workers.push(Worker { member: Arc::clone(member), orders, thread });
                self.workers.len() - 1
            }
        };
        // It has ended only if it panicked, which shows at the end.
        let _ = self.workers[index].orders.send(work);
        Ok(())
    }

    /// Communicators progress together, operations of one of them in order.
    fn predict(self) -> Result<f64, Error> {
        let jobs = join(self.workers);
        self.failure.map_or(Ok(()), Err)?;
        jobs?;
        if !self.device_calls.is_empty() {
            let text = "calls on memory of CUDA devices are not predicted: predict those on memory of the host";
            return Err(Error::InvalidUsage(text.into()));
        }
        let mut sums: Vec<(Arc<Member>, f64)> = Vec::new();
        for (member, operation) in &self.operations {
            let seconds = member.ready()?.predict(operation)?;
            match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, member)) {
                Some((_, sum)) => *sum += seconds,
                None => sums.push((Arc::clone(member), seconds)),
            }
        }
        Ok(sums.iter().map(|(_, sum)| *sum).fold(0.0, f64::max))
    }

    fn run(self) -> Outcome {
        let jobs = join(self.workers);
        self.failure.map_or(Ok(()), Err)?;
        jobs?;
        let status = if self.in_progress { Status::InProgress } else { Status::Done };
        let blocking = common_mode(&self.operations)?;
        check_sides(&self.operations, &self.device_calls)?;
        device::enqueue(&self.device_calls)?;
        let Some(blocking) = blocking else {
            return Ok(status);
        };
        let members: Vec<_> =
            self.operations.iter().map(|(member, _)| Arc::clone(member)).collect();
        let mut group = ccl::Group::default();
        for (member, operation) in self.operations {
            group.add(member.ready()?, operation);
        }
        if blocking {
            return group.run().map(|()| status);
        }
        watch_everywhere(&members, group)
    }
}

/// Sends and receives of a group progress together, which those on a stream and those of this thread
/// cannot.
fn check_sides(
    on_host: &[(Arc<Member>, Operation<'static>)],
    on_device: &[(Arc<Member>, device::Call)],
) -> Result<(), Error> {
    let is_on_host =
        |member: &Arc<Member>| on_host.iter().any(|(other, _)| Arc::ptr_eq(member, other));
    match on_device.iter().any(|(member, _)| is_on_host(member)) {
        false => Ok(()),
        true => Err(Error::InvalidUsage(
            "a group has calls on memory of the host and on memory of a CUDA device on one \
             communicator: make two groups"
                .into(),
        )),
    }
}

fn watch_everywhere(members: &[Arc<Member>], group: ccl::Group<'static>) -> Outcome {
    let pending = group.start()?;
    for member in members {
        // What the operations came to is asked for by ccl_comm_get_async_error.
        let _ = member.watch(pending.clone());
    }
    Ok(Status::InProgress)
}

/// Whether the members of all operations are blocking; `None` without operations.
fn common_mode(operations: &[(Arc<Member>, Operation<'static>)]) -> Result<Option<bool>, Error> {
    let Some((first, _)) = operations.first() else {
        return Ok(None);
    };
    if operations.iter().all(|(member, _)| member.blocking == first.blocking) {
        return Ok(Some(first.blocking));
    }
    Err(Error::InvalidUsage(
        "a group has communicators with blocking = 1 and with blocking = 0".into(),
    ))
}

/// Waits until all is done; the first error counts.
fn join(workers: Vec<Worker>) -> Result<(), Error> {
    // All of them are told that nothing comes after what they have, before any is waited for.
    let threads: Vec<_> = workers.into_iter().map(|worker| worker.thread).collect();
    let mut result = Ok(());
    for thread in threads {
        let panicked = || Error::Internal("a call of the group panicked".into());
        result = result.and(thread.join().unwrap_or_else(|_| Err(panicked())));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;
    use crate::handles::locked;

    #[test]
    fn levels_close_in_order() {
        assert!(!is_open());
        start();
        start();
        assert_eq!(end(), Ok(Status::Done));
        assert!(is_open());
        assert_eq!(end(), Ok(Status::Done));
        assert!(!is_open());
        assert!(matches!(end(), Err(Error::InvalidUsage(_))));
    }

    #[test]
    fn the_first_failure_shows_at_the_end() {
        let failure = |text: &str| Error::InvalidArgument(text.into());
        note_failure(&failure("outside a group"));
        start();
        note_failure(&failure("first"));
        note_failure(&failure("second"));
        assert_eq!(end(), Err(failure("first")));
        start();
        assert_eq!(end(), Ok(Status::Done));
    }

    #[test]
    fn work_of_several_communicators_begins_at_once_and_is_waited_for() {
        let members = [Member::starting(true), Member::starting(true)];
        let (sender, receiver) = channel();
        start();
        let waits = move || receiver.recv().map_err(|error| Error::Internal(error.to_string()));
        assert_eq!(perform(&members[0], waits), Ok(Status::Done));
        let wakes = move || sender.send(()).map_err(|error| Error::Internal(error.to_string()));
        assert_eq!(perform(&members[1], wakes), Ok(Status::Done));
        assert_eq!(end(), Ok(Status::Done));
    }

    #[test]
    fn work_of_one_communicator_is_done_in_order_and_all_of_it() {
        let member = Member::starting(true);
        let (sender, receiver) = channel();
        let first = move || match receiver.recv_timeout(Duration::from_millis(50)) {
            Err(RecvTimeoutError::Timeout) => Ok(receiver),
            begun => Err(Error::Internal(format!("the next one did not wait: {begun:?}"))),
        };
        let seen = Arc::new(Mutex::new(None));
        start();
        let keep = Arc::clone(&seen);
        let first = move || first().map(|receiver| *locked(&keep) = Some(receiver));
        assert_eq!(perform(&member, first), Ok(Status::Done));
        for number in 0..5 {
            let sender = sender.clone();
            let work = move || {
                sender.send(number).map_err(|error| Error::Internal(error.to_string()))?;
                if number == 3 { Err(Error::InvalidUsage("three".into())) } else { Ok(()) }
            };
            assert_eq!(perform(&member, work), Ok(Status::Done));
        }
        drop(sender);
        assert_eq!(end(), Err(Error::InvalidUsage("three".into())));
        let done = locked(&seen).take().map(|receiver| receiver.iter().collect::<Vec<_>>());
        assert_eq!(done, Some(vec![0, 1, 2, 3, 4]));
    }

    #[test]
    fn a_panicking_job_is_an_error() {
        start();
        assert_eq!(perform(&Member::starting(true), || panic!("job")), Ok(Status::Done));
        assert!(matches!(end(), Err(Error::Internal(_))));
    }
}
