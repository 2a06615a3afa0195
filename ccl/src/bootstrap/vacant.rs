//! Behind whose doors nobody is left, found out without speaking with anybody.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::unique_id::UniqueId;

/// How long the network may take with an answer.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// Most places at which is knocked at the same time.
const AT_ONCE: usize = 64;

/// What came of a knock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Somebody is there, or may be: the network does not say.
    Somebody,
    /// The host is there and nobody listens.
    Nobody,
}

/// A connection that is being made, for what its host says of it.
struct Knock {
    rank: Rank,
    place: SocketAddr,
    socket: Option<Socket>,
    answer: Option<Answer>,
}

/// The ranks behind whose doors nobody listens any more: their processes have ended, or have dropped what the doors belong to.
/// Who cannot be reached is not one of them.
///
/// # Errors
/// [`Error::System`] if this process cannot knock.
pub(super) fn vacant(doors: &[(Rank, &UniqueId)]) -> Result<BTreeSet<Rank>, Error> {
    let places = |(rank, id): &(Rank, &UniqueId)| {
        let rank = *rank;
        id.places().into_iter().map(move |place| (rank, place))
    };
    let places: Vec<(Rank, SocketAddr)> = doors.iter().flat_map(places).collect();
    let mut knocks = Vec::new();
    for places in places.chunks(AT_ONCE) {
        let begun = places.iter().map(|(rank, place)| Knock::begin(*rank, *place));
        knocks.extend(answered(begun.collect::<Result<_, _>>()?)?);
    }
    let is_vacant = |rank: Rank| {
        let mut at = knocks.iter().filter(|knock| knock.rank == rank);
        // Seen from here, one of several addresses may be that of something else.
        at.clone().all(Knock::is_vain)
            || at.any(|knock| knock.place.ip().is_loopback() && knock.is_vain())
    };
    Ok(doors.iter().map(|(rank, _)| *rank).filter(|rank| is_vacant(*rank)).collect())
}

impl Knock {
    fn begin(rank: Rank, place: SocketAddr) -> Result<Self, Error> {
        let cannot = |cause| Error::system("knock at the door of another rank", cause);
        let domain = Domain::for_address(place);
        let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP));
        let socket = socket.map_err(cannot)?;
        let answer = match socket.connect(&place.into()) {
            Ok(()) => Some(Self::reached(&socket)),
            Err(cause) => answer_of(&cause),
        };
        Ok(Self { rank, place, socket: Some(socket), answer })
    }

    /// A port in the ephemeral range can connect to itself.
    fn reached(socket: &Socket) -> Answer {
        let ends = (socket.local_addr().ok(), socket.peer_addr().ok());
        let ends = (ends.0.and_then(|own| own.as_socket()), ends.1.and_then(|it| it.as_socket()));
        if ends.0 == ends.1 { Answer::Nobody } else { Answer::Somebody }
    }

    /// It is settled how it went.
    fn settle(&mut self) {
        let Some(socket) = &self.socket else { return };
        self.answer = Some(match socket.take_error() {
            Ok(None) => Self::reached(socket),
            Ok(Some(cause)) => answer_of(&cause).unwrap_or(Answer::Somebody),
            Err(_) => Answer::Somebody,
        });
    }

    fn is_vain(&self) -> bool {
        self.answer == Some(Answer::Nobody)
    }
}

/// What it says that a connection is not made, if it is not being made any more.
fn answer_of(cause: &std::io::Error) -> Option<Answer> {
    match Errno::from_io_error(cause) {
        Some(Errno::INPROGRESS) => None,
        Some(Errno::CONNREFUSED) => Some(Answer::Nobody),
        Some(_) | None => Some(Answer::Somebody),
    }
}

/// Waits for the answers.
fn answered(mut knocks: Vec<Knock>) -> Result<Vec<Knock>, Error> {
    let end = clock::now() + ANSWER_TIME;
    while let Some(limit) = left(end)
        && knocks.iter().any(|knock| knock.answer.is_none())
    {
        let open = knocks.iter_mut().filter(|knock| knock.answer.is_none());
        let mut open: Vec<&mut Knock> = open.collect();
        let polled = open.iter().filter_map(|knock| knock.socket.as_ref());
        let mut polled: Vec<PollFd<'_>> =
            polled.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        match poll(&mut polled, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(Error::system("poll", cause)),
        }
        let is_settled: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (knock, _) in open.iter_mut().zip(is_settled).filter(|(_, is_settled)| *is_settled) {
            knock.settle();
        }
    }
    // There may be many more.
    knocks.iter_mut().for_each(|knock| knock.socket = None);
    Ok(knocks)
}

/// The time until then, if there is any.
fn left(end: Instant) -> Option<Timespec> {
    let left = end.saturating_duration_since(clock::now());
    (!left.is_zero()).then(|| Timespec::try_from(left).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use ccl_core::settings::Settings;

    use super::*;
    use crate::bootstrap::unique_id::Door;

    #[test]
    fn doors_are_vacant_once_their_processes_have_closed_them() {
        let settings = Settings::default();
        let doors: Vec<Door> = (0..100).map(|_| Door::open(&settings).unwrap()).collect();
        let ids: Vec<UniqueId> = doors.iter().map(|door| door.id).collect();
        let ids: Vec<(Rank, &UniqueId)> = (0..).map(Rank).zip(&ids).collect();
        let nobody = BTreeSet::new();
        assert_eq!(vacant(&ids), Ok(nobody.clone()));
        assert_eq!(vacant(&ids), Ok(nobody), "as often as one likes");
        let gone = |rank: u32| [1, 70, 99].contains(&rank);
        let open = (0..).zip(doors).filter(|(rank, _)| !gone(*rank));
        let _open: Vec<Door> = open.map(|(_, door)| door).collect();
        assert_eq!(vacant(&ids), Ok([Rank(1), Rank(70), Rank(99)].into()));
    }

    /// Somewhere from where nothing comes back: more connections than the listener wants are waiting.
    fn silent_place() -> (SocketAddr, Socket, Vec<TcpStream>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let place = listener.local_addr().unwrap().as_socket().unwrap();
        let soon = Duration::from_millis(100);
        let waiting = (0..100).map_while(|_| TcpStream::connect_timeout(&place, soon).ok());
        let waiting: Vec<TcpStream> = waiting.collect();
        assert!(waiting.len() < 100, "it is silent");
        (place, listener, waiting)
    }

    #[test]
    fn who_is_not_reached_may_be_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = SocketAddr::from(([127, 0, 0, 9], open.port()));
        let (silent, _listener, _waiting) = silent_place();
        let places = [silent, open, closed].map(|place| {
            UniqueId::at_fixed_port(&[place.ip()], place.port(), "job", &Settings::default())
        });
        let all: Vec<(Rank, &UniqueId)> = (0..).map(Rank).zip(&places).collect();
        assert_eq!(vacant(&all), Ok([Rank(2)].into()));
    }
}
