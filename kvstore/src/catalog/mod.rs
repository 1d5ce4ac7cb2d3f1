//! Which objects there are, until when, for whom, and which must stay.

pub mod expiry;
pub(crate) mod hash;
pub mod index;
pub mod lease;
pub(crate) mod table;
pub mod tenant;
