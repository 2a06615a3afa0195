//! A rank's connection to the store, for as long as its communicator lives.

use std::collections::BTreeSet;
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::connect::{NoConnection, Vacancy, connect};
use super::heard::{Answer, Awaited, Heard, Listener};
use super::letters::{self, Letters};
use super::message::{self, ControlEvent, Reply, Request, name_ranks};
use super::server::this_process;
use super::unique_id::UniqueId;
use super::watcher::{Post, Watcher};

/// How long after a deadline the store may take to say who is missing.
const GRACE: Duration = Duration::from_secs(1);
/// How long the store may take to tell that a rank is lost whose kernel has closed its connections.
const NEWS_TIME: Duration = Duration::from_secs(1);
/// What is said of an id at whose place nobody listens.
const ID_IS_VOID: &str = "the process that made the unique id has ended or waits for nobody any more, or a firewall refuses \
                          connections to it";
/// How long the store may take to note that a rank leaves.
const LEAVE_TIME: Duration = Duration::from_secs(2);

/// What a communicator keeps of the bootstrap: blobs are gathered through it, and the death, the abort or
/// the departure of any rank arrives on it.
///
/// Dropping it without [`Self::leave`] looks to the others like the death of this rank.
#[derive(Debug)]
pub struct Control {
    rank: Rank,
    size: u32,
    pub(super) heard: Arc<Heard>,
    post: Arc<Post>,
    /// The number of the next request.
    next: AtomicU64,
    watcher: Option<JoinHandle<()>>,
}

impl Control {
    /// Joins the group of `id`. Every rank of `size` calls it; it returns when all have.
    ///
    /// # Errors
    /// On every rank that came: [`Error::InvalidUsage`] if two processes claim one rank, or ranks expect
    /// different sizes; [`Error::PeerLost`] if a rank came and died; [`Error::Deadline`] naming the ranks
    /// that did not come by `deadline`. On this rank: [`Error::InvalidUsage`] if the store does not accept
    /// the key, [`Error::Deadline`] if it is not reached, [`Error::System`].
    pub fn join(id: &UniqueId, rank: Rank, size: u32, deadline: Instant) -> Result<Self, Error> {
        let start = clock::now();
        let control = Self::reach(id, Arc::new(Heard::new(rank)), size, deadline)?;
        control.await_others(BTreeSet::new(), start, deadline)?;
        Ok(control)
    }

    /// Speaks with the store of `id`, which may not be there yet, for a rank of `size` that has not [joined](Self::await_others)
    /// yet, and hears what is `heard`.
    pub(super) fn reach(
        id: &UniqueId,
        heard: Arc<Heard>,
        size: u32,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let start = clock::now();
        Self::speak(id, heard, size, (Vacancy::at(id), deadline), |failure| match failure {
            NoConnection::Refused(error) => error,
            // Before the deadline only what is not waited for comes here.
            NoConnection::Vacant(cause) if clock::now() < deadline => {
                Error::system("look for the store", format!("{cause}: {ID_IS_VOID}"))
            }
            NoConnection::Unreachable(waiting) | NoConnection::Vacant(waiting) => too_late(
                start,
                deadline,
                format!(
                    "the store is not reached ({waiting}); the store is where ranks meet, in the process of rank 0 or of \
                     whoever made the unique id; all ranks need its address and the same R2CCL_JOB_KEY"
                ),
            ),
        })
    }

    /// Speaks with a store in the process of rank `first`, which listened at the place of `id` before it started that, for a rank
    /// of `size` that has not [joined](Self::await_others) yet, and hears what is `heard`.
    ///
    /// # Errors
    /// As [`Self::join`]; [`Error::PeerLost`] if nobody listens there any more, or somebody else does; the fault.
    pub(super) fn return_to(
        id: &UniqueId,
        first: Rank,
        heard: Arc<Heard>,
        size: u32,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let start = clock::now();
        heard.expect_store_of(first);
        Self::speak(id, heard, size, (Vacancy::Late(Duration::ZERO), deadline), |failure| {
            match failure {
                NoConnection::Unreachable(waiting) => too_late(
                    start,
                    deadline,
                    format!("rank {first}, where the ranks meet, does not answer ({waiting})"),
                ),
                NoConnection::Vacant(cause) => has_gone(first, &cause),
                NoConnection::Refused(cause) => has_gone(first, &cause),
            }
        })
    }

