//! The strategies of the R²CCL paper (Wang et al., *Reliable and Resilient Collective Communication Library
//! for LLM Training and Serving*, 2026; §5, §6, appendices A and D): the baseline that others are compared
//! with.
//!
//! Where the paper contradicts itself or cannot be right, both readings are here, under names that tell
//! them apart: [`formulas`] says what is wrong and why.
//!
//! The paper counts GPUs in one flat ring. Here the ranks of a host reduce among themselves first, so a
//! ring has one position for each host, and the paper's formulas apply with one GPU per server.

pub mod formulas;
