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
//! - **No call that makes a request waits.** What has to wait does so in the store: for memory in a fair line, for room
//!   in its shard. It goes on whether its [`Pending`] is polled or not.
//! - **Every request ends exactly once** and returns its memory, within the store's timeout after the call or soon after
//!   it. A request that has not begun by the timeout fails; one that has begun ends with the device's command, which has
//!   a deadline of its own.
//! - **It is bounded by its callers.** The store has as many requests as callers hold pendings. It allocates memory
//!   beyond its pools only for requests that would otherwise wait for callers. Calls that begin with `try_` hand the
//!   request back instead of letting it wait.
//! - **Dropping a [`Pending`] cancels it** unless the request has begun, and gives its place to the next. Memory in
//!   flight stays in place until the device is done.
//!
//! This folder routes requests, lends memory and delivers answers. Apart from formatting, changing, opening and
//! recovering a device, only the shards touch the media; the index and the policies are theirs alone.
//!
//! | file | holds |
//! |---|---|
//! | `handle` | the handle itself: [`Store`] |
//! | `keys` | its calls on conditions, for many keys, about expiries, prefixes and what was removed |
//! | `moving` | exports and imports |
//! | `layers` | its calls for KV blocks and their layers |
//! | `plans` | reads that another executor carries out |
//! | `open`, `change`, `devices` | formatting, changing and opening a store |
//! | `config` | its options in a configuration file (feature `serde`) |
//! | `payload`, `value`, `batch`, `writer`, `lease`, `pending` | arguments and results of calls |
//! | `reader`, `supply` | objects of any length, in pieces: read, and put from what can be read |
//! | `figures`, `prometheus` | latencies and counters, and both as text |
//! | `pool`, `line` | registered memory, reused, and who waits for it |
//! | `hot`, `check` | reads from memory, and verifying what was read, on the caller's thread |
//! | `lent` | memory of the caller's: registering it, and what of it a device cannot use |
//! | `manner` | whether a transfer goes to the caller's memory in place or by copy |
//! | `core`, `request`, `inbox` | the way to the threads |
//! | `feed` | requests that threads look for themselves |
//! | `threads`, `thread`, `exit` | the threads, the way back, and their end |
//! | `short`, `ready` | requests that wait for memory, and which of them to look at |
//! | `tier` | the size of the memory tier, and the thread that fits it to memory |
//! | `route`, `gather` | lists and calls that concern several shards |
//! | `local` | all shards on the caller's thread |

pub(crate) mod arrivals;
mod batch;
mod change;
mod check;
#[cfg(feature = "serde")]
mod config;
mod core;
mod devices;
mod exit;
mod feed;
mod figures;
mod gather;
mod handle;
mod hot;
mod inbox;
mod keys;
mod layers;
mod lease;
mod lent;
mod line;
mod local;
mod manner;
mod moving;
mod open;
mod payload;
mod pending;
mod plans;
mod pool;
mod prometheus;
mod reader;
mod ready;
mod request;
mod route;
mod short;
mod supply;
mod thread;
mod threads;
mod tier;
mod value;
mod writer;

pub use batch::{Batch, Whole};
pub use change::{Change, ChangeStore};
#[cfg(feature = "serde")]
pub use config::{CoresConfig, FormatConfig, LayoutConfig, MovedConfig, StoreConfig};
pub use feed::{Attached, Feed};
pub use handle::Store;
pub use layers::{BlocksWriter, ReservedBlocks};
pub use lease::Lease;
pub use local::{Local, LocalLease};
pub use moving::{Import, ImportWith, Imported};
pub use open::{FormatStore, Formatted, OpenOptions};
pub use payload::{DefinedLayout, Payload, PutWith, RefuseReason, Refused, Tenant};
pub use pending::{Answer, Pending, Unfinished};
pub use plans::{ShardTransfers, Transfers};
pub use pool::PoolBuffer;
pub use reader::{Pieces, Reader, StorePieces, step_bytes};
pub use supply::{measured, unreadable};
pub use value::{ObjectInfo, Put, Read, Value};
pub use writer::Writer;

pub use crate::media::change::{Changed, Leaving};
pub use crate::media::format::Set;
pub use crate::shard::{Removed, Selection, TenantStats};
