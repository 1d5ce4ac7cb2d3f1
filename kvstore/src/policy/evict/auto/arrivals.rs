//! The latest keys that were put: what each is in its sequence, so that the next of the sequence is known for what it
//! is.
//!
//! A table of fixed size, in which a later key may take an earlier one's place. A key that is not found is taken for
//! the first of a sequence.

use super::state::{Ancestor, BlockState};
use crate::model::object::ObjectId;

/// Several requests' worth: a key that is lost breaks the order of its sequence.
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
    /// Its predecessor's object, if that was there before.
    pub(super) parent: Option<ObjectId>,
    /// Its object, once there is one.
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
