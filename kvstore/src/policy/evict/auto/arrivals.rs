//! Remembers the latest keys put and their places in their sequences, so that a successor is recognized.
//!
//! The table has a fixed size; a later key may overwrite an earlier one. A key that is missing counts as the first of
//! a sequence.

use super::state::{Ancestor, BlockState};
use crate::model::object::ObjectId;

/// Size of the table: enough for several requests, because a lost key breaks the order of its sequence.
const KEYS: usize = 4096;

/// A key that was put.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    pub(super) hash: u64,
    /// The hash of its predecessor; 0 if it has none.
    pub(super) before: u64,
    pub(super) ancestor: Ancestor,
    pub(super) state: BlockState,
    pub(super) is_declined: bool,
    /// The predecessor's object, if it was stored before.
    pub(super) parent: Option<ObjectId>,
    /// The key's own object, once it is stored.
    pub(super) id: Option<ObjectId>,
}

/// The latest arrivals.
#[derive(Debug)]
pub(super) struct Arrivals(Box<[Arrival]>);

impl Arrivals {
    pub(super) fn new() -> Arrivals {
        Arrivals(vec![Arrival::default(); KEYS].into())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn get(&mut self, hash: u64) -> Option<&mut Arrival> {
        let slot = &mut self.0[hash as usize % KEYS];
        (slot.hash == hash && hash != 0).then_some(slot)
    }

    pub(super) fn enter(&mut self, arrival: Arrival) {
        self.0[arrival.hash as usize % KEYS] = arrival;
    }
}
