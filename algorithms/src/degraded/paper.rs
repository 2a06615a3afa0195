//! The strategies of the R²CCL paper (Wang et al., *Reliable and Resilient Collective Communication Library
//! for LLM Training and Serving*, 2026; §5, §6, appendices A and D): the baseline that others are compared
//! with.
//!
//! | the paper's name | here | section |
//! |---|---|---|
//! | R²CCL-HotRepair | [`hot_repair()`] | §5, Figure 3 |
//! | R²CCL-Balance | [`balance()`] | §5.1 |
//! | R²CCL-AllReduce | [`two_stage()`] | §5.2, Figure 5, appendix A |
//! | topology-aware logical re-ranking | [`bridge_order`], [`bridge_ring`] | §6, appendix D |
//! | recursive R²CCL-AllReduce | [`recursive()`], [`recursive_literal`] | §6 |
//!
//! Where the paper contradicts itself or cannot be right, both readings are here, under names that tell
//! them apart: [`formulas`] says what is wrong and why.
//!
//! The paper counts GPUs in one flat ring. Here the ranks of a host reduce among themselves first, so a
//! ring has one position for each host, and the paper's formulas apply with one GPU per server.
//!
//! All strategies answer `None` where there is nothing to do for them or no way to do it: when hosts
//! that would be neighbours have no rail in common, for instance.

pub mod formulas;

mod balance;
mod bridge;
mod hot_repair;
mod levels;
mod recursive;
mod two_stage;

#[cfg(test)]
mod tests;

pub use balance::balance;
pub use bridge::{bridge_order, bridge_ring};
pub use hot_repair::{hot_repair, hot_repair_capacity};
pub use recursive::{literal_time, recursive, recursive_literal, recursive_time};
pub use two_stage::{Share, two_stage, two_stage_time};

/// Capacities closer than this, relative to the larger, are the same: sums of rails are not exact.
const SAME_CAPACITY: f64 = 1e-9;
