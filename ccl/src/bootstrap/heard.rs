//! What a rank has heard from the store, where the fast path looks without a lock: one atomic load says
//! that nothing has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ccl_core::Error;
use ccl_core::ids::Rank;

use super::message::{ControlEvent, Failure, Push, Reply};

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

/// What comes of an answer.
#[derive(Debug)]
enum Consequence {
    Told(Sender<Answer>),
    Done(Act),
}

struct Act(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Act")
    }
}

/// Somebody in this process whom other ranks write letters to. All calls come from one thread, which
/// must not wait in them.
pub trait Listener: Send + Sync + fmt::Debug {
    /// A letter arrived.
    fn letter(&self, from: Rank, letter: &[u8]);

    /// A rank is dead, or left after so many calls. Everything that it wrote has arrived.
    fn gone(&self, rank: Rank, calls: Option<u64>);

    /// The time at which the listener wanted to be called has come, or something else has happened.
    fn wake(&self);

    /// When [`Self::wake`] should be called next.
    fn deadline(&self) -> Option<Instant>;
}

/// Who listens, or what has arrived for it.
#[derive(Debug)]
enum Mail {
    Early(Vec<Letter>),
    Taken(Arc<dyn Listener>),
    Closed,
}

#[derive(Clone, Debug)]
enum Letter {
    Letter(Rank, Vec<u8>),
    Gone(Rank, Option<u64>),
}

/// What a rank has heard from the store.
#[derive(Debug)]
pub(super) struct Heard {
    me: Rank,
    fault: OnceLock<Arc<Error>>,
    /// Fewest calls that a rank made before it left; `u64::MAX` while all are there.
    fewest_calls: AtomicU64,
    departed: Mutex<BTreeMap<Rank, u64>>,
    /// Ranks that are lost, or were waited for in vain.
    lost: Mutex<BTreeSet<Rank>>,
    pending: Mutex<BTreeMap<Awaited, Consequence>>,
    host_rank: OnceLock<Option<Rank>>,
    /// Where the store can be reached once the group is formed.
    places: OnceLock<Vec<SocketAddr>>,
    mail: Mutex<Mail>,
    /// A connection on which this rank waits to be admitted.
    knocking: Mutex<Option<TcpStream>>,
    /// What this rank waits for elsewhere, as long as nothing ends what it hears here.
    tied: Mutex<Option<Arc<Self>>>,
    /// Nothing to which this was tied ends it any more.
    stands_alone: Mutex<bool>,
    /// This rank has left; the end of the connection is no news.
    pub(super) leaving: AtomicBool,
}

impl Heard {
    pub(super) fn new(me: Rank) -> Self {
        Self {
            me,
            fault: OnceLock::new(),
            fewest_calls: AtomicU64::new(u64::MAX),
            departed: Mutex::default(),
            lost: Mutex::default(),
            pending: Mutex::default(),
            host_rank: OnceLock::new(),
            places: OnceLock::new(),
            mail: Mutex::new(Mail::Early(Vec::new())),
            knocking: Mutex::default(),
            tied: Mutex::default(),
            stands_alone: Mutex::default(),
            leaving: AtomicBool::new(false),
        }
    }

    /// The store is in the process of this rank, which is known before all have come.
    pub(super) fn expect_store_of(&self, rank: Rank) {
        self.host_rank.get_or_init(|| Some(rank));
    }

    /// The first fatal event.
    #[inline]
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

    /// The ranks that are lost, and those without which others went on, or which were waited for in vain, when this one joined.
    pub(super) fn lost(&self) -> BTreeSet<Rank> {
        lock(&self.lost).clone()
    }

    /// The ranks that left.
    pub(super) fn departed(&self) -> BTreeSet<Rank> {
        lock(&self.departed).keys().copied().collect()
    }

    /// This rank does not wait any more: what it waits for ends with this error.
    pub(super) fn withdraw(&self, reason: &str) {
        self.end(Error::Aborted { rank: self.me, reason: reason.to_owned() });
    }

