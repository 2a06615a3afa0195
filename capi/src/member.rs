//! What stands behind a `ccl_comm_t`.
//!
//! A member of a blocking communicator is a thin shell around [`Communicator`]. One of a non-blocking
//! communicator also remembers the one thing that it is doing in the background.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ccl::{Communicator, Error, Pending, Reduction, Registration};

use crate::abi::FIRST_USER_OP;
use crate::device::Device;
use crate::handles::locked;
use crate::outcome::{Outcome, Status};
use crate::recent::{Recent, Seat};

/// The members this process knows by `ccl_comm_t`.
pub(crate) static COMMUNICATORS: Recent<Member> = Recent::new("communicator");

thread_local! {
    static SEAT: Arc<Seat<Member>> = COMMUNICATORS.seat();
}

/// Does something with the member of this number.
#[inline(always)]
pub(crate) fn with_member<R>(
    number: usize,
    body: impl FnOnce(&Arc<Member>) -> R,
) -> Result<R, Error> {
    let other;
    let seat = match SEAT.try_with(Arc::as_ptr) {
        // SAFETY: what a thread has for itself goes when it ends: not while it is here.
        Ok(seat) => unsafe { &*seat },
        // It is ending: it keeps nothing any more.
        Err(_) => {
            other = COMMUNICATORS.seat();
            &*other
        }
    };
    COMMUNICATORS.with(seat, number, body)
}

/// One rank of a communicator, in this process.
#[derive(Debug)]
pub(crate) struct Member {
    /// Whether calls return when they are done.
    pub(crate) blocking: bool,
    /// What the program registered, by its handle.
    pub(crate) registrations: Mutex<BTreeMap<usize, Registration>>,
    /// What calls on memory of a CUDA device need.
    pub(crate) device: Device,
    created: OnceLock<Result<Communicator, Error>>,
    work: Mutex<Work>,
    operations: Mutex<UserOperations>,
    last_error: Mutex<String>,
    ending: AtomicBool,
    aborted: AtomicBool,
}

/// What a non-blocking member does in the background.
#[derive(Debug)]
enum Work {
    /// Nothing; the last work had this result.
    Idle(Result<(), Error>),
    /// Operations that started together.
    Operations(Vec<Pending>),
    /// Anything else, in a thread of its own.
    Thread(Arc<OnceLock<Result<(), Error>>>),
}

/// Operations made by `ccl_redop_create_premulsum`.
#[derive(Debug, Default)]
struct UserOperations {
    made: i32,
    by_number: BTreeMap<i32, Reduction>,
}

