//! Proves on a fresh TCP connection that both ends belong to the same job.
//!
//! Both sides hold the job's key and prove it without sending it: each contributes a random nonce,
//! and each returns a message authentication code (HMAC-SHA256) over everything that was said,
//! under a label that names its role, so that no answer can be reflected.
//!
//! ```text
//! initiator → acceptor   preamble: magic, version, length of the hello, nonce
//! acceptor  → initiator  preamble: magic, version, 0, nonce
//! initiator → acceptor   hello, HMAC("initiator" ‖ both preambles ‖ hello)
//! acceptor  → initiator  HMAC("acceptor" ‖ both preambles ‖ hello), or zeros if it is not convinced
//! ```
//!
//! So whoever is refused is told, and the end of a connection is none: a peer that is busy may have given up.
//! The stranger proves first: whoever does not know the key learns nothing but a nonce, and that it is refused. Every
//! message has a length that is known before it is read, so nothing beyond the exchange is consumed
//! from the stream and nobody can make the other side allocate. What follows on the stream is
//! neither encrypted nor authenticated: this keeps strangers and other jobs out, it does not protect
//! from whoever can rewrite packets on the network.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

use crate::{TransportError, clock};

/// Longest hello, in bytes; checked before anything is allocated.
pub const MAX_HELLO_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"r2cclnet";
const VERSION: u32 = 2;
const NONCE_BYTES: usize = 32;
const PREAMBLE_BYTES: usize = 16 + NONCE_BYTES;
const PROOF_BYTES: usize = 32;
const KEY_BYTES: usize = 32;
/// In the place of a proof, which it is not: the peer has not proved the key.
const REFUSAL: [u8; PROOF_BYTES] = [0; PROOF_BYTES];

type Preamble = [u8; PREAMBLE_BYTES];

/// The secret shared by all ranks of a job.
#[derive(Clone)]
pub struct JobKey([u8; KEY_BYTES]);

impl JobKey {
    /// The key with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The key derived from a text that all ranks were given. It is as hard to guess as the text.
    #[must_use]
    pub fn from_passphrase(passphrase: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"r2ccl job key from passphrase, version 1\0");
        digest.update(passphrase.as_bytes());
        Self(digest.finalize().into())
    }

    /// A key nobody else has.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn random() -> Result<Self, TransportError> {
        Ok(Self(random_bytes()?))
    }

    fn mac(&self, role: Role, transcript: &Transcript<'_>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length will do");
        mac.update(role.label());
        mac.update(transcript.initiator);
        mac.update(transcript.acceptor);
        mac.update(transcript.hello);
        mac
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

#[derive(Clone, Copy)]
enum Role {
    Initiator,
    Acceptor,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Initiator => b"r2ccl initiator\0",
            Self::Acceptor => b"r2ccl acceptor\0",
        }
    }
}

/// Everything both sides said before they prove the key.
struct Transcript<'a> {
    initiator: &'a Preamble,
    acceptor: &'a Preamble,
    hello: &'a [u8],
}

/// Proves the key to the peer that accepted `stream`, tells it `hello`, and makes it prove the key.
///
/// # Errors
/// `Refused` if one of both cannot prove the key, or the peer does not speak this protocol; `PeerGone` if it closes,
/// which may be only because it is busy; `TimedOut` if it is not done by `deadline`.
///
/// # Panics
/// `hello` is longer than [`MAX_HELLO_BYTES`].
pub fn initiate(
    stream: &TcpStream,
    key: &JobKey,
    hello: &[u8],
    deadline: Instant,
) -> Result<(), TransportError> {
    introduce(Wire::new(stream, deadline)?, key, hello, || deadline)
}

/// The same, if the peer has turned to this end by `heard_by`; from then on it may take `patience`.
///
/// # Errors
/// As [`initiate`]; `TimedOut` if the peer has not, or takes longer.
///
/// # Panics
/// As [`initiate`].
pub fn initiate_if_heard(
    stream: &TcpStream,
    key: &JobKey,
    hello: &[u8],
    heard_by: Instant,
    patience: Duration,
) -> Result<(), TransportError> {
    introduce(Wire::new(stream, heard_by)?, key, hello, || clock::now() + patience)
}

