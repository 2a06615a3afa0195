//! Pure planners: from a request and a topology to a schedule and the reason for it.
//!
//! Nearly every schedule here is made of three things:
//!
//! * a [`pattern::Pattern`]: how something that one position has spreads to the others, as edges of
//!   a tree in rounds (all at once, along a chain, by doubling, by halving);
//! * a use of it: [`spread::Broadcast`] (one position has one item for all), [`spread::AllGather`]
//!   (everybody has one for all), [`spread::Scatter`] (one position has an item for each),
//!   [`spread::AllToAll`] (everybody has one for each);
//! * [`combine`]: run backwards (a broadcast backwards is a reduction), one after the other, side by
//!   side, on some of the ranks.
//!
//! So ReduceScatter is AllGather backwards, and AllReduce is the one after the other. Nothing is
//! materialised: a rank asks for its own part of one round. [`choose::choose`] picks.
#![forbid(unsafe_code)]

pub mod allreduce;
pub mod binary_tree;
mod candidates;
pub mod choose;
pub mod combine;
pub mod degraded;
mod hierarchical;
pub mod pattern;
mod relayed;
mod scene;
pub mod shares;
pub mod spread;

#[cfg(test)]
mod tests;

pub use candidates::names;
pub use choose::{Candidate, Choice, choose, explain, explore};
