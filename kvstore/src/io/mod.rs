//! What goes to a device first, and the queue pair it goes through.

pub(crate) mod lane;
pub(crate) mod schedule;
