//! The catalog: the objects of a shard, their expiry, tenants and leases, and the log of removed ones.
//!
//! Tables in memory, driven by the shard. Nothing here does I/O, allocates space, or decides what to evict.

pub(crate) mod expiry;
pub(crate) mod hash;
pub mod index;
pub(crate) mod lease;
pub(crate) mod regions;
pub(crate) mod removals;
pub(crate) mod table;
pub(crate) mod tenant;
