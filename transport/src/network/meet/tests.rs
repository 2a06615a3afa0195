//! Meetings over loopback.

use super::*;

#[test]
fn a_hello_survives_the_wire() {
    let hello = Hello {
        communicator: u64::MAX - 5,
        from: Rank(7),
        to: Rank(1 << 20),
        index: 3,
        incarnation: 9,
        medium: Medium::Verbs,
    };
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    assert_eq!(Hello::decode(&hello.encode()[1..]), None);
    let mut strange = hello.encode();
    strange[24] = 9;
    assert_eq!(Hello::decode(&strange), None, "a medium that there is not");
}

/// What one rank reaches another by, over one rail for each of the addresses.
fn plan(rank: u32, dials: bool, addresses: &[SocketAddr]) -> PeerPlan {
    let contact = |address: &SocketAddr| Contact {
        binding: Binding { address: [127, 0, 0, 1].into(), interface: None },
        address: *address,
        medium: Medium::Tcp,
        is_broken: false,
    };
    let connections = addresses.iter().map(contact).collect();
    PeerPlan { rank: Rank(rank), dials, peer_rails: addresses.len(), connections }
}

fn listeners<const N: usize>() -> ([TcpListener; N], [SocketAddr; N]) {
    let listeners = [0; N].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
    (listeners, addresses)
}

fn key() -> JobKey {
    JobKey::from_passphrase("a test")
}

fn soon() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn never() -> bool {
    false
}

#[test]
fn more_peers_come_at_once_than_can_be_heard() {
    let peers = u32::try_from(MAX_HANDSHAKES + 2 * visitors::FEW).unwrap();
    let (listeners, addresses) = listeners::<3>();
    let (key, deadline) = (key(), soon());
    let come = |rank| {
        let peers = [plan(0, true, &addresses)];
        Meeting::new(Rank(rank), 7, &key, &peers, deadline)
            .completely(true)
            .hold(&[], &never)
            .map(|met| met.streams.len())
    };
    let plans: Vec<PeerPlan> = (1..=peers).map(|rank| plan(rank, false, &addresses)).collect();
    std::thread::scope(|scope| {
        let come = &come;
        let coming: Vec<_> = (1..=peers).map(|rank| scope.spawn(move || come(rank))).collect();
        let met = Meeting::new(Rank(0), 7, &key, &plans, deadline)
            .completely(true)
            .hold(&listeners, &never);
        assert_eq!(met.unwrap().streams.len(), 3 * plans.len());
        assert!(coming.into_iter().all(|peer| peer.join().unwrap() == Ok(3)));
    });
}

/// One rail takes the connection, and nobody turns to it until the other rail is connected.
#[test]
fn a_rail_that_says_nothing_does_not_hold_up_the_others() {
    let ([silent, speaking], addresses) = listeners::<2>();
    let (key, deadline) = (key(), soon());
    let await_guest = |listener: &TcpListener| {
        while clock::now() < deadline {
            if let Ok((stream, _)) = listener.accept()
                && auth::accept(&stream, &key, deadline).is_ok()
            {
                return true;
            }
            clock::sleep(Duration::from_millis(1));
        }
        false
    };
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| await_guest(&speaking) && await_guest(&silent));
        let peers = [plan(0, true, &addresses)];
        let mut meeting = Meeting::new(Rank(1), 7, &key, &peers, deadline);
        meeting.hearing = Duration::from_millis(20);
        assert_eq!(meeting.hold(&[], &never).unwrap().streams.len(), 2);
        assert!(accepting.join().unwrap());
    });
}

/// It turns to everything that has come, in order, and takes longer for each than a connection is waited for at first.
#[test]
fn a_peer_that_is_slow_is_waited_for_longer_and_longer() {
    let ([listener], addresses) = listeners::<1>();
    let (key, deadline) = (key(), soon());
    let accept_slowly = || {
        while clock::now() < deadline {
            if let Ok((stream, _)) = listener.accept() {
                clock::sleep(Duration::from_millis(40));
                if auth::accept(&stream, &key, deadline).is_ok() {
                    return true;
                }
            }
            clock::sleep(Duration::from_millis(1));
        }
        false
    };
    std::thread::scope(|scope| {
        let accepting = scope.spawn(accept_slowly);
        let peers = [plan(0, true, &addresses)];
        let mut meeting = Meeting::new(Rank(1), 7, &key, &peers, deadline);
        meeting.hearing = Duration::from_millis(5);
        assert_eq!(meeting.hold(&[], &never).unwrap().streams.len(), 1);
        assert!(accepting.join().unwrap());
    });
}

/// What it refuses is not in its queue.
#[test]
fn a_peer_that_refuses_is_not_waited_for_longer() {
    let ([listener], addresses) = listeners::<1>();
    let (key, hearing) = (key(), Duration::from_millis(20));
    let peers = [plan(0, true, &addresses)];
    let meeting = Meeting::new(Rank(1), 7, &key, &peers, soon());
    let attempt = || {
        let patience = Patience { attempt: ATTEMPT_LIMIT, hearing };
        let failure = meeting.introduce((Rank(0), 0), &peers[0].connections[0], patience);
        patience.after(&failure.unwrap_err()).hearing
    };
    assert_eq!(attempt(), 2 * hearing, "it takes the connection and says nothing");
    drop(listener);
    assert_eq!(attempt(), hearing, "nobody listens");
}

