//! A store of objects on contiguous extents, for the KV caches of large language models.
//!
//! - **A hit is right.** It returns exactly the bytes that were put; anything else is a miss. Every read through host
//!   memory is checked against checksums that are stored apart from the data.
//! - **It is bounded.** It evicts, and its memory is proportional to the number of objects it was formatted for.
//! - **It recovers** after a crash as its [`Durability`] promises. Damage to its journal costs what it may have
//!   made outdated, which the opening counts: these objects are misses, unless [`OpenOptions::keep_outdated`] is set.
//!
//! # Getting started
//!
//! [`Store`] is the handle that a server keeps; it is `Clone`, `Send` and `Sync`. Calls return a [`store::Pending`],
//! which is a future and also blocks with `wait()`.
//!
//! ```
//! use adit_kvstore::{FormatStore, Key, OpenOptions, Store, Target};
//!
//! # let path = std::env::temp_dir().join(format!("adit-front-page-{}.img", std::process::id()));
//! # let name = format!("uring:{}", path.display());
//! // For example "uring:kv.img" (a file or block device) or "vfio:0000:01:00.0" (a controller of the driver's).
//! let target: Target = name.parse().expect("a target");
//! let file_bytes = Some(64 << 20);
//! Store::format(&FormatStore { file_bytes, ..FormatStore::new([target.clone()]) })?;
//!
//! let store = Store::open(&OpenOptions::new([target]))?;
//! let key = Key::new(b"model/block/17")?;
//! store.put(key.clone(), &b"some bytes"[..]).wait()?;
//! let value = store.get(key.clone()).wait()?.expect("a hit");
//! assert_eq!(&value[..], b"some bytes");
//! assert_eq!(store.lookup_prefix(&[key, Key::from(18u64)]).wait()?, 1);
//! drop(value);
//! store.commit().wait()?; // The put now survives a power cut.
//! store.close().wait()?;
//! # std::fs::remove_file(&path).expect("it was made");
//! # Ok::<(), adit_kvstore::Error>(())
//! ```
//!
//! | read next | for |
//! |---|---|
//! | [`Store`], [`OpenOptions`], [`FormatStore`] | every call and option |
//! | [`store`] | guarantees: bounds, deadlines, cancellation, zero-copy memory |
//! | [`layout`], [`Store::put_blocks`], [`Store::get_layer`] | KV blocks of a model, layer by layer |
//! | [`Store::plan`] | reads that another executor carries out, such as a GPU |
//! | [`Store::reader`], [`Store::put_from`] | objects longer than memory, in pieces |
//! | [`driver`] | the driver's types, so that a server needs no other crate |
//! | [`KvStore`] | the same calls on a store of this process and on one that another serves |
//! | [`Local`], [`shard`] | the same store on the caller's own thread: requests, outcomes, failures |
//! | [`evict`] | writing your own eviction policy |
//! | [`memory`] | how much memory this process may use |
//! | [`stream`], [`Store::export`], [`Store::import`] | backups, and moving objects to other stores |
//! | [`survey`] | inspecting the media without opening the store |
//! | [`Error`] | what can fail, and what to do about it |
//!
//! `kvstore/examples/server` is a complete server and `kvstore/examples/tokio.rs` an async one,
//! `docs/operate/kv.md` is for operators, and `docs/design/disk-format.md` specifies
//! every byte on the media.
//!
//! # Inside
//!
//! From the bottom up; a folder builds on those before it:
//!
//! | folder | holds |
//! |---|---|
//! | `version` | what tells the versions of an object apart |
//! | `memory` | what the machine and control groups leave to this process, and how large a cache may be |
//! | `model` | keys, objects, places, options, layouts of KV blocks, and the commands of a batch |
//! | `space` | free runs, extents, slabs for KV blocks interleaved layer by layer, discards |
//! | `catalog` | the objects in memory (at most 86 bytes each, with policy and age; 80 with LRU), their expiry, tenants and leases |
//! | `policy` | eviction, admission and the write budget |
//! | `io` | the order in which requests go to a device, and the queue pair they go through |
//! | `media` | the format on the media: checksums, records, journal, checkpoints, recovery |
//! | `stream` | the format of a stream of objects, for backups and moving |
//! | `shard` | one part of the store with a single owner, and its loop |
//! | `store` | the handle that servers hold, and the threads behind it |
//! | `vocabulary` | the calls of a store, in this process or served by another, as one trait |
//!
//! The feature `internals` exports parts of these folders to the simulation, the fuzz targets and the benchmarks.
//! They change without notice.
#![forbid(unsafe_code)]
// Without the feature, items that are `pub` inside are unreachable from outside.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]

/// The snippets of the README and of the operators' page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/operate/kv.md")]
struct Page;

mod catalog;
mod error;
mod io;
mod media;
pub mod memory;
mod model;
mod policy;
pub mod shard;
mod space;
pub mod store;
pub mod stream;
mod version;
mod vocabulary;

/// Parts of the store for its simulation, fuzz targets and benchmarks. They change without notice.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::catalog::index;
    pub use crate::media::{
        block, chart, checkpoint, checksum, device_set, format, geometry, journal, record,
        recovery, superblock,
    };
    pub use crate::model::key::KeyHasher;
    pub use crate::store::request::arrivals::{Arrival, Arrivals, Changes};
}

/// The driver, whose types calls take and return, so that a server depends on this crate alone.
pub use adit_driver as driver;
pub use adit_driver::memory::AnyBuffer;
pub use adit_driver::runtime::Cores;
pub use adit_driver::sys::HostMemory;
pub use adit_driver::{Buffer, Device, DeviceOptions, Target};
pub use error::{Error, RefusalKind, Result};
pub use media::survey;
pub use model::key::{KEY_BYTES_MAX, Key};
pub use model::layout;
pub use model::object::{
    CHECKSUMS_MAX, Hold, LayoutId, Object, ObjectId, TenantId, Version, piece_bytes,
};
pub use model::options::{Durability, PolicyKind, Quota, Watermarks, WhenReached};
pub use model::place::{Place, UNIT_BYTES, units};
pub use model::plan;
pub use policy::evict;
pub use store::{FormatStore, Local, OpenOptions, Store};
pub use vocabulary::{Divide, KvStore, PendingAnswer, ScanPage, StoredBytes};
