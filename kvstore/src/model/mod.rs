//! The vocabulary of the store: keys, objects, places, layouts of KV blocks, and the commands of a batch.
//!
//! Plain values without state or I/O, used by every other folder.

pub(crate) mod key;
pub mod layout;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod place;
pub mod plan;
