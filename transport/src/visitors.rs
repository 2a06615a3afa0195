//! Who has connected to a listener and has said nothing yet.
//!
//! Whoever listens turns to those who speak, so strangers who say nothing delay nobody. They are left in peace, and cost no
//! thread: a peer may only want to know whether the network answers.

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
    silent: VecDeque<Visitor<P>>,
    /// One more replaces the oldest.
    most: usize,
    patience: Duration,
}

#[derive(Debug)]
struct Visitor<P> {
    stream: TcpStream,
    place: P,
    until: Instant,
}

impl<P> Visitors<P> {
    /// Nobody yet; then `most` at a time, who may say nothing for `patience`.
    pub fn new(most: usize, patience: Duration) -> Self {
        Self { silent: VecDeque::new(), most, patience }
    }

    /// Somebody has connected at `place`.
    pub fn add(&mut self, stream: TcpStream, place: P, now: Instant) {
        // One whose connection cannot be prepared cannot be heard either.
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        self.silent.push_back(Visitor { stream, place, until: now + self.patience });
        self.make_room();
    }

    /// Those who have come to `other` wait here.
    pub fn append(&mut self, other: &mut Self) {
        self.silent.append(&mut other.silent);
        self.make_room();
    }

    fn make_room(&mut self) {
        let too_many = self.silent.len().saturating_sub(self.most);
        self.silent.drain(..too_many);
    }

    /// Somebody who has spoken cannot be attended to now.
    pub fn put_back(&mut self, stream: TcpStream, place: P, now: Instant) {
        self.silent.push_front(Visitor { stream, place, until: now + self.patience });
    }

    /// Readable once a visitor speaks or leaves.
    pub fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.silent.iter().map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN))
    }

    /// When the patience with the first of them is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.silent.iter().map(|visitor| visitor.until).min()
    }

    /// The next one who has spoken. Forgets who has left, or has said nothing for too long.
    pub fn next_speaker(&mut self, now: Instant) -> Option<(TcpStream, P)> {
        let mut index = 0;
        while let Some(visitor) = self.silent.get(index) {
            match visitor.stream.peek(&mut [0]) {
                Ok(1..) => {
                    let visitor = self.silent.remove(index)?;
                    return Some((visitor.stream, visitor.place));
                }
                Err(cause)
                    if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
                        && now < visitor.until =>
                {
                    index += 1;
                }
                Ok(_) | Err(_) => drop(self.silent.remove(index)),
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
}
