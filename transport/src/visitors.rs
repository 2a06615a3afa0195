//! Who has connected to a listener, until somebody turns to him.
//!
//! Whoever listens turns to those who speak, so strangers who say nothing delay nobody. They are left in peace, and cost no
//! thread: a peer may only want to know whether the network answers. Where there are too many they make room for others. Who
//! has spoken keeps his place, because he may be a peer.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

/// As many may say nothing where few are expected at a time.
pub const FEW: usize = 64;

/// Those who wait at one place.
#[derive(Debug)]
pub struct Visitors<P> {
    /// The oldest first.
    waiting: VecDeque<Visitor<P>>,
    /// One more replaces the oldest who has said nothing.
    most: usize,
    patience: Duration,
}

#[derive(Debug)]
struct Visitor<P> {
    stream: TcpStream,
    place: P,
    /// Patience with his silence.
    until: Instant,
    /// Known once somebody has looked.
    has_spoken: bool,
}

impl<P> Visitor<P> {
    fn has_spoken(&mut self) -> bool {
        self.has_spoken = self.has_spoken || matches!(self.stream.peek(&mut [0]), Ok(1..));
        self.has_spoken
    }
}

impl<P> Visitors<P> {
    /// Nobody yet; then `most` at a time, who may say nothing for `patience`.
    pub fn new(most: usize, patience: Duration) -> Self {
        Self { waiting: VecDeque::new(), most, patience }
    }

    /// Whether one more finds a place: not while as many have spoken as may wait. Who is not accepted waits in the kernel.
    pub fn has_room(&mut self) -> bool {
        self.waiting.len() < self.most || self.oldest_silent().is_some()
    }

    /// Somebody has connected at `place`.
    pub fn add(&mut self, stream: TcpStream, place: P, now: Instant) {
        // One whose connection cannot be prepared cannot be heard either.
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let until = now + self.patience;
        self.take_in(Visitor { stream, place, until, has_spoken: false });
    }

    /// Those who have come to `other` wait here.
    pub fn append(&mut self, other: &mut Self) {
        other.waiting.drain(..).for_each(|visitor| self.take_in(visitor));
    }

    fn take_in(&mut self, visitor: Visitor<P>) {
        if self.waiting.len() >= self.most {
            self.forget_one();
        }
        self.waiting.push_back(visitor);
    }

    /// Forgets the oldest who has said nothing. `false` if there is none.
    pub fn forget_one(&mut self) -> bool {
        let oldest = self.oldest_silent();
        oldest.and_then(|index| self.waiting.remove(index)).is_some()
    }

    fn oldest_silent(&mut self) -> Option<usize> {
        self.waiting.iter_mut().position(|visitor| !visitor.has_spoken())
    }

    /// Somebody who has spoken cannot be attended to now.
    pub fn put_back(&mut self, stream: TcpStream, place: P, now: Instant) {
        let until = now + self.patience;
        self.waiting.push_front(Visitor { stream, place, until, has_spoken: true });
    }

    /// Readable once a visitor speaks or leaves.
    pub fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.waiting.iter().map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN))
    }

    /// When the patience with the first of them is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|visitor| visitor.until).min()
    }

    /// The next one who has spoken. Forgets who has left, or has said nothing for too long.
    pub fn next_speaker(&mut self, now: Instant) -> Option<(TcpStream, P)> {
        let mut index = 0;
        while let Some(visitor) = self.waiting.get(index) {
            match visitor.stream.peek(&mut [0]) {
                Ok(1..) => {
                    let visitor = self.waiting.remove(index)?;
                    return Some((visitor.stream, visitor.place));
                }
                Err(cause)
                    if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
                        && now < visitor.until =>
                {
                    index += 1;
                }
                Ok(_) | Err(_) => drop(self.waiting.remove(index)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::clock;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn come(listener: &TcpListener, visitors: &mut Visitors<u32>, name: u32) -> TcpStream {
        let stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        visitors.add(listener.accept().unwrap().0, name, clock::now());
        stranger
    }

    #[test]
    fn who_speaks_is_heard_before_those_who_came_earlier_and_are_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut visitors = Visitors::new(3, PATIENCE);
        let mut came: Vec<_> = (0..3).map(|name| come(&listener, &mut visitors, name)).collect();
        let now = clock::now();
        assert!(visitors.next_speaker(now).is_none());
        came[1].write_all(b"x").unwrap();
        assert!(matches!(visitors.next_speaker(now), Some((_, 1))));
        assert_eq!(visitors.polled().count(), 2);
        came.push(come(&listener, &mut visitors, 3));
        came.push(come(&listener, &mut visitors, 4));
        came[0].write_all(b"x").unwrap();
        assert!(visitors.next_speaker(now).is_none(), "a later one has the place of the oldest");
        drop(came.remove(3));
        assert!(visitors.next_speaker(now).is_none());
        assert_eq!(visitors.polled().count(), 2, "one has left");
        let mut others = Visitors::new(3, PATIENCE);
        let _come = [5, 6].map(|name| come(&listener, &mut others, name));
        visitors.append(&mut others);
        assert_eq!((visitors.polled().count(), others.polled().count()), (3, 0));
        assert!(visitors.next_speaker(now + 2 * PATIENCE).is_none());
        assert_eq!(visitors.polled().count(), 0);
    }

    #[test]
    fn who_has_spoken_keeps_his_place() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut visitors = Visitors::new(3, PATIENCE);
        let mut came: Vec<_> = (0..3).map(|name| come(&listener, &mut visitors, name)).collect();
        came[0].write_all(b"x").unwrap();
        came[2].write_all(b"x").unwrap();
        assert!(visitors.has_room(), "the second is silent");
        came.push(come(&listener, &mut visitors, 3));
        came[3].write_all(b"x").unwrap();
        assert!(!visitors.has_room() && !visitors.forget_one());
        // Somebody may speak between the look and the arrival of another.
        came.push(come(&listener, &mut visitors, 4));
        assert!(visitors.forget_one() && !visitors.has_room());
        let now = clock::now() + 2 * PATIENCE;
        let (stream, first) = visitors.next_speaker(now).unwrap();
        assert!(visitors.has_room());
        visitors.put_back(stream, first, now);
        assert!(!visitors.has_room());
        let heard = [0; 3].map(|_| visitors.next_speaker(now).unwrap().1);
        assert_eq!(heard, [0, 2, 3]);
    }
}
