//! One end of a session: what was said and what was heard, whatever connection it went over.
//!
//! A session outlives its connections. Messages are numbered by counting them, each end keeps what it
//! said until the other end confirms it, and a new connection begins with what each has received: so
//! nothing is lost and nothing comes twice.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{self, Envelope, LENGTH_BYTES};

/// Bytes read before others get their turn.
const READ_BYTES: usize = 256 << 10;
/// Unconfirmed bytes after which the other end is told at once, and not with the next sign of life.
const CONFIRMED_BYTES: usize = 256 << 10;

/// How a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The other end closed it, or its process ended: the kernel there says so.
    Closed,
    /// The network did, or what arrived is not to be understood.
    Broken(String),
}

/// What this end says.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames of messages that are not confirmed, in order.
    kept: VecDeque<Arc<[u8]>>,
    kept_bytes: usize,
    /// Messages that are.
    confirmed: u64,
    /// The first of `kept` that is not wholly written to the current connection, and how much of it is.
    unwritten: usize,
    written_bytes: usize,
    /// Frames that belong to the connection and not to the session; they go first.
    signs: Vec<u8>,
    signs_written_bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: Arc<[u8]>) {
        self.kept_bytes += frame.len();
        self.kept.push_back(frame);
    }

    /// Adds a frame that is not part of the session.
    pub(super) fn sign<T: Serialize>(&mut self, envelope: &Envelope<T>) {
        match message::encode(envelope) {
            Ok(frame) => self.signs.extend(frame),
            Err(cause) => tracing::error!(cause, "a sign of life cannot be encoded"),
        }
    }

    /// Bytes of messages that the other end has not confirmed.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    pub(super) fn has_unwritten_signs(&self) -> bool {
        !self.signs.is_empty()
    }

    pub(super) fn has_unwritten(&self) -> bool {
        self.has_unwritten_signs() || self.unwritten < self.kept.len()
    }

    /// The other end has received this many messages. The error is a breach of the protocol.
    pub(super) fn confirm(&mut self, received: u64) -> Result<(), String> {
        let new = received.saturating_sub(self.confirmed);
        match usize::try_from(new) {
            Ok(new) if new <= self.unwritten => {
                self.kept_bytes -= self.kept.drain(..new).map(|frame| frame.len()).sum::<usize>();
                self.unwritten -= new;
                self.confirmed = self.confirmed.max(received);
                Ok(())
            }
            Ok(_) | Err(_) => Err(format!("it confirmed {received} messages, more than were sent")),
        }
    }

    /// Goes on, on a new connection, behind what the other end has received.
    pub(super) fn resume(&mut self, received: u64) -> Result<(), String> {
        if received < self.confirmed {
            return Err(format!("it has forgotten what it confirmed: {received} messages"));
        }
        self.confirm(received)?;
        self.unwritten = 0;
        self.abandon_connection();
        Ok(())
    }

    /// Forgets what only the connection that is given up has taken or would have taken.
    pub(super) fn abandon_connection(&mut self) {
        self.written_bytes = 0;
        self.forget_signs();
    }

    fn forget_signs(&mut self) {
        self.signs.clear();
        self.signs_written_bytes = 0;
    }

    /// Writes what `stream` takes: only signs if `messages` must not go out yet.
    pub(super) fn write(&mut self, mut stream: impl Write, messages: bool) -> Result<(), Ended> {
        loop {
            let within_message = self.written_bytes > 0;
            let count = if self.has_unwritten_signs() && !within_message {
                offer(&mut stream, &self.signs[self.signs_written_bytes..])?
            } else {
                let Some(frame) = self.kept.get(self.unwritten).filter(|_| messages) else {
                    return Ok(());
                };
                offer(&mut stream, &frame[self.written_bytes..])?
            };
            match count {
                None => return Ok(()),
                Some(count) if self.has_unwritten_signs() && !within_message => {
                    self.signs_written_bytes += count;
                    if self.signs_written_bytes == self.signs.len() {
                        self.forget_signs();
                    }
                }
                Some(count) => {
                    self.written_bytes += count;
                    if self.written_bytes == self.kept[self.unwritten].len() {
                        self.unwritten += 1;
                        self.written_bytes = 0;
                    }
                }
            }
        }
    }
}

/// How many bytes were taken; none if nothing can be taken now.
fn offer(stream: &mut impl Write, bytes: &[u8]) -> Result<Option<usize>, Ended> {
    loop {
        match stream.write(bytes) {
            Ok(count) => return Ok(Some(count)),
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(cause) => return Err(ended(&cause)),
        }
    }
}

fn ended(cause: &io::Error) -> Ended {
    let by_the_other_end =
        [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
    if by_the_other_end.contains(&cause.kind()) {
        Ended::Closed
    } else {
        Ended::Broken(cause.to_string())
    }
}

/// What this end hears.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// How much of them is understood.
    taken_bytes: usize,
    received: u64,
    unconfirmed_bytes: usize,
}

