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
//! | `open`, `devices` | how a store is formatted and opened |
//! | `local` | all shards on the caller's thread |

mod cut;
mod devices;
mod local;
mod open;
mod route;

pub use local::{Local, LocalLease};
pub use open::{FormatStore, OpenOptions, Store};
