//! The connection beside the queue pair.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::hello::{MESSAGE_BYTES, Message};
use crate::TransportError;

/// One end of it. Nothing here blocks.
#[derive(Debug)]
pub(super) struct Parley {
    stream: TcpStream,
    /// Both addresses, for messages.
    path: String,
    unsent: Vec<u8>,
    incoming: [u8; MESSAGE_BYTES],
    heard_bytes: usize,
}

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    Message(Message),
    /// The peer closed, or its host did, for this reason.
    Closed(String),
    /// What no correct peer says.
    Nonsense,
}

impl Parley {
    pub(super) fn new(stream: TcpStream) -> Result<Self, TransportError> {
        let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        prepared.map_err(|cause| TransportError::system("prepare a connection", cause))?;
        let path = path(&stream);
        let (unsent, incoming) = (Vec::new(), [0; MESSAGE_BYTES]);
        Ok(Self { stream, path, unsent, incoming, heard_bytes: 0 })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn say(&mut self, message: &Message) {
        self.unsent.extend(message.encode());
        self.flush();
    }

    /// Says why, as the last thing.
    pub(super) fn part(&mut self, message: &Message) {
        self.say(message);
        // It fails only if the peer has closed already. What is unsent then is lost: the end of the
        // connection says the same.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Hands on what the kernel had no room for; tells whether anything is left.
    pub(super) fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match (&self.stream).write(&self.unsent) {
                Ok(0) => break,
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                // Reading tells that the connection is lost.
                Err(_) => self.unsent.clear(),
            }
        }
        !self.unsent.is_empty()
    }

    /// Whether everything was handed on.
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// What the peer says next.
    pub(super) fn hear(&mut self) -> Heard {
        while self.heard_bytes < MESSAGE_BYTES {
            match (&self.stream).read(&mut self.incoming[self.heard_bytes..]) {
                Ok(0) => return Heard::Closed("the connection was closed".into()),
                Ok(count) => self.heard_bytes += count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(cause) => return Heard::Closed(cause.to_string()),
            }
        }
        self.heard_bytes = 0;
        Message::decode(&self.incoming).map_or(Heard::Nonsense, Heard::Message)
    }
}

fn path(stream: &TcpStream) -> String {
    let name = |address: std::io::Result<SocketAddr>| {
        address.map_or("?".into(), |address| address.to_string())
    };
    format!("{} to {}", name(stream.local_addr()), name(stream.peer_addr()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::hello::Farewell;
    use super::*;
    use crate::clock;

    fn connected() -> (Parley, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Parley::new(listener.accept().unwrap().0).unwrap(), far)
    }

    fn next(parley: &mut Parley) -> Heard {
        let deadline = clock::now() + Duration::from_secs(30);
        loop {
            let heard = parley.hear();
            if heard != Heard::Nothing {
                return heard;
            }
            assert!(clock::now() < deadline, "nothing is heard");
        }
    }

    #[test]
    fn messages_may_come_in_pieces_and_several_at_once() {
        let (mut parley, mut far) = connected();
        assert_eq!(parley.hear(), Heard::Nothing);
        let farewell = Message::Farewell(Farewell::Lost);
        let bytes = [Message::Ready.encode(), farewell.encode()].concat();
        far.write_all(&bytes[..17]).unwrap();
        assert_eq!(parley.hear(), Heard::Nothing);
        far.write_all(&bytes[17..]).unwrap();
        assert_eq!(next(&mut parley), Heard::Message(Message::Ready));
        assert_eq!(next(&mut parley), Heard::Message(farewell));
        drop(far);
        assert!(matches!(next(&mut parley), Heard::Closed(_)));
    }

    #[test]
    fn noise_is_nonsense() {
        let (mut parley, mut far) = connected();
        far.write_all(&[7; MESSAGE_BYTES]).unwrap();
        assert_eq!(next(&mut parley), Heard::Nonsense);
    }

    #[test]
    fn a_farewell_is_the_last_thing() {
        let (mut parley, mut far) = connected();
        parley.say(&Message::Ready);
        parley.part(&Message::Farewell(Farewell::Fenced));
        assert!(parley.is_flushed());
        let mut said = Vec::new();
        far.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        far.read_to_end(&mut said).unwrap();
        let expected = [Message::Ready, Message::Farewell(Farewell::Fenced)];
        assert_eq!(said, expected.map(|message| message.encode()).concat());
    }
}
