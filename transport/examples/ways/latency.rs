//! Messages of 8 bytes to and fro over TCP.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::peers::{Pair, Side};
use crate::rounds::{DISTANCES, Sorted, Times, head, row, sorted};
use crate::sockets::{connections, try_receive, try_send};
use crate::uring::Ring;

const MESSAGES: usize = 400;
const ROUNDS: usize = 30;
const BYTES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Polled,
    Blocking,
    Epoll { waits: bool },
    Ring { waits: bool },
}

const WAYS: [(&str, Way); 6] = [
    ("`recv` that does not block, again and again", Way::Polled),
    ("`recv` that blocks", Way::Blocking),
    ("`epoll_wait` that blocks, then `recv`", Way::Epoll { waits: true }),
    ("`epoll_wait` that does not block, again and again, then `recv`", Way::Epoll { waits: false }),
    ("`io_uring`, waits in the kernel", Way::Ring { waits: true }),
    ("`io_uring`, looks at the completion queue", Way::Ring { waits: false }),
];

struct End<'a> {
    pair: &'a Pair,
    stream: TcpStream,
    epoll: OwnedFd,
    ring: Option<Ring>,
    number: u64,
    received: [u8; BYTES],
}

pub(crate) fn measure(pair: &Pair) {
    let stream = connections(pair, 1).remove(0);
    let epoll = epoll::create(epoll::CreateFlags::empty()).unwrap();
    epoll::add(&epoll, &stream, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    let registered = [0_u8; BYTES];
    let ring = Ring::new(&registered);
    let both = pair.exchange(u64::from(ring.is_some())) == 1 && ring.is_some();
    let mut end =
        End { pair, stream, epoll, ring: ring.filter(|_| both), number: 0, received: [0; BYTES] };
    let offered = |way: &Way| both || !matches!(way, Way::Ring { .. });
    let ways = WAYS.iter().filter(|(_, way)| offered(way));
    let mut ways: Vec<_> = ways.map(|way| (*way, Sorted::default())).collect();
    sorted(pair, ROUNDS, &mut ways, |(_, way)| pair.time(MESSAGES, || end.exchange(*way)) / 2.0);
    if pair.side == Side::Second {
        return;
    }
    head("8 B to and fro, µs of one message", &["received by", "near", "far"]);
    for ((name, _), times) in &ways {
        let [near, far] = DISTANCES
            .map(|(distance, _)| times.of(distance).map_or("-".to_owned(), Times::microseconds));
        row(&[(*name).to_owned(), near, far]);
    }
}

impl End<'_> {
    /// One message and its answer. Both are checked: they carry a number.
    fn exchange(&mut self, way: Way) {
        let begins = self.pair.side == Side::First;
        let message = self.number.to_ne_bytes();
        if begins {
            self.send(way, &message);
        }
        self.receive(way);
        assert_eq!(self.received, message, "wrong message");
        if !begins {
            self.send(way, &message);
        }
        self.number += 1;
    }

    fn send(&mut self, way: Way, message: &[u8]) {
        match way {
            Way::Ring { waits } => {
                self.ring.as_mut().unwrap().messages(&self.stream, Some(message), None, waits);
            }
            Way::Blocking => self.stream.write_all(message).unwrap(),
            Way::Polled | Way::Epoll { .. } => {
                assert_eq!(try_send(&self.stream, message), BYTES, "no room for 8 bytes");
            }
        }
    }

    fn receive(&mut self, way: Way) {
        let Self { pair, stream, epoll, ring, received, .. } = self;
        match way {
            Way::Polled => pair.wait_until(|| try_receive(stream, received) == BYTES),
            Way::Blocking => stream.read_exact(received).unwrap(),
            Way::Epoll { waits } => {
                pair.wait_until(|| ready(epoll, waits));
                assert_eq!(try_receive(stream, received), BYTES, "not a whole message");
            }
            Way::Ring { waits } => {
                ring.as_mut().unwrap().messages(stream, None, Some(received), waits);
            }
        }
    }
}

/// Whether there is something to receive.
fn ready(epoll: &OwnedFd, waits: bool) -> bool {
    let mut events = Vec::with_capacity(1);
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = if waits { None } else { Some(&none) };
    epoll::wait(epoll, spare_capacity(&mut events), timeout).unwrap() > 0
}
