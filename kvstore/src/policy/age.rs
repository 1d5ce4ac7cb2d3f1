//! The age of each object's last use: one byte per object, in ticks of a clock that follows turnover.
//!
//! The clock ticks when one [`TURN_TICKS`]th of the objects was used or inserted. Uses of an object within one tick
//! count once, so a few objects in heavy use do not make the others look old. Ages saturate at [`Ages::MAX`].
//!
//! A byte holds the low bits of the clock at the last use. Each tick visits a part of the bytes and moves those that
//! are too old forward, before the clock comes around to them.
//!
//! A checkpoint keeps the ages. A clock that starts anew shows the same ages for the objects that are
//! [restored](Ages::restore).

use crate::catalog::table::Table;
use crate::model::object::ObjectId;

/// Ticks in which as many objects are used as there are.
const TURN_TICKS: u32 = 128;
/// A tick visits one `VISIT_PARTS`th of the bytes, and `VISIT_MIN` or more. All are visited within 40 ticks, even
/// while their number grows by one `TURN_TICKS`th per tick.
const VISIT_PARTS: u32 = 32;
const VISIT_MIN: u32 = 256;
/// Ticks between two visits of a byte, with a margin.
const VISIT_TICKS: u8 = 64;

const _: () = assert!(Ages::MAX as u32 + VISIT_TICKS as u32 <= u8::MAX as u32);

/// The ages of the objects of a shard.
#[derive(Debug)]
pub(crate) struct Ages {
    /// The clock at the last use of each object.
    stamps: Table<u8>,
    /// Ticks so far.
    clock: u64,
    /// Uses that counted since the last tick.
    uses: u32,
    /// Number of objects.
    len: u32,
    /// Ids from here on were never used.
    fresh: u32,
    /// The next id to visit.
    visit: u32,
}

impl Ages {
    /// The age at which ages saturate, in ticks: one and a half turnovers.
    pub(crate) const MAX: u8 = 191;

    /// Creates the ages of no objects, for ids below `objects_max`.
    pub(crate) fn new(objects_max: u32) -> Ages {
        let stamps = Table::new(objects_max as usize);
        Ages { stamps, clock: 0, uses: 0, len: 0, fresh: 0, visit: 0 }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.stamps.memory_bytes()
    }

    /// Returns how long ago an object was used: 0 to [`Ages::MAX`] ticks.
    pub(crate) fn age(&self, id: ObjectId) -> u8 {
        self.stamp().wrapping_sub(self.stamps[id.0 as usize]).min(Ages::MAX)
    }

    /// Adds an object that is used now.
    pub(crate) fn insert(&mut self, id: ObjectId) {
        self.add(id, 0);
        self.count_use();
    }

    /// Adds an object that was used `age` ticks ago, at most [`Ages::MAX`].
    pub(crate) fn restore(&mut self, id: ObjectId, age: u8) {
        assert!(age <= Ages::MAX, "an age of {age} ticks is saturated");
        self.add(id, age);
    }

