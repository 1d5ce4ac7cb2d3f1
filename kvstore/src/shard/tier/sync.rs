//! Synchronization types of the tier, which the model checker replaces.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, OnceLock as Once, RwLock};

pub(super) use crossbeam_queue::SegQueue as Queue;

pub(super) use crate::catalog::hash::NumberMap;

/// Number of parts of the table, each with its own lock, so that readers of different keys rarely contend.
pub(super) const PARTS: usize = 64;
