//! Who goes, who comes in, and how much is written.

pub mod admission;
pub mod budget;
pub mod evict;
pub(crate) mod recent;
