//! Worlds in which the production code runs under faults, deterministically.
#![forbid(unsafe_code)]

mod actor;
mod build;
mod calls;
mod device;
pub mod flow;
mod keeper;
pub mod mutation;
mod network;
mod oracle;
pub mod runner;
pub mod scenario;
pub mod tally;
mod watched;
mod witness;
pub mod world;

pub use calls::Plans;

/// Panics of worlds are violations and are reported as such, so nobody needs to hear of them twice.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| ()));
}

/// Virtual time, in nanoseconds since the beginning of the world.
pub type Nanos = u64;
