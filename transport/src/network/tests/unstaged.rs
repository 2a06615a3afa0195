//! Tiles that leave from the memory of the application, and rails that die under them.

use std::ops::Range;

use ccl_core::failover::watch::Question;

use super::super::keeper::{Keeper, News};
use super::*;
use crate::Stretch;
use crate::verbs::soft::SoftDevice;
use crate::verbs::{Connection, Device};

const TILES: usize = 400;

/// What is sent, tile after tile.
fn contents() -> Vec<u8> {
    (0..TILES * SHAPE.tile_bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn range(tiles: Range<usize>) -> Range<usize> {
    tiles.start * SHAPE.tile_bytes..tiles.end * SHAPE.tile_bytes
}

/// Sends all tiles over two rails, of which the first breaks so; returns how many had to be supplied again.
fn supplied(broken: Script) -> usize {
    let breaks: Instrument = Box::new(move |rail, pair, depth| {
        let script = if rail == 0 { broken } else { Script::default() };
        Box::new(Faulty::new(pair, depth.sends, script))
    });
    let near = endpoint(0, &[1.0, 1.0]).instrument(breaks);
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]));
    let most = near.unstaged_bytes() / SHAPE.tile_bytes;
    let contents = contents();
    let origin = &contents[..];
    let (mut sent, mut returned, mut taken, mut supplied) = (0, 0, 0, 0);
    let deadline = soon();
    while taken < TILES || returned < TILES {
        assert!(clock::now() < deadline, "{taken} of {TILES} tiles: {near:?} / {far:?}");
        while let Some(wanted) = near.wanted() {
            let wanted = usize::try_from(wanted).unwrap();
            assert!((returned + 1..=sent).contains(&wanted), "{wanted} of {returned} to {sent}");
            near.supply(wanted as u64, Stretch::new(&origin, range(wanted - 1..wanted)));
            assert_ne!(near.wanted(), Some(wanted as u64), "it was supplied");
            supplied += 1;
        }
        let next = Stretch::new(&origin, range(sent..TILES.min(sent + most)));
        let gone = near.send_unstaged(&stamp(0), next).unwrap();
        sent += gone.map_or(0, |(bytes, _)| bytes / SHAPE.tile_bytes);
        returned = usize::try_from(near.returned()).unwrap();
        if let Some(tile) = far.peek() {
            assert!(tile.payload == &contents[range(taken..taken + 1)], "tile {taken}");
            far.release().unwrap();
            taken += 1;
        }
        if !(near.progress().unwrap() | far.progress().unwrap()) {
            thread::yield_now();
        }
        far.confirm();
    }
    supplied
}

#[test]
fn tiles_that_are_lost_with_a_rail_are_supplied_again() {
    let lost = [3, 40, 41, 90].map(|last| {
        supplied(Script { fail_after: Some((last, Status::RetryExceeded)), ..Script::default() })
    });
    assert!(lost.iter().any(|supplied| *supplied > 0), "{lost:?}: nothing was lost");
}

#[test]
fn tiles_on_a_rail_that_says_nothing_are_supplied_again() {
    let lost = supplied(Script { silent_after: Some(30), ..Script::default() });
    assert!(lost > 0, "nothing was lost");
}

/// Two ends, and a tile from one to the other that nobody has looked at.
fn with_one_tile(bytes: Stretch<'_>) -> conformance::Pair {
    let (mut near, far) = pair(endpoint(0, &[1.0]), endpoint(1, &[1.0]));
    let deadline = soon();
    while near.send_unstaged(&stamp(0), bytes).unwrap().is_none() {
        assert!(clock::now() < deadline);
        near.progress().unwrap();
    }
    assert_eq!((near.returned(), near.wanted()), (0, None));
    (near, far)
}

#[test]
fn what_was_supplied_before_it_is_wanted_need_not_be_kept() {
    let contents = contents();
    let origin = &contents[..];
    let bytes = Stretch::new(&origin, range(0..1));
    let (mut near, _far) = with_one_tile(bytes);
    near.supply(1, bytes);
    assert_eq!(near.returned(), 1);
}

