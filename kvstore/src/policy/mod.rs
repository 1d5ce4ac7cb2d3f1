//! Who goes, who comes in, and how much is written.

pub(crate) mod admission;
pub(crate) mod budget;
pub mod evict;
pub(crate) mod recent;
