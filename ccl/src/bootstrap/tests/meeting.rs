//! How ranks meet whom a launcher has started.

use ccl_transport::auth::JobKey;

use super::*;

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
    let file = super::super::rendezvous::file_of("job", directory.path()).unwrap();
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

/// From this host the first address of the store leads to something else, and behind the other one it is busy.
#[test]
fn a_refusal_elsewhere_does_not_keep_from_a_store_that_is_busy() {
    // Somebody else may have the port at one of the two addresses.
    let pair = |_| {
        let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = elsewhere.local_addr().unwrap().port();
        Some((elsewhere, TcpListener::bind(("127.0.0.3", port)).ok()?, port))
    };
    let (elsewhere, store, port) = (0..100).find_map(pair).unwrap();
    let places = ["127.0.0.2", "127.0.0.3"].map(|place| place.parse().unwrap());
    let id = UniqueId::at_fixed_port(&places, port, "job", &Settings::default());
    let mut bytes = id.to_bytes();
    bytes[10] = 0;
    let id = UniqueId::from_bytes(&bytes).unwrap();
    let (key, other) = (id.key(), JobKey::from_passphrase("another job"));
    let is_met = AtomicBool::new(false);
    thread::scope(|scope| {
        let refusing = scope.spawn(|| {
            while let Some(stream) = next_guest(&elsewhere, &is_met) {
                let admitted = auth::accept(&stream, &other, deadline());
                assert!(admitted.is_err(), "{admitted:?}");
            }
        });
        let store = scope.spawn(|| {
            drop(next_guest(&store, &is_met)?);
            Some(auth::accept(&next_guest(&store, &is_met)?, &key, deadline()))
        });
        let connected = dial(&id, 1);
        is_met.store(true, Ordering::Relaxed);
        assert!(connected.is_ok(), "{connected:?}");
        let admitted = store.join().unwrap();
        assert!(matches!(admitted, Some(Ok(_))), "{admitted:?}");
        refusing.join().unwrap();
    });
}

/// Whoever connects before `is_over`.
fn next_guest(listener: &TcpListener, is_over: &AtomicBool) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(cause) => assert_eq!(cause.kind(), ErrorKind::WouldBlock, "{cause}"),
        }
        clock::sleep(Duration::from_millis(1));
    }
    None
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
    let mut came = dial(other.id(), 1).unwrap();
    open(&mut came);
    came.write_all(&frame_of(join_request(3))).unwrap();
    came.write_all(&frame_of(Request::Missing { name: "g".into() })).unwrap();
    // The answer shows that it has joined.
    assert!(matches!(hear::<Push>(&mut came), Envelope::Message(Push::Reply { .. })));
    drop(host);
    let told = hear::<Push>(&mut came);
    let Envelope::Message(Push::Failed(failure)) = told else { panic!("{told:?}") };
    let error = Error::from(failure);
    assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error:?}");
    let again = meet_and_join(&meeting, Path::new("/"));
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}
