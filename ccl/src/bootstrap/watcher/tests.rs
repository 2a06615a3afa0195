//! How long a rank looks for the store.

use std::net::TcpListener;

use ccl_core::settings::Settings;

use super::*;

/// What watches this connection, without a thread.
fn watcher_of(stream: TcpStream) -> Watcher {
    let place = stream.peer_addr().unwrap();
    let id = UniqueId::at_fixed_port(&[place.ip()], place.port(), "job", &Settings::default());
    let (post, heard) = (Arc::new(Post::new().unwrap()), Arc::new(Heard::new(Rank(1))));
    Watcher::new(&id, Rank(1), stream, &post, &heard).unwrap()
}

#[test]
fn a_store_that_lets_a_rank_in_and_does_not_go_on_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let dial = || TcpStream::connect(here).unwrap();
    let mut watcher = watcher_of(dial());
    let start = clock::now();
    let mut attempt = |after| watcher.resume_on(dial(), here, start + after);
    let attempts = PATIENCE.as_secs() / SILENCE.as_secs();
    for number in 0..=attempts {
        let after = SILENCE * u32::try_from(number).unwrap();
        assert_eq!(attempt(after), Ok(()), "attempt {number}");
    }
    let end = attempt(PATIENCE + SILENCE).unwrap_err();
    assert!(end.contains(&here.to_string()), "{end}");
    watcher.hear_something();
    assert_eq!(watcher.resume_on(dial(), here, start + 2 * PATIENCE), Ok(()));
}

#[test]
fn a_store_that_is_reached_after_an_outage_has_time_to_go_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let dial = || TcpStream::connect(here).unwrap();
    let mut watcher = watcher_of(dial());
    let start = clock::now() + SILENCE;
    let mut find = |found, after| {
        let (sender, receiver) = channel();
        sender.send(found).unwrap();
        watcher.search = Some(receiver);
        watcher.look_for_the_store(start + after)
    };
    let unreachable = || Return::Unreachable("no route".to_owned());
    let second = Duration::from_secs(1);
    assert_eq!(find(unreachable(), Duration::ZERO), Ok(()));
    assert_eq!(find(unreachable(), PATIENCE - second), Ok(()));
    // In the second one, it has let this rank in before.
    for outage in 1..=2 {
        let end = (PATIENCE + second) * outage;
        assert_eq!(find(Return::Connected(dial(), here), end), Ok(()), "outage {outage}");
        assert_eq!(find(Return::Silent, end + second), Ok(()));
        assert_eq!(find(unreachable(), end + 5 * second), Ok(()));
    }
    assert_eq!(find(Return::Connected(dial(), here), 3 * PATIENCE), Ok(()));
    let end = find(unreachable(), 4 * PATIENCE).unwrap_err();
    assert_eq!(end, "it has not gone on for 30s, and no address leads to it: no route");
}
