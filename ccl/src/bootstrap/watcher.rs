//! The thread of a communicator that listens to the store, and what it has heard.
//!
//! It sleeps in a blocking read. What it hears it leaves in [`Heard`], where the fast path looks without
//! a lock: one atomic load says that nothing has happened.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ccl_core::Error;
use ccl_core::ids::Rank;

use super::message::{self, LENGTH_BYTES, MAX_PUSH_BYTES, Push, Reply};

/// Something a call waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    Formed,
    Reply(u64),
    Gathered(String),
}

/// What came instead of nothing.
#[derive(Debug)]
pub(super) enum Answer {
    Formed,
    Reply(Reply),
    Gathered(Vec<Vec<u8>>),
    Failed(Error),
}

/// What a rank has heard from the store.
#[derive(Debug)]
pub(super) struct Heard {
    fault: OnceLock<Arc<Error>>,
    /// Fewest calls that a rank made before it left; `u64::MAX` while all are there.
    fewest_calls: AtomicU64,
    departed: Mutex<BTreeMap<Rank, u64>>,
    pending: Mutex<BTreeMap<Awaited, Sender<Answer>>>,
    host_rank: OnceLock<Option<Rank>>,
    /// This rank has left; the end of the connection is no news.
    pub(super) leaving: AtomicBool,
}

impl Heard {
    pub(super) fn new() -> Self {
        Self {
            fault: OnceLock::new(),
            fewest_calls: AtomicU64::new(u64::MAX),
            departed: Mutex::default(),
            pending: Mutex::default(),
            host_rank: OnceLock::new(),
            leaving: AtomicBool::new(false),
        }
    }

    /// The first fatal event.
    pub(super) fn fault(&self) -> Option<&Arc<Error>> {
        self.fault.get()
    }

    /// A rank that left after fewer than `calls` calls.
    pub(super) fn departed_before(&self, calls: u64) -> Option<Rank> {
        if self.fewest_calls.load(Ordering::Acquire) >= calls {
            return None;
        }
        let departed = lock(&self.departed);
        departed.iter().find(|(_, made)| **made < calls).map(|(rank, _)| *rank)
    }

    /// Whether `rank` left.
    pub(super) fn has_departed(&self, rank: Rank) -> bool {
        lock(&self.departed).contains_key(&rank)
    }

    /// Where the answer will arrive; fails if there was a fault, or if it is awaited already.
    pub(super) fn expect(&self, awaited: Awaited) -> Result<Receiver<Answer>, Error> {
        let (sender, receiver) = channel();
        let mut pending = lock(&self.pending);
        // Looked at under the lock: a fault that comes later finds the entry.
        if let Some(fault) = self.fault() {
            return Err(Error::clone(fault));
        }
        if pending.contains_key(&awaited) {
            return Err(Error::InvalidUsage(format!("{awaited:?} is awaited twice")));
        }
        pending.insert(awaited, sender);
        Ok(receiver)
    }

    /// Where the answer will arrive, whatever has happened before.
    pub(super) fn expect_even_after_fault(&self, awaited: Awaited) -> Receiver<Answer> {
        let (sender, receiver) = channel();
        lock(&self.pending).insert(awaited, sender);
        receiver
    }

    /// Nobody waits for it any longer.
    pub(super) fn forget(&self, awaited: &Awaited) {
        lock(&self.pending).remove(awaited);
    }

    /// Remembers the first fatal event and ends all waiting with it.
    pub(super) fn fail(&self, error: Error) {
        let fault = self.fault.get_or_init(|| Arc::new(error));
        self.fail_pending(fault);
    }

