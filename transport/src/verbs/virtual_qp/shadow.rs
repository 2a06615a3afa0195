//! Connections for the rails of a virtual queue pair, made in the background.
//!
//! A queue pair is polled by whoever waits for it and must not wait itself; making a connection takes
//! both hosts. So a [`Shadow`] has a [`Connector`] make them in threads, and the queue pair attaches what
//! has been found at its next poll. Until then it costs a poll one look at a flag.
//!
//! There is a thread for each rail that has no connection, as long as it has none. The two ends may
//! miss their rails in different orders, and a connector may have to meet the other end: with a thread
//! for each rail an attempt waits for nothing but the other end of the same rail, whatever the order.
//! With one thread for all of them two ends that try in different orders would meet by luck only. When
//! all rails are connected there is no thread at all.
//!
//! Attempts are repeated without an end. The first pause is 5 ms from the beginning of one attempt to
//! the next, then twice as long each time, up to 1 s, which is what an attempt may take: so a connector
//! that waits for the other end waits nearly always.

mod desk;
mod switchboard;
mod tcp;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::{Connection, State};
use super::VirtualQp;
use crate::{TransportError, clock};
pub use desk::Bell;
use desk::{Desk, Find};
pub use switchboard::Switchboard;
pub use tcp::{Store, TcpConnector};

/// How long one attempt may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(1);
/// From the beginning of the first attempt to the second; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = ATTEMPT_LIMIT;

/// Makes connections, together with the connector of the other end.
///
/// A function of the same arguments is a connector too.
pub trait Connector: Send + Sync {
    /// Makes a connection for a rail, and waits for it until the attempt has come to its
    /// [end](Attempt::until) or is not [wanted](Attempt::is_wanted) any more. It is called in a thread
    /// of each rail, and must not let one rail wait for another.
    ///
    /// # Errors
    /// There is none yet. It is logged at debug, and there will be another attempt.
    fn connect(&self, rail: usize, attempt: &Attempt) -> Result<Connection, TransportError>;

    /// Gives it a bell to ring when the other end makes a connection. A connector without a way to know
    /// leaves it alone.
    fn announce(&self, bell: Bell) {
        let _ = bell;
    }
}

impl<F> Connector for F
where
    F: Fn(usize, &Attempt) -> Result<Connection, TransportError> + Send + Sync,
{
    fn connect(&self, rail: usize, attempt: &Attempt) -> Result<Connection, TransportError> {
        self(rail, attempt)
    }
}

/// One attempt to make a connection.
#[derive(Clone, Debug)]
pub struct Attempt {
    until: Instant,
    is_over: Arc<AtomicBool>,
}

impl Attempt {
    /// One that is wanted until its end, for whoever calls a connector himself.
    #[must_use]
    pub fn new(until: Instant) -> Self {
        Self { until, is_over: Arc::default() }
    }

    /// When it ends.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether somebody still waits for it: the queue pair is there, and it is not its end yet. To be
    /// asked every few milliseconds.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed) && clock::now() < self.until
    }
}

/// Makes the connections of one queue pair, until it is dropped. It does not wait for its threads then:
/// each ends with the attempt that is under way.
pub struct Shadow {
    connector: Arc<dyn Connector>,
    desk: Arc<Desk>,
    /// Rails that it connects, the default one first.
    rails: usize,
}

impl Shadow {
    /// A shadow that has nothing to do before a queue pair [has](VirtualQp::set_shadow) it.
    #[must_use]
    pub fn new(connector: impl Connector + 'static) -> Self {
        let (connector, desk) = (Arc::new(connector), Arc::<Desk>::default());
        connector.announce(Bell::new(&desk));
        Self { connector, desk, rails: usize::MAX }
    }

    /// The same for a queue pair whose backups are connected by somebody else, as from a
    /// [`SparePool`](super::SparePool).
    #[must_use]
    pub fn of_default_rail(mut self) -> Self {
        self.rails = 1;
        self
    }

    /// Attempts that have failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.desk.failures()
    }

    /// Begins to make a connection for a rail, unless somebody is at it. Before each attempt the rail is
    /// prepared.
    fn seek(&self, rail: usize, prepare: impl Fn() -> Result<(), TransportError> + Send + 'static) {
        let Some(is_over) = self.desk.begin(rail) else { return };
        let errand = Errand {
            connector: Arc::clone(&self.connector),
            desk: Arc::clone(&self.desk),
            prepare: Box::new(prepare),
            rail,
            is_over,
        };
        let thread = std::thread::Builder::new().name("r2ccl-shadow".into());
        if let Err(reason) = thread.spawn(move || errand.run()) {
            tracing::debug!(rail, %reason, "no thread for a rail");
        }
    }
}

