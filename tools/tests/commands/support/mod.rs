//! Helpers of these tests.

pub(crate) mod interrupt;
pub(crate) mod keys;
pub(crate) mod kv;
pub(crate) mod softnvme;
