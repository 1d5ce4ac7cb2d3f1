//! Free space: runs, extents, slabs for KV blocks interleaved layer by layer, windows, and discards.
//!
//! Pure bookkeeping of units: nothing here does I/O, or knows keys or records.

pub(crate) mod discard;
pub(crate) mod extent;
pub(crate) mod runs;
pub(crate) mod slab;
pub(crate) mod window;
