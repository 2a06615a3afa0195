//! How ranks find each other, and how they hear of each other afterwards.
//!
//! One process hosts the *store*: a thread that listens on a TCP port and speaks with every rank. Its
//! address and the key that admits ranks are in the [`UniqueId`], which travels by whatever means the
//! program has, or by [`rendezvous`]. [`Control::join`] connects a rank to the store and returns when
//! all have come; what it returns gathers small blobs and carries news of death, disagreement and abort
//! for as long as the communicator lives.
//!
//! ```text
//! group      what the store decides: a pure machine, requests in, pushes out
//! server     its thread: sockets, poll(2), back-pressure; newcomers, who is not known to be a rank
//! session    a conversation that survives its connections
//! control    a rank's end; letters, what it writes; watcher, its thread; heard, what that thread leaves for the others;
//!            tied, its way into another group
//! unique_id  where the store is; rendezvous, how the id gets to the ranks of a launcher; reunion, to those that are left;
//!            vacant, which of those have ended since
//! ```
//!
//! The end of a connection and its silence are different things. When a process ends its kernel closes
//! its connections, and at the store nobody answers any more: that is a death, known at once. Silence
//! is a NIC or a cable, or a process that is stopped: the rank goes on over another address of the
//! store, with nothing lost, and only if no address leads anywhere for long is it a loss.

mod connect;
mod connection;
mod control;
mod group;
mod heard;
mod letters;
mod message;
mod newcomers;
mod private_file;
mod rendezvous;
mod reunion;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod tied;
mod unique_id;
mod vacant;
mod watcher;

pub use control::Control;
pub use heard::Listener;
pub use letters::Letters;
pub use message::{ControlEvent, MAX_BLOB_BYTES, MAX_NAME_BYTES, MAX_RANKS};
pub use rendezvous::{Place, meet, rendezvous};
pub(crate) use reunion::{Call, Reunion};
#[cfg(test)]
pub(crate) use server::tests::end_next_stores;
pub use unique_id::{UNIQUE_ID_BYTES, UniqueId};
