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
//! - **Every request ends exactly once** and returns its memory, within the store's timeout or soon after it. A
//!   request that has not begun by the timeout fails; one that has begun ends with the device's command, which has a
//!   deadline of its own.
//! - **Everything is bounded.** Mailboxes and memory have fixed sizes. Calls wait for room, at most for the timeout;
//!   calls that begin with `try_` hand the request back at once.
//! - **Dropping a [`Pending`] cancels it** unless the request has begun. Memory in flight stays in place until the
//!   device is done.
//!
//! This folder routes requests, lends memory and delivers answers. Apart from formatting, opening and recovering a
//! device, only the shards touch the media; the index and the policies are theirs alone.
//!
//! | file | holds |
//! |---|---|
//! | `handle` | the handle itself: [`Store`] |
//! | `layers` | its calls for KV blocks and their layers |
//! | `plans` | reads that another executor carries out |
//! | `open`, `devices` | formatting and opening a store |
//! | `payload`, `value`, `batch`, `writer`, `lease`, `pending` | arguments and results of calls |
//! | `prometheus` | the counters as text |
//! | `pool` | registered memory, reused |
//! | `core`, `request`, `inbox` | the way to the threads |
//! | `threads`, `thread` | the threads, and the way back |
//! | `route`, `gather` | lists and calls that concern several shards |
//! | `local` | all shards on the caller's thread |

mod batch;
mod core;
mod devices;
mod gather;
mod handle;
mod inbox;
mod layers;
mod lease;
mod local;
mod open;
mod payload;
mod pending;
mod plans;
mod pool;
mod prometheus;
mod request;
mod route;
mod thread;
mod threads;
mod value;
mod writer;

pub use batch::{Batch, Whole};
pub use handle::Store;
pub use layers::BlocksWriter;
pub use lease::Lease;
pub use local::{Local, LocalLease};
pub use open::{FormatStore, OpenOptions};
pub use payload::{DefinedLayout, Payload, PutWith, RefuseReason, Refused, Tenant};
pub use pending::{Answer, Pending, Unfinished};
pub use plans::{ShardTransfers, Transfers};
pub use pool::PoolBuffer;
pub use value::{ObjectInfo, Put, Read, Value};
pub use writer::Writer;

pub use crate::media::format::Set;