    fn fail_pending(&self, error: &Error) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        for sender in pending.into_values() {
            // Who gave up waiting does not want to know.
            let _ = sender.send(Answer::Failed(error.clone()));
        }
    }

    fn answer(&self, awaited: &Awaited, answer: Answer) {
        if let Some(sender) = lock(&self.pending).remove(awaited) {
            let _ = sender.send(answer);
        }
    }

    fn take(&self, push: Push) {
        match push {
            Push::Formed { host_rank } => {
                self.host_rank.get_or_init(|| host_rank.map(Rank));
                self.answer(&Awaited::Formed, Answer::Formed);
            }
            Push::Failed(failure) => self.fail(failure.into()),
            Push::Reply { number, reply } => {
                self.answer(&Awaited::Reply(number), Answer::Reply(reply));
            }
            Push::Gathered { name, values } => {
                self.answer(&Awaited::Gathered(name), Answer::Gathered(values));
            }
            Push::GatherFailed { name, failure } => {
                self.answer(&Awaited::Gathered(name), Answer::Failed(failure.into()));
            }
            Push::Event(event) => self.fail(event.into_error()),
            Push::Left { rank, calls } => {
                lock(&self.departed).insert(Rank(rank), calls);
                self.fewest_calls.fetch_min(calls, Ordering::Release);
            }
        }
    }

    /// The connection to the store ended.
    fn lose_store(&self, cause: &str) {
        if self.leaving.load(Ordering::Acquire) {
            let gone = Error::InvalidUsage("this rank has left the communicator".to_owned());
            return self.fail_pending(&gone);
        }
        match self.host_rank.get() {
            Some(Some(rank)) if self.has_departed(*rank) => self.fail_pending(&Error::PeerLost {
                rank: *rank,
                reason: "it left the communicator, and the store with it".to_owned(),
            }),
            Some(Some(rank)) => {
                let reason = format!("its process, in which the store is, ended ({cause})");
                self.fail(Error::PeerLost { rank: *rank, reason });
            }
            Some(None) | None => {
                self.fail(Error::system("the control connection to the store", cause));
            }
        }
    }
}

/// Listens until the connection ends.
pub(super) fn watch(stream: &TcpStream, heard: &Heard) {
    loop {
        match receive(stream) {
            Ok(push) => heard.take(push),
            Err(cause) => return heard.lose_store(&cause),
        }
    }
}

fn receive(mut stream: &TcpStream) -> Result<Push, String> {
    let mut header = [0; LENGTH_BYTES];
    stream.read_exact(&mut header).map_err(|_| "the connection was closed".to_owned())?;
    let bytes = message::body_bytes(header, MAX_PUSH_BYTES)?;
    let mut body = Vec::new();
    // Grows with what arrives, not with what is announced.
    let arrived = stream.take(bytes as u64).read_to_end(&mut body).map_err(|e| e.to_string())?;
    if arrived < bytes {
        return Err("the connection was closed within a message".to_owned());
    }
    message::decode(&body)
}

/// A panic elsewhere leaves these maps whole: every change is one call.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosted_by_rank_0() -> Heard {
        let heard = Heard::new();
        heard.take(Push::Formed { host_rank: Some(0) });
        heard
    }

    #[test]
    fn the_end_of_the_store_is_the_loss_of_its_rank() {
        let heard = hosted_by_rank_0();
        let waiting = heard.expect(Awaited::Reply(1)).unwrap();
        heard.lose_store("closed");
        let fault = Error::clone(heard.fault().unwrap());
        assert!(matches!(fault, Error::PeerLost { rank: Rank(0), .. }), "{fault:?}");
        assert!(matches!(waiting.recv().unwrap(), Answer::Failed(error) if error == fault));
        assert!(heard.expect(Awaited::Reply(2)).is_err_and(|error| error == fault));
    }

    #[test]
    fn the_end_of_the_store_is_no_loss_after_its_rank_left() {
        let heard = hosted_by_rank_0();
        let waiting = heard.expect(Awaited::Reply(1)).unwrap();
        heard.take(Push::Left { rank: 0, calls: 3 });
        heard.lose_store("closed");
        assert_eq!(heard.fault(), None);
        let Answer::Failed(error) = waiting.recv().unwrap() else { panic!() };
        assert!(matches!(error, Error::PeerLost { rank: Rank(0), .. }), "{error:?}");
        assert_eq!(heard.departed_before(3), None);
        assert_eq!(heard.departed_before(4), Some(Rank(0)));
    }

    #[test]
    fn the_first_fault_stays() {
        let heard = hosted_by_rank_0();
        let first = Error::Aborted { rank: Rank(1), reason: "enough".into() };
        heard.fail(first.clone());
        heard.lose_store("closed");
        assert_eq!(heard.fault().map(|fault| Error::clone(fault)), Some(first));
    }
}
