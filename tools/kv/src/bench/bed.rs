//! What a load runs on: a store, or in tests a model of one.

use adit_driver::{Buffer, Time};
use adit_kvstore::Key;
use adit_kvstore::shard::{Done, Request};

use crate::failure::Result;

/// The part of a store that a load needs.
pub(super) trait Bed {
    /// The present.
    fn now(&self) -> Time;

    /// Hands in a request.
    fn submit(&mut self, now: Time, request: Request);

    /// Gives each answer to `done`; returns how much moved. Where nothing did, it may have waited a moment.
    fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> usize;

    /// How many of `keys` there are before the first that is missing.
    fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize;

    /// Memory for requests.
    ///
    /// # Errors
    /// When there is no more.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer>;
}
