//! The format on the media: bytes in, bytes out.
//!
//! `superblock`, `chart`, `geometry` and `device_set` describe the devices, and `heads` reads the superblocks;
//! `record`, `block`, `journal` and `checkpoint` encode a shard's metadata; `recovery` reads it back through a trait.
//! None of these know a queue. `format`, `change` and `survey` wait for devices. Every byte read is untrusted: it is
//! checked before use, and damage is a value rather than a panic.

pub mod block;
pub(crate) mod bytes;
pub(crate) mod change;
pub mod chart;
pub mod checkpoint;
pub mod checksum;
pub mod device_set;
pub mod format;
pub mod geometry;
pub(crate) mod heads;
pub mod journal;
pub mod record;
pub mod recovery;
pub mod superblock;
pub mod survey;
