//! What keeps data flowing while network paths die and come back: pure decisions.
//!
//! Nothing here touches a socket or a clock. Observations come in as values, what has to be done goes
//! out as values, and the same code runs over TCP, over RDMA and in the simulator.
//!
//! A link between two hosts has several *paths*, counted from 0. Each path has had a number of
//! connections, its *incarnations*, counted from 0 too. Exactly-once delivery rests on three pieces:
//!
//! - [`window`]: which tile was handed to which path, which of them the peer is known to have, and
//!   which must be sent again. A slot is not reused before every copy of its tile has either arrived
//!   or been fenced.
//! - [`fence`]: before anything is sent on a path after another one was given up, the peer is told on
//!   that very path to give it up too. A path delivers in order, so nothing that was sent on the lost
//!   path can land after what replaces it, and no round trip is needed.
//! - the receiver takes every sequence number once.
//!
//! [`queue`] does the same for a single queue pair, whose operations are not tiles that can be dropped
//! when they come twice: messages, writes, and atomics with their results.
//!
//! [`watch`] decides when a silent path is dead, and [`quarantine`] when one that keeps dying may
//! carry traffic again.

pub mod fence;
pub mod quarantine;
pub mod queue;
pub mod watch;
pub mod window;
