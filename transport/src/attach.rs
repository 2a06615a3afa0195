//! Memory of other processes of this host, of which the system makes copies: *cross memory attach*.
//!
//! A peer need not have shared its memory. It must be of the same user, and allow what a debugger is allowed, which
//! containers and security modules may forbid: [`Witness`] finds out.

use std::io::IoSliceMut;
use std::process;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::{TransportError, clock};

/// A word that a process shows to its peers, so that they know whether they can read its memory.
#[derive(Debug)]
pub struct Witness {
    /// Stays where it is.
    word: Box<u64>,
}

impl Default for Witness {
    fn default() -> Self {
        // No other process of this host has the same word at the same time, except by chance.
        Self { word: Box::new(clock::monotonic_ns(clock::now()) << 16 ^ u64::from(process::id())) }
    }
}

/// What a peer has told of its [`Witness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Testimony {
    process: u32,
    address: u64,
    word: u64,
}

impl Witness {
    /// What peers are told.
    #[must_use]
    pub fn testimony(&self) -> Testimony {
        let address = std::ptr::from_ref(&*self.word).expose_provenance() as u64;
        Testimony { process: process::id(), address, word: *self.word }
    }
}

impl Testimony {
    /// Size of an encoded testimony.
    pub const ENCODED_BYTES: usize = size_of::<u32>() + 2 * size_of::<u64>();

    /// As bytes for a peer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.address.to_le_bytes());
        bytes[12..].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }

    /// What a peer has encoded.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let process = u32::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        Self { process, address: word(4), word: word(12) }
    }

    /// The process that has told it, if its memory can be read from here.
    ///
    /// # Errors
    /// As [`Process::read`], or its memory is not what it has told: it is another process.
    pub fn examine(&self) -> Result<Process, TransportError> {
        let process = Process(self.process);
        let mut word = [0; size_of::<u64>()];
        process.read(self.address, &mut word)?;
        if u64::from_le_bytes(word) != self.word {
            let text = format!("process {} is not the peer", self.process);
            return Err(TransportError::Protocol(text));
        }
        Ok(process)
    }
}

/// A process whose memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    fn name(self) -> Result<Pid, TransportError> {
        let name = i32::try_from(self.0).map(Pid::from_raw);
        name.map_err(|_| TransportError::Protocol(format!("no process {}", self.0)))
    }

    /// Whether the system copies so many bytes at `address` there, as far as the first and the last of them tell. It does not
    /// copy registers of devices, or secret memory, which the process itself can read.
    #[must_use]
    pub fn has(self, address: u64, bytes: usize) -> bool {
        let Some(rest) = bytes.checked_sub(1) else { return true };
        let first = usize::try_from(address).ok();
        let last = first.and_then(|first| first.checked_add(rest));
        let (Some(first), Some(last), Ok(name)) = (first, last, self.name()) else { return false };
        let from = [first, last].map(|base| RemoteIoVec { base, len: 1 });
        process_vm_readv(name, &mut [IoSliceMut::new(&mut [0; 2])], &from) == Ok(from.len())
    }

    /// Copies what is at `address` there into `target`.
    ///
    /// # Errors
    /// [`TransportError::PeerGone`]: the process has ended, or has no such memory any more, or none that the system
    /// copies. [`TransportError::System`]: the system refuses.
    pub fn read(self, address: u64, target: &mut [u8]) -> Result<(), TransportError> {
        let name = self.name()?;
        let mut done = 0;
        while done < target.len() {
            let base = usize::try_from(address).ok().and_then(|start| start.checked_add(done));
            let base = base.ok_or_else(|| TransportError::Protocol("no such address".into()))?;
            let from = [RemoteIoVec { base, len: target.len() - done }];
            match process_vm_readv(name, &mut [IoSliceMut::new(&mut target[done..])], &from) {
                Ok(0) | Err(Errno::EFAULT) => {
                    let text = format!(
                        "process {}, which may be alive, has no memory there any more that the system copies; \
                         R2CCL_CMA=0 has it copy none",
                        self.0
                    );
                    return Err(TransportError::PeerGone(text));
                }
                Ok(copied) => done += copied,
                Err(Errno::ESRCH) => {
                    let text = format!("process {} has ended", self.0);
                    return Err(TransportError::PeerGone(text));
                }
                Err(cause) => {
                    let call = format!("process_vm_readv of process {}", self.0);
                    return Err(TransportError::system(call, cause));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_of_this_process_is_found() {
        let witness = Witness::default();
        let told = Testimony::decode(&witness.testimony().encode());
        assert_eq!(told, witness.testimony());
        let process = told.examine().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
        let mut copy = vec![0; bytes.len() - 7];
        process.read(bytes[7..].as_ptr().expose_provenance() as u64, &mut copy).unwrap();
        assert_eq!(copy, bytes[7..]);
        assert_eq!(process.read(0, &mut []), Ok(()), "nothing is everywhere");
        let start = bytes.as_ptr().expose_provenance() as u64;
        assert!(process.has(start, bytes.len()) && process.has(start, 1) && process.has(8, 0));
        assert!(!process.has(8, 1) && !process.has(start, usize::MAX / 2));
        assert!(!process.has(start, usize::MAX), "it ends beyond all addresses");
    }

    #[test]
    fn another_process_is_not_taken_for_the_peer() {
        let witness = Witness::default();
        let told = witness.testimony();
        let liar = Testimony { word: told.word + 1, ..told };
        assert!(matches!(liar.examine(), Err(TransportError::Protocol(_))));
        let nowhere = Testimony { address: 8, ..told };
        assert!(matches!(nowhere.examine(), Err(TransportError::PeerGone(_))));
        let nobody = Testimony { process: u32::MAX, ..told };
        assert!(matches!(nobody.examine(), Err(TransportError::Protocol(_))));
    }

    #[test]
    fn who_has_ended_cannot_be_read() {
        let mut child = process::Command::new("true").spawn().unwrap();
        let process = child.id();
        child.wait().unwrap();
        let told = Testimony { process, ..Witness::default().testimony() };
        assert!(told.examine().is_err());
    }
}
