//! A store of objects on contiguous extents, for KV caches of large language models.
//!
//! A hit returns exactly the bytes that were put, or it is a miss: every read that passes through host memory is
//! checked against checksums that are kept apart from the data. The store is bounded: it evicts. It comes back
//! after a crash as its [`Durability`] says.
//!
//! From the bottom up, one noun per file:
//!
//! | file | noun |
//! |---|---|
//! | `place`, `key`, `object` | where an object lies, what it is called, what is known of it |
//! | `checksum` | CRC-32C, in hardware |
//! | `runs`, `extent`, `slab` | free space, and space for KV blocks interleaved layer by layer |
//! | `index` | which objects there are: at most 64 bytes of memory for each |
//! | `evict`, `admission`, `expiry`, `tenant`, `lease` | what goes, what comes in, for whom, and what must stay |
//! | `layout`, `plan` | a model's geometry, and the commands that a batch becomes |
//! | `geometry`, `superblock`, `device_set`, `record`, `block`, `journal`, `checkpoint`, `recovery` | what is on the media |
//! | `survey` | what is on the media, read without opening the store |
//! | `schedule`, `budget`, `discard` | what goes to a device first, how much is written to it, what it is told to forget |
//! | `shard` | one owner of a part of the store, and its loop |
//! | `store` | the handle that servers hold, and the threads behind it |
//!
//! `docs/disk-format.md` has every byte on the media.
#![forbid(unsafe_code)]

pub mod admission;
pub mod block;
pub mod budget;
mod bytes;
pub mod checkpoint;
pub mod checksum;
pub mod device_set;
pub mod discard;
mod error;
pub mod evict;
pub mod expiry;
pub mod extent;
pub mod geometry;
pub mod index;
pub mod journal;
mod key;
pub mod layout;
pub mod lease;
pub mod media;
mod number_hash;
mod object;
mod options;
mod place;
pub mod plan;
pub mod prometheus;
mod recent;
pub mod record;
pub mod recovery;
mod runs;
pub mod schedule;
pub mod shard;
pub mod slab;
pub mod store;
pub mod superblock;
pub mod survey;
mod table;
pub mod tenant;

pub use error::{Error, Result};
pub use key::{KEY_BYTES_MAX, Key};
pub use object::{CHECKSUMS_MAX, LayoutId, Object, ObjectId, TenantId, piece_bytes};
pub use options::{Durability, PolicyKind, Watermarks};
pub use place::{Place, UNIT_BYTES, units};
pub use store::{FormatStore, Local, OpenOptions, Store};