/// Neither end waits for it, though all others are needed.
#[test]
fn a_rail_that_is_known_to_be_broken_is_not_waited_for() {
    let ([whole, other], addresses) = listeners::<2>();
    let (key, deadline) = (key(), soon());
    let of = |rank: u32, peer: u32, listeners: &[TcpListener]| {
        let mut peers = [plan(peer, rank > peer, &addresses)];
        peers[0].connections[1].is_broken = true;
        let meeting = Meeting::new(Rank(rank), 7, &key, &peers, deadline).completely(true);
        meeting.hold(listeners, &never).unwrap().streams.into_keys().collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| of(1, 0, &[]));
        assert_eq!(of(0, 1, &[whole, other]), [(Rank(1), 0)]);
        assert_eq!(coming.join().unwrap(), [(Rank(0), 0)]);
        assert!(clock::now() < deadline, "it was waited for");
    });
}

/// The kernel answers nobody there.
fn silent() -> (Vec<TcpStream>, socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let come = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let queue = std::iter::from_fn(|| come().ok()).collect();
    (queue, socket, address)
}

/// Whether their kernels answer or not.
#[test]
fn rails_that_are_silent_do_not_keep_those_after_them_from_being_tried() {
    let (_queue, _socket, dead) = silent();
    let ([_nobody], [deaf]) = listeners::<1>();
    for silent in [dead, deaf] {
        let ([listener], [whole]) = listeners::<1>();
        let addresses = [whole, silent, silent, silent, silent, silent, silent, silent, whole];
        let (key, deadline) = (key(), soon());
        let accept = || {
            for _ in 0..2 {
                let stream = loop {
                    match listener.accept() {
                        Ok((stream, _)) => break stream,
                        Err(_) => clock::sleep(Duration::from_millis(1)),
                    }
                    assert!(clock::now() < deadline, "it did not come");
                };
                auth::accept(&stream, &key, deadline).unwrap();
            }
        };
        std::thread::scope(|scope| {
            let accepting = scope.spawn(accept);
            let peers = [plan(0, true, &addresses)];
            let met = Meeting::new(Rank(1), 7, &key, &peers, deadline).hold(&[], &never).unwrap();
            assert_eq!(met.streams.into_keys().collect::<Vec<_>>(), [(Rank(0), 0), (Rank(0), 8)]);
            accepting.join().unwrap();
        });
    }
}

/// It may take as long as an answer from far away, and silent rails leave time for the others.
#[test]
fn a_first_attempt_has_a_share_of_the_time() {
    let (key, address) = (key(), SocketAddr::from(([127, 0, 0, 1], 1)));
    let meeting = || Meeting::new(Rank(1), 7, &key, &[], soon());
    for (rails, turn) in [(1, 1000), (5, 740), (15, 240)] {
        let peer = plan(0, true, &vec![address; rails]);
        assert_eq!(meeting().first_turn(&peer), Some(Duration::from_millis(turn)));
        assert_eq!(meeting().completely(true).first_turn(&peer), None, "all are waited for");
    }
}

/// It has begun, and this rank has not.
#[test]
fn a_peer_that_does_not_meet_any_more_is_no_stranger() {
    let ([listener], addresses) = listeners::<1>();
    let (key, deadline) = (key(), soon());
    let peers = [plan(1, false, &addresses)];
    let meeting = Meeting::new(Rank(0), 7, &key, &peers, deadline);
    let come = |communicator, incarnation| {
        let stream = TcpStream::connect(addresses[0]).unwrap();
        let (from, to, medium) = (Rank(1), Rank(0), Medium::Tcp);
        let hello = Hello { communicator, from, to, index: 0, incarnation, medium };
        // It is left at once where it is refused.
        let _ = auth::initiate(&stream, &key, &hello.encode(), deadline);
    };
    let examined = |communicator, incarnation| {
        std::thread::scope(|scope| {
            let coming = scope.spawn(move || come(communicator, incarnation));
            listener.set_nonblocking(false).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let examined = meeting.examine(&stream, (0, 1));
            drop(stream);
            coming.join().unwrap();
            examined
        })
    };
    assert_eq!(examined(7, FIRST_INCARNATION), Ok((Rank(1), 0)));
    let early = examined(7, FIRST_INCARNATION + 1);
    assert!(matches!(early, Err(TransportError::PeerGone(_))), "{early:?}");
    for incarnation in [FIRST_INCARNATION, FIRST_INCARNATION + 1] {
        let stranger = examined(8, incarnation);
        assert!(matches!(stranger, Err(TransportError::Refused(_))), "{stranger:?}");
    }
}

#[test]
fn a_door_that_the_kernel_keeps_shut_is_the_reason() {
    let peers = [plan(1, false, &["127.0.0.1:1".parse().unwrap()])];
    let key = key();
    let deadline = clock::now() + 3 * RETRY_PAUSE;
    // A socket that does not listen is readable and accepts nobody.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let meeting = Meeting::new(Rank(0), 7, &key, &peers, deadline);
    let error = meeting.hold(&[socket.unwrap().into()], &never).unwrap_err();
    assert!(error.to_string().contains("rank 0 cannot accept it"), "{error}");
}

/// Whichever end connects: one that is there over some rails is not waited for either.
#[test]
fn nobody_is_waited_for_when_all_is_over() {
    // Connections are made, and nobody takes them.
    let (_listeners, addresses) = listeners::<2>();
    for dials in [false, true] {
        let peers = [plan(1, dials, &addresses)];
        let key = key();
        let begin = clock::now();
        let is_over = || clock::now() > begin + Duration::from_millis(100);
        let meeting = Meeting::new(Rank(0), 7, &key, &peers, soon());
        let error = meeting.hold(&[], &is_over).unwrap_err();
        assert!(matches!(error, TransportError::PeerGone(_)), "{error}");
    }
}
