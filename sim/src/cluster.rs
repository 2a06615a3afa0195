//! How long collectives take on a cluster that is described in a file.
//!
//! Where [`crate::flow`] follows every tile on the way between a few hosts, this is for clusters: the programs of
//! all ranks, made by the planner and by the lowering of the library, run as flows with max-min fair rates on the
//! capacities of NICs, NVLink, PCIe, sockets and spine. Rails fail at a given time, and are mended as fast as the
//! library does it.

mod agenda;
pub mod execution;
pub mod fabric;
pub mod file;
mod lane;
pub mod montecarlo;
pub mod plan;
pub mod price;
pub mod sharing;
mod steps;
pub mod wide;
pub(crate) mod wrong;

pub use execution::{Execution, Options, execute};
pub use file::{Cluster, Delays, Outage, Ranks};
pub use wrong::Wrong;