#[test]
fn what_has_come_need_not_be_kept_although_nobody_has_taken_it() {
    let contents = contents();
    let origin = &contents[..];
    let (mut near, mut far) = with_one_tile(Stretch::new(&origin, range(0..1)));
    let deadline = soon();
    while near.returned() == 0 {
        assert!(clock::now() < deadline, "{near:?} / {far:?}");
        far.progress().unwrap();
        far.confirm();
        near.progress().unwrap();
    }
    assert!(far.peek().is_some());
}

const THREE_RAILS: Geometry = Geometry { rails: 3, shape: SHAPE };

/// Both ends of a new connection.
fn streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [near, listener.accept().unwrap().0]
}

fn connected(stream: TcpStream) -> Connected {
    let device = SoftDevice::new("nic0".into(), "127.0.0.1".parse().unwrap());
    let domain = device.domain().unwrap();
    let mut pair = domain.queue_pair(THREE_RAILS.depth()).unwrap();
    pair.initialise().unwrap();
    pair.connect(Connection::Stream(stream)).unwrap();
    (domain, pair)
}

/// Puts a connection in the place of path 1 whose other end announces nothing.
#[derive(Debug, Default)]
struct Halfway {
    news: Vec<News>,
    others: Vec<TcpStream>,
}

impl Keeper for Halfway {
    fn probe(&mut self, _path: usize, _question: Question) {}

    fn reconnect(&mut self, path: usize, incarnation: u32) {
        if path != 1 {
            return;
        }
        let [near, other] = streams();
        self.others.push(other);
        let (domain, pair) = connected(near);
        self.news.push(News::Connected { path, incarnation: incarnation + 1, domain, pair });
    }

    fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn news(&mut self, into: &mut Vec<News>) {
        into.append(&mut self.news);
    }
}

#[test]
fn a_rail_that_is_not_announced_yet_does_not_hold_up_the_others() {
    let both = [streams(), streams(), streams()].map(|[near, far]| (near, far));
    let (near, far) = both.into_iter().unzip();
    let open = |streams: Vec<TcpStream>, keeper: Box<dyn Keeper>| {
        let wire = |(rail, stream)| {
            let (domain, pair) = connected(stream);
            Ok(Wire { name: format!("rail {rail}"), rail, capacity: 1.0, domain, pair })
        };
        let wires = streams.into_iter().enumerate().map(wire).collect();
        let traffic = Arc::new([(); 3].map(|()| RailTraffic::default()));
        NetworkLink::open(THREE_RAILS, wires, &(traffic as _), Terms::default(), keeper).unwrap()
    };
    let mut near = open(near, Box::<Halfway>::default());
    let mut far = open(far, Box::new(keeper::NoKeeper));
    let deadline = soon();
    while !(near.unannounced_rails().is_empty() && far.unannounced_rails().is_empty()) {
        assert!(clock::now() < deadline);
        near.settle().unwrap();
        far.settle().unwrap();
    }
    // The new connection has to say that path 2 is given up before anything else.
    for path in [2, 1] {
        near.give_up(path, Evidence::Carrier, "it was cut".into());
    }
    let is_halfway = |link: &NetworkLink| {
        link.carriers[1].live.as_ref().is_some_and(|live| live.block.is_none())
    };
    while !is_halfway(&near) {
        assert!(clock::now() < deadline);
        near.progress().unwrap();
    }
    let contents = contents();
    let origin = &contents[..];
    while near.send_unstaged(&stamp(0), Stretch::new(&origin, range(0..1))).unwrap().is_none() {
        assert!(clock::now() < deadline, "{near:?} sends nothing");
        near.progress().unwrap();
    }
    while !near.flushed() {
        assert!(clock::now() < deadline, "{near:?} keeps something");
        near.progress().unwrap();
    }
    assert!(is_halfway(&near));
}
