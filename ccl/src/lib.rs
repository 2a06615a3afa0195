//! Collective communication that survives NIC failures.
//!
//! ```no_run
//! use ccl::{Communicator, Config, ReduceOp};
//!
//! # fn main() -> Result<(), ccl::Error> {
//! // Under torchrun, mpirun or Slurm: one process per rank.
//! let communicator = Communicator::from_environment(&Config::from_environment()?)?;
//! let mut gradient = vec![1.0f32; 1 << 20];
//! communicator.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
//! assert_eq!(gradient[0], communicator.size() as f32);
//! # Ok(())
//! # }
//! ```
//!
//! [`Communicator`] is a member of a group of ranks; [`Operation`] is a call with its memory;
//! [`Group`] runs several at once. ARCHITECTURE.md tells how the parts work together.
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
pub use communicator::Communicator;
pub use config::Config;
pub use driver::Pending;
pub use group::Group;
pub use health::HealthBoard;
pub use memory::{Allocation, Registration};
pub use operation::{Operation, OperationOn, Span};
pub use timeline::RailRecord;
