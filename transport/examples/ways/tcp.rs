//! A stream over TCP from one process to the other.

use std::net::TcpStream;

use crate::peers::{Pair, Patience, Side};
use crate::rounds::{DISTANCES, Sorted, head, row, sorted};
use crate::sockets::{ZeroCopy, connections, try_receive, try_send};
use crate::uring::{Ring, Sending};

const BYTES: usize = 64 << 20;
/// Bytes of one write, and of one slot.
const CHUNK_BYTES: usize = 128 << 10;
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 40;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Straight,
    /// Copied into a slot first.
    Slot,
    ZeroCopy,
    Ring(Sending),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Straight,
    /// Copied out of a slot.
    Slot,
    Ring,
    RingMultishot,
}

struct Candidate {
    sent: &'static str,
    received: &'static str,
    sender: Sender,
    receiver: Receiver,
    connections: usize,
}

const CANDIDATES: [Candidate; 10] = [
    candidate("buffer", Sender::Straight, "buffer", Receiver::Straight, 1),
    candidate("buffer", Sender::Straight, "slot, then copied", Receiver::Slot, 1),
    candidate("copied, then slot", Sender::Slot, "slot, then copied", Receiver::Slot, 1),
    candidate("buffer, `MSG_ZEROCOPY`", Sender::ZeroCopy, "buffer", Receiver::Straight, 1),
    candidate("`io_uring`", Sender::Ring(Sending::Copied), "`io_uring`", Receiver::Ring, 1),
    candidate(
        "`io_uring`, registered buffer, `SEND_ZC`",
        Sender::Ring(Sending::Registered),
        "`io_uring`",
        Receiver::Ring,
        1,
    ),
    candidate(
        "`io_uring`",
        Sender::Ring(Sending::Copied),
        "`io_uring`, multishot, then copied",
        Receiver::RingMultishot,
        1,
    ),
    candidate("buffer", Sender::Straight, "`io_uring`", Receiver::Ring, 1),
    candidate("buffer", Sender::Straight, "buffer", Receiver::Straight, 2),
    candidate("buffer", Sender::Straight, "buffer", Receiver::Straight, 4),
];

const fn candidate(
    sent: &'static str,
    sender: Sender,
    received: &'static str,
    receiver: Receiver,
    connections: usize,
) -> Candidate {
    Candidate { sent, received, sender, receiver, connections }
}

impl Candidate {
    fn needs_ring(&self) -> bool {
        matches!(self.sender, Sender::Ring(_))
            || matches!(self.receiver, Receiver::Ring | Receiver::RingMultishot)
    }
}

/// What one side has.
struct End<'a> {
    pair: &'a Pair,
    streams: Vec<TcpStream>,
    zero_copy_stream: TcpStream,
    ring: Option<Ring>,
    slot: Vec<u8>,
    /// Sends that were to be without a copy, and those of them that were not.
    zero_copy: (u64, u64),
}

pub(crate) fn measure(pair: &Pair) {
    let mut streams = connections(pair, CONNECTIONS + 1);
    let source: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let mut target = vec![0_u8; BYTES];
    let ring = Ring::new(&source);
    let both = pair.exchange(u64::from(ring.is_some())) == 1 && ring.is_some();
    let mut end = End {
        pair,
        zero_copy_stream: streams.pop().unwrap(),
        streams,
        ring: ring.filter(|_| both),
        slot: vec![0; CHUNK_BYTES],
        zero_copy: (0, 0),
    };
    let offered = CANDIDATES.iter().filter(|candidate| both || !candidate.needs_ring());
    let mut candidates: Vec<_> = offered.map(|candidate| (candidate, Sorted::default())).collect();
    for (candidate, _) in &candidates {
        target.fill(0);
        end.carry_out(candidate, &source, &mut target);
        let right = pair.side == Side::First || target == source;
        assert!(right && pair.exchange(u64::from(right)) == 1, "wrong bytes");
    }
    sorted(pair, ROUNDS, &mut candidates, |candidate| {
        pair.time(1, || end.carry_out(candidate, &source, &mut target))
    });
    if pair.side == Side::Second {
        return;
    }
    println!("\n## TCP");
    println!("\nFrom one process to the other at {}.", pair.address);
    let (sent, copied) = end.zero_copy;
    println!("`MSG_ZEROCOPY`: the kernel copied {copied} of {sent} sends all the same.");
    if let Some(ring) = &end.ring {
        println!("`SEND_ZC`: the kernel copied {} of {} all the same.", ring.copied, ring.notified);
    } else {
        println!("`io_uring`: not offered.");
    }
    head("64 MB, GB/s", &["sent from", "received into", "connections", "near", "far"]);
    for (candidate, times) in &candidates {
        let rates = DISTANCES.map(|(distance, _)| {
            times.of(distance).map_or("-".to_owned(), |times| times.rate(BYTES))
        });
        let [near, far] = rates.each_ref().map(String::as_str);
        row(&[candidate.sent, candidate.received, &candidate.connections.to_string(), near, far]);
    }
}

