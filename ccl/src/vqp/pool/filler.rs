//! Makes the connections of a pool, in the background.
//!
//! The end that dials has a thread for each rail, which sleeps while nothing is missing: so a rail that does not work
//! keeps no other one waiting. The end that accepts has one thread, which sleeps until somebody connects and speaks. A
//! connection begins with the proof of the key, the name of the pool, and what it is for.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ccl_transport::nics::Listeners;
use ccl_transport::verbs::soft::socket;
use ccl_transport::visitors::{self, Visitors};
use ccl_transport::{TransportError, auth, clock};
use rustix::event::{PollFd, PollFlags, poll};

use super::super::Error;
use super::super::domain::Wiring;
use super::super::meeting::timespec;
use super::stock::{Purpose, Stock};

/// How long one connection may take.
const LIMIT: Duration = Duration::from_secs(1);
/// From one attempt that has failed to the next; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = LIMIT;
/// Questions about an idle connection that may remain without an answer.
const QUESTIONS: u32 = 3;
const MAGIC: &str = "r2ccl pool ";
/// After the descriptors have run out.
const CLOSED_PAUSE: Duration = Duration::from_millis(20);

/// The threads of a pool. They end with it, each after what it is at.
#[derive(Debug)]
pub(super) struct Filler {
    stock: Arc<Stock>,
    /// The accepting thread ends when this is closed.
    _line: Option<UnixStream>,
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stock.finish();
    }
}

/// Listeners on all rails but the default one.
pub(super) fn listen(wiring: &Wiring) -> Result<Listeners, Error> {
    Ok(Listeners::open(&wiring.bindings[1..])?)
}

impl Filler {
    /// At the end that dials.
    pub(super) fn dialling(stock: &Arc<Stock>, addresses: &[SocketAddr]) -> Result<Self, Error> {
        // It ends the threads that have begun, if one cannot.
        let filler = Self { stock: Arc::clone(stock), _line: None };
        for (index, &address) in addresses.iter().enumerate() {
            let (stock, rail) = (Arc::clone(stock), index + 1);
            begin(move || fill(&stock, rail, address))?;
        }
        Ok(filler)
    }

    /// At the end that accepts.
    pub(super) fn accepting(stock: &Arc<Stock>, mut listeners: Listeners) -> Result<Self, Error> {
        let (line, end) =
            UnixStream::pair().map_err(|cause| Error::system("make a pair of sockets", cause))?;
        let inside = Arc::clone(stock);
        begin(move || welcome(&inside, &mut listeners, &end))?;
        Ok(Self { stock: Arc::clone(stock), _line: Some(line) })
    }
}

/// A thread of a pool.
pub(super) fn begin(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name("r2ccl-pool".into());
    thread.spawn(work).map(drop).map_err(|cause| Error::system("start a thread", cause))
}

