//! Changes on their way in: each passes its checks, waits for room and begins, in the order in which they came.
//!
//! | file | holds |
//! |---|---|
//! | `put` | puts, whose data come with them |
//! | `reserve` | objects that are written in parts |
//! | `writers` | which parts of these are written |
//! | `begin` | how a change begins, or waits for room |
//! | `share` | how much begins at one time |

mod begin;
mod put;
mod reserve;
mod share;
mod writers;

use std::collections::VecDeque;

use adit_driver::Time;

use self::writers::Writers;
use super::change::Waiting;
use super::stats::Stats;
use crate::policy::budget::Budget;

/// The changes that have not begun, and the objects that are written in parts.
#[derive(Debug)]
pub(super) struct Writes<R> {
    /// Changes that wait for room, in the order in which they came.
    waiting: VecDeque<Waiting<R>>,
    /// A lower bound of their deadlines.
    until: Time,
    writers: Writers,
    /// How much may be written.
    budget: Option<Budget>,
    stats: Stats,
}

impl<R> Writes<R> {
    pub(super) fn new(now: Time, bytes_per_day: Option<u64>) -> Writes<R> {
        Writes {
            waiting: VecDeque::new(),
            until: Time::NEVER,
            writers: Writers::default(),
            budget: bytes_per_day.map(|bytes| Budget::new(now, bytes)),
            stats: Stats::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns how many changes wait for room.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns when a deadline of theirs may pass.
    pub(super) fn until(&self) -> Time {
        self.until
    }
}
