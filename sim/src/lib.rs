//! Worlds in which the production code runs under faults, deterministically; and how long programs take on
//! networks and clusters that one does not have.
#![forbid(unsafe_code)]

mod actor;
mod build;
mod calls;
pub mod cluster;
pub mod commands;
mod device;
pub mod flow;
mod keeper;
pub mod mutation;
mod network;
mod oracle;
mod presets;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod tally;
mod watched;
mod witness;
pub mod workload;
pub mod world;

pub use calls::Plans;

/// Panics of worlds are violations and are reported as such, so nobody needs to hear of them twice.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| ()));
}

/// Virtual time, in nanoseconds since the beginning of the world.
pub type Nanos = u64;
