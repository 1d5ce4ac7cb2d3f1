//! What everything else speaks of: keys, objects, places, layouts of KV blocks, and the commands of a batch.

pub(crate) mod key;
pub mod layout;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod place;
pub mod plan;
