//! When objects end by themselves.
//!
//! Kept beside the index: an object without an end costs nothing. Ends are seconds on whatever clock the caller has
//! (they are kept on the media, so one that goes on over restarts), and say from when on an object is over.
//!
//! Nothing is removed here: whoever removes an object clears its end.

use std::collections::BTreeSet;

use crate::catalog::hash::NumberMap;
use crate::model::object::ObjectId;

/// The ends of objects.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    ends: NumberMap<ObjectId, u64>,
    /// The same, by time.
    order: BTreeSet<(u64, ObjectId)>,
}

impl Expiry {
    /// No ends.
    pub(crate) fn new() -> Expiry {
        Expiry::default()
    }

    /// Whether none has.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Lets an object end at `at_s`, in place of any end that it has.
    pub(crate) fn set(&mut self, id: ObjectId, at_s: u64) {
        self.clear(id);
        self.ends.insert(id, at_s);
        self.order.insert((at_s, id));
    }

    /// When an object ends, in seconds.
    #[inline]
    pub(crate) fn get(&self, id: ObjectId) -> Option<u64> {
        self.ends.get(&id).copied()
    }

    /// Lets an object go on for ever.
    pub(crate) fn clear(&mut self, id: ObjectId) {
        if let Some(at_s) = self.ends.remove(&id) {
            assert!(self.order.remove(&(at_s, id)), "each end is in the order");
        }
    }

    /// When the next object ends, in seconds.
    pub(crate) fn next_s(&self) -> Option<u64> {
        self.order.first().map(|(at_s, _)| *at_s)
    }

    /// The object that ended first, of those that are over at `now_s`. It is named until its end is cleared.
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
