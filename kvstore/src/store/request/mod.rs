//! Requests on their way to a shard, and the callers that wait for their answers.
//!
//! A handle makes a request once: a [`Hashed`](crate::shard::Hashed) request whose reply is a [`Waiter`]. It owns
//! key, memory and reply until the shard has it; the shard returns the waiter with the answer. A request whose memory
//! is not there yet is another type ([`Unequipped`]).
//!
//! | file | holds |
//! |---|---|
//! | `put_with` | options of puts, with tenants and layouts |
//! | `fetch`, `bounced` | reads into the store's memory, and into the caller's by way of it |
//! | `caller` | the callers of all requests |
//! | `unequipped` | requests that wait for memory |
//! | `asked` | both kinds on their way to a shard, and lists of them |
//! | `arrivals` | the order in which changes begin |

pub(crate) mod arrivals;
mod asked;
mod bounced;
mod caller;
mod fetch;
mod put_with;
mod unequipped;

pub(crate) use self::arrivals::{Arrival, Arrivals, Changes};
pub(crate) use self::asked::{Asked, Requests};
pub(crate) use self::bounced::BouncedRead;
pub(crate) use self::caller::{Caller, ReadCaller, ThreadShard, Waiter, WriterCaller};
pub(crate) use self::fetch::{Fetch, FetchRange};
pub use self::put_with::{DefinedLayout, PutWith, Tenant};
pub(crate) use self::put_with::{Identity, put_options, whole_seconds};
pub(crate) use self::unequipped::{Lend, Unequipped};
