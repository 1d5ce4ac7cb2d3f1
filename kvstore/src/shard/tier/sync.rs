//! Types of the tier's threads that the model checker replaces.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, OnceLock as Once, RwLock};

pub(super) use crossbeam_queue::SegQueue as Queue;

pub(super) use crate::catalog::hash::NumberMap;

/// Parts of the table with a lock each: readers of different keys rarely meet.
pub(super) const PARTS: usize = 64;
