//! Objects whose data is written but not flushed, for `durable` stores.
//!
//! Their records wait: a power cut that loses the data of an object must not leave its record behind, where it would
//! supersede an older, durable object. One flush covers the data of the waiting objects and the journal blocks of
//! earlier ones.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::batch::NewObject;
use super::{Done, Shard};
use crate::error::Failure;
use crate::io::lane::Load;

/// An object whose record waits.
#[derive(Debug)]
struct Held<R> {
    /// The flush that must end first: one that began after the data was written.
    flush: u64,
    new: Box<NewObject>,
    answer: Done<R>,
}

/// The waiting objects, in the order in which their data was written.
#[derive(Debug)]
pub(super) struct HeldObjects<R>(VecDeque<Held<R>>);

impl<R> Default for HeldObjects<R> {
    fn default() -> HeldObjects<R> {
        HeldObjects(VecDeque::new())
    }
}

impl<R> HeldObjects<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an object waits for a flush after `begun`, the last one that began.
    pub(super) fn wants_flush(&self, begun: u64) -> bool {
        self.0.back().is_some_and(|held| held.flush > begun)
    }

    /// Returns whether an object with this key waits.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.0.iter().any(|held| held.new.key.as_bytes() == key)
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Delays the record of an object until its data is flushed. The room for it stays reserved.
    pub(super) fn hold_back(&mut self, new: Box<NewObject>, answer: Done<R>) {
        let flush = self.log.flush_numbers().0 + 1;
        self.held.0.push_back(Held { flush, new, answer });
    }

    /// Records the objects whose data is flushed.
    pub(super) fn record_flushed(&mut self, now: Time) {
        let ended = self.log.flush_numbers().1;
        while let Some(Held { new, answer, .. }) =
            self.held.0.pop_front_if(|held| held.flush <= ended)
        {
            self.append_put(now, new, answer);
        }
    }

    /// Fails objects whose data will not be flushed: all, or those on one device.
    pub(super) fn fail_held(&mut self, device: Option<usize>, failure: &Failure) {
        for Held { flush, new, answer } in std::mem::take(&mut self.held.0) {
            let is_there = usize::from(new.object.place.device);
            if device.is_some_and(|device| device != is_there) {
                self.held.0.push_back(Held { flush, new, answer });
                continue;
            }
            self.log.unreserve(new.record_bytes());
            self.coming.remove(&new);
            self.drop_new(&new);
            self.news.keep(new);
            self.answers.push_back(Done { result: Err(failure.clone()), ..answer });
        }
    }
}
