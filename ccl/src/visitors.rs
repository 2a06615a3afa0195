//! Who has connected to a listener and has said nothing yet.
//!
//! Whoever listens turns to those who speak, so strangers who say nothing delay nobody.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

/// Those who wait at one place.
#[derive(Debug)]
pub(crate) struct Visitors<P> {
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
    pub(crate) fn new(most: usize, patience: Duration) -> Self {
        Self { silent: VecDeque::new(), most, patience }
    }

    /// Somebody has connected at `place`.
    pub(crate) fn add(&mut self, stream: TcpStream, place: P, now: Instant) {
        // One whose connection cannot be prepared cannot be heard either.
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.silent.len() >= self.most {
            self.silent.pop_front();
        }
        self.silent.push_back(Visitor { stream, place, until: now + self.patience });
    }

    /// Those who have come to `other` wait here.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.silent.append(&mut other.silent);
    }

    /// Somebody who has spoken cannot be attended to now.
    pub(crate) fn put_back(&mut self, stream: TcpStream, place: P, now: Instant) {
        self.silent.push_front(Visitor { stream, place, until: now + self.patience });
    }

    /// Readable once a visitor speaks or leaves.
    pub(crate) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.silent.iter().map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN))
    }

    /// When the patience with the first of them is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.silent.iter().map(|visitor| visitor.until).min()
    }

    /// The next one who has spoken. Forgets who has left, or has said nothing for too long.
    pub(crate) fn next_speaker(&mut self, now: Instant) -> Option<(TcpStream, P)> {
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

    use ccl_transport::clock;

    use super::*;

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
        assert!(visitors.next_speaker(now + 2 * PATIENCE).is_none());
        assert_eq!(visitors.polled().count(), 0);
    }
}
