//! Answers on their way from the store's threads to callers.
//!
//! | file | holds |
//! |---|---|
//! | `value`, `plans` | the results of calls |
//! | `verify` | verifying what was read, on the thread that takes the answer |
//! | `pending` | the two ends of an answer |
//! | `ready`, `batch` | several answers, taken as they arrive |
//! | `gather` | the answers of several shards, combined into one |

mod batch;
mod gather;
mod pending;
mod plans;
mod ready;
mod value;
mod verify;

pub use self::batch::{Batch, Whole};
pub(crate) use self::gather::Gather;
pub use self::pending::{Answer, Pending};
pub(crate) use self::pending::{Reply, Wanted, pair, ready};
pub use self::plans::{ShardTransfers, Transfers};
pub(crate) use self::ready::ReadyList;
pub use self::value::{ObjectInfo, Put, Read, Value};
pub(crate) use self::value::{ScanCursor, ValueMemory, merged};
pub(crate) use self::verify::{Judged, ReadCheck, Verdicts};
