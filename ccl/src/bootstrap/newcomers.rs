//! Who has connected to the store, until it is known whether it is a rank.
//!
//! Whoever speaks proves the key, which goes back and forth, in a short-lived thread of its own. Whoever says nothing has
//! none, and makes room for others. So strangers delay nobody, and ranks that come at once wait for each other.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_transport::auth::{self, JobKey};
use ccl_transport::visitors::Visitors;
use ccl_transport::{clock, descriptors};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::message::{self, Hello};
use super::server::PATIENCE;

/// How long a newcomer may take to speak, and then to prove that it knows the key.
const PROOF_TIME: Duration = Duration::from_secs(30);
/// Pause after the kernel had no descriptor or no thread for a newcomer.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);
/// How long that may last before it counts as a failure.
const SHORTAGE_LIMIT: Duration = Duration::from_secs(5);

/// How many newcomers there may be.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// That prove the key at the same time; the others wait.
    proving: usize,
    /// That wait. One more replaces the oldest that has said nothing, or stays in the kernel.
    waiting: usize,
}

const LIMITS: Limits = Limits { proving: 256, waiting: 256 };

/// Who is let in.
pub(super) struct Admission {
    pub(super) key: JobKey,
    pub(super) communicator: u64,
}

/// A connection whose other end proved the key, or why it did not.
type Newcomer = Result<(TcpStream, Hello), String>;

/// What the kernel refused, and why.
type Lack = (&'static str, io::Error);

/// The kernel has no descriptor or no thread for newcomers.
#[derive(Debug)]
struct Shortage {
    since: Instant,
    until: Instant,
    cause: String,
}

pub(super) struct Newcomers {
    admission: Arc<Admission>,
    limits: Limits,
    waiting: Visitors<()>,
    proving: usize,
    wake: Arc<OwnedFd>,
    sender: Sender<Newcomer>,
    proved: Receiver<Newcomer>,
    refused: u64,
    shortage: Option<Shortage>,
}

impl Newcomers {
    pub(super) fn new(admission: Admission) -> Result<Self, Error> {
        Self::with(admission, LIMITS)
    }

    fn with(admission: Admission, limits: Limits) -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|cause| Error::system("eventfd", cause))?;
        let (sender, proved) = channel();
        Ok(Self {
            admission: Arc::new(admission),
            limits,
            waiting: Visitors::new(limits.waiting, PROOF_TIME),
            proving: 0,
            wake: Arc::new(wake),
            sender,
            proved,
            refused: 0,
            shortage: None,
        })
    }

    /// Whoever writes to it makes the store look here.
    pub(super) fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    /// What is readable when there is something to do here.
    pub(super) fn polled<'a>(&'a self, door: &'a TcpListener, now: Instant) -> Vec<PollFd<'a>> {
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        if self.has_room(now) {
            fds.push(PollFd::new(door, PollFlags::IN));
            fds.extend(self.waiting.polled());
        }
        fds
    }

    /// When a shortage is worth another look.
    pub(super) fn pause_ends(&self) -> Option<Instant> {
        self.shortage.as_ref().map(|shortage| shortage.until)
    }

    /// What the kernel lacks, if that has lasted for too long.
    pub(super) fn shortage(&self, now: Instant) -> Option<&str> {
        let shortage = self.shortage.as_ref()?;
        (now.saturating_duration_since(shortage.since) > SHORTAGE_LIMIT)
            .then_some(shortage.cause.as_str())
    }

    /// Lets in who is at the door, and returns who has proved the key.
    pub(super) fn receive(&mut self, door: &TcpListener, now: Instant) -> Vec<(TcpStream, Hello)> {
        if self.has_room(now) {
            let accepted = self.accept(door, now);
            // Those who have come are attended to even if nobody else can come: that ends what they use.
            match accepted.and(self.attend(now)) {
                Ok(()) => self.shortage = None,
                Err((call, cause)) => self.lack(call, &cause, now),
            }
        }
        let mut count = [0; 8];
        // Nothing to read means that an earlier turn took the count; the queue says what there is.
        let _ = rustix::io::read(&*self.wake, &mut count);
        let mut admitted = Vec::new();
        while let Ok(newcomer) = self.proved.try_recv() {
            self.proving -= 1;
            match newcomer {
                Ok(newcomer) => admitted.push(newcomer),
                Err(reason) => self.log_refusal(&reason),
            }
        }
        admitted
    }

    fn has_room(&self, now: Instant) -> bool {
        self.proving < self.limits.proving && self.pause_ends().is_none_or(|until| now >= until)
    }

    fn accept(&mut self, door: &TcpListener, now: Instant) -> Result<(), Lack> {
        for _ in 0..self.limits.waiting {
            if !self.waiting.has_room() {
                return Ok(());
            }
            match door.accept() {
                Ok((stream, _)) => self.waiting.add(stream, (), now),
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause)
                    if descriptors::are_short(&cause) && !descriptors::is_anybody_at(door) =>
                {
                    return Ok(());
                }
                Err(cause)
                    if descriptors::are_short(&cause)
                        && (descriptors::raise_limit() || self.waiting.forget_one()) => {}
                Err(cause) => return Err(("accept a connection", cause)),
            }
        }
        Ok(())
    }

    /// Turns to those who have spoken.
    fn attend(&mut self, now: Instant) -> Result<(), Lack> {
        while self.proving < self.limits.proving
            && let Some((stream, ())) = self.waiting.next_speaker(now)
        {
            self.prove(stream, now)?;
        }
        Ok(())
    }

    /// Lets a newcomer prove the key. Without a thread it waits: the end of its connection would look like a verdict.
    fn prove(&mut self, stream: TcpStream, now: Instant) -> Result<(), Lack> {
        let (admission, sender, wake) =
            (Arc::clone(&self.admission), self.sender.clone(), Arc::clone(&self.wake));
        let (hand, handed) = channel();
        let proof = move || {
            let Ok(stream) = handed.recv() else { return };
            // The store may have ended meanwhile; then nobody waits for the newcomer.
            let _ = sender.send(admit(stream, &admission));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        match thread::Builder::new().name("r2ccl-accept".to_owned()).spawn(proof) {
            Ok(_) => {
                self.proving += 1;
                // The thread waits for it.
                let _ = hand.send(stream);
                Ok(())
            }
            Err(cause) => {
                self.waiting.put_back(stream, (), now);
                Err(("start a thread for a newcomer", cause))
            }
        }
    }

    /// The kernel refuses what newcomers need. It may be better soon.
    fn lack(&mut self, call: &'static str, cause: &io::Error, now: Instant) {
        let until = now + SHORTAGE_PAUSE;
        if let Some(shortage) = &mut self.shortage {
            shortage.until = until;
            return;
        }
        tracing::warn!(%cause, call, "the store cannot let ranks in; it tries again");
        let remedy = if descriptors::are_short(cause) {
            "; raise `ulimit -n` where the store is, mostly for rank 0: it needs one for each rank"
        } else {
            ""
        };
        let cause = format!("{call}: {cause}{remedy}");
        self.shortage = Some(Shortage { since: now, until, cause });
    }

    /// A port scanner must not fill the log.
    fn log_refusal(&mut self, reason: &str) {
        self.refused += 1;
        if self.refused == 1 {
            tracing::warn!(
                reason,
                "the store refused a connection; further ones are logged as debug"
            );
        } else {
            tracing::debug!(reason, count = self.refused, "the store refused a connection");
        }
    }
}

