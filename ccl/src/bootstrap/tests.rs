//! Store, control and rendezvous over real sockets, with threads as ranks.

mod going_on;
mod meeting;
mod resumption;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::{Endpoint, Settings};
use ccl_transport::{auth, clock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{Domain, Socket, Type};

use super::connect::{NoConnection, Return, Vacancy, return_to};
use super::heard::Heard;
use super::message::{self, Envelope, Numbered, Push, Request};
use super::server::this_process;
use super::watcher::SILENCE;
use super::{Control, ControlEvent, Listener, UniqueId, connect, meet};
use crate::environment::Environment;
use crate::launch::{Launch, Launcher, Meeting};

/// Far beyond what any of these tests takes.
fn deadline() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    clock::now() + Duration::from_secs(2)
}

/// A connection to the store of `id`, which has proved the key.
fn dial(id: &UniqueId, rank: u32) -> Result<TcpStream, NoConnection> {
    connect::connect(id, &Heard::new(Rank(rank)), Vacancy::Early, deadline())
}

fn join_request(size: u32) -> Request {
    Request::Join { size, absent: BTreeSet::new(), process: this_process() }
}

fn new_id() -> UniqueId {
    UniqueId::create(&Settings::default()).unwrap()
}

/// What every rank of `ranks` got that joined a group of `size`, in that order.
fn join_all(
    id: &UniqueId,
    ranks: &[u32],
    size: u32,
    deadline: Instant,
) -> Vec<Result<Control, Error>> {
    thread::scope(|scope| {
        let join = |rank: &u32| {
            let rank = Rank(*rank);
            scope.spawn(move || Control::join(id, rank, size, deadline))
        };
        let joining: Vec<_> = ranks.iter().map(join).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn formed(size: u32) -> Vec<Control> {
    let ranks: Vec<u32> = (0..size).collect();
    join_all(&new_id(), &ranks, size, deadline()).into_iter().map(Result::unwrap).collect()
}

/// Waits until a fault arrives.
fn fault_of(control: &Control) -> Error {
    let error = control.get("nobody sets this", deadline()).unwrap_err();
    assert_eq!(control.fault().map(|fault| Error::clone(fault)), Some(error.clone()));
    error
}

#[test]
fn ranks_join_gather_and_leave() {
    for size in 1..=5 {
        let controls = formed(size);
        let gathered: Vec<Vec<Vec<u8>>> = thread::scope(|scope| {
            let gather = |control| {
                scope.spawn(move || {
                    let rank = Control::rank(control).0;
                    let blob = vec![rank as u8; rank as usize];
                    control.all_gather("first", &blob, deadline()).unwrap();
                    control.all_gather("second", &blob, deadline()).unwrap()
                })
            };
            let gathering: Vec<_> = controls.iter().map(gather).collect();
            gathering.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let expected: Vec<Vec<u8>> = (0..size).map(|r| vec![r as u8; r as usize]).collect();
        assert!(gathered.iter().all(|values| *values == expected), "{gathered:?}");
        for control in &controls {
            assert_eq!((control.size(), control.fault()), (size, None));
            control.leave(2);
        }
    }
}

#[test]
fn a_rank_that_never_comes_is_named_on_every_rank_that_came() {
    for result in join_all(&new_id(), &[0, 2], 4, soon()) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
        assert!(error.to_string().contains("ranks 1, 3 did not come"), "{error}");
    }
}

#[test]
fn two_claims_of_a_rank_fail_on_every_rank() {
    let process = this_process().to_string();
    for result in join_all(&new_id(), &[0, 1, 1], 3, deadline()) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidUsage(_)), "{error:?}");
        let claims = format!("rank 1 is claimed by two processes, {process} and {process}");
        assert!(error.to_string().contains(&claims), "{error}");
    }
}

#[test]
fn a_process_that_comes_too_late_fails_alone() {
    let id = new_id();
    let controls = join_all(&id, &[0, 1], 2, deadline());
    let error = Control::join(&id, Rank(1), 2, deadline()).unwrap_err();
    assert!(error.to_string().contains("rank 1 is claimed by two processes"), "{error}");
    assert!(controls.iter().all(|control| control.as_ref().unwrap().fault().is_none()));
}

#[test]
fn strangers_do_not_disturb() {
    let id = new_id();
    let stranger = || TcpStream::connect(id.places()[0]).unwrap();
    let silent = stranger();
    let mut chatty = stranger();
    // Longer than any preamble, so that the store refuses it by content.
    chatty.write_all(&[b'x'; 200]).unwrap();
    drop(stranger());
    let controls = join_all(&id, &[0, 1, 2], 3, deadline());
    assert!(controls.iter().all(Result::is_ok), "{controls:?}");
    drop((silent, chatty));
}

#[test]
fn a_wrong_key_is_refused() {
    let id = new_id();
    let mut bytes = id.to_bytes();
    bytes[32] ^= 1;
    let wrong = UniqueId::from_bytes(&bytes).unwrap();
    let error = Control::join(&wrong, Rank(0), 2, deadline()).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage(_)), "{error:?}");
    let controls = join_all(&id, &[0, 1], 2, deadline());
    assert!(controls.iter().all(Result::is_ok), "{controls:?}");
}