impl Inbox {
    /// Messages that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Takes what has arrived, up to a turn's worth. Tells whether there was anything.
    pub(super) fn read(&mut self, stream: impl Read) -> Result<bool, Ended> {
        self.bytes.drain(..self.taken_bytes);
        self.taken_bytes = 0;
        let before = self.bytes.len();
        let mut turn = stream.take(READ_BYTES as u64);
        match turn.read_to_end(&mut self.bytes) {
            Ok(READ_BYTES) => Ok(true),
            Ok(_) => Err(Ended::Closed),
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => Ok(self.bytes.len() > before),
            Err(cause) => Err(ended(&cause)),
        }
    }

    /// The next complete frame of at most `most` bytes. The error is a breach of the protocol.
    pub(super) fn next<T: DeserializeOwned>(
        &mut self,
        most: usize,
    ) -> Result<Option<Envelope<T>>, String> {
        let arrived = &self.bytes[self.taken_bytes..];
        let Some((header, rest)) = arrived.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = message::body_bytes(*header, most)?;
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let envelope = message::decode(body)?;
        self.taken_bytes += LENGTH_BYTES + bytes;
        if let Envelope::Message(_) = envelope {
            self.received += 1;
            self.unconfirmed_bytes += bytes;
        }
        Ok(Some(envelope))
    }

    /// Whether the other end should be told soon how much has arrived.
    pub(super) fn should_confirm(&self) -> bool {
        self.unconfirmed_bytes > CONFIRMED_BYTES
    }

    /// A sign of life, which confirms what has arrived.
    pub(super) fn confirmation<T>(&mut self) -> Envelope<T> {
        self.unconfirmed_bytes = 0;
        Envelope::Received(self.received)
    }

    /// Goes on with another connection, of which `other` has already read something.
    pub(super) fn resume(&mut self, other: Self) {
        self.bytes = other.bytes;
        self.taken_bytes = other.taken_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Text = Envelope<String>;

    fn frame(text: &str) -> Arc<[u8]> {
        message::encode(&Text::Message(text.to_owned())).unwrap().into()
    }

    /// A socket that takes so many bytes and then no more for now.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1 - self.0.len());
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.0.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A socket with these bytes, and then nothing for now.
    struct Arrived<'a>(&'a [u8]);

    impl Read for Arrived<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.0.read(into)
        }
    }

    fn texts(inbox: &mut Inbox, bytes: &[u8]) -> Vec<String> {
        inbox.read(Arrived(bytes)).unwrap();
        let mut texts = Vec::new();
        while let Some(envelope) = inbox.next::<String>(1000).unwrap() {
            if let Text::Message(text) = envelope {
                texts.push(text);
            }
        }
        texts
    }

    /// Wherever a connection breaks, every message arrives exactly once.
    #[test]
    fn a_session_survives_a_break_at_any_byte() {
        let sent: Vec<String> = (0..5).map(|number| format!("message {number}")).collect();
        let whole: usize = sent.iter().map(|text| frame(text).len()).sum();
        for (first, second) in (0..whole).flat_map(|a| [(a, 7), (a, 1000)]) {
            let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
            sent.iter().for_each(|text| outbox.push(frame(text)));
            let mut heard = Vec::new();
            for room in [first, second, 1000] {
                let mut connection = Narrow(Vec::new(), room);
                outbox.write(&mut connection, true).unwrap();
                inbox.resume(Inbox::default());
                heard.extend(texts(&mut inbox, &connection.0));
                outbox.resume(inbox.received()).unwrap();
            }
            assert_eq!(heard, sent, "broken after {first} and {second} bytes");
            assert_eq!((outbox.kept_bytes(), outbox.has_unwritten()), (0, false));
        }
    }

    #[test]
    fn signs_go_between_messages_and_never_inside() {
        let mut outbox = Outbox::default();
        outbox.push(frame("first"));
        outbox.push(frame("second"));
        let mut connection = Narrow(Vec::new(), 6);
        outbox.write(&mut connection, true).unwrap();
        outbox.sign(&Text::Received(3));
        connection.1 = 1000;
        outbox.write(&mut connection, true).unwrap();
        let mut inbox = Inbox::default();
        inbox.read(Arrived(&connection.0)).unwrap();
        let mut order = Vec::new();
        while let Some(envelope) = inbox.next::<String>(1000).unwrap() {
            order.push(envelope);
        }
        let message = |text: &str| Text::Message(text.to_owned());
        assert_eq!(order, [message("first"), Text::Received(3), message("second")]);
    }

    #[test]
    fn impossible_confirmations_are_breaches() {
        let mut outbox = Outbox::default();
        outbox.push(frame("one"));
        assert!(outbox.confirm(1).is_err(), "it was not sent yet");
        outbox.write(&mut Narrow(Vec::new(), 1000), true).unwrap();
        assert_eq!(outbox.confirm(1), Ok(()));
        assert_eq!(outbox.confirm(0), Ok(()), "an old sign of life");
        assert!(outbox.resume(0).is_err(), "the message is no longer there");
        assert!(outbox.resume(2).is_err());
    }
}
