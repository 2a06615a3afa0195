//! Connections to the store that fall silent or end, and what takes their place.

use super::*;

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
        let loopback = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
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
    // Which is no end of the store: the rank looks again.
    let look = || return_to(&id, Rank(0), &[place], &[place]);
    let found = [look(), look(), look()];
    let [Return::Unreachable(_), Return::Unreachable(_), Return::Connected(..)] = found else {
        panic!("{found:?}")
    };
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
    let dial = || dial(&id, 1).unwrap();
    let mut first = dial();
    open(&mut first);
    first.write_all(&frame_of(join_request(2))).unwrap();
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