/// Dials what is missing on a rail, until it is over.
fn fill(stock: &Stock, rail: usize, peer: SocketAddr) {
    let mut pause = FIRST_PAUSE;
    while let Some(purpose) = stock.next_missing(rail) {
        match dial(stock, rail, peer, purpose) {
            Ok(stream) => {
                stock.put(rail, purpose, stream);
                pause = FIRST_PAUSE;
            }
            Err(reason) => {
                tracing::debug!(rail, %reason, "no connection for a pool yet");
                stock.rest(rail, pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
    }
}

fn dial(
    stock: &Stock,
    rail: usize,
    peer: SocketAddr,
    purpose: Purpose,
) -> Result<TcpStream, TransportError> {
    if stock.is_broken(rail) {
        return Err(TransportError::TimedOut(format!("rail {rail} is broken on purpose")));
    }
    let wiring = &stock.wiring;
    let stream = socket::dial(&wiring.bindings[rail], peer, LIMIT)?;
    let hello = hello(&stock.name, purpose);
    auth::initiate(&stream, &wiring.key, hello.as_bytes(), clock::now() + LIMIT)?;
    socket::keep_asking(&stream, QUESTIONS)?;
    Ok(stream)
}

/// What a connection is for, as the end that dials sees it.
fn hello(pool: &str, purpose: Purpose) -> String {
    let purpose = match purpose {
        Purpose::Ours => "mine",
        Purpose::Theirs => "yours",
        Purpose::Line => "line",
    };
    format!("{MAGIC}{pool} {purpose}")
}

/// The same, as the end that accepts sees it.
fn purpose(pool: &str, heard: &[u8]) -> Option<Purpose> {
    let of_dialler = [Purpose::Ours, Purpose::Theirs, Purpose::Line];
    let index = of_dialler.iter().position(|one| hello(pool, *one).as_bytes() == heard)?;
    Some([Purpose::Theirs, Purpose::Ours, Purpose::Line][index])
}

/// Accepts what the peer dials, until the other end of `end` is closed. Where a NIC is put in again, it is listened to
/// anew.
fn welcome(stock: &Stock, listeners: &mut Listeners, end: &UnixStream) {
    let mut visitors = Visitors::new(visitors::FEW, LIMIT);
    loop {
        let mut polled = vec![PollFd::new(end, PollFlags::IN)];
        let announcements = listeners.announcements();
        polled.extend(announcements.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
        let all = listeners.all().iter();
        polled.extend(all.map(|listener| PollFd::new(listener, PollFlags::IN)));
        polled.extend(visitors.polled());
        let silence = visitors.deadline().map(|at| at.saturating_duration_since(clock::now()));
        let pause = listeners.longest_sleep().into_iter().chain(silence).min().map(timespec);
        // A poll that is interrupted is repeated.
        let _ = poll(&mut polled, pause.as_ref());
        if !polled[0].revents().is_empty() {
            return;
        }
        listeners.follow();
        for (index, listener) in listeners.all().iter().enumerate() {
            accept(&mut visitors, index + 1, listener);
        }
        while let Some((stream, rail)) = visitors.next_speaker(clock::now()) {
            match greet(stock, &stream) {
                Ok(purpose) => stock.put(rail, purpose, stream),
                Err(reason) => tracing::debug!(rail, %reason, "not the peer of a pool"),
            }
        }
    }
}

fn accept(visitors: &mut Visitors<usize>, rail: usize, listener: &TcpListener) {
    match listener.accept() {
        Ok((stream, _)) => visitors.add(stream, rail, clock::now()),
        Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
        Err(reason) => {
            tracing::debug!(rail, %reason, "no connection for a pool");
            clock::sleep(CLOSED_PAUSE);
        }
    }
}

fn greet(stock: &Stock, stream: &TcpStream) -> Result<Purpose, TransportError> {
    let heard = auth::accept(stream, &stock.wiring.key, clock::now() + LIMIT)?;
    socket::keep_asking(stream, QUESTIONS)?;
    let stranger = || TransportError::Refused("it is for another pool".into());
    purpose(&stock.name, &heard).ok_or_else(stranger)
}

#[cfg(test)]
mod tests {
    use ccl_core::settings::Settings;

    use super::super::super::devices::ports;
    use super::super::super::{Domain, DomainConfig, Key};
    use super::super::keeper::Keeper;
    use super::*;

    #[test]
    fn strangers_who_say_nothing_keep_no_pool_empty() {
        let stock = |addresses: &str| {
            let rails = ports(addresses, &Settings::default()).unwrap();
            let key = Key::from_passphrase("a test of pools");
            let domain = Domain::over(&rails, &DomainConfig::default(), None, &key).unwrap();
            let keeper = Keeper::new(domain.inner.clone(), 2);
            Arc::new(Stock::new("a pool".into(), 2, keeper, Arc::clone(&domain.wiring)))
        };
        let (near, far) = (stock("127.4.7.1,127.4.7.2"), stock("127.4.8.1,127.4.8.2"));
        let patience = Duration::from_secs(30);
        let listeners = listen(&near.wiring).unwrap();
        let addresses = listeners.addresses();
        let strangers: Vec<_> = (0..patience.as_secs() + 10)
            .map(|_| TcpStream::connect(addresses[0]).unwrap())
            .collect();
        let fillers = (Filler::accepting(&near, listeners), Filler::dialling(&far, &addresses));
        let end = clock::now() + patience;
        while far.spares() == 0 {
            assert!(clock::now() < end, "nobody has come in");
            clock::sleep(Duration::from_millis(1));
        }
        drop((strangers, fillers));
    }

    #[test]
    fn what_one_end_calls_its_own_is_the_peers() {
        for (dialled, accepted) in [
            (Purpose::Ours, Purpose::Theirs),
            (Purpose::Theirs, Purpose::Ours),
            (Purpose::Line, Purpose::Line),
        ] {
            let said = hello("a pool", dialled);
            assert_eq!(purpose("a pool", said.as_bytes()), Some(accepted));
            assert_eq!(purpose("another", said.as_bytes()), None);
        }
    }
}