/// `deadline` is asked when the peer has turned to this end.
fn introduce(
    mut wire: Wire<'_>,
    key: &JobKey,
    hello: &[u8],
    deadline: impl FnOnce() -> Instant,
) -> Result<(), TransportError> {
    assert!(hello.len() <= MAX_HELLO_BYTES, "a hello of {} bytes", hello.len());
    let mine = preamble(hello.len())?;
    wire.send(&mine)?;
    let theirs: Preamble = wire.receive()?;
    wire.deadline = deadline();
    check_magic(&theirs)?;
    hello_bytes(&theirs)?;
    let transcript = Transcript { initiator: &mine, acceptor: &theirs, hello };
    let proof: [u8; PROOF_BYTES] =
        key.mac(Role::Initiator, &transcript).finalize().into_bytes().into();
    wire.send(&[hello, &proof].concat())?;
    let answer: [u8; PROOF_BYTES] = wire.receive()?;
    verify(key.mac(Role::Acceptor, &transcript), &answer)?;
    wire.finish()
}

/// Makes the peer that connected `stream` prove the key, proves it in turn, and returns its hello.
///
/// # Errors
/// `Refused` if one of both cannot prove the key, or the peer does not speak this protocol; `PeerGone` if it closes,
/// which may be only because it is busy; `TimedOut` if it is not done by `deadline`.
pub fn accept(
    stream: &TcpStream,
    key: &JobKey,
    deadline: Instant,
) -> Result<Vec<u8>, TransportError> {
    let mut wire = Wire::new(stream, deadline)?;
    let theirs: Preamble = wire.receive()?;
    check_magic(&theirs)?;
    let mine = preamble(0)?;
    // A peer of another version learns from it that it is one.
    wire.send(&mine)?;
    let mut hello = vec![0; hello_bytes(&theirs)?];
    wire.receive_into(&mut hello)?;
    let proof: [u8; PROOF_BYTES] = wire.receive()?;
    let transcript = Transcript { initiator: &theirs, acceptor: &mine, hello: &hello };
    verify(key.mac(Role::Initiator, &transcript), &proof).inspect_err(|_| {
        // Who has gone needs no answer.
        let _ = wire.send(&REFUSAL);
    })?;
    let answer = key.mac(Role::Acceptor, &transcript).finalize().into_bytes();
    wire.send(&answer)?;
    wire.finish()?;
    Ok(hello)
}

fn verify(mac: Hmac<Sha256>, proof: &[u8; PROOF_BYTES]) -> Result<(), TransportError> {
    // `verify_slice` compares in constant time.
    mac.verify_slice(proof)
        .map_err(|_| TransportError::Refused("the peer does not have the key of this job".into()))
}

fn preamble(hello_bytes: usize) -> Result<Preamble, TransportError> {
    let length = u32::try_from(hello_bytes).expect("a hello is short");
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..].copy_from_slice(&random_bytes::<NONCE_BYTES>()?);
    Ok(bytes)
}

fn check_magic(preamble: &Preamble) -> Result<(), TransportError> {
    if preamble[..8] != MAGIC {
        return Err(TransportError::Refused("the peer does not speak this protocol".into()));
    }
    Ok(())
}

/// The length of the hello that follows a preamble of this version.
fn hello_bytes(bytes: &Preamble) -> Result<usize, TransportError> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if word(8) != VERSION {
        let text = format!("the peer speaks version {} of the protocol, not {VERSION}", word(8));
        return Err(TransportError::Refused(text));
    }
    match usize::try_from(word(12)) {
        Ok(length) if length <= MAX_HELLO_BYTES => Ok(length),
        Ok(_) | Err(_) => Err(TransportError::Refused("the peer's hello is too long".into())),
    }
}

fn random_bytes<const N: usize>() -> Result<[u8; N], TransportError> {
    let mut bytes = [0; N];
    let got = getrandom(&mut bytes[..], GetRandomFlags::empty())
        .map_err(|cause| TransportError::system("getrandom", cause))?;
    assert_eq!(got, N, "requests of up to 256 bytes are always filled");
    Ok(bytes)
}

