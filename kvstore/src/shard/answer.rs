//! The answers to requests, and the line of those that the end of a turn gives.

use std::collections::VecDeque;

use adit_driver::memory::AnyBuffer;

use super::reads::unverified::Unverified;
use super::request::WriterId;
use crate::error::{Decline, Failure};
use crate::model::object::Version;

/// The answer to a request.
#[derive(Debug)]
pub struct Done<R = u64> {
    /// The request's own data.
    pub reply: R,
    /// The result.
    pub result: Result<Outcome, Failure>,
    /// The request's memory.
    pub memory: AnyBuffer,
    /// The version that was stored or read, if one was.
    pub version: Option<Version>,
    /// The digest that a hit's memory has to match, if its caller verifies it. Otherwise the memory is verified.
    pub unverified: Option<Unverified>,
}

/// The successful result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is stored, as durably as the store promises.
    Stored,
    /// The object was rejected by admission or the write budget, which is not a failure.
    Declined(Decline),
    /// The part was read, and all its bytes match their checksums, unless the answer is [unverified](Done::unverified).
    Hit {
        /// Bytes of the part.
        bytes: u64,
    },
    /// The object does not exist, or no longer does.
    Miss,
    /// Room is reserved.
    Reserved {
        /// Names the room.
        writer: WriterId,
        /// The index of its device among the targets.
        device: u8,
    },
    /// The part is written.
    Filled,
    /// The object is removed.
    Deleted,
    /// The object expires when it was asked to.
    Touched,
    /// The selected objects are removed.
    Swept {
        /// Their number.
        objects: u64,
    },
    /// Everything before it is durable.
    Committed,
}

impl Outcome {
    /// Returns whether a part was read.
    pub(crate) fn is_hit(&self) -> bool {
        matches!(self, Outcome::Hit { .. })
    }
}

impl<R> Done<R> {
    /// Creates an answer without a version, whose memory needs no verification.
    pub(super) fn new(reply: R, result: Result<Outcome, Failure>, memory: AnyBuffer) -> Done<R> {
        Done { reply, result, memory, version: None, unverified: None }
    }
}

/// The answers that the end of a turn gives, in order.
#[derive(Debug)]
pub(super) struct Answers<R>(VecDeque<Done<R>>);

impl<R> Default for Answers<R> {
    fn default() -> Answers<R> {
        Answers(VecDeque::new())
    }
}

impl<R> Answers<R> {
    /// Answers a request without a version.
    pub(super) fn give(&mut self, reply: R, result: Result<Outcome, Failure>, memory: AnyBuffer) {
        self.push(Done::new(reply, result, memory));
    }

    pub(super) fn push(&mut self, answer: Done<R>) {
        self.0.push_back(answer);
    }

    pub(super) fn pop(&mut self) -> Option<Done<R>> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
