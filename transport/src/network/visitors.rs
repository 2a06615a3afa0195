//! Whoever has connected to a rail and said nothing yet.
//!
//! They are left in peace, and cost no thread: a peer may only want to know whether the network answers.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Most of them; one more replaces the oldest.
pub(super) const MAX_VISITORS: usize = 64;

/// Somebody who has connected.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) rail: usize,
    /// When it is not listened to any more.
    pub(super) until: Instant,
}

/// All of them, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Visitors(VecDeque<Visitor>);

impl Visitors {
    pub(super) fn admit(&mut self, visitor: Visitor) {
        if visitor.stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.0.len() >= MAX_VISITORS {
            self.0.pop_front();
        }
        self.0.push_back(visitor);
    }

    /// Takes out those who have begun to speak, `room` at most, and forgets those who
    /// have left or are silent for too long.
    pub(super) fn spoken(&mut self, now: Instant, room: usize) -> Vec<Visitor> {
        let mut spoken = Vec::new();
        for visitor in std::mem::take(&mut self.0) {
            match visitor.stream.peek(&mut [0]) {
                Ok(1..) if spoken.len() < room => spoken.push(visitor),
                Ok(0) => {}
                Err(cause)
                    if !matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Ok(_) | Err(_) if now < visitor.until => self.0.push_back(visitor),
                Ok(_) | Err(_) => {}
            }
        }
        spoken
    }

    /// When the next of them is silent for too long.
    pub(super) fn alarm(&self) -> Option<Instant> {
        self.0.iter().map(|visitor| visitor.until).min()
    }

    /// Their connections, to wait for what they say.
    pub(super) fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        self.0.iter().map(|visitor| &visitor.stream)
    }
}
