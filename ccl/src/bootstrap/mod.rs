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
//! server     its thread: sockets, poll(2), back-pressure
//! control    a rank's end; watcher, the thread that listens to the store
//! unique_id  where the store is; rendezvous, how the id gets to the ranks of a launcher
//! ```
//!
//! Silence means nothing here: a connection whose NIC is dead is not a dead rank, which is for the rails
//! to judge. Only the end of a connection does, which the kernel announces when a process ends.

mod connect;
mod control;
mod group;
mod message;
mod private_file;
mod rendezvous;
mod server;
#[cfg(test)]
mod tests;
mod unique_id;
mod watcher;

pub use control::Control;
pub use message::{ControlEvent, MAX_BLOB_BYTES, MAX_NAME_BYTES, MAX_RANKS};
pub use rendezvous::{meet, rendezvous};
pub use unique_id::{UNIQUE_ID_BYTES, UniqueId};