#[test]
fn an_announcement_reaches_everybody() {
    let controls = formed(4);
    assert!(controls.iter().all(|control| control.fault().is_none()));
    let reason = "x".repeat(100_000);
    controls[1].announce(&ControlEvent::Aborted { rank: Rank(1), reason }).unwrap();
    for control in &controls {
        let error = fault_of(control);
        assert!(matches!(error, Error::Aborted { rank: Rank(1), .. }), "{error:?}");
        assert_eq!(control.all_gather("later", &[], deadline()), Err(error));
        control.leave(0);
    }
}

#[test]
fn a_rank_that_vanishes_is_lost() {
    let mut controls = formed(4);
    drop(controls.remove(2));
    for control in &controls {
        let error = fault_of(control);
        assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }), "{error:?}");
    }
}

#[test]
fn a_rank_that_vanishes_ends_the_waiting_for_it() {
    let mut controls = formed(3);
    let last = controls.pop();
    thread::scope(|scope| {
        let gather =
            |control| scope.spawn(move || Control::all_gather(control, "g", &[], deadline()));
        let gathering: Vec<_> = controls.iter().map(gather).collect();
        drop(last);
        for thread in gathering {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }), "{error:?}");
        }
    });
}

#[test]
fn a_rank_that_leaves_is_not_lost() {
    let mut controls = formed(3);
    let leaver = controls.remove(1);
    leaver.leave(5);
    assert!(leaver.all_gather("after", &[], deadline()).is_err());
    drop(leaver);
    for control in &controls {
        let error = control.all_gather("later", &[], deadline()).unwrap_err();
        let reason = "it left the communicator".to_owned();
        assert_eq!(error, Error::PeerLost { rank: Rank(1), reason });
        assert_eq!(control.fault(), None);
        assert!(control.has_departed(Rank(1)) && !control.has_departed(Rank(0)));
        assert_eq!(control.departed_before(5), None);
        assert_eq!(control.departed_before(6), Some(Rank(1)));
        control.set("key", &[3], deadline()).unwrap();
    }
    assert_eq!(controls[0].get("key", deadline()), Ok(vec![3]));
}

#[test]
fn a_gather_that_misses_a_rank_names_it() {
    let controls = formed(3);
    let error = thread::scope(|scope| {
        scope.spawn(|| controls[2].all_gather("g", &[], soon()).unwrap_err());
        controls[0].all_gather("g", &[], soon()).unwrap_err()
    });
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    assert!(error.to_string().contains("rank 1 did not contribute"), "{error}");
}

#[test]
fn who_does_not_reach_the_store_says_why() {
    let here = Ipv4Addr::LOCALHOST.into();
    let port = TcpListener::bind((here, 0)).unwrap().local_addr().unwrap().port();
    let id = UniqueId::at_fixed_port(&[here], port, "job", &Settings::default());
    let error = Control::join(&id, Rank(1), 2, soon()).unwrap_err().to_string();
    assert!(error.contains("connect: ") && !error.contains("no time is left"), "{error}");
    assert!(error.contains("in the process of rank 0"), "{error}");
}

#[test]
fn a_store_that_is_gone_is_not_waited_for() {
    // Bound, so that nobody else gets the port, and not listening.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).unwrap();
    let port = taken.local_addr().unwrap().as_socket().unwrap().port();
    let mut bytes = new_id().to_bytes();
    bytes[12..14].copy_from_slice(&port.to_le_bytes());
    let id = UniqueId::from_bytes(&bytes).unwrap();
    let end = deadline();
    let error = Control::join(&id, Rank(1), 2, end).unwrap_err();
    assert!(clock::now() < end, "{error:?}");
    assert!(
        matches!(&error, Error::System { call, .. } if call == "look for the store"),
        "{error:?}"
    );
    // Where it was not known before, one may come.
    let here = Ipv4Addr::LOCALHOST.into();
    let id = UniqueId::at_fixed_port(&[here], port, "job", &Settings::default());
    let error = Control::join(&id, Rank(1), 2, soon()).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
}

