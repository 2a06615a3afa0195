//! What a rank writes to the store: requests, and with them letters to other ranks.

use std::sync::Arc;

use ccl_core::Error;
use ccl_core::ids::Rank;

use super::heard::{Heard, lock};
use super::message::{self, Envelope, Numbered, Request};
use super::watcher::Post;

/// Most bytes of requests that the store has not confirmed; the blobs of a few calls at once.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Writes letters to other ranks. Never waits.
#[derive(Clone, Debug)]
pub struct Letters {
    heard: Arc<Heard>,
    post: Arc<Post>,
}

impl Letters {
    pub(super) fn new(heard: Arc<Heard>, post: Arc<Post>) -> Self {
        Self { heard, post }
    }

    /// Sends `letter` to these ranks. If that is impossible the communicator has failed, and its fault
    /// says why.
    pub fn send(&self, to: &[Rank], letter: Vec<u8>) {
        let to = to.iter().map(|rank| rank.0).collect();
        if let Err(cause) = write(&self.post, &self.heard, 0, Request::Relay { to, letter }) {
            tracing::debug!(%cause, "a letter was not sent");
        }
    }

    /// Calls [`Listener::wake`](super::Listener::wake) soon.
    pub fn wake(&self) {
        self.post.wake();
    }

    /// A NIC has failed: the connection to the store is worth a look.
    pub fn doubt(&self) {
        self.post.doubt();
    }
}

/// Leaves a request for the watcher to send.
///
/// # Errors
/// The fault, or [`Error::System`] if the connection to the store has ended or takes nothing.
pub(super) fn write(
    post: &Post,
    heard: &Heard,
    number: u64,
    request: Request,
) -> Result<(), Error> {
    let envelope = Envelope::Message(Numbered { number, request });
    let frame = message::encode(&envelope).map_err(Error::Internal)?;
    let mut outbox = lock(&post.outbox);
    let full = outbox.kept_bytes() > MAX_QUEUED_BYTES;
    if full || post.is_closed() {
        let cause = if full { "it does not take them" } else { "the connection has ended" };
        return Err(heard.fault().map_or_else(
            || Error::system("send to the store of the communicator", cause),
            |fault| Error::clone(fault),
        ));
    }
    outbox.push(frame.into());
    drop(outbox);
    post.wake();
    Ok(())
}
