//! The store's end of a rank's session: the conversation, and the connection that carries it now.

use std::net::TcpStream;
use std::time::Instant;

use rustix::event::PollFlags;

use super::message::{Envelope, Numbered, Push, Session};
use super::session::{Ended, Inbox, Outbox};

/// A rank's session and the connection it uses.
pub(super) struct Connection {
    pub(super) rank: u32,
    /// None before the rank's first words.
    pub(super) session: Option<Session>,
    /// The rank's attempt to go on that led here, 0 for the first connection.
    pub(super) attempt: u64,
    /// None while the network keeps the rank away.
    pub(super) stream: Option<TcpStream>,
    pub(super) parted_at: Option<Instant>,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, rank: u32) -> Self {
        Self {
            rank,
            session: None,
            attempt: 0,
            stream: Some(stream),
            parted_at: None,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
        }
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.outbox.has_unwritten() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    pub(super) fn read(&mut self) -> Result<bool, Ended> {
        self.stream.as_ref().map_or(Ok(false), |stream| self.inbox.read(stream))
    }

    /// Takes what is not part of the conversation. The error is a breach of the protocol.
    pub(super) fn take(&mut self, envelope: Envelope<Numbered>) -> Result<(), String> {
        match envelope {
            Envelope::Open(session) if self.session.is_none() => {
                self.session = Some(session);
                Ok(())
            }
            Envelope::Received(count) => self.outbox.confirm(count),
            Envelope::Ping => {
                self.confirm();
                Ok(())
            }
            Envelope::Open(_)
            | Envelope::Message(_)
            | Envelope::Resume { .. }
            | Envelope::Resumed { .. }
            | Envelope::Unknown => Err("said something out of place".to_owned()),
        }
    }

    /// Says that this end lives and what it has received, unless it is about to.
    pub(super) fn confirm(&mut self) {
        if self.session.is_some() && self.stream.is_some() && !self.outbox.has_unwritten_signs() {
            let sign = self.inbox.confirmation::<Push>();
            self.outbox.sign(&sign);
        }
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Ended> {
        if self.inbox.should_confirm() {
            self.confirm();
        }
        let Some(stream) = &self.stream else { return Ok(()) };
        self.outbox.write(stream, true)
    }
}
