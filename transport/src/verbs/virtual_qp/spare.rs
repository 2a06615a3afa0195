//! Backup connections that many virtual queue pairs share.
//!
//! A spare is an idle connection between two hosts: a socket, without a queue pair. Both hosts have
//! its two ends in their pools, and one of them may claim it, so that they never want it for different
//! queue pairs. When a queue pair needs one, the end that leads claims it: it says on it whom it is
//! for, and attaches it; the other host reads that and attaches its end. From then on the connection
//! belongs to that queue pair. Whoever fills the pool adds another one, and has an end of the device made for it
//! where that does not need to know the peer ([`keep_ready`](super::VirtualDomain::keep_ready)).

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::super::Connection;
use super::queue_pair::VirtualQp;
use crate::TransportError;

const CLAIM_BYTES: usize = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"r2spare1");

/// Whom a spare is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// [Identity](VirtualQp::identity) of the queue pair at the end that reads this.
    pub identity: u64,
    /// The rail that the connection becomes.
    pub rail: usize,
}

impl Claim {
    fn encode(self) -> [u8; CLAIM_BYTES] {
        let words = [MAGIC, self.identity, self.rail as u64].map(u64::to_le_bytes);
        let mut bytes = [0; CLAIM_BYTES];
        bytes.copy_from_slice(words.as_flattened());
        bytes
    }

    fn decode(bytes: [u8; CLAIM_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [magic, identity, rail] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
        let rail = usize::try_from(rail).ok()?;
        (magic == MAGIC).then_some(Self { identity, rail })
    }
}

/// Which end of a spare may claim it. Its two ends say the opposite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This one.
    Here,
    /// The other one.
    There,
}

#[derive(Debug)]
struct Spare {
    stream: TcpStream,
    owner: Owner,
    claim: [u8; CLAIM_BYTES],
    read: usize,
}

enum Heard {
    Nothing,
    Claim(Claim),
    /// Closed, broken, or not a claim.
    End,
}

impl Spare {
    fn listen(&mut self) -> Heard {
        match self.stream.read(&mut self.claim[self.read..]) {
            Ok(0) => Heard::End,
            Ok(count) => {
                self.read += count;
                match (self.read, Claim::decode(self.claim)) {
                    (CLAIM_BYTES, Some(claim)) => Heard::Claim(claim),
                    (CLAIM_BYTES, None) => Heard::End,
                    _ => Heard::Nothing,
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }
}

/// A bounded number of spares to one host.
#[derive(Debug)]
pub struct SparePool {
    /// The oldest first.
    spares: Vec<Spare>,
    size: usize,
}

impl SparePool {
    /// An empty pool for up to `size` spares.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { spares: Vec::with_capacity(size), size }
    }

    /// How many more it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.size - self.spares.len()
    }

    /// Adds an authenticated connection over the rail that it is a spare for.
    ///
    /// # Errors
    /// The pool is full, or the connection cannot be used.
    pub fn add(&mut self, stream: TcpStream, owner: Owner) -> Result<(), TransportError> {
        if self.room() == 0 {
            let text = format!("it has {} already", self.size);
            return Err(TransportError::system("add to the pool of spares", text));
        }
        let prepared = stream.set_nonblocking(true);
        prepared.map_err(|cause| TransportError::system("prepare a spare", cause))?;
        self.spares.push(Spare { stream, owner, claim: [0; CLAIM_BYTES], read: 0 });
        Ok(())
    }

    /// Gives up the spare that was added first, if there is no room.
    pub fn make_room(&mut self) {
        if self.room() == 0 && !self.spares.is_empty() {
            self.spares.remove(0);
        }
    }

    /// Gives up all spares.
    pub fn clear(&mut self) {
        self.spares.clear();
    }

    /// Gives a spare to a rail of a queue pair that leads and wants one; tells whether it did.
    ///
    /// # Errors
    /// The queue pair did not take it.
    pub fn claim(&mut self, pair: &mut VirtualQp, rail: usize) -> Result<bool, TransportError> {
        let (Some(true), Some(identity)) = (pair.leads(), pair.peer()) else { return Ok(false) };
        if !pair.wants(rail) {
            return Ok(false);
        }
        while let Some(index) = self.spares.iter().rposition(|spare| spare.owner == Owner::Here) {
            let mut spare = self.spares.remove(index);
            let claim = Claim { identity, rail }.encode();
            // An idle connection takes so few bytes at once. One that does not is dead.
            if matches!(spare.stream.write(&claim), Ok(CLAIM_BYTES)) {
                pair.attach(rail, Connection::Spare(spare.stream))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A spare that the other host has claimed: its end here is for the queue pair that it names.
    /// Spares that have died are dropped.
    pub fn claimed(&mut self) -> Option<(Claim, Connection)> {
        let mut index = 0;
        while index < self.spares.len() {
            let owner = self.spares[index].owner;
            match (self.spares[index].listen(), owner) {
                (Heard::Nothing, _) => index += 1,
                (Heard::End, _) | (Heard::Claim(_), Owner::Here) => {
                    self.spares.remove(index);
                }
                (Heard::Claim(claim), Owner::There) => {
                    let stream = self.spares.remove(index).stream;
                    return Some((claim, Connection::Spare(stream)));
                }
            }
        }
        None
    }
}