    /// Returns the ticks of the clock so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.clock
    }

    /// Gives an object's age to a free id, which the object has from now on.
    pub(crate) fn rename(&mut self, from: ObjectId, to: ObjectId) {
        assert!(from.0 < self.fresh, "object {} was never added", from.0);
        self.stamps[to.0 as usize] = self.stamps[from.0 as usize];
        self.fresh = self.fresh.max(to.0 + 1);
    }

    /// Drops the room for ids from `objects_max` on, which no object has.
    pub(crate) fn shed(&mut self, objects_max: u32) {
        assert!(objects_max as usize <= self.stamps.len(), "ids go, and none come");
        assert!(self.len <= objects_max, "each object keeps its id");
        self.fresh = self.fresh.min(objects_max);
        let mut stamps = Table::new(objects_max as usize);
        let used = self.fresh as usize;
        stamps[..used].copy_from_slice(&self.stamps[..used]);
        self.stamps = stamps;
    }

    /// Returns what the byte of an object used now holds.
    #[inline]
    fn stamp(&self) -> u8 {
        self.clock as u8
    }

    /// Records a use of an object.
    #[inline]
    pub(crate) fn touch(&mut self, id: ObjectId) {
        debug_assert!(id.0 < self.fresh, "object {} was never added", id.0);
        let stamp = self.stamp();
        if std::mem::replace(&mut self.stamps[id.0 as usize], stamp) != stamp {
            self.count_use();
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, id: ObjectId) {
        assert!(id.0 < self.fresh && self.len > 0, "object {} was never added", id.0);
        self.len -= 1;
    }

    fn add(&mut self, id: ObjectId, age: u8) {
        self.stamps[id.0 as usize] = self.stamp().wrapping_sub(age);
        self.len += 1;
        self.fresh = self.fresh.max(id.0 + 1);
        assert!(self.len <= self.fresh, "an id is added once");
    }

    fn count_use(&mut self) {
        self.uses += 1;
        if self.uses >= (self.len / TURN_TICKS).max(1) {
            self.uses = 0;
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.clock += 1;
        let (clock, start) = (self.stamp(), self.visit.min(self.fresh));
        let count = (self.fresh / VISIT_PARTS + 1).max(VISIT_MIN);
        let end = (start + count).min(self.fresh);
        for stamp in &mut self.stamps[start as usize..end as usize] {
            *stamp = clock.wrapping_sub(clock.wrapping_sub(*stamp).min(Ages::MAX));
        }
        self.visit = if end == self.fresh { 0 } else { end };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Returns the ages of `objects` objects, all of which were used one after another.
    fn used(objects: u32) -> Ages {
        let mut ages = Ages::new(objects);
        (0..objects).for_each(|id| ages.insert(ObjectId(id)));
        (0..objects).for_each(|id| ages.touch(ObjectId(id)));
        ages
    }

    #[test]
    fn what_is_used_is_young_and_the_rest_grows_old() {
        let mut ages = used(1024);
        assert!(ages.age(ObjectId(0)) > ages.age(ObjectId(512)));
        (512..1024).for_each(|id| ages.touch(ObjectId(id)));
        assert!(u32::from(ages.age(ObjectId(511))) > TURN_TICKS / 2);
        assert!((512..1024).all(|id| u32::from(ages.age(ObjectId(id))) <= TURN_TICKS / 2));
    }

    #[test]
    fn a_few_objects_in_heavy_use_do_not_make_the_others_old() {
        let mut ages = used(4096);
        let before = ages.age(ObjectId(4000));
        (0..10_000).for_each(|_| ages.touch(ObjectId(8)));
        assert!(ages.age(ObjectId(4000)) <= before + 1);
    }

    #[test]
    fn an_age_saturates_and_never_comes_around() {
        for objects in [2, 300, 5000] {
            let mut ages = Ages::new(objects);
            (0..objects).for_each(|id| ages.insert(ObjectId(id)));
            for use_number in 0..objects * 8 {
                ages.touch(ObjectId(1 + use_number % (objects - 1)));
                ages.touch(ObjectId(1 + (use_number * 7) % (objects - 1)));
            }
            (0..1000).for_each(|_| ages.tick());
            assert_eq!(ages.age(ObjectId(0)), Ages::MAX, "of {objects}");
        }
    }

    #[test]
    fn ages_come_back_as_they_were() {
        let mut ages = Ages::new(256);
        (0..256).for_each(|id| ages.restore(ObjectId(id), (id as u8).min(Ages::MAX)));
        for id in 0..256 {
            assert_eq!(ages.age(ObjectId(id)), (id as u8).min(Ages::MAX));
        }
        ages.touch(ObjectId(200));
        assert!(ages.age(ObjectId(200)) <= 1 && ages.age(ObjectId(3)) >= 3);
    }

    #[test]
    fn an_object_keeps_its_age_under_another_id_and_in_less_room() {
        let mut ages = Ages::new(300);
        (0..290).for_each(|id| ages.restore(ObjectId(id), (id / 2) as u8));
        (10..100).for_each(|id| ages.remove(ObjectId(id)));
        (200..290).for_each(|id| ages.rename(ObjectId(id), ObjectId(id - 190)));
        ages.shed(200);
        assert_eq!(ages.memory_bytes(), 200);
        for id in 0..200 {
            let before = if (10..100).contains(&id) { id + 190 } else { id };
            assert_eq!(ages.age(ObjectId(id)), (before / 2) as u8, "object {id}");
        }
        let ticks = ages.ticks();
        (0..200).for_each(|id| ages.touch(ObjectId(id)));
        assert!(ages.ticks() > ticks && ages.age(ObjectId(0)) > 0);
    }

    /// Exact clocks: the model's ages never wrap.
    #[derive(Default)]
    struct Model {
        clock: u64,
        uses: u64,
        used: BTreeMap<u32, u64>,
    }

    impl Model {
        fn use_now(&mut self, id: u32) {
            if self.used.insert(id, self.clock) == Some(self.clock) {
                return;
            }
            self.uses += 1;
            if self.uses >= (self.used.len() as u64 / u64::from(TURN_TICKS)).max(1) {
                (self.uses, self.clock) = (0, self.clock + 1);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn ages_are_those_of_a_clock_that_never_wraps(
            growth in 0u32..3000,
            steps in vec((0u32..600, 0u8..10), 1..3000),
        ) {
            let (mut ages, mut model) = (Ages::new(4096), Model::default());
            for id in 600..600 + growth {
                ages.insert(ObjectId(id));
                model.use_now(id);
            }
            for (id, kind) in steps {
                match (model.used.contains_key(&id), kind) {
                    (false, 0) => {
                        ages.restore(ObjectId(id), kind);
                        model.used.insert(id, model.clock);
                    }
                    (false, _) => {
                        ages.insert(ObjectId(id));
                        model.use_now(id);
                    }
                    (true, 0) => {
                        ages.remove(ObjectId(id));
                        model.used.remove(&id);
                    }
                    (true, _) => {
                        ages.touch(ObjectId(id));
                        model.use_now(id);
                    }
                }
            }
            for (id, used) in &model.used {
                let age = (model.clock - used).min(u64::from(Ages::MAX)) as u8;
                prop_assert_eq!(ages.age(ObjectId(*id)), age, "object {}", id);
            }
        }
    }
}
