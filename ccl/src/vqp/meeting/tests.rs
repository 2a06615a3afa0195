//! Meetings over loopback.

use std::thread;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn meet(near: &str, far: &str) -> (Result<Meeting, Error>, Result<Meeting, Error>) {
    let listener = Listener::bind("127.0.0.1:0", Key::from_passphrase(near)).unwrap();
    let address = listener.address().unwrap().to_string();
    let key = Key::from_passphrase(far);
    let dialling = thread::spawn(move || Meeting::connect(&address, &key, LIMIT));
    let patience = if near == far { LIMIT } else { Duration::from_millis(200) };
    let accepted = listener.accept(patience);
    (accepted, dialling.join().unwrap())
}

#[test]
fn both_ends_hear_each_other() {
    let (near, far) = meet("secret", "secret");
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    assert_eq!((near.side(), far.side()), (Side::Accepting, Side::Connecting));
    let large = vec![7; MAX_MESSAGE_BYTES];
    let expected = large.clone();
    let answers = thread::spawn(move || {
        (far.exchange(b"", LIMIT).unwrap(), far.exchange(&large, LIMIT).unwrap())
    });
    assert_eq!(near.exchange(b"one", LIMIT).unwrap(), b"");
    assert_eq!(near.exchange(&expected, LIMIT).unwrap(), expected);
    assert_eq!(answers.join().unwrap(), (b"one".to_vec(), expected));
    assert!(matches!(near.exchange(b"", LIMIT), Err(Error::PeerLost(_))));
    let long = vec![0; MAX_MESSAGE_BYTES + 1];
    assert!(matches!(near.exchange(&long, LIMIT), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_stranger_is_sent_away() {
    let (near, far) = meet("secret", "guess");
    assert!(matches!(near, Err(Error::Deadline { call: "accept", .. })), "{near:?}");
    assert!(matches!(far, Err(Error::PeerLost(_))), "{far:?}");
}

#[test]
fn strangers_who_say_nothing_delay_nobody() {
    let listener = Listener::bind("127.0.0.1:0", Key::from_passphrase("secret")).unwrap();
    let address = listener.address().unwrap();
    let strangers: Vec<_> =
        (0..LIMIT.as_secs() + 10).map(|_| TcpStream::connect(address).unwrap()).collect();
    let dialling = thread::spawn(move || {
        Meeting::connect(&address.to_string(), &Key::from_passphrase("secret"), LIMIT)
    });
    let accepted = listener.accept(LIMIT);
    assert!(accepted.is_ok() && dialling.join().unwrap().is_ok(), "{accepted:?}");
    drop(strangers);
}

#[test]
fn a_peer_that_listens_and_does_not_accept_is_a_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let limit = Duration::from_millis(50);
    let silent = Meeting::connect(&address, &Key::from_passphrase(""), limit).unwrap_err();
    assert!(matches!(silent, Error::Deadline { call: "connect", .. }), "{silent:?}");
    assert!(silent.to_string().contains(&format!("{address} to accept")), "{silent}");
}

#[test]
fn nobody_there_is_a_deadline_and_no_address_an_argument() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let key = Key::from_passphrase("");
    let nobody = Meeting::connect(&address, &key, Duration::from_millis(50));
    assert!(matches!(nobody, Err(Error::Deadline { call: "connect", .. })), "{nobody:?}");
    let nowhere = Meeting::connect("127.0.0.1", &key, LIMIT);
    assert!(matches!(nowhere, Err(Error::InvalidArgument(_))), "{nowhere:?}");
    let nowhere = Listener::bind("127.0.0.1", key);
    assert!(matches!(nowhere, Err(Error::InvalidArgument(_))), "{nowhere:?}");
}
