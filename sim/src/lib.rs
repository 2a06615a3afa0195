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
pub mod retreat;
pub mod runner;
pub mod scenario;
pub mod tally;
mod watched;
mod witness;
pub mod workload;
pub mod world;

use std::cell::Cell;
use std::sync::Once;

pub use calls::Plans;

thread_local! {
    /// Whether this thread runs a world.
    static IS_IN_WORLD: Cell<bool> = const { Cell::new(false) };
}

/// Panics of worlds are violations and are reported as such, so nobody needs to hear of them twice.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_IN_WORLD.get() {
                others(panic);
            }
        }));
    });
}

/// Virtual time, in nanoseconds since the beginning of the world.
pub type Nanos = u64;
