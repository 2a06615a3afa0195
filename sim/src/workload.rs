//! What clusters are for: training and serving, as far as the network matters to them.

pub mod patterns;
pub mod pipeline;
pub mod serving;
mod serving_file;
pub mod training;
mod training_file;

pub use serving::{Reaction, Server};
pub use training::{Iteration, Training};