/// Makes a newcomer prove the key and say who it is.
fn admit(stream: TcpStream, admission: &Admission) -> Newcomer {
    let address = stream.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
    let name = |reason: String| format!("{address}: {reason}");
    let hello = auth::accept(&stream, &admission.key, clock::now() + PROOF_TIME)
        .map_err(|cause| name(cause.to_string()))?;
    let hello: Hello = message::decode(&hello).map_err(name)?;
    if hello.communicator != admission.communicator {
        return Err(name(format!("it belongs to communicator {:016x}", hello.communicator)));
    }
    prepare(&stream).map_err(|cause| name(cause.to_string()))?;
    Ok((stream, hello))
}

/// What the peer's kernel does not acknowledge ends the connection after [`PATIENCE`]. A process that
/// is stopped is not lost that way: its kernel acknowledges.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(PATIENCE))?;
    socket.set_tcp_nodelay(true)?;
    stream.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use ccl_transport::TransportError;
    use ccl_transport::alone::is_alone;
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    const FEW: Limits = Limits { proving: 2, waiting: 4 };

    fn key() -> JobKey {
        JobKey::from_bytes([0; 32])
    }

    fn door_of(limits: Limits) -> (TcpListener, Newcomers) {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        door.set_nonblocking(true).unwrap();
        let admission = Admission { key: key(), communicator: 7 };
        (door, Newcomers::with(admission, limits).unwrap())
    }

    fn soon() -> Instant {
        clock::now() + Duration::from_secs(20)
    }

    /// Proves the key, once, in a thread of its own.
    fn come(stream: TcpStream, rank: u32) -> thread::JoinHandle<Result<(), TransportError>> {
        let hello = message::encode(&Hello { communicator: 7, rank }).unwrap();
        thread::spawn(move || {
            auth::initiate(&stream, &key(), &hello[message::LENGTH_BYTES..], soon())
        })
    }

    /// The ranks that are let in, once there are so many.
    fn receive(newcomers: &mut Newcomers, door: &TcpListener, count: usize) -> Vec<u32> {
        let (mut admitted, deadline) = (Vec::new(), soon());
        while admitted.len() < count && clock::now() < deadline {
            admitted.extend(newcomers.receive(door, clock::now()));
            clock::sleep(Duration::from_millis(1));
        }
        admitted.iter().map(|(_, hello)| hello.rank).collect()
    }

    #[test]
    fn a_shortage_is_a_failure_when_it_lasts_and_none_once_it_is_over() {
        let (door, mut newcomers) = door_of(LIMITS);
        let start = clock::now();
        let late = start + SHORTAGE_LIMIT + SHORTAGE_PAUSE;
        for now in [start, start + SHORTAGE_LIMIT, late] {
            newcomers.lack("accept", &rustix::io::Errno::MFILE.into(), now);
            assert!(!newcomers.has_room(now) && newcomers.has_room(now + SHORTAGE_PAUSE));
        }
        assert!(newcomers.shortage(start + SHORTAGE_LIMIT).is_none());
        let cause = newcomers.shortage(late).unwrap();
        assert!(cause.contains("ulimit -n"), "{cause}");
        newcomers.receive(&door, late + SHORTAGE_PAUSE);
        assert!(newcomers.shortage(late + 2 * SHORTAGE_LIMIT).is_none());
    }

    /// Lets this process have so many descriptors more, and no others.
    fn leave_descriptors(more: u64) {
        let next = std::fs::File::open("/dev/null").unwrap();
        let limit = Some(u64::try_from(next.as_raw_fd()).unwrap() + more);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    }

    #[test]
    fn strangers_give_up_descriptors_and_an_exact_fit_is_no_shortage() {
        if !is_alone(
            "bootstrap::newcomers::tests::strangers_give_up_descriptors_and_an_exact_fit_is_no_shortage",
        ) {
            return;
        }
        let (door, mut newcomers) = door_of(FEW);
        let address = door.local_addr().unwrap();
        let strangers = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let late =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        leave_descriptors(2);
        assert!(newcomers.receive(&door, clock::now()).is_empty());
        assert_eq!(newcomers.waiting.polled().count(), strangers.len());
        assert_eq!(newcomers.pause_ends(), None, "nobody waits for a descriptor");
        late.connect(&address.into()).unwrap();
        let rank = come(late.into(), 3);
        assert_eq!(receive(&mut newcomers, &door, 1), [3]);
        assert_eq!(newcomers.waiting.polled().count(), 1, "one stranger is left");
        assert_eq!(rank.join().unwrap(), Ok(()));
    }

    /// They take all the room there is, and a rank comes in all the same.
    #[test]
    fn strangers_who_say_nothing_keep_nobody_out() {
        let (door, mut newcomers) = door_of(FEW);
        let address = door.local_addr().unwrap();
        let mut strangers = Vec::new();
        for _ in 0..FEW.waiting + FEW.proving {
            strangers.push(TcpStream::connect(address).unwrap());
            assert!(newcomers.receive(&door, clock::now()).is_empty());
        }
        let rank = come(TcpStream::connect(address).unwrap(), 3);
        assert_eq!(receive(&mut newcomers, &door, 1), [3]);
        assert_eq!(rank.join().unwrap(), Ok(()));
    }

    /// Waits until so many have spoken at a door where nobody was accepted.
    fn await_words(door: &TcpListener, count: usize) {
        let here = format!(":{:04X}", door.local_addr().unwrap().port());
        let has_spoken = |line: &&str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, local, _, state, queues, ..] = fields[..] else { return false };
            local.ends_with(&here) && state == "01" && !queues.ends_with(":00000000")
        };
        let (table, deadline) = (|| std::fs::read_to_string("/proc/net/tcp").unwrap(), soon());
        while table().lines().filter(has_spoken).count() < count {
            assert!(clock::now() < deadline, "{}", table());
            clock::sleep(Duration::from_millis(1));
        }
    }

    /// None of them is taken for a stranger: each proves the key once.
    #[test]
    fn ranks_that_come_at_once_all_come_in() {
        let (door, mut newcomers) = door_of(FEW);
        let address = door.local_addr().unwrap();
        let all = 0..20;
        let ranks: Vec<_> =
            all.clone().map(|rank| come(TcpStream::connect(address).unwrap(), rank)).collect();
        await_words(&door, ranks.len());
        let mut admitted = receive(&mut newcomers, &door, ranks.len());
        admitted.sort_unstable();
        assert!(admitted.iter().copied().eq(all), "{admitted:?}");
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), Ok(()));
        }
    }

    #[test]
    fn who_has_come_is_heard_while_nobody_else_can_come() {
        let (open, mut newcomers) = door_of(FEW);
        let rank = come(TcpStream::connect(open.local_addr().unwrap()).unwrap(), 3);
        let (stream, _) = open.accept().unwrap();
        newcomers.waiting.add(stream, (), clock::now());
        // A socket that does not listen accepts nobody.
        let shut = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        assert_eq!(receive(&mut newcomers, &shut.unwrap().into(), 1), [3]);
        assert_eq!(rank.join().unwrap(), Ok(()));
    }
}