    /// Speaks with the store of `id`; `explain` says what it means that there is no connection, unless there is a fault.
    fn speak(
        id: &UniqueId,
        heard: Arc<Heard>,
        size: u32,
        (vacancy, deadline): (Vacancy, Instant),
        explain: impl FnOnce(NoConnection) -> Error,
    ) -> Result<Self, Error> {
        let connected = connect(id, &heard, vacancy, deadline);
        let fault = || heard.fault().map(|fault| Error::clone(fault));
        let stream = connected.map_err(|failure| fault().unwrap_or_else(|| explain(failure)))?;
        Self::on(stream, id, heard, size)
    }

    /// Says that this rank is there, and returns when all are but those that are `absent`.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub(super) fn await_others(
        &self,
        absent: BTreeSet<u32>,
        start: Instant,
        deadline: Instant,
    ) -> Result<(), Error> {
        let formed = self.heard.expect(Awaited::Formed)?;
        self.send(Request::Join { size: self.size, absent, process: this_process() })?;
        let answer = match receive(&formed, deadline) {
            Some(answer) => Some(answer),
            None => {
                let seconds = deadline.saturating_duration_since(start).as_secs_f64();
                self.send(Request::GiveUp { seconds })?;
                receive(&formed, clock::now() + GRACE)
            }
        };
        match answer {
            Some(Answer::Formed) => Ok(()),
            Some(Answer::Failed(error)) => Err(error),
            Some(other) => Err(unexpected(&other)),
            None => Err(too_late(start, deadline, "the store does not answer".to_owned())),
        }
    }

    fn on(stream: TcpStream, id: &UniqueId, heard: Arc<Heard>, size: u32) -> Result<Self, Error> {
        let rank = heard.me();
        let post = Arc::new(Post::new()?);
        let watcher = Watcher::new(id, rank, stream, &post, &heard)?;
        let watcher = thread::Builder::new()
            .name("r2ccl-watch".to_owned())
            .spawn(move || watcher.run())
            .map_err(|cause| Error::system("start the watching thread", cause))?;
        Ok(Self { rank, size, heard, post, next: AtomicU64::new(0), watcher: Some(watcher) })
    }

    /// The rank that joined.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks joined.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Everybody's blob, in order of rank. All ranks call it with the same `name`, which is in use only
    /// once at a time.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming the ranks whose blob did not come by `deadline`; [`Error::PeerLost`] if
    /// one of them is dead or left; [`Error::InvalidUsage`] if a limit is exceeded; the fault.
    pub fn all_gather(
        &self,
        name: &str,
        blob: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, Error> {
        check_limits(name, blob)?;
        let start = clock::now();
        let awaited = Awaited::Gathered(name.to_owned());
        let receiver = self.heard.expect(awaited.clone())?;
        self.send(Request::Gather { name: name.to_owned(), value: blob.to_vec() })
            .inspect_err(|_| self.heard.forget(&awaited))?;
        match receive(&receiver, deadline) {
            Some(Answer::Gathered(values)) => Ok(values),
            Some(Answer::Failed(error)) => Err(error),
            Some(other) => Err(unexpected(&other)),
            None => {
                self.heard.forget(&awaited);
                let waiting = self.missing(name).map_or_else(
                    |_| "the store does not answer".to_owned(),
                    |ranks| format!("{} did not contribute", name_ranks(&ranks)),
                );
                let seconds = deadline.saturating_duration_since(start).as_secs_f64();
                Err(Error::Deadline { call: format!("gathering {name:?}"), seconds, waiting })
            }
        }
    }

    /// Tells all ranks that this one has come to `name`, which is used once, and waits for nobody. When all have told so `act` is run, in
    /// the thread that speaks with the store.
    ///
    /// # Errors
    /// The fault. `act` is run neither then nor after a later one, nor if a rank leaves without having told.
    pub(crate) fn when_all(
        &self,
        name: &str,
        act: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        self.heard.act_on(Awaited::Gathered(name.to_owned()), act)?;
        self.send(Request::Gather { name: name.to_owned(), value: Vec::new() })
    }

    /// Ends [`Self::all_gather`] of this name in another thread of this rank with an error, if it waits.
    #[cfg(feature = "cuda")]
    pub fn forget(&self, name: &str) {
        self.heard.forget(&Awaited::Gathered(name.to_owned()));
    }

    /// Keeps `value` under `key` for [`Self::get`] of any rank.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if a limit is exceeded, [`Error::Deadline`], the fault.
    pub fn set(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error> {
        check_limits(key, value)?;
        let request = Request::Set { key: key.to_owned(), value: value.to_vec() };
        match self.ask(request, &format!("setting {key:?}"), deadline)? {
            Reply::Done => Ok(()),
            Reply::Refused(reason) => Err(Error::InvalidUsage(reason)),
            other @ (Reply::Value(_) | Reply::Missing(_)) => Err(unexpected(&Answer::Reply(other))),
        }
    }

    /// The value that any rank keeps under `key`; waits until there is one.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        let request = Request::Get { key: key.to_owned() };
        match self.ask(request, &format!("waiting for {key:?}"), deadline)? {
            Reply::Value(value) => Ok(value),
            Reply::Refused(reason) => Err(Error::InvalidUsage(reason)),
            other @ (Reply::Done | Reply::Missing(_)) => Err(unexpected(&Answer::Reply(other))),
        }
    }

    /// Tells all other ranks what happened, and makes it the fault of this rank, too.
    ///
    /// # Errors
    /// [`Error::System`] if the store is not reached. The fault is set nevertheless.
    pub fn announce(&self, event: &ControlEvent) -> Result<(), Error> {
        let event = event.clone().cut();
        let sent = self.send(Request::Announce(event.clone()));
        self.heard.fail(event.into_error(self.rank));
        sent
    }

    /// From now on `listener` gets the letters of other ranks, from the thread that speaks with the store.
    pub fn listen(&self, listener: &Arc<dyn Listener>) {
        self.heard.listen(listener);
        self.post.wake();
    }

    /// What the listener needs of this connection.
    #[must_use]
    pub fn letters(&self) -> Letters {
        Letters::new(Arc::clone(&self.heard), Arc::clone(&self.post))
    }

    /// The first fatal event, once there is one. Costs one atomic load, so that a waiting loop can
    /// ask in every turn.
    #[must_use]
    #[inline]
    pub fn fault(&self) -> Option<&Arc<Error>> {
        self.heard.fault()
    }

    /// The same, if it comes in a moment: what a rank meets with may be the end of another one, of which the store tells.
    #[must_use]
    pub(crate) fn fault_soon(&self) -> Option<Error> {
        let end = clock::now() + NEWS_TIME;
        while self.fault().is_none() && clock::now() < end {
            clock::sleep(Duration::from_millis(1));
        }
        self.fault().map(|fault| Error::clone(fault))
    }

    /// A rank that left after fewer than `calls` calls, which therefore never makes the call that is
    /// number `calls` if the first is number 1. As cheap as [`Self::fault`] while nobody has left.
    #[must_use]
    pub fn departed_before(&self, calls: u64) -> Option<Rank> {
        self.heard.departed_before(calls)
    }

    /// Whether `rank` left.
    #[must_use]
    pub fn has_departed(&self, rank: Rank) -> bool {
        self.heard.has_departed(rank)
    }

    /// The ranks that are lost to this one as far as is known; and those that did not come when it joined, or without which
    /// others went on.
    #[must_use]
    pub fn lost(&self) -> BTreeSet<Rank> {
        self.heard.lost()
    }

    /// The ranks that left.
    #[must_use]
    pub fn departed(&self) -> BTreeSet<Rank> {
        self.heard.departed()
    }

    /// Says goodbye after `calls` calls, so that the end of the connection alarms nobody. A later call
    /// that needs this rank fails on the others.
    pub fn leave(&self, calls: u64) {
        if self.heard.leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        self.heard.stop_listening();
        let deadline = clock::now() + LEAVE_TIME;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let awaited = Awaited::Reply(number);
        // A fault, or a store that is gone, does not keep anybody from leaving.
        let noted = self.heard.expect_even_after_fault(awaited);
        if self.write(number, Request::Leave { calls }).is_err() {
            return;
        }
        // What this rank announced has then gone out, even if the store is in this process.
        let _ = receive(&noted, deadline);
    }

    fn ask(&self, request: Request, call: &str, deadline: Instant) -> Result<Reply, Error> {
        let start = clock::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let awaited = Awaited::Reply(number);
        let receiver = self.heard.expect(awaited.clone())?;
        self.write(number, request).inspect_err(|_| self.heard.forget(&awaited))?;
        match receive(&receiver, deadline) {
            Some(Answer::Reply(reply)) => Ok(reply),
            Some(Answer::Failed(error)) => Err(error),
            Some(other) => Err(unexpected(&other)),
            None => {
                self.heard.forget(&awaited);
                Err(Error::Deadline {
                    call: call.to_owned(),
                    seconds: deadline.saturating_duration_since(start).as_secs_f64(),
                    waiting: "the store has no answer".to_owned(),
                })
            }
        }
    }

    /// Who has not contributed to `name`, as the store says if it says so soon.
    pub(super) fn missing(&self, name: &str) -> Result<Vec<u32>, Error> {
        self.ask_who(Request::Missing { name: name.to_owned() })
    }

    /// Those for whom [`Self::await_others`] waits.
    pub(super) fn unjoined(&self) -> Result<Vec<u32>, Error> {
        self.ask_who(Request::Awaited)
    }

    /// Ends [`Self::await_others`] on all who have joined if one of these ranks has not.
    pub(super) fn lose(&self, ranks: &BTreeSet<Rank>) -> Result<(), Error> {
        self.send(Request::Gone { ranks: ranks.iter().map(|rank| rank.0).collect() })
    }

    fn ask_who(&self, request: Request) -> Result<Vec<u32>, Error> {
        match self.ask(request, "asking who is missing", clock::now() + GRACE)? {
            Reply::Missing(ranks) => Ok(ranks),
            other @ (Reply::Done | Reply::Value(_) | Reply::Refused(_)) => {
                Err(unexpected(&Answer::Reply(other)))
            }
        }
    }

    /// Sends a request whose answer, if any, is not identified by its number.
    fn send(&self, request: Request) -> Result<(), Error> {
        self.write(self.next.fetch_add(1, Ordering::Relaxed), request)
    }

    fn write(&self, number: u64, request: Request) -> Result<(), Error> {
        letters::write(&self.post, &self.heard, number, request)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.heard.leaving.store(true, Ordering::Release);
        // Ends the watcher, and with it the connection, which tells the store.
        self.post.close();
        if let Some(watcher) = self.watcher.take() {
            // The thread has nothing to report, and its panic was printed.
            let _ = watcher.join();
        }
        self.heard.stop_listening();
    }
}

