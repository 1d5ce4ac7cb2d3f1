//! The expiry times of objects.
//!
//! Times are kept beside the index, so an object that never expires costs nothing. A time is in seconds of the
//! caller's clock (a clock that continues over restarts, because times are stored on the media): the first moment at
//! which the object has expired.
//!
//! This module removes no objects: the caller clears the expiry of an object that it removes.

use std::collections::BTreeSet;

use crate::catalog::hash::NumberMap;
use crate::model::object::ObjectId;

/// The expiry times of objects.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    ends: NumberMap<ObjectId, u64>,
    /// The same, by time.
    order: BTreeSet<(u64, ObjectId)>,
}

impl Expiry {
    pub(crate) fn new() -> Expiry {
        Expiry::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sets an object's expiry to `at_s`, replacing an earlier one.
    pub(crate) fn set(&mut self, id: ObjectId, at_s: u64) {
        self.clear(id);
        self.ends.insert(id, at_s);
        self.order.insert((at_s, id));
    }

    /// Returns when an object expires, in seconds.
    #[inline]
    pub(crate) fn get(&self, id: ObjectId) -> Option<u64> {
        self.ends.get(&id).copied()
    }

    /// Makes an object never expire.
    pub(crate) fn clear(&mut self, id: ObjectId) {
        if let Some(at_s) = self.ends.remove(&id) {
            assert!(self.order.remove(&(at_s, id)), "each end is in the order");
        }
    }

    /// Returns when the next object expires, in seconds.
    pub(crate) fn next_s(&self) -> Option<u64> {
        self.order.first().map(|(at_s, _)| *at_s)
    }

    /// Returns the object that expired first, if any has at `now_s`. Returns it again until its expiry is cleared.
    pub(crate) fn due(&self, now_s: u64) -> Option<ObjectId> {
        let (at_s, id) = *self.order.first()?;
        (at_s <= now_s).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn objects_are_due_from_their_ends_on_the_earliest_first() {
        let mut expiry = Expiry::new();
        expiry.set(ObjectId(1), 20);
        expiry.set(ObjectId(2), 10);
        assert_eq!((expiry.due(9), expiry.due(30)), (None, Some(ObjectId(2))));
        assert_eq!(expiry.due(10), Some(ObjectId(2)));
        expiry.clear(ObjectId(2));
        assert_eq!((expiry.due(19), expiry.due(20)), (None, Some(ObjectId(1))));
    }

    proptest! {
        #[test]
        fn ends_are_a_map(steps in vec((0_u32..8, 0_u64..20, 0..3), 1..100)) {
            let mut expiry = Expiry::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (id, at_s, step) in steps {
                if step == 0 {
                    expiry.clear(ObjectId(id));
                    model.remove(&id);
                } else {
                    expiry.set(ObjectId(id), at_s);
                    model.insert(id, at_s);
                }
                prop_assert_eq!(expiry.get(ObjectId(id)), model.get(&id).copied());
                prop_assert_eq!(expiry.ends.len(), model.len());
                let first = model.iter().map(|(id, at_s)| (*at_s, *id)).min();
                let due = first.filter(|(at_s, _)| *at_s <= 10).map(|(_, id)| ObjectId(id));
                prop_assert_eq!(expiry.due(10), due);
            }
        }
    }
}
