//! Objects whose data are written but not flushed, where an answer is durable.
//!
//! Their records wait: a cut that takes the data of an object must not leave its record behind, which would supersede an
//! object that was durable. One flush covers the data of those that wait and the blocks of those that waited before.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::device::CommandQueue;

use super::batch::NewObject;
use super::log::Answer;
use super::{Done, Shard};
use crate::error::Failure;
use crate::io::lane::Load;

/// An object that waits.
#[derive(Debug)]
struct Held {
    /// The flush that has to end first: one that begins after its data were written.
    flush: u64,
    new: Box<NewObject>,
    answer: Answer,
}

/// All of them, in the order in which their data were written.
#[derive(Debug, Default)]
pub(super) struct HeldObjects(VecDeque<Held>);

impl HeldObjects {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the next flush is one that somebody waits for; the number of the last that began is given.
    pub(super) fn wants_flush(&self, begun: u64) -> bool {
        self.0.back().is_some_and(|held| held.flush > begun)
    }

    /// Whether there is one of this key.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.0.iter().any(|held| held.new.key.as_bytes() == key)
    }
}

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Has the record of an object wait until its data are flushed. The room for it stays reserved.
    pub(super) fn hold_back(&mut self, new: Box<NewObject>, answer: Answer) {
        let flush = self.log.flush_numbers().0 + 1;
        self.held.0.push_back(Held { flush, new, answer });
    }

    /// Tells the journal of those whose data are flushed.
    pub(super) fn record_flushed(&mut self, now: Time) {
        let ended = self.log.flush_numbers().1;
        while let Some(Held { new, answer, .. }) =
            self.held.0.pop_front_if(|held| held.flush <= ended)
        {
            self.append_put(now, new, answer);
        }
    }

    /// Gives up those whose data will not be flushed: all, or those on one device.
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
            let Answer { tag, item, memory, .. } = answer;
            self.answers.push_back(Done { tag, item, result: Err(failure.clone()), memory });
        }
    }
}
