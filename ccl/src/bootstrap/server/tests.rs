//! What the store does in one turn, without its thread.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use ccl_core::ids::Rank;
use ccl_transport::auth::JobKey;

use super::super::message::{ControlEvent, LENGTH_BYTES, Numbered, Request};
use super::*;

thread_local! {
    static NEXT_END: RefCell<Option<End>> = const { RefCell::new(None) };
}

/// How a store ends as if its process were killed: in the middle of what it tells its ranks.
#[derive(Clone)]
pub(super) struct End {
    gathered: &'static str,
    told: BTreeSet<u32>,
}

impl End {
    pub(super) fn of_next_stores() -> Option<Self> {
        NEXT_END.with_borrow(Option::clone)
    }
}

/// Stores that this thread starts from now on end when they have told of `gathered` only these ranks.
pub(crate) fn end_next_stores(gathered: &'static str, told: &[u32]) {
    let end = End { gathered, told: told.iter().copied().collect() };
    NEXT_END.set(Some(end));
}

impl Server {
    /// Whom the store tells, unless it ends meanwhile.
    pub(super) fn survived(&mut self, to: Vec<Peer>, push: &Push) -> Option<Vec<Peer>> {
        let is_last =
            |end: &mut End| matches!(push, Push::Gathered { name, .. } if name == end.gathered);
        let Some(end) = self.end.take_if(is_last) else { return Some(to) };
        let is_told = |peer: &Peer| {
            self.connections.get(peer).is_some_and(|connection| end.told.contains(&connection.rank))
        };
        let to = to.into_iter().filter(is_told).collect();
        self.send(vec![Output { to, push: push.clone() }]);
        self.connections.clear();
        None
    }
}

fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let doors = Doors { listener, returns: None, places: Vec::new() };
    let admission = Admission { key: JobKey::from_bytes([0; 32]), communicator: 0 };
    Server::new(doors, admission, Founder::default(), Box::new(|| {})).unwrap()
}

/// A rank of 2 that has proved the key and joined: its end, and the name of the store's end.
fn join(server: &mut Server, rank: u32) -> (TcpStream, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rank_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let peer = Peer(u64::from(rank));
    server.connections.insert(peer, Connection::new(stream, rank));
    say(&mut rank_end, &Envelope::Open([7; 16]));
    let absent = BTreeSet::new();
    request(&mut rank_end, Request::Join { size: 2, absent, process: this_process() });
    server.read(peer);
    (rank_end, peer)
}

fn say(stream: &mut TcpStream, envelope: &Envelope<Numbered>) {
    stream.write_all(&message::encode(envelope).unwrap()).unwrap();
}

fn request(stream: &mut TcpStream, request: Request) {
    say(stream, &Envelope::Message(Numbered { number: 0, request }));
}

fn aborted(rank: u32) -> ControlEvent {
    ControlEvent::Aborted { rank: Rank(rank), reason: "enough".into() }
}

/// All events that the store has sent.
fn events(stream: &mut TcpStream) -> Vec<ControlEvent> {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    // It ends with what has not been sent yet.
    let _ = stream.read_to_end(&mut bytes);
    let (mut rest, mut events) = (&bytes[..], Vec::new());
    while let Some((header, behind)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let (body, after) = behind.split_at(u32::from_le_bytes(*header) as usize);
        if let Envelope::Message(Push::Event(event)) = message::decode(body).unwrap() {
            events.push(event);
        }
        rest = after;
    }
    events
}

#[test]
fn what_a_rank_said_last_is_heard_even_if_it_takes_no_more() {
    let mut server = server();
    let (mut first, _) = join(&mut server, 0);
    let (mut second, peer) = join(&mut server, 1);
    request(&mut second, Request::Announce(aborted(1)));
    // The store's words are unread, so the rank's kernel resets the connection.
    drop(second);
    server.send(vec![Output { to: vec![peer], push: Push::Event(aborted(0)) }]);
    let heard = events(&mut first);
    assert_eq!(heard[0], aborted(1), "{heard:?}");
    assert!(matches!(heard[1], ControlEvent::Lost { rank: Rank(1), .. }), "{heard:?}");
    assert_eq!(heard.len(), 2);
}