impl fmt::Debug for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shadow").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.desk.clear();
    }
}

/// The work of one thread.
struct Errand {
    connector: Arc<dyn Connector>,
    desk: Arc<Desk>,
    prepare: Box<dyn Fn() -> Result<(), TransportError> + Send>,
    rail: usize,
    is_over: Arc<AtomicBool>,
}

impl Errand {
    /// Tries until there is a connection, or nobody wants one.
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        while !self.is_over.load(Ordering::Relaxed) {
            let prepared = (self.prepare)();
            let begun = clock::now();
            let attempt =
                Attempt { until: begun + ATTEMPT_LIMIT, is_over: Arc::clone(&self.is_over) };
            match prepared.and_then(|()| self.connector.connect(self.rail, &attempt)) {
                Ok(connection) => return self.desk.found(self.rail, &self.is_over, connection),
                Err(reason) => {
                    self.desk.failed();
                    tracing::debug!(rail = self.rail, %reason, "no connection for a rail yet");
                }
            }
            self.desk.rest(&self.is_over, begun + pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Errand {
    /// However it ends, also without having begun, another one may begin.
    fn drop(&mut self) {
        self.desk.ended(self.rail, &self.is_over);
    }
}

impl VirtualQp {
    /// Lets a shadow make the connections of all rails, from the moment when the default one is
    /// connected, and again whenever one has failed; or ends that, by dropping the shadow that it had.
    /// While it has one, leave [`attach`](Self::attach) to it.
    pub fn set_shadow(&mut self, shadow: Option<Shadow>) {
        self.shadow = shadow;
        self.seek();
    }

    /// Its shadow.
    #[must_use]
    pub fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// Has connections made for all rails that have none.
    pub(super) fn seek(&self) {
        let Some(shadow) = &self.shadow else { return };
        let rails = self.rails.len().min(shadow.rails);
        for rail in (0..rails).filter(|&rail| self.wants(rail)) {
            let shared = Arc::clone(&self.shared);
            shadow.seek(rail, move || shared.open(rail));
        }
    }

    /// Whether the shadow has found something.
    pub(super) fn has_finds(&self) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.desk.has_finds())
    }

    /// Attaches what the shadow has found.
    pub(super) fn take_finds(&mut self) {
        let Some(shadow) = &self.shadow else { return };
        let rails = self.rails.len();
        let finds = shadow.desk.take().into_iter();
        for (rail, find) in finds.filter(|(rail, _)| *rail < rails) {
            match find {
                // Who offers a connection has given up the one before.
                Find::Offer => self.suspect(rail),
                Find::Connection(connection) if self.wants(rail) => {
                    if let Err(reason) = self.attach(rail, connection) {
                        tracing::debug!(rail, %reason, "a connection was not taken");
                    }
                }
                Find::Connection(_) => {}
            }
        }
        self.seek();
    }

    /// Nothing is wanted any more, or everything anew.
    pub(super) fn dismiss_shadow(&self) {
        if let (Some(shadow), false) = (&self.shadow, self.state == State::ReadyToSend) {
            shadow.desk.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn refuse() -> Result<Connection, TransportError> {
        Err(TransportError::PeerGone("a test".into()))
    }

    #[test]
    fn a_rail_is_sought_by_one_thread_at_a_time() {
        let (sender, receiver) = mpsc::channel();
        let shadow = Shadow::new(move |rail: usize, attempt: &Attempt| {
            sender.send(rail).unwrap();
            while attempt.is_wanted() {
                std::thread::yield_now();
            }
            refuse()
        });
        for rail in [1, 2, 1, 2, 1] {
            shadow.seek(rail, || Ok(()));
        }
        let mut sought = [0; 2].map(|_| receiver.recv_timeout(LIMIT).unwrap());
        sought.sort_unstable();
        assert_eq!(sought, [1, 2]);
        drop(shadow);
        // The threads may have tried again; then they drop the connector, and with it the only sender.
        let deadline = clock::now() + LIMIT;
        while receiver.recv_timeout(LIMIT) != Err(mpsc::RecvTimeoutError::Disconnected) {
            assert!(clock::now() < deadline);
        }
    }

    #[test]
    fn a_thread_that_panics_is_replaced() {
        let shadow = Shadow::new(|rail: usize, _: &Attempt| -> Result<Connection, _> {
            panic!("rail {rail}: a panic on purpose")
        });
        for _ in 0..2 {
            shadow.seek(1, || Ok(()));
            let deadline = clock::now() + LIMIT;
            while shadow.desk.is_sought(1) {
                assert!(clock::now() < deadline, "{shadow:?}");
                std::thread::yield_now();
            }
        }
    }
}
