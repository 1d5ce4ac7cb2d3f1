//! A client of a store that another process has.
//!
//! The calls are those of [`adit_kvstore::Store`]. No call waits: a request goes to the server at once, or waits in the
//! client for room in the ring or for memory of the pool, until [`Pending::wait`] or any other call finds some.
//!
//! **Memory.** [`Client::allocate`] makes memory that the server registers with the store; [`Span`]s of it go to the
//! drive and come back without a copy. Plain bytes pass through a pool of such memory, one copy in this process; values
//! of [`Client::get`] lie in the pool until they are dropped.
//!
//! **Verifying.** This process verifies bytes that were read, on the thread that takes the answer, before a caller sees
//! any of it. If they do not match their digest, the client asks again and the server verifies the object itself: a
//! damaged one is dropped, and the answer is a miss.
//!
//! **Waiting.** Any number of threads may wait for requests. An event loop watches the client's one descriptor
//! ([`AsFd`]) and calls [`Client::reap`] when it is readable, and once after it has made requests; then it polls its
//! requests ([`Pending::try_wait`]), or their futures have been woken. Meanwhile waiting threads check every 100
//! microseconds. A dedicated thread can serve futures instead: it takes answers ([`Client::take_answers`]), which wakes
//! them, and sleeps until more arrive ([`Client::watch`]).
//!
//! **A lost server.** A client does not recover from the loss of its server: all its requests, also those in flight,
//! fail with [`Error::Lost`]. [`Client::when_lost`] reports the loss; connect a new client, and retry until a server
//! listens. Layouts, leases, readers and unfinished puts end with the old connection, and a new one refuses its layouts
//! and spans: define and allocate them again. Old spans stay mapped until they are dropped. Spans of requests in flight
//! do not come back, because the lost server's devices may still write them.
//!
//! A process that forks must not use the client in the child.

mod calls;
mod control;
mod data;
mod handle;
mod kept;
mod meaning;
mod options;
mod pending;
mod requests;
mod shared;
mod streams;

pub use adit_kvstore::store::{DefinedLayout, Lease, ObjectInfo, PutWith, Removed};
pub use data::Data;
pub use handle::Client;
pub use kept::Value;
pub use options::ClientOptions;
pub use pending::Pending;
pub use streams::ClientPieces;

use crate::memory::Span;

/// The result of a request.
pub type Answer<T> = adit_kvstore::store::Answer<T, Option<Span>>;
/// The result of a put.
pub type Put = adit_kvstore::store::Put<Option<Span>>;
/// The result of a read into shared memory.
pub type Read = adit_kvstore::store::Read<Option<Span>>;
/// Why a request failed, with the memory that was lent.
pub type Unfinished = adit_kvstore::store::Unfinished<Option<Span>>;
