//! Policies: eviction, ages, admission and the write budget.
//!
//! They decide and count; the shard carries out the decisions. Nothing here does I/O, frees space, or reads a clock.

pub(crate) mod age;
pub(crate) mod budget;
pub(crate) mod doorkeeper;
pub mod evict;
pub(crate) mod order;
pub(crate) mod recent;