impl End<'_> {
    fn carry_out(&mut self, candidate: &Candidate, source: &[u8], target: &mut [u8]) {
        match self.pair.side {
            Side::First => self.send(candidate, source),
            Side::Second => self.receive(candidate, target),
        }
        self.pair.meet();
    }

    fn send(&mut self, candidate: &Candidate, source: &[u8]) {
        match candidate.sender {
            Sender::Straight => {
                let streams = &self.streams[..candidate.connections];
                in_turn(streams, |stream, range| try_send(stream, &source[range]));
            }
            Sender::Slot => self.send_from_slot(source),
            Sender::ZeroCopy => self.send_without_copy(source),
            Sender::Ring(sending) => {
                let ring = self.ring.as_mut().unwrap();
                ring.send(&self.streams[0], source, sending);
            }
        }
    }

    fn send_from_slot(&mut self, source: &[u8]) {
        let slot = &mut self.slot;
        in_turn(&self.streams[..1], |stream, range| {
            let done = range.start % CHUNK_BYTES;
            let bytes = range.len();
            if done == 0 {
                slot.copy_from_slice(&source[range]);
            }
            try_send(stream, &slot[done..done + bytes])
        });
    }

    fn send_without_copy(&mut self, source: &[u8]) {
        let mut sends = ZeroCopy::new(&self.zero_copy_stream);
        in_turn(std::slice::from_ref(&self.zero_copy_stream), |_, range| {
            sends.try_send(&source[range])
        });
        self.pair.wait_until(|| {
            sends.complete();
            sends.outstanding() == 0
        });
        self.zero_copy.0 += u64::from(sends.done);
        self.zero_copy.1 += u64::from(sends.copied);
    }

    fn receive(&mut self, candidate: &Candidate, target: &mut [u8]) {
        let zero_copy = candidate.sender == Sender::ZeroCopy;
        let streams = match zero_copy {
            true => std::slice::from_ref(&self.zero_copy_stream),
            false => &self.streams[..candidate.connections],
        };
        match candidate.receiver {
            Receiver::Straight => {
                in_turn(streams, |stream, range| try_receive(stream, &mut target[range]));
            }
            Receiver::Slot => receive_into_slot(streams, &mut self.slot, target),
            Receiver::Ring => self.ring.as_mut().unwrap().receive(&streams[0], target),
            Receiver::RingMultishot => {
                self.ring.as_mut().unwrap().receive_multishot(&streams[0], target);
            }
        }
    }
}

fn receive_into_slot(streams: &[TcpStream], slot: &mut [u8], target: &mut [u8]) {
    in_turn(&streams[..1], |stream, range| {
        let done = range.start % CHUNK_BYTES;
        let received = try_receive(stream, &mut slot[done..done + range.len()]);
        if received == range.len() {
            target[range.end - CHUNK_BYTES..range.end].copy_from_slice(slot);
        }
        received
    });
}

/// Gives every connection its chunks, those in turn, until all bytes are moved. `step` gets what is left of a chunk
/// and says how much of it has moved.
fn in_turn(
    streams: &[TcpStream],
    mut step: impl FnMut(&TcpStream, std::ops::Range<usize>) -> usize,
) {
    let mut next: Vec<usize> = (0..streams.len()).map(|index| index * CHUNK_BYTES).collect();
    let mut left = BYTES;
    let mut patience = Patience::default();
    while left > 0 {
        let before = left;
        for (stream, next) in streams.iter().zip(&mut next) {
            if *next >= BYTES {
                continue;
            }
            let end = (*next / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let moved = step(stream, *next..end);
            left -= moved;
            *next += moved;
            if *next == end {
                *next += (streams.len() - 1) * CHUNK_BYTES;
            }
        }
        if left == before {
            patience.wait();
        } else {
            patience = Patience::default();
        }
    }
}
