//! Which objects there are, until when, for whom, and which must stay.

pub(crate) mod expiry;
pub(crate) mod hash;
pub mod index;
pub(crate) mod lease;
pub(crate) mod table;
pub(crate) mod tenant;