/// What arrives before `deadline`.
fn receive(from: &Receiver<Answer>, deadline: Instant) -> Option<Answer> {
    match from.recv_timeout(deadline.saturating_duration_since(clock::now())) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            Some(Answer::Failed(Error::Internal("an answer was dropped".to_owned())))
        }
    }
}

fn check_limits(name: &str, blob: &[u8]) -> Result<(), Error> {
    if name.len() <= message::MAX_NAME_BYTES && blob.len() <= message::MAX_BLOB_BYTES {
        return Ok(());
    }
    Err(Error::InvalidUsage(format!(
        "a name of {} bytes and a blob of {} bytes; at most {} and {}",
        name.len(),
        blob.len(),
        message::MAX_NAME_BYTES,
        message::MAX_BLOB_BYTES
    )))
}

fn too_late(start: Instant, deadline: Instant, waiting: String) -> Error {
    let seconds = deadline.saturating_duration_since(start).as_secs_f64();
    Error::Deadline { call: "joining the communicator".to_owned(), seconds, waiting }
}

fn has_gone(rank: Rank, cause: &dyn fmt::Display) -> Error {
    let reason = format!("it has ended, or destroyed the communicator ({cause})");
    Error::PeerLost { rank, reason }
}

fn unexpected(answer: &Answer) -> Error {
    Error::Internal(format!("the store gave another answer than was asked for: {answer:?}"))
}
