//! What is at the device for one end of a connection: a reliable queue pair, or a dynamic initiator and target.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::super::super::Depth;
use super::context::Gid;
use super::dynamic::{Dynamic, Place};
use super::objects::Queue;
use super::protection::ProtectionDomain;
use super::reliable::Reliable;
use super::work::{Post, Reported, Source, reported};
use crate::TransportError;

/// Operations posted at once.
pub(in super::super) const LIST: usize = 8;

/// The objects of one end, made together and destroyed together.
#[derive(Debug)]
pub(in super::super) enum Endpoint {
    Reliable(Reliable),
    Dynamic(Box<Dynamic>),
}

/// What leads to the peer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Path {
    /// Port of this end.
    pub(in super::super) port: u8,
    /// Row of the address of this end, where addresses are used.
    pub(in super::super) gid_index: Option<u8>,
    pub(in super::super) gid: Gid,
    pub(in super::super) lid: u16,
    /// Of the reliable queue pair.
    pub(in super::super) number: u32,
    pub(in super::super) mtu: u8,
    /// Where the peer begins to count packets, and where this end does.
    pub(in super::super) peer_packet: u32,
    pub(in super::super) own_packet: u32,
    /// Reads and atomics under way that this end answers, and that it asks for.
    pub(in super::super) reads_answered: u8,
    pub(in super::super) reads_asked: u8,
    /// For dynamic ends.
    pub(in super::super) target: Option<TargetAddress>,
}

/// What leads to a dynamic target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct TargetAddress {
    pub(in super::super) number: u32,
    /// Who does not know it is not heard.
    pub(in super::super) key: u64,
    /// Key of the ledger, and how many entries it has.
    pub(in super::super) ledger: u32,
    pub(in super::super) entries: u32,
}

impl Endpoint {
    /// A reliable queue pair in `Init` on `port`.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn reliable(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        depth: Depth,
        has_atomics: bool,
    ) -> Result<Self, TransportError> {
        Reliable::new(domain, port, depth, has_atomics).map(Self::Reliable)
    }

    /// A dynamic one, which can send and be sent to as soon as the ends know of each other.
    ///
    /// # Errors
    /// The device refused, as one does that is not of mlx5.
    pub(in super::super) fn dynamic(
        domain: &Arc<ProtectionDomain>,
        place: Place,
        depth: Depth,
        has_atomics: bool,
    ) -> Result<Self, TransportError> {
        Dynamic::new(domain, place, depth, has_atomics).map(Box::new).map(Self::Dynamic)
    }

    /// Number of what sends, and of what is sent to.
    pub(in super::super) fn numbers(&self) -> [u32; 2] {
        match self {
            Self::Reliable(own) => [own.pair.number(); 2],
            Self::Dynamic(own) => [own.initiator.number(), own.address.number],
        }
    }

    /// By what a peer addresses it, if it is dynamic.
    pub(in super::super) fn target(&self) -> Option<TargetAddress> {
        match self {
            Self::Reliable(_) => None,
            Self::Dynamic(own) => Some(own.address),
        }
    }

    /// Whether it can be used there.
    pub(in super::super) fn is_for(&self, place: Place) -> bool {
        match self {
            Self::Reliable(_) => true,
            Self::Dynamic(own) => own.place == place,
        }
    }

    /// Readable when completions have been announced.
    pub(in super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue().channel.descriptor()
    }

    /// Lets it take what the peer sends. This may wait for the address of the peer to be resolved.
    ///
    /// # Errors
    /// The device refused, or the peer's address cannot be resolved: [`TransportError::TimedOut`].
    pub(in super::super) fn enable_receive(&self, path: &Path) -> Result<(), TransportError> {
        match self {
            Self::Reliable(own) => own.enable_receive(path),
            Self::Dynamic(own) => own.enable_send(path),
        }
    }

    /// Lets it send.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn enable_send(&self, path: &Path) -> Result<(), TransportError> {
        match self {
            Self::Reliable(own) => own.enable_send(path),
            Self::Dynamic(_) => Ok(()),
        }
    }

    /// Takes it to the error state, where it gives everything back.
    ///
    /// # Errors
    /// The device refused: it may be gone.
    pub(in super::super) fn fail(&self) -> Result<(), TransportError> {
        match self {
            Self::Reliable(own) => own.pair.fail(),
            Self::Dynamic(own) => own.fail(),
        }
    }

    /// Posts a list of operations, with one doorbell. At most [`LIST`] are taken at
    /// once: returns how many.
    ///
    /// # Errors
    /// The device refused the operation behind those that it took, although no more is posted than it was
    /// made for.
    pub(in super::super) fn post_send(&self, posts: &[Post<'_>]) -> (usize, io::Result<()>) {
        match self {
            Self::Reliable(own) => own.post_send(posts),
            Self::Dynamic(own) => own.post_send(posts),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The device refused, although no more is posted than it was made for.
    pub(in super::super) fn post_receive(
        &self,
        id: u64,
        target: Option<&Source<'_>>,
    ) -> io::Result<()> {
        match self {
            Self::Reliable(own) => own.post_receive(id, target),
            Self::Dynamic(own) => own.post_receive(id, target),
        }
    }

    /// Appends what has completed; tells whether anything had.
    ///
    /// # Errors
    /// The completion queue is broken.
    pub(in super::super) fn poll(&self, into: &mut Vec<Reported>) -> io::Result<bool> {
        let before = into.len();
        match self {
            Self::Reliable(own) => {
                let library = own.pair.domain.context().library();
                own.queue.poll(|found| into.push(reported(library, found)))?;
            }
            Self::Dynamic(own) => own.poll(into)?,
        }
        Ok(into.len() > before)
    }

    /// Asks to be told of the next completion through the descriptor.
    ///
    /// # Errors
    /// The device refused.
    pub(in super::super) fn arm(&self) -> io::Result<()> {
        self.queue().arm()
    }

    /// Takes what the descriptor announced; tells whether anything was.
    pub(in super::super) fn take_announcement(&self) -> bool {
        self.queue().take_announcement()
    }

    fn queue(&self) -> &Queue {
        match self {
            Self::Reliable(own) => &own.queue,
            Self::Dynamic(own) => &own.queue,
        }
    }
}