/// A stream that gives up at a deadline, however slowly the peer drips.
struct Wire<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Wire<'a> {
    fn new(stream: &'a TcpStream, deadline: Instant) -> Result<Self, TransportError> {
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .map_err(|cause| TransportError::system("prepare a connection", cause))?;
        Ok(Self { stream, deadline })
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), TransportError> {
        while !bytes.is_empty() {
            let left = self.left()?;
            let wrote = self.stream.set_write_timeout(Some(left));
            match wrote.and_then(|()| self.stream.write(bytes)) {
                Ok(0) => return Err(closed()),
                Ok(count) => bytes = &bytes[count..],
                Err(cause) => survive(&cause)?,
            }
        }
        Ok(())
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N], TransportError> {
        let mut bytes = [0; N];
        self.receive_into(&mut bytes)?;
        Ok(bytes)
    }

    fn receive_into(&mut self, bytes: &mut [u8]) -> Result<(), TransportError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = self.left()?;
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut bytes[filled..])) {
                Ok(0) => return Err(closed()),
                Ok(count) => filled += count,
                Err(cause) => survive(&cause)?,
            }
        }
        Ok(())
    }

    fn left(&self) -> Result<Duration, TransportError> {
        let left = self.deadline.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Err(TransportError::TimedOut("the peer did not authenticate in time".into()));
        }
        Ok(left)
    }

    /// Leaves the stream as it was found.
    fn finish(self) -> Result<(), TransportError> {
        self.stream
            .set_read_timeout(None)
            .and_then(|()| self.stream.set_write_timeout(None))
            .map_err(|cause| TransportError::system("release a connection", cause))
    }
}

fn closed() -> TransportError {
    TransportError::PeerGone("it closed the connection while it was authenticated".into())
}