impl Member {
    /// A member that [`Self::complete`] makes usable.
    pub(crate) fn starting(blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            blocking,
            registrations: Mutex::default(),
            device: Device::default(),
            created: OnceLock::new(),
            work: Mutex::new(Work::Idle(Ok(()))),
            operations: Mutex::default(),
            last_error: Mutex::default(),
            ending: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
        })
    }

    /// The communicator exists now, or never will.
    pub(crate) fn complete(&self, created: Result<Communicator, Error>) -> Result<(), Error> {
        let result = created.as_ref().map(|_| ()).map_err(Clone::clone);
        // The creator calls this once.
        let _ = self.created.set(created);
        if self.aborted.load(Ordering::SeqCst) {
            self.abort();
        }
        result
    }

    /// The communicator, whatever it does.
    #[inline(always)]
    pub(crate) fn communicator(&self) -> Result<&Communicator, Error> {
        match self.created.get() {
            Some(Ok(communicator)) => Ok(communicator),
            created => Err(absent(created)),
        }
    }

    /// The communicator, unless it was finalized.
    #[inline(always)]
    pub(crate) fn unfinalized(&self) -> Result<&Communicator, Error> {
        let communicator = self.communicator()?;
        if self.ending.load(Ordering::SeqCst) {
            return Err(unusable("the communicator was finalized"));
        }
        Ok(communicator)
    }

    /// The communicator, if it can take a new call.
    #[inline(always)]
    pub(crate) fn ready(&self) -> Result<&Communicator, Error> {
        let communicator = self.unfinalized()?;
        // What blocks does nothing in the background.
        if !self.blocking && self.work_result().is_none() {
            let text = "the previous call is in progress: poll ccl_comm_get_async_error";
            return Err(unusable(text));
        }
        Ok(communicator)
    }

    /// `None` while something goes on, then how it, or the communicator, ended.
    pub(crate) fn state(&self) -> Option<Result<(), Error>> {
        let communicator = match self.created.get()? {
            Ok(communicator) => communicator,
            Err(error) => return Some(Err(error.clone())),
        };
        let result = self.work_result()?;
        // What went wrong here says more than what was made of it for all ranks.
        let failure = self.device.failure().or_else(|| communicator.async_error());
        Some(result.and_then(|()| failure.map_or(Ok(()), Err)))
    }

    fn work_result(&self) -> Option<Result<(), Error>> {
        let mut work = locked(&self.work);
        let result = match &*work {
            Work::Idle(result) => return Some(result.clone()),
            Work::Operations(pending) => common_result(pending),
            Work::Thread(result) => result.get().cloned(),
        }?;
        *work = Work::Idle(result.clone());
        Some(result)
    }

    /// Lets operations go on in the background.
    pub(crate) fn watch(&self, pending: Vec<Pending>) -> Outcome {
        *locked(&self.work) = Work::Operations(pending);
        match self.work_result() {
            Some(result) => result.map(|()| Status::Done),
            None => Ok(Status::InProgress),
        }
    }

    /// Runs `work` in a thread of its own, as the background work of this member.
    pub(crate) fn work_in_background(
        &self,
        work: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Outcome {
        let result = Arc::new(OnceLock::new());
        *locked(&self.work) = Work::Thread(Arc::clone(&result));
        let publish = move || {
            // The only setter.
            let _ = result.set(work());
        };
        match std::thread::Builder::new().name("r2ccl-call".into()).spawn(publish) {
            Ok(_) => Ok(Status::InProgress),
            Err(cause) => {
                let error = Error::system("start a thread", cause);
                *locked(&self.work) = Work::Idle(Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Whether this call is the one that ends the communicator.
    pub(crate) fn begin_end(&self) -> bool {
        !self.ending.swap(true, Ordering::SeqCst)
    }

    /// Waits for everything that was started, and takes leave.
    pub(crate) fn finalize(&self) -> Result<(), Error> {
        self.device.finalize(self.communicator()?)
    }

    /// Frees what the device needs, when its calls are over.
    pub(crate) fn release_device(&self) {
        if let Ok(communicator) = self.communicator() {
            self.device.release(communicator);
        }
    }

    /// Ends everything, now or as soon as the communicator exists.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        if let Some(Ok(communicator)) = self.created.get() {
            communicator.abort("ccl_comm_abort was called");
            self.device.give_up();
        }
    }

    /// Adds an operation of the user and returns its number.
    pub(crate) fn add_operation(&self, reduction: Reduction) -> Result<i32, Error> {
        let mut operations = locked(&self.operations);
        let number = FIRST_USER_OP.checked_add(operations.made);
        let number =
            number.ok_or_else(|| Error::InvalidUsage("no operation numbers left".into()))?;
        operations.made += 1;
        operations.by_number.insert(number, reduction);
        Ok(number)
    }

    /// The operation of the user with this number.
    pub(crate) fn operation(&self, number: i32) -> Option<Reduction> {
        locked(&self.operations).by_number.get(&number).copied()
    }

    /// Forgets an operation of the user.
    pub(crate) fn remove_operation(&self, number: i32) -> Option<Reduction> {
        locked(&self.operations).by_number.remove(&number)
    }

    /// Why there is no operation with this number.
    #[cold]
    pub(crate) fn no_operation(&self, number: i32) -> Error {
        let made = FIRST_USER_OP..FIRST_USER_OP.saturating_add(locked(&self.operations).made);
        let why = if made.contains(&number) { "it was destroyed" } else { "it has made none such" };
        Error::InvalidArgument(format!("{number} is not a ccl_redop_t of this communicator: {why}"))
    }

    /// Keeps the message of a failed call.
    pub(crate) fn remember(&self, message: String) {
        *locked(&self.last_error) = message;
    }

    /// The message of the last failed call, or "".
    pub(crate) fn last_error(&self) -> String {
        locked(&self.last_error).clone()
    }
}

/// Why there is no communicator.
#[cold]
fn absent(created: Option<&Result<Communicator, Error>>) -> Error {
    match created {
        Some(Err(error)) => error.clone(),
        Some(Ok(_)) | None => {
            unusable("the communicator is still being created: poll ccl_comm_get_async_error")
        }
    }
}

#[cold]
fn unusable(text: &str) -> Error {
    Error::InvalidUsage(text.to_owned())
}

/// `None` while an operation goes on, then the first error.
fn common_result(pending: &[Pending]) -> Option<Result<(), Error>> {
    let results = pending.iter().map(Pending::test).collect::<Option<Vec<_>>>()?;
    Some(results.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use ccl::ReduceOp;

    use super::*;

    #[test]
    fn operations_that_are_gone_are_told_from_those_that_never_were() {
        let member = Member::starting(true);
        let said = |number| member.no_operation(number).to_string();
        assert!(said(FIRST_USER_OP).ends_with("it has made none such"), "{}", said(FIRST_USER_OP));
        let number = member.add_operation(Reduction::Builtin(ReduceOp::Sum)).unwrap();
        member.remove_operation(number).unwrap();
        assert!(said(number).ends_with("it was destroyed"), "{}", said(number));
        for never in [-1, FIRST_USER_OP - 1, number + 1, i32::MAX] {
            assert!(said(never).ends_with("it has made none such"), "{}", said(never));
        }
    }
}
