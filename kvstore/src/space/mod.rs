//! Free space: runs, extents, slabs for KV blocks interleaved layer by layer, and what a device is told to forget.

pub mod discard;
pub mod extent;
pub(crate) mod runs;
pub mod slab;