    /// What this rank waits for, to be admitted too, ends with this error.
    pub(super) fn end(&self, error: Error) {
        self.fail(error);
        if let Some(stream) = lock(&self.knocking).take() {
            // If it is not open any more nobody waits on it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on what ends this ends `other`, unless that [stands alone](Self::stand_alone), and nothing else that was tied to it.
    pub(super) fn tie(&self, other: Option<Arc<Self>>) {
        *lock(&self.tied) = other;
        self.end_tied();
    }

    fn end_tied(&self) {
        let Some(fault) = self.fault() else { return };
        if let Some(other) = lock(&self.tied).take() {
            other.end_with(fault);
        }
    }

    /// What this was tied to has ended.
    fn end_with(&self, fault: &Error) {
        let stands_alone = lock(&self.stands_alone);
        if !*stands_alone {
            self.end(fault.clone());
        }
    }

    /// Is tied to nothing any more, unless it has ended with that.
    pub(super) fn stand_alone(&self) -> Result<(), Error> {
        let mut stands_alone = lock(&self.stands_alone);
        *stands_alone = true;
        self.fault().map_or(Ok(()), |fault| Err(Error::clone(fault)))
    }

    /// Waits to be admitted on a connection, until this rank [does not wait](Self::withdraw) any more.
    pub(super) fn knock<T>(&self, stream: TcpStream, wait: impl FnOnce() -> T) -> Option<T> {
        *lock(&self.knocking) = Some(stream);
        let admitted = self.fault().is_none().then(wait);
        *lock(&self.knocking) = None;
        admitted
    }

    pub(super) fn me(&self) -> Rank {
        self.me
    }

    /// Where the answer will arrive; fails if there was a fault, or if it is awaited already.
    pub(super) fn expect(&self, awaited: Awaited) -> Result<Receiver<Answer>, Error> {
        let (sender, receiver) = channel();
        self.note(awaited, Consequence::Told(sender))?;
        Ok(receiver)
    }

    /// When the answer arrives `act` is run; fails as [`Self::expect`].
    pub(super) fn act_on(
        &self,
        awaited: Awaited,
        act: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        self.note(awaited, Consequence::Done(Act(Box::new(act))))
    }

    fn note(&self, awaited: Awaited, consequence: Consequence) -> Result<(), Error> {
        let mut pending = lock(&self.pending);
        // Looked at under the lock: a fault that comes later finds the entry.
        if let Some(fault) = self.fault() {
            return Err(Error::clone(fault));
        }
        if pending.contains_key(&awaited) {
            return Err(Error::InvalidUsage(format!("{awaited:?} is awaited twice")));
        }
        pending.insert(awaited, consequence);
        Ok(())
    }

    /// Where the answer will arrive, whatever has happened before.
    pub(super) fn expect_even_after_fault(&self, awaited: Awaited) -> Receiver<Answer> {
        let (sender, receiver) = channel();
        lock(&self.pending).insert(awaited, Consequence::Told(sender));
        receiver
    }

    /// Nobody waits for it any longer.
    pub(super) fn forget(&self, awaited: &Awaited) {
        lock(&self.pending).remove(awaited);
    }

    /// Remembers the first fatal event and ends all waiting with it.
    pub(super) fn fail(&self, error: Error) {
        if let Error::PeerLost { rank, .. } = &error {
            lock(&self.lost).insert(*rank);
        }
        let fault = self.fault.get_or_init(|| Arc::new(error));
        self.fail_pending(fault);
        self.end_tied();
    }

    fn fail_pending(&self, error: &Error) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        for consequence in pending.into_values() {
            if let Consequence::Told(sender) = consequence {
                // Who gave up waiting does not want to know.
                let _ = sender.send(Answer::Failed(error.clone()));
            }
        }
    }

    fn answer(&self, awaited: &Awaited, answer: Answer) {
        let consequence = lock(&self.pending).remove(awaited);
        match (consequence, answer) {
            (Some(Consequence::Told(sender)), answer) => _ = sender.send(answer),
            (Some(Consequence::Done(Act(act))), Answer::Gathered(_)) => act(),
            (Some(Consequence::Done(_)) | None, _) => {}
        }
    }

    /// Where the store can be reached, if the group is formed.
    pub(super) fn places(&self) -> &[SocketAddr] {
        self.places.get().map_or(&[], Vec::as_slice)
    }

    /// From now on `listener` gets what arrives, after what has arrived before.
    pub(super) fn listen(&self, listener: &Arc<dyn Listener>) {
        let mut mail = lock(&self.mail);
        if let Mail::Early(letters) = std::mem::replace(&mut *mail, Mail::Closed) {
            letters.into_iter().for_each(|letter| letter.deliver(&**listener));
        }
        *mail = Mail::Taken(Arc::clone(listener));
    }

    /// From now on nobody listens.
    pub(super) fn stop_listening(&self) {
        *lock(&self.mail) = Mail::Closed;
    }

    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        match &*lock(&self.mail) {
            Mail::Taken(listener) => Some(Arc::clone(listener)),
            Mail::Early(_) | Mail::Closed => None,
        }
    }

