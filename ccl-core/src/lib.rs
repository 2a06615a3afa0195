//! The vocabulary and the decisions of the library, free of I/O.
//!
//! Nothing here opens a socket, reads a clock, spawns a thread or looks at the
//! environment: time and events come in as values, actions go out as values.
#![forbid(unsafe_code)]

pub mod collective;
pub mod cost;
pub mod datatype;
pub mod epoch;
pub mod error;
pub mod failover;
pub mod fault;
pub mod health;
pub mod ids;
pub mod layout;
pub mod program;
pub mod queue;
pub mod random;
pub mod schedule;
pub mod settings;
pub mod topology;
pub mod tuning;
pub mod wire;

pub use error::{Error, ResultCode};
