//! A client of a store that another process has.
//!
//! The calls are those of [`adit_kvstore::Store`]. None waits: a request goes to the server at once, or waits in the
//! client for room in the ring or for memory of the pool, until [`Pending::wait`] or any other call finds some.
//!
//! **Memory.** [`Client::allocate`] makes memory that the server registers with the store; [`Span`]s of it go to the
//! drive and come back without a copy. Plain bytes pass through a pool of such memory, one copy in this process; values
//! of [`Client::get`] lie in the pool until they are dropped.
//!
//! **Verifying.** This process verifies bytes that were read, on the thread that takes the answer, before a caller sees
//! any of it. Where it is not what was put, the client asks again, and the server looks whether the object is damaged:
//! then it is a miss, and dropped.
//!
//! **Waiting.** Any number of threads may wait for requests. An event loop watches the client's one descriptor
//! ([`AsFd`]) and calls [`Client::reap`] when it is readable, and once after it has made requests; then it looks at its
//! requests ([`Pending::try_wait`]) or has been woken as their future. While an event loop does so, threads that wait
//! look again every 100 microseconds. A thread of one's own can serve futures without that: it takes answers
//! ([`Client::take_answers`]), which wakes them, and sleeps until more come ([`Client::watch`]).
//!
//! **A lost server.** A client whose server is lost stays lost: its requests fail with [`Error::Lost`], those in flight
//! too. [`Client::when_lost`] says when; connect anew, and again until a server listens. Layouts, leases, readers and
//! what was not stored yet are of the old connection, and end with it: another refuses its layouts. So are its spans,
//! whose memory stays mapped while there are some, and which no other server can map: allocate anew. Spans of requests
//! that the old one had do not come back, because its devices may still write them.
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
