//! Locks whose values stay usable when a thread panics with one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