/// Interruptions and elapsed time-outs are tried again: the deadline decides.
fn survive(cause: &std::io::Error) -> Result<(), TransportError> {
    let kind = cause.kind();
    if matches!(kind, ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return Ok(());
    }
    if matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) {
        return Err(closed());
    }
    Err(TransportError::system("authenticate a connection", cause))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }

    fn soon() -> Instant {
        clock::now() + Duration::from_secs(20)
    }

    fn key(seed: u8) -> JobKey {
        JobKey::from_bytes([seed; KEY_BYTES])
    }

    fn meet(
        near_key: JobKey,
        far_key: JobKey,
        hello: Vec<u8>,
    ) -> (Result<(), TransportError>, Result<Vec<u8>, TransportError>) {
        let (near, far) = pair();
        let initiator = thread::spawn(move || initiate(&near, &near_key, &hello, soon()));
        let accepted = accept(&far, &far_key, soon());
        drop(far);
        (initiator.join().unwrap(), accepted)
    }

    #[test]
    fn two_ranks_of_a_job_accept_each_other() {
        for bytes in [0, 1, 20, MAX_HELLO_BYTES] {
            let hello: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
            let (initiated, accepted) = meet(key(1), key(1), hello.clone());
            assert_eq!((initiated, accepted), (Ok(()), Ok(hello)));
        }
    }

    #[test]
    fn the_stream_is_usable_afterwards_and_nothing_was_swallowed() {
        let (mut near, mut far) = pair();
        let peer = thread::spawn(move || {
            initiate(&near, &key(1), b"hello", soon()).unwrap();
            near.write_all(b"payload").unwrap();
            near
        });
        assert_eq!(accept(&far, &key(1), soon()).unwrap(), b"hello");
        let mut bytes = [0; 7];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"payload");
        drop(peer.join().unwrap());
    }

    #[test]
    fn another_key_is_refused_on_both_sides() {
        for (near, far) in [(key(1), key(2)), (JobKey::from_passphrase("a"), key(1))] {
            let (initiated, accepted) = meet(near, far, b"hello".to_vec());
            assert!(matches!(initiated, Err(TransportError::Refused(_))), "{initiated:?}");
            assert!(matches!(accepted, Err(TransportError::Refused(_))), "{accepted:?}");
        }
    }

    /// An acceptor without the key plays the protocol and returns the initiator's own proof.
    #[test]
    fn an_acceptor_without_the_key_is_refused() {
        let (near, far) = pair();
        let initiator = thread::spawn(move || initiate(&near, &key(1), b"hello", soon()));
        let mut wire = Wire::new(&far, soon()).unwrap();
        let _: Preamble = wire.receive().unwrap();
        wire.send(&preamble(0).unwrap()).unwrap();
        let hello_and_proof: [u8; 5 + PROOF_BYTES] = wire.receive().unwrap();
        wire.send(&hello_and_proof[5..]).unwrap();
        let outcome = initiator.join().unwrap();
        assert!(matches!(outcome, Err(TransportError::Refused(_))), "{outcome:?}");
    }

    #[test]
    fn a_changed_hello_is_refused() {
        let (near, far) = pair();
        let acceptor = thread::spawn(move || accept(&far, &key(1), soon()));
        let mut wire = Wire::new(&near, soon()).unwrap();
        let mine = preamble(5).unwrap();
        wire.send(&mine).unwrap();
        let theirs: Preamble = wire.receive().unwrap();
        let transcript = Transcript { initiator: &mine, acceptor: &theirs, hello: b"hello" };
        let proof = key(1).mac(Role::Initiator, &transcript).finalize().into_bytes();
        wire.send(b"hellO").unwrap();
        wire.send(&proof).unwrap();
        let outcome = acceptor.join().unwrap();
        assert!(matches!(outcome, Err(TransportError::Refused(_))), "{outcome:?}");
    }

    #[test]
    fn strangers_are_refused() {
        let mut oversized = preamble(0).unwrap();
        oversized[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut newer = preamble(0).unwrap();
        newer[8] = 99;
        let http = b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nUser-Agent: curious\r\n\r\n";
        let words: [&[u8]; 4] = [&[0xa5; 4096], http, &oversized, &newer];
        for word in words {
            let (mut near, far) = pair();
            near.write_all(word).unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            let outcome = accept(&far, &key(1), soon());
            assert!(matches!(outcome, Err(TransportError::Refused(_))), "{outcome:?}");
        }
    }

    #[test]
    fn a_peer_of_another_version_learns_it() {
        let (mut near, far) = pair();
        let mut newer = preamble(0).unwrap();
        newer[8] = 99;
        near.write_all(&newer).unwrap();
        let outcome = accept(&far, &key(1), soon());
        assert!(matches!(outcome, Err(TransportError::Refused(_))), "{outcome:?}");
        drop(far);
        let mut heard = [0; PREAMBLE_BYTES];
        near.read_exact(&mut heard).unwrap();
        assert_eq!((&heard[..8], heard[8]), (&MAGIC[..], VERSION as u8));
    }

    /// A peer that is busy gives connections up, too.
    #[test]
    fn the_end_of_a_connection_is_no_refusal() {
        let (mut near, far) = pair();
        near.write_all(b"short").unwrap();
        drop(near);
        let outcome = accept(&far, &key(1), soon());
        assert!(matches!(outcome, Err(TransportError::PeerGone(_))), "{outcome:?}");
        let (near, far) = pair();
        drop(far);
        let outcome = initiate(&near, &key(1), b"hello", soon());
        assert!(matches!(outcome, Err(TransportError::PeerGone(_))), "{outcome:?}");
    }

    #[test]
    fn an_initiator_refuses_a_stranger() {
        let (near, mut far) = pair();
        far.write_all(b"220 mail.example ESMTP ready, tell me who you are please\r\n").unwrap();
        let outcome = initiate(&near, &key(1), b"hello", soon());
        assert!(matches!(outcome, Err(TransportError::Refused(_))), "{outcome:?}");
    }

    #[test]
    fn silence_times_out() {
        let (near, far) = pair();
        let deadline = clock::now() + Duration::from_millis(30);
        let outcome = accept(&far, &key(1), deadline);
        assert!(matches!(outcome, Err(TransportError::TimedOut(_))), "{outcome:?}");
        let outcome = initiate(&near, &key(1), b"hello", deadline);
        assert!(matches!(outcome, Err(TransportError::TimedOut(_))), "{outcome:?}");
    }

    #[test]
    fn keys_differ_and_do_not_print() {
        let first = JobKey::random().unwrap();
        assert_ne!(first.0, JobKey::random().unwrap().0);
        assert_ne!(JobKey::from_passphrase("a").0, JobKey::from_passphrase("b").0);
        assert_eq!(format!("{first:?}"), "JobKey(..)");
    }
}
