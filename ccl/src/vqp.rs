//! Queue pairs for programs that are not collectives: key-value stores, transactions, anything that
//! writes into, reads from or counts in the memory of another process, and must survive the NIC.
//!
//! A [`Domain`] is made over the devices of this host, its rails. Memory is registered with all of
//! them at once. A [`QueuePair`] of a domain uses one rail and moves to another when that one fails; the
//! program sees its completions, in order, each once. What is guaranteed about requests that were under
//! way is the choice of [`Evidence`], for each queue pair; `docs/virtual-queue-pair.md` has the table.
//!
//! Two processes meet over a TCP connection, the [`Meeting`], on which both prove that they have the
//! [`Key`]. Over it they connect queue pairs and tell each other where memory is.
//!
//! ```
//! use std::time::Duration;
//!
//! use ccl::vqp::{
//!     Access, Domain, DomainConfig, Error, Evidence, Key, Listener, Meeting, Operation, Side, Status,
//!     Terms, WorkId, WorkRequest,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(20);
//!
//! /// What either process does: the one that connects writes, the other one is written to.
//! fn take_part(mut meeting: Meeting, devices: &str) -> Result<Vec<u8>, Error> {
//!     let key = Key::from_passphrase("correct horse");
//!     let config = DomainConfig { devices: devices.into(), ..DomainConfig::default() };
//!     let domain = Domain::open(&config, &key)?;
//!     let region = domain.allocate(4096, Access::ALL)?;
//!     let terms = Terms { evidence: Some(Evidence::Log), ..Terms::default() };
//!     let mut pair = domain.queue_pair(&terms)?;
//!     pair.connect(&mut meeting, LIMIT)?;
//!     let theirs = meeting.exchange_regions(&region, LIMIT)?;
//!
//!     let mut completions = Vec::new();
//!     match meeting.side() {
//!         Side::Connecting => {
//!             region.memory().write(0, b"hello");
//!             let (source, target) = (region.segment(0, 5), theirs.at(64));
//!             let operation = Operation::Write { source, target };
//!             pair.post_send(WorkRequest { id: WorkId(1), operation, signalled: true })?;
//!             pair.wait(&mut completions, LIMIT)?;
//!             assert_eq!(completions[0].status, Status::Success);
//!         }
//!         // Nothing shows here, but the library does its part when it is polled.
//!         Side::Accepting => assert!(pair.serve(&mut completions, &meeting, LIMIT)?),
//!     }
//!     meeting.exchange(b"done", LIMIT)?;
//!     let mut bytes = vec![0; 5];
//!     region.memory().read(64, &mut bytes);
//!     Ok(bytes)
//! }
//!
//! # fn main() -> Result<(), Error> {
//! let key = Key::from_passphrase("correct horse");
//! let listener = Listener::bind("127.0.0.1:0", key.clone())?;
//! let address = listener.address()?.to_string();
//! // Here the processes are threads, and addresses of the loopback interface are their NICs.
//! let writer = std::thread::spawn(move || {
//!     take_part(Meeting::connect(&address, &key, LIMIT)?, "127.0.1.1,127.0.1.2")
//! });
//! let written = take_part(listener.accept(LIMIT)?, "127.0.2.1,127.0.2.2")?;
//! assert_eq!(written, b"hello");
//! writer.join().expect("it does not panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! Each queue pair has backups of its own, unless it shares those of a [`Pool`] with others: where there are
//! thousands, they occupy a third less.
//!
//! # Polling
//!
//! No thread serves a queue pair. [`QueuePair::poll`] does what there is to do and returns at once;
//! [`QueuePair::wait`] sleeps in between; [`QueuePair::descriptor`] is for event loops. The peer's
//! requests are executed, and repairs made, in these calls: so an end that expects nothing any more
//! polls ([`QueuePair::serve`]) until its peer has said that it is done too.

mod connect;
mod devices;
mod domain;
mod drill;
mod end;
mod error;
mod event;
mod introduction;
mod meeting;
mod pair;
mod plain;
mod pool;
#[cfg(feature = "cuda")]
mod rails;

pub use ccl_core::fault::Rehearsal;
pub use ccl_transport::verbs::virtual_qp::{Counters, Evidence, Limits};
pub use ccl_transport::verbs::{
    Access, Completion, Depth, LocalKey, Memory, MemoryRegion, Opcode, Operation, PostError,
    ReceiveRequest, RemoteAddress, RemoteKey, Segment, State, Status, WorkId, WorkRequest,
};
pub use devices::{SOFT, VERBS, devices, rdma_devices};
pub use domain::{Domain, DomainConfig, MAX_DEPTH, Terms};
pub use error::Error;
pub use event::{Event, EventKind};
pub use meeting::{Key, Listener, MAX_MESSAGE_BYTES, Meeting, PeerRegion, Side};
pub use pair::QueuePair;
pub use pool::{MAX_SPARES, Pool};
#[cfg(feature = "cuda")]
pub(crate) use rails::{Rails, Stage};
