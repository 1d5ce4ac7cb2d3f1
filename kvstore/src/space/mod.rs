//! Free space: runs, extents, slabs for KV blocks interleaved layer by layer, and what a device is told to forget.

pub(crate) mod discard;
pub(crate) mod extent;
pub(crate) mod runs;
pub(crate) mod slab;
