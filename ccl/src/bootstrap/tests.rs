//! Store, control and rendezvous over real sockets, with threads as ranks.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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

use super::connect::{Return, return_to};
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
    let mut mute = connect::connect(&id, Rank(2), deadline()).unwrap();
    open(&mut mute);
    let mut say = |request| mute.write_all(&frame_of(request)).unwrap();
    say(Request::Join { size: 3, process: this_process() });
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
    let mut liar = connect::connect(&id, Rank(1), deadline()).unwrap();
    open(&mut liar);
    liar.write_all(&frame_of(Request::Join { size: 2, process: this_process() })).unwrap();
    let control = Control::join(&id, Rank(0), 2, deadline()).unwrap();
    liar.write_all(&[0xff; 8]).unwrap();
    let error = fault_of(&control);
    assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error:?}");
    assert!(error.to_string().contains("broke the protocol"), "{error}");
}

/// A network between one rank and the store that can die without telling anybody.
struct Network {
    port: u16,
    dead: Arc<AtomicBool>,
}

impl Network {
    /// Carries one connection to the store of `id`.
    fn to(id: &UniqueId) -> Self {
        Self::closing(id, 0)
    }

    /// The same, after it has closed so many.
    fn closing(id: &UniqueId, count: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dead = Arc::<AtomicBool>::default();
        let network = Self { port, dead: Arc::clone(&dead) };
        let store = id.places()[0];
        thread::spawn(move || {
            (0..count).for_each(|_| drop(listener.accept().unwrap()));
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(store).unwrap();
            for (mut from, mut to) in [(&near, &far), (&far, &near)]
                .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
            {
                let dead = Arc::clone(&dead);
                thread::spawn(move || {
                    let mut bytes = [0; 100];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        if !dead.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        network
    }

    /// `id`, as it is seen through this network only.
    fn view(&self, id: &UniqueId) -> UniqueId {
        let mut bytes = id.to_bytes();
        bytes[11] = 1;
        bytes[12..14].copy_from_slice(&self.port.to_le_bytes());
        bytes[24..32].fill(0);
        let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        bytes[64..80].copy_from_slice(&loopback.octets());
        UniqueId::from_bytes(&bytes).unwrap()
    }

    /// From now on everything vanishes, also what is in it.
    fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }
}

/// Two ranks; the second one reaches the store through a network that can die.
fn formed_through_a_network() -> (Network, Vec<Control>) {
    let id = new_id();
    let network = Network::to(&id);
    let view = network.view(&id);
    let controls = thread::scope(|scope| {
        let near = scope.spawn(|| Control::join(&id, Rank(0), 2, deadline()).unwrap());
        let far = scope.spawn(|| Control::join(&view, Rank(1), 2, deadline()).unwrap());
        vec![near.join().unwrap(), far.join().unwrap()]
    });
    (network, controls)
}

#[test]
fn a_connection_that_is_closed_too_early_is_made_again() {
    let id = new_id();
    let control = Control::join(&Network::closing(&id, 2).view(&id), Rank(0), 1, deadline());
    assert!(control.is_ok(), "{control:?}");
    let id = new_id();
    let place = SocketAddr::from(([127, 0, 0, 1], Network::closing(&id, 2).port));
    let found = return_to(&id, Rank(0), &[place], &[place]);
    assert!(matches!(found, Return::Connected(..)), "{found:?}");
}

fn gather_through(controls: &[Control], rounds: std::ops::Range<usize>) {
    for round in rounds {
        let name = format!("round {round}");
        let blob = vec![round as u8; 1000 * round];
        thread::scope(|scope| {
            for control in controls {
                scope.spawn(|| {
                    let values = control.all_gather(&name, &blob, deadline()).unwrap();
                    assert_eq!(values, [blob.clone(), blob.clone()]);
                });
            }
        });
    }
}

#[test]
fn a_connection_that_falls_silent_is_replaced_and_nothing_is_lost() {
    let (network, controls) = formed_through_a_network();
    gather_through(&controls, 0..5);
    thread::scope(|scope| {
        scope.spawn(|| gather_through(&controls, 5..50));
        network.die();
    });
    assert!(controls.iter().all(|control| control.fault().is_none()));
    controls.iter().for_each(|control| control.leave(0));
}

#[test]
fn a_doubt_makes_the_replacement_quick() {
    let (network, controls) = formed_through_a_network();
    network.die();
    let start = clock::now();
    controls[1].letters().doubt();
    gather_through(&controls, 0..20);
    assert!(controls.iter().all(|control| control.fault().is_none()));
    assert!(clock::now() - start < SILENCE, "it was not waited for that");
}

#[test]
fn the_store_is_found_behind_addresses_that_are_dead() {
    // Somebody who takes connections and says nothing takes as long as a dead NIC.
    let silent: Vec<TcpListener> =
        (0..30).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let id = new_id();
    let mut places: Vec<SocketAddr> =
        silent.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let start = clock::now();
    let only_silent = return_to(&id, Rank(0), &places, &[]);
    assert!(matches!(only_silent, Return::Silent), "{only_silent:?}");
    places.extend(id.places());
    let found = return_to(&id, Rank(0), &places, &places);
    assert!(
        matches!(found, Return::Connected(_, place) if id.places().contains(&place)),
        "{found:?}"
    );
    assert!(clock::now() - start < Duration::from_secs(10), "one after the other");
}

#[test]
fn the_end_of_a_replaced_connection_is_the_end_of_its_rank() {
    let (network, mut controls) = formed_through_a_network();
    network.die();
    controls[1].letters().doubt();
    gather_through(&controls, 0..2);
    drop(controls.pop());
    let error = fault_of(&controls[0]);
    assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error:?}");
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

/// Lets the only rank of a group in, and says that the group is complete.
fn form(listener: &TcpListener, id: &UniqueId) -> TcpStream {
    let mut stream = let_in(listener, id);
    while !matches!(hear::<Numbered>(&mut stream), Envelope::Message(_)) {}
    let places = vec![listener.local_addr().unwrap()];
    say(&mut stream, &Envelope::Message(Push::Formed { host_rank: None, places }));
    stream
}

/// Whether the other end has not closed it.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    stream.set_nonblocking(false).unwrap();
    end.is_err_and(|cause| cause.kind() == ErrorKind::WouldBlock)
}

/// The store may have gone on with any of them, and takes the end of that one for the end of the rank.
#[test]
fn what_the_store_was_asked_to_go_on_with_stays_open_until_it_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let id = UniqueId::at_fixed_port(&[here.ip()], here.port(), "job", &Settings::default());
    thread::scope(|scope| {
        let joining = scope.spawn(|| Control::join(&id, Rank(0), 1, deadline()).unwrap());
        let first = form(&listener, &id);
        let control = joining.join().unwrap();
        let resume = |number| {
            control.letters().doubt();
            let mut stream = let_in(&listener, &id);
            let said = hear::<Numbered>(&mut stream);
            assert!(
                matches!(said, Envelope::Resume { attempt, .. } if attempt == number),
                "{said:?}"
            );
            stream
        };
        let mut attempts = [1, 2, 3].map(resume);
        assert!(is_open(&first) && attempts.iter().all(is_open));
        say(&mut attempts[2], &Envelope::<Push>::Resumed { received: 1 });
        for earlier in &mut attempts[..2] {
            assert_eq!(earlier.read(&mut [0]).unwrap(), 0);
        }
        assert!(is_open(&attempts[2]));
        assert_eq!(control.fault(), None);
    });
}

#[test]
fn a_question_that_could_not_be_asked_may_be_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let id = UniqueId::at_fixed_port(&[here.ip()], here.port(), "job", &Settings::default());
    thread::scope(|scope| {
        let joining = scope.spawn(|| Control::join(&id, Rank(0), 1, deadline()).unwrap());
        let _store = form(&listener, &id);
        let control = joining.join().unwrap();
        // Nobody takes them.
        let blob = vec![0; message::MAX_BLOB_BYTES];
        while let Err(Error::Deadline { .. }) = control.set("key", &blob, clock::now()) {}
        for _ in 0..2 {
            let error = control.all_gather("g", &[], deadline()).unwrap_err();
            assert!(matches!(error, Error::System { .. }), "{error:?}");
        }
    });
}

#[test]
fn an_attempt_that_comes_after_a_later_one_is_void() {
    let id = new_id();
    let dial = || connect::connect(&id, Rank(1), deadline()).unwrap();
    let mut first = dial();
    open(&mut first);
    first.write_all(&frame_of(Request::Join { size: 2, process: this_process() })).unwrap();
    let control = Control::join(&id, Rank(0), 2, deadline()).unwrap();
    let mut attempts = [dial(), dial()];
    let mut resume = |attempt: u64| {
        let stream = &mut attempts[attempt as usize - 1];
        let session = [1; 16];
        say(stream, &Envelope::<Numbered>::Resume { session, attempt, received: 0 });
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut heard = [0; message::LENGTH_BYTES];
        stream.read(&mut heard).unwrap()
    };
    assert_ne!(resume(2), 0);
    assert_eq!(resume(1), 0, "the store has no use for it");
    let [void, mut used] = attempts;
    drop(void);
    used.write_all(&frame_of(Request::Gather { name: "g".into(), value: vec![1] })).unwrap();
    assert_eq!(control.all_gather("g", &[0], deadline()), Ok(vec![vec![0], vec![1]]));
    assert_eq!(control.fault(), None);
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

fn launch(rank: u32, meeting: &Meeting) -> Launch {
    Launch {
        launcher: Launcher::OpenMpi,
        rank: Rank(rank),
        size: 3,
        local_rank: None,
        meeting: meeting.clone(),
    }
}

/// All ranks of 3 meet and join.
fn meet_and_join(meeting: &Meeting, directory: &Path) -> Vec<Result<Control, Error>> {
    let environment =
        Environment { runtime_directory: directory.to_owned(), ..Environment::default() };
    let settings = Settings::parse([("R2CCL_BOOTSTRAP_TIMEOUT", "60")]).unwrap().settings;
    let join = |rank| {
        let place = meet(&launch(rank, meeting), &environment, &settings)?;
        Control::join(place.id(), Rank(rank), 3, deadline())
    };
    thread::scope(|scope| {
        let join = &join;
        let joining: Vec<_> = (0..3).rev().map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_of_a_host_meet_through_a_file_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let meeting = Meeting::File { job: "a job/of ours".into() };
    for _ in 0..3 {
        let controls = meet_and_join(&meeting, directory.path());
        assert!(controls.iter().all(Result::is_ok), "{controls:?}");
    }
    let private = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap();
    assert_eq!(std::fs::read_dir(private.path()).unwrap().count(), 0);
}

#[test]
fn the_file_of_a_dead_job_does_not_confuse() {
    let directory = tempfile::tempdir().unwrap();
    let meeting = Meeting::File { job: "job".into() };
    let file = super::rendezvous::file_of("job", directory.path()).unwrap();
    // Nobody listens there, or a store that does not know the key.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let dead = UniqueId::at_fixed_port(&[[127, 0, 0, 1].into()], port, "j", &Settings::default());
    drop(listener);
    let mut foreign = new_id().to_bytes();
    foreign[32] ^= 1;
    for stale in [dead.to_bytes(), foreign] {
        file.write(&stale).unwrap();
        let controls = meet_and_join(&meeting, directory.path());
        assert!(controls.iter().all(Result::is_ok), "{controls:?}");
    }
}

#[test]
fn ranks_meet_at_a_given_port_which_is_free_afterwards() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint =
        Endpoint { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
    let meeting = Meeting::At { endpoint: endpoint.clone(), job: "job".into() };
    let settings = Settings::default();
    let environment = Environment::default();
    let message = meet(&launch(0, &meeting), &environment, &settings).unwrap_err().to_string();
    assert!(message.contains(&endpoint.port.to_string()), "{message}");
    assert!(message.contains("R2CCL_BOOTSTRAP"), "{message}");
    drop(listener);
    let first = meet_and_join(&meeting, Path::new("/"));
    assert!(first.iter().all(Result::is_ok), "{first:?}");
    let second = meet_and_join(&meeting, Path::new("/"));
    assert!(second.iter().all(Result::is_ok), "{second:?}");
}

#[test]
fn a_rank_without_the_pass_phrase_is_not_admitted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let endpoint = Endpoint { host: "127.0.0.1".into(), port };
    let meeting = Meeting::At { endpoint, job: "job".into() };
    let place = |rank, phrase| {
        let settings = Settings::parse([("R2CCL_JOB_KEY", phrase)]).unwrap().settings;
        meet(&launch(rank, &meeting), &Environment::default(), &settings).unwrap()
    };
    let (host, stranger) = (place(0, "tulip"), place(1, "rose"));
    assert!(Control::join(stranger.id(), Rank(1), 2, soon()).is_err());
    let (friend, id) = (place(1, "tulip"), *host.id());
    thread::scope(|scope| {
        let rank_0 = scope.spawn(move || Control::join(&id, Rank(0), 2, deadline()));
        let rank_1 = Control::join(friend.id(), Rank(1), 2, deadline());
        assert!(rank_0.join().unwrap().is_ok() && rank_1.is_ok());
    });
}

/// A store whose process gives up before its rank has joined keeps neither its port nor those who came.
#[test]
fn a_store_that_is_given_up_frees_its_port_and_tells_who_came() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let endpoint = Endpoint { host: "127.0.0.1".into(), port };
    let meeting = Meeting::At { endpoint, job: "job".into() };
    let place = |rank| {
        meet(&launch(rank, &meeting), &Environment::default(), &Settings::default()).unwrap()
    };
    drop(place(0));
    let (host, other) = (place(0), place(1));
    let mut came = connect::connect(other.id(), Rank(1), deadline()).unwrap();
    open(&mut came);
    came.write_all(&frame_of(Request::Join { size: 3, process: this_process() })).unwrap();
    came.write_all(&frame_of(Request::Missing { name: "g".into() })).unwrap();
    // The answer shows that it has joined.
    assert!(matches!(hear::<Push>(&mut came), Envelope::Message(Push::Reply { .. })));
    drop(host);
    let told = hear::<Push>(&mut came);
    let Envelope::Message(Push::Failed(failure)) = told else { panic!("{told:?}") };
    let error = Error::from(failure);
    assert!(matches!(error, Error::PeerLost { rank: Rank(0), .. }), "{error:?}");
    let again = meet_and_join(&meeting, Path::new("/"));
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}
