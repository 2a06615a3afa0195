//! Collective communication that survives NIC failures.
//!
//! ```no_run
//! use ccl::{Communicator, Config, ReduceOp};
//!
//! # fn main() -> Result<(), ccl::Error> {
//! // Under `r2ccl run`, torchrun, mpirun or Slurm: one process per rank.
//! let communicator = Communicator::from_environment(&Config::from_environment()?)?;
//! let mut gradient = vec![1.0f32; 1 << 20];
//! communicator.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
//! assert_eq!(gradient[0], communicator.size() as f32);
//! # Ok(())
//! # }
//! ```
//!
//! [`Communicator`] is a member of a group of ranks. Its methods are the collectives on slices, each of
//! which returns when it is done; [`Communicator::start`] starts a call that does not wait. [`Operation`] is a call with
//! its memory, for all that slices do not say.
//!
//! # Without a launcher
//!
//! One process makes a [`UniqueId`] and gives its bytes to the others by any means; the process lives as long as
//! the communicator. Here the ranks are threads:
//!
//! ```
//! use ccl::{Communicator, Config, Error, Group, Operation, Rank, ReduceOp, Region, UniqueId};
//!
//! /// What every rank does: sums, and passes a number on to the next rank.
//! fn work(id: &UniqueId, rank: u32, size: u32) -> Result<(), Error> {
//!     let communicator = Communicator::create(id, rank, size, &Config::default())?;
//!     let mut sum = [rank];
//!     communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
//!     assert_eq!(sum, [1]);
//!
//!     // A send may wait for its receive: in a group both make progress.
//!     let (own, mut received) = ([rank], [0u32]);
//!     let (next, previous) = (Rank((rank + 1) % size), Rank((rank + size - 1) % size));
//!     let mut group = Group::default();
//!     group.add(&communicator, Operation::Send { peer: next, data: Region::of(&own) });
//!     let data = Region::of_mut(&mut received);
//!     group.add(&communicator, Operation::Receive { peer: previous, data });
//!     group.run()?;
//!     assert_eq!(received, [previous.0]);
//!     communicator.finalize()
//! }
//!
//! # fn main() -> Result<(), Error> {
//! let id = UniqueId::create(&Config::default().settings)?;
//! let other = UniqueId::from_bytes(&id.to_bytes())?;
//! let thread = std::thread::spawn(move || work(&other, 1, 2));
//! work(&id, 0, 2)?;
//! thread.join().expect("it does not panic")
//! # }
//! ```
//!
//! # When something goes wrong
//!
//! A network card that dies is no error while another one works. No call waits for ever: what it returns then is an
//! [`Error`] that says who and why, and [`Error::remedy`] says what to do. Errors other than of arguments
//! and usage end the communicator on all ranks.
//!
//! ```no_run
//! # use ccl::{Communicator, Config, Error};
//! # fn run() -> Result<(), Error> { Ok(()) }
//! fn main() -> std::process::ExitCode {
//!     let Err(error) = run() else { return std::process::ExitCode::SUCCESS };
//!     eprintln!("{error} ({})", error.remedy());
//!     std::process::ExitCode::FAILURE
//! }
//! ```
//!
//! # Settings and features
//!
//! [`Settings`] are environment variables that begin with `R2CCL_`; [`Config::from_environment`] reads them. The folder
//! `docs` of the repository has them in `configuration.md`, the kinds of errors in `failures.md`, and what of network
//! cards is survived in `faults.md`; `ARCHITECTURE.md` tells how the parts work together.
//!
//! | feature | |
//! |---|---|
//! | `rdma` (default) | RDMA devices between hosts; libibverbs is looked for at run time |
//! | `cuda` | collectives on memory of CUDA devices (`ccl::cuda`); the driver is looked for at run time |
//! | `log` | `ccl::log` writes the log to standard error, for programs that have no subscriber of tracing |
//!
//! [`vqp`] has queue pairs that survive their NIC, for programs that are not collectives.
#![forbid(unsafe_code)]

pub mod bootstrap;
mod calibration;
mod collectives;
mod communicator;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod driver;
mod engine;
pub mod environment;
mod executor;
mod group;
mod grow;
mod guardian;
mod health;
pub mod hosts;
pub mod launch;
#[cfg(feature = "log")]
pub mod log;
mod memory;
mod operation;
mod plans;
mod rdma;
mod recorder;
mod rehearsal;
mod setup;
mod shrink;
#[cfg(feature = "simulation")]
pub mod simulation;
mod split;
mod stores;
mod timeline;
mod trial;
pub mod vqp;

pub use bootstrap::UniqueId;
pub use ccl_core::collective::{Collective, Request};
pub use ccl_core::datatype::{DataType, ReduceOp, Reduction};
pub use ccl_core::error::{Error, ResultCode};
pub use ccl_core::fault;
pub use ccl_core::health::{Probe, Probes, RailCounters, RailHealth, RailState, Verdict, localise};
pub use ccl_core::ids::{Epoch, Rail, Rank};
pub use ccl_core::layout::Ragged;
pub use ccl_core::settings::Settings;
pub use ccl_kernels::{Element, Region};
pub use communicator::{Communicator, Shrink};
pub use config::Config;
pub use driver::Pending;
pub use group::Group;
pub use health::HealthBoard;
pub use memory::{Allocation, Registration};
pub use operation::{Operation, OperationOn, Span};
pub use shrink::Ongoing;
pub use timeline::RailRecord;