#[test]
fn limits_are_the_callers_error() {
    let controls = formed(1);
    let blob = vec![0; message::MAX_BLOB_BYTES + 1];
    let error = controls[0].all_gather("g", &blob, deadline()).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage(_)), "{error:?}");
    let blob = &blob[1..];
    assert_eq!(controls[0].all_gather("g", blob, deadline()).unwrap(), [blob]);
}

/// The first words of a rank, and a request, as they travel.
fn open(stream: &mut TcpStream) {
    let frame = message::encode(&Envelope::<Numbered>::Open([1; 16])).unwrap();
    stream.write_all(&frame).unwrap();
}

fn frame_of(request: Request) -> Vec<u8> {
    message::encode(&Envelope::Message(Numbered { number: 0, request })).unwrap()
}

#[test]
fn who_does_not_read_delays_nobody() {
    let id = new_id();
    let mut mute = dial(&id, 2).unwrap();
    open(&mut mute);
    let mut say = |request| mute.write_all(&frame_of(request)).unwrap();
    say(join_request(3));
    let controls = join_all(&id, &[0, 1], 3, deadline());
    let blob = vec![7; 1 << 20];
    for round in 0..16 {
        let name = format!("round {round}");
        say(Request::Gather { name: name.clone(), value: Vec::new() });
        thread::scope(|scope| {
            for control in &controls {
                let control = control.as_ref().unwrap();
                scope.spawn(|| {
                    let values = control.all_gather(&name, &blob, deadline()).unwrap();
                    assert_eq!(values, [blob.clone(), blob.clone(), Vec::new()]);
                });
            }
        });
    }
}

#[test]
fn who_breaks_the_protocol_is_lost() {
    let id = new_id();
    let mut liar = dial(&id, 1).unwrap();
    open(&mut liar);
    liar.write_all(&frame_of(join_request(2))).unwrap();
    let control = Control::join(&id, Rank(0), 2, deadline()).unwrap();
    liar.write_all(&[0xff; 8]).unwrap();
    let error = fault_of(&control);
    assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error:?}");
    assert!(error.to_string().contains("broke the protocol"), "{error}");
}

/// Keeps what it hears.
#[derive(Debug)]
struct Pigeonhole(Sender<(Rank, Vec<u8>)>);

impl Listener for Pigeonhole {
    fn letter(&self, from: Rank, letter: &[u8]) {
        self.0.send((from, letter.to_vec())).unwrap();
    }

    fn gone(&self, rank: Rank, calls: Option<u64>) {
        self.0.send((rank, format!("{calls:?}").into_bytes())).unwrap();
    }

    fn wake(&self) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn letters_arrive_in_order_and_before_the_news_that_their_writer_left() {
    let mut controls = formed(3);
    let last = controls.pop().unwrap();
    for number in 0..100u8 {
        last.letters().send(&[Rank(0), Rank(1)], vec![number]);
    }
    last.leave(7);
    for control in &controls {
        let (sender, receiver) = channel();
        let listener: Arc<dyn Listener> = Arc::new(Pigeonhole(sender));
        control.listen(&listener);
        let heard: Vec<_> =
            (0..101).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        let mut expected: Vec<_> = (0..100u8).map(|number| (Rank(2), vec![number])).collect();
        expected.push((Rank(2), b"Some(7)".to_vec()));
        assert_eq!(heard, expected);
    }
}

/// Lets a rank in, as the store does.
fn let_in(listener: &TcpListener, id: &UniqueId) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    auth::accept(&stream, &id.key(), deadline()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn say<T: Serialize>(stream: &mut TcpStream, envelope: &Envelope<T>) {
    stream.write_all(&message::encode(envelope).unwrap()).unwrap();
}

fn hear<T: DeserializeOwned>(stream: &mut TcpStream) -> Envelope<T> {
    let mut header = [0; message::LENGTH_BYTES];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; message::body_bytes(header, message::MAX_PUSH_BYTES).unwrap()];
    stream.read_exact(&mut body).unwrap();
    message::decode(&body).unwrap()
}
