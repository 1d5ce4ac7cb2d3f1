//! The store as a server embeds it: a handle for any thread, and the threads behind it.
//!
//! [`Store::open`] starts pinned threads, each the owner of some shards, and gives a handle that is `Clone`, `Send`
//! and `Sync`. [`Store::open_local`] starts none: the caller's own thread drives all shards, through [`Local`].
//!
//! ```text
//!  any thread, any runtime             one thread a core
//!  store.put(key, data) -> mailbox  -> Shard::submit -> device
//!  pending.await | .wait() <- cell  <- Shard::poll   <-
//! ```
//!
//! What is promised:
//!
//! - **Each request ends once,** with its memory, within the store's timeout or soon after it: what was not begun by
//!   then fails, and what was begun ends when the device's command does, whose deadline it has.
//! - **Nothing is unbounded.** Mailboxes and memory are of fixed size. Calls wait for room, at most for the timeout;
//!   those that begin with `try_` give the request back at once.
//! - **Dropping a [`Pending`] cancels it** where it was not begun. Memory in flight stays where it is until the
//!   device is done.
//!
//! | file | noun |
//! |---|---|
//! | `handle` | what callers hold: [`Store`] |
//! | `layers` | its calls for KV blocks and their layers |
//! | `plans` | reads that somebody else carries out |
//! | `open`, `devices`, `endurance` | how a store is formatted and opened |
//! | `payload`, `value`, `info`, `names`, `batch`, `writer`, `lease`, `pending` | what goes in and what comes out |
//! | `pool`, `runs` | registered memory that is used over and over |
//! | `core`, `mailbox`, `job`, `wait` | the way to the threads |
//! | `threads`, `thread`, `flights`, `gather`, `together` | the threads, and the way back |
//! | `local`, `cut`, `route` | all shards on the caller's thread |

mod batch;
mod core;
mod cut;
mod devices;
mod endurance;
mod flights;
mod gather;
mod handle;
mod info;
mod job;
mod layers;
mod lease;
mod local;
mod mailbox;
mod names;
mod open;
mod payload;
mod pending;
mod plans;
mod pool;
mod prometheus;
mod route;
mod runs;
mod thread;
mod threads;
mod together;
mod value;
mod wait;
mod writer;

pub use batch::{Batch, Whole};
pub use handle::Store;
pub use info::ObjectInfo;
pub use layers::BlocksWriter;
pub use lease::Lease;
pub use local::{Local, LocalLease};
pub use names::{DefinedLayout, Tenant};
pub use open::{FormatStore, OpenOptions};
pub use payload::{Payload, PutWith, RefuseReason, Refused};
pub use pending::{Answer, Pending, Unfinished};
pub use plans::{ShardTransfers, Transfers};
pub use pool::PoolBuffer;
pub use value::{Put, Read, Value};
pub use writer::Writer;

pub use crate::media::format::Set;
pub use crate::model::plan::{Plan, Slice, Transfer};
