//! Which I/O is next: where, how long, and which way.

pub(crate) mod permutation;