    fn deliver(&self, letter: Letter) {
        let mut mail = lock(&self.mail);
        match &mut *mail {
            Mail::Early(letters) => letters.push(letter),
            Mail::Taken(listener) => {
                let listener = Arc::clone(listener);
                drop(mail);
                letter.deliver(&*listener);
            }
            Mail::Closed => {}
        }
    }

    pub(super) fn take(&self, push: Push) {
        match push {
            Push::Formed { host_rank, places } => {
                self.places.get_or_init(|| places);
                self.host_rank.get_or_init(|| host_rank.map(Rank));
                self.answer(&Awaited::Formed, Answer::Formed);
            }
            Push::Failed(failure) => {
                let lost: Vec<u32> = match &failure {
                    Failure::Deadline { missing, .. } => missing.clone(),
                    Failure::Apart { absent: ranks, .. } | Failure::Gone { ranks } => {
                        ranks.iter().copied().collect()
                    }
                    Failure::Usage(_)
                    | Failure::Aborted { .. }
                    | Failure::Lost { .. }
                    | Failure::System { .. } => Vec::new(),
                };
                let others = lost.into_iter().map(Rank).filter(|rank| *rank != self.me);
                lock(&self.lost).extend(others);
                self.fail(failure.into());
            }
            Push::Reply { number, reply } => {
                self.answer(&Awaited::Reply(number), Answer::Reply(reply));
            }
            Push::Gathered { name, values } => {
                self.answer(&Awaited::Gathered(name), Answer::Gathered(values));
            }
            Push::GatherFailed { name, failure } => {
                self.answer(&Awaited::Gathered(name), Answer::Failed(failure.into()));
            }
            Push::Event(event) => {
                if let ControlEvent::Lost { rank, .. } = event {
                    self.deliver(Letter::Gone(rank, None));
                }
                self.fail(event.into_error(self.me));
            }
            Push::Left { rank, calls } => {
                lock(&self.departed).insert(Rank(rank), calls);
                self.fewest_calls.fetch_min(calls, Ordering::Release);
                self.deliver(Letter::Gone(Rank(rank), Some(calls)));
            }
            Push::Relayed { from, letter } => self.deliver(Letter::Letter(Rank(from), letter)),
        }
    }

    /// The connection to the store ended.
    pub(super) fn lose_store(&self, cause: &str) {
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

impl Letter {
    fn deliver(self, listener: &dyn Listener) {
        match self {
            Self::Letter(from, letter) => listener.letter(from, &letter),
            Self::Gone(rank, calls) => listener.gone(rank, calls),
        }
    }
}

/// A panic elsewhere leaves these maps whole: every change is one call.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn hosted_by_rank_0() -> Heard {
        let heard = Heard::new(Rank(1));
        heard.take(Push::Formed { host_rank: Some(0), places: Vec::new() });
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
    fn who_is_lost_after_the_first_is_known_too() {
        let heard = hosted_by_rank_0();
        for rank in [4, 2] {
            let event = ControlEvent::Lost { rank: Rank(rank), reason: "closed".into(), by: None };
            heard.take(Push::Event(event));
        }
        heard.take(Push::Left { rank: 3, calls: 0 });
        heard.lose_store("closed");
        assert_eq!(heard.lost(), [0, 2, 4].map(Rank).into());
        assert_eq!(heard.departed(), [Rank(3)].into());
    }

    #[test]
    fn who_did_not_come_or_is_not_wanted_is_lost() {
        let call = "joining".to_owned();
        let missing = vec![5, 7];
        let in_vain = Failure::Deadline { call, seconds: 1.0, missing };
        let apart = Failure::Apart { text: String::new(), absent: [1, 5, 7].into() };
        for failure in [in_vain, apart] {
            let heard = Heard::new(Rank(1));
            heard.take(Push::Failed(failure));
            assert_eq!(heard.lost(), [5, 7].map(Rank).into());
        }
    }

    #[test]
    fn who_withdraws_waits_on_no_connection_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (twin, heard) = (stream.try_clone().unwrap(), Heard::new(Rank(1)));
        let (sender, waits) = channel();
        let told = thread::scope(|scope| {
            let knocking = scope.spawn(|| {
                heard.knock(twin, || {
                    sender.send(()).unwrap();
                    stream.read(&mut [0]).unwrap()
                })
            });
            waits.recv().unwrap();
            heard.withdraw("enough");
            knocking.join().unwrap()
        });
        assert_eq!(told, Some(0), "the connection has ended");
        let twin = stream.try_clone().unwrap();
        assert_eq!(heard.knock(twin, || unreachable!("nobody waits after that")), None::<()>);
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
