//! The store as a server embeds it: a handle for any thread, and the threads behind it.
//!
//! [`Store::open`] starts threads, each of which owns some shards, and returns a handle that is `Clone`,
//! `Send` and `Sync`. [`Store::open_local`] starts no threads: the caller's own thread drives all shards through
//! [`Local`].
//!
//! ```text
//!  any thread, any runtime             one thread per core
//!  store.put(key, data) -> mailbox  -> Shard::accept -> device
//!  pending.await | .wait() <- reply <- Shard::poll   <-
//! ```
//!
//! Guarantees:
//!
//! - **No call that makes a request waits.** The request itself may wait in the store: for memory in a fair queue, or
//!   for room in its shard. It goes on whether its [`Pending`] is polled or not.
//! - **Every request ends exactly once** and returns its memory, within the store's timeout after the call or soon
//!   after it. A request that has not begun by the timeout fails; one that has begun ends with the device's command,
//!   which has a deadline of its own.
//! - **Its requests are bounded by its callers.** Each belongs to a pending that a caller holds. It allocates memory
//!   beyond its pools only for requests that would otherwise wait for callers. Calls that begin with `try_` hand the
//!   request back instead of letting it wait.
//! - **Dropping a [`Pending`] cancels its request** unless that has begun, and gives its place to the next. Memory in
//!   flight stays in place until the device is done.
//!
//! This folder routes requests, lends memory and delivers answers. Apart from formatting, changing, opening and
//! recovering a device, only the shards touch the media; the index and the policies are theirs alone.
//!
//! The folders are layers: each uses those above it in this table.
//!
//! | folder | holds |
//! |---|---|
//! | `devices` | the devices of a store: options, formatting and changing them, opening a store on them |
//! | `memory` | registered memory: the store's pools, and memory that callers lend |
//! | `answer` | answers on their way to callers: [`Pending`], [`Batch`], results, verification |
//! | `request` | requests on their way to a shard, with and without their memory, and their callers |
//! | `thread` | the work of a thread: mailbox, rounds, requests that wait, its end |
//! | `core` | the state that handles share: the mailboxes of the threads, leases |
//! | `tier` | the size of the memory tier, and the thread that fits it to memory |
//! | `threads` | starting and ending the threads |
//! | `local` | all shards on the caller's thread: [`Local`] |
//! | `handle` | [`Store`] and all its calls |

mod answer;
mod core;
mod devices;
mod handle;
mod local;
mod memory;
pub(crate) mod request;
mod thread;
mod threads;
mod tier;

pub use self::answer::{
    Answer, Batch, ObjectInfo, Pending, Put, Read, ShardTransfers, Transfers, Value, Whole,
};
pub use self::core::Lease;
pub use self::devices::{Change, ChangeStore, FormatStore, Formatted, OpenOptions};
#[cfg(feature = "serde")]
pub use self::devices::{CoresConfig, FormatConfig, LayoutConfig, MovedConfig, StoreConfig};
pub use self::handle::{
    Attached, BlocksWriter, Import, ImportWith, Imported, Pieces, Reader, RefuseReason, Refused,
    ReservedBlocks, Store, StorePieces, Writer, measured, step_bytes, unreadable,
};
pub use self::local::{Local, LocalLease};
pub use self::memory::{Payload, PoolBuffer, Unfinished};
pub use self::request::{DefinedLayout, PutWith, Tenant};
pub use self::thread::Feed;

pub use crate::media::change::{Changed, Leaving};
pub use crate::media::format::Set;
pub use crate::shard::{Removed, Selection, TenantStats};
