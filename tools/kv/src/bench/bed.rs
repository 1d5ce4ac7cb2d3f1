//! What a load runs on: a store, or a model of one in tests.

use adit_driver::{Buffer, Time};
use adit_kvstore::Key;
use adit_kvstore::shard::{Done, Request};

use crate::failure::Result;

/// The part of a store that a load needs.
pub(super) trait Bed {
    /// Returns the current time.
    fn now(&self) -> Time;

    /// Submits requests that are planned together.
    fn submit(&mut self, now: Time, requests: impl Iterator<Item = Request>);

    /// Passes each answer to `done`; returns how many there were. Without any, it may have waited briefly.
    fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> usize;

    /// Returns how many of `keys` exist before the first that is missing.
    fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize;

    /// Allocates memory for requests.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer>;
}
