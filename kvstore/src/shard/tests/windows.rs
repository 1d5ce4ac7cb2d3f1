//! What goes for an object: the oldest alone, objects beside free space, a slab, or the slot of a block.

use std::ops::Range;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::room::large_rig;
use super::slabs::block;
use super::{Rig, SHAPE, STORED, UNITS, form, get, item, layout, options};
use crate::media::format::FormatOptions;
use crate::model::key::Key;
use crate::model::object::{LayoutId, ObjectId};
use crate::model::options::Durability;
use crate::policy::age::Ages;
use crate::shard::{Action, Outcome};

impl Rig {
    /// Stores objects of one unit in the rest of the store, with keys from `key` on. Returns the next key.
    fn fill_up(&mut self, key: u64) -> u64 {
        let free = self.capacity() - self.shard.stats().used_units;
        let tag = self.submit_puts((key..key + free).map(|key| item(key, 1)));
        while self.taken_count(tag) < free {
            self.turn(1);
        }
        key + free
    }

    fn taken_count(&self, tag: u64) -> u64 {
        self.answers.iter().filter(|done| done.reply == tag).count() as u64
    }

    /// Stores objects of these lengths, one behind the other, with keys from 0 on.
    fn lay_out(&mut self, lengths: &[u64]) {
        for (key, units) in (0..).zip(lengths) {
            assert_eq!(self.put(key, *units), STORED);
        }
        let places: Vec<u64> = (0..lengths.len() as u64).map(|key| self.place_of(key)).collect();
        assert!(places.windows(2).zip(lengths).all(|(two, units)| two[0] + units == two[1]));
    }

    /// Frees the space of some objects.
    fn make_holes(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            assert_eq!(self.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
        }
        assert_eq!(self.wait(Action::Commit), Ok(Outcome::Committed));
        self.turn(50);
        assert_eq!(self.shard.parts.objects.spaces().sinking_units(), 0);
    }

    fn touch(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            let units = self.shard.info(self.now, &key.into()).expect("it is there").bytes / 4096;
            assert!(matches!(self.get(key, units), Ok(Outcome::Hit { .. })));
        }
    }

    /// Returns which of these keys are not there any more.
    fn gone_of(&self, keys: Range<u64>) -> Vec<u64> {
        keys.filter(|key| !self.shard.exists(self.now, &Key::from(*key))).collect()
    }

    fn id_of(&self, key: u64) -> Option<ObjectId> {
        self.shard.parts.objects.index().find(Key::from(key).as_bytes())
    }

    fn device_of(&self, key: u64) -> usize {
        self.shard.info(self.now, &key.into()).expect("it is there").device.into()
    }

    fn went(&self) -> u64 {
        self.shard.stats().evictions.objects()
    }
}

/// Opens a shard on two devices that may be full of objects of one unit.
fn two_devices() -> Rig {
    let devices = [0, 1].map(|index| TestDevice::new(&format!("memory:{index}"), UNITS));
    super::format(&devices, &FormatOptions { objects_max: 600, ..form(64) });
    Rig::open(devices.into(), options(Durability::Volatile))
}

#[test]
fn the_oldest_goes_alone_if_its_place_or_free_space_beside_it_is_enough() {
    // The oldest, what is to be stored, the holes, and the lengths. Object 5 lies between two holes and would cost
    // less.
    for (oldest, units, holes, lengths) in [
        (1, 10, [4, 6].as_slice(), [5, 10, 5, 5, 5, 5, 5].as_slice()),
        (1, 20, &[2, 4, 6], &[5, 10, 10, 5, 15, 5, 15]),
        (2, 20, &[1, 4, 6], &[5, 10, 10, 5, 15, 5, 15]),
    ] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        rig.lay_out(lengths);
        let rest = rig.capacity() - lengths.iter().sum::<u64>();
        assert_eq!(rig.put(7, rest), STORED);
        rig.make_holes(holes.iter().copied());
        rig.touch((0..8).filter(|key| *key != oldest && !holes.contains(key)));
        assert_eq!(rig.put(1000, units), STORED);
        let gone: Vec<u64> =
            rig.gone_of(0..8).into_iter().filter(|key| !holes.contains(key)).collect();
        assert_eq!(gone, [oldest], "for {units} units");
    }
}

#[test]
fn older_objects_on_a_device_that_failed_are_passed_over() {
    let mut rig = two_devices();
    assert_eq!(rig.put(0, 2), STORED);
    let end = rig.fill_up(1);
    let dead = 1 - rig.device_of(0);
    let (there, here): (Vec<u64>, Vec<u64>) = (1..end).partition(|key| rig.device_of(*key) == dead);
    let hole = here[here.len() / 2];
    rig.make_holes([hole]);
    // As many as are passed over at most to find the oldest that may go.
    let (older, rest) = there.split_at(64);
    rig.touch([0]);
    rig.touch(rest.iter().copied());
    rig.touch(here.into_iter().filter(|key| *key != hole));
    rig.devices[dead].medium().is_dead = true;
    assert_eq!(rig.get(rest[0], 1), Ok(Outcome::Miss));
    assert!(rig.shard.parts.lanes[dead].failure().is_some());
    assert_eq!(rig.put(1000, 2), STORED);
    assert_eq!((rig.gone_of(0..1), rig.went()), (vec![0], 1), "and not what lies beside a hole");
    assert!(older.iter().all(|key| rig.id_of(*key).is_some()));
}

#[test]
fn objects_go_from_devices_in_service_alone() {
    for dead in [0, 1] {
        let mut rig = two_devices();
        let end = rig.fill_up(0);
        let there: Vec<u64> = (0..end).filter(|key| rig.device_of(*key) == dead).collect();
        rig.devices[dead].medium().is_dead = true;
        assert_eq!(rig.get(there[0], 1), Ok(Outcome::Miss));
        assert_eq!(rig.put(1000, 8), STORED);
        assert_ne!(rig.device_of(1000), dead);
        assert_eq!(rig.went(), 8);
        assert!(there.iter().all(|key| rig.id_of(*key).is_some()));
    }
}

#[test]
fn what_was_claimed_on_a_device_that_fails_is_claimed_on_another() {
    let mut rig = two_devices();
    let end = rig.fill_up(0);
    let first = rig.device_of(0);
    let (there, here): (Vec<u64>, Vec<u64>) =
        (0..end).partition(|key| rig.device_of(*key) == first);
    // All places on this device stay in use while they are being read.
    rig.devices[first].medium().held = vec![Kind::Read];
    for key in there {
        rig.submit(Time::NEVER, get(key, 1));
    }
    rig.touch(here);
    let put = rig.submit(Time::NEVER, Action::Put(item(1000, 1)));
    rig.turn(5);
    assert_eq!((rig.taken(put), rig.gone_of(0..1)), (vec![], vec![0]));
    {
        let mut medium = rig.devices[first].medium();
        (medium.is_dead, medium.held) = (true, vec![]);
    }
    rig.turn(50);
    assert_eq!(rig.taken(put), [STORED]);
    assert_ne!(rig.device_of(1000), first);
}

#[test]
fn a_place_is_looked_at_although_one_of_another_device_has_the_same_units() {
    let mut rig = two_devices();
    let [start, other] = [0, 1].map(|device| {
        rig.shard.parts.objects.spaces().on(device).range_from(0).expect("a range").start
    });
    assert!(start > other, "the journal is on the first device");
    // Objects on the second device, with small ones between them on the first.
    let left = |rig: &Rig, device| rig.shard.parts.objects.spaces().extent_units_on(device);
    let rest = left(&rig, 1) - (start - other) - 65;
    let second = [start - other, 10, 10, 30, 15, rest];
    assert_eq!(rig.put(0, 10), STORED);
    for (key, units) in (1..).zip(second) {
        assert_eq!(rig.put(key, units), STORED);
        let between = if key < 6 { 1 } else { left(&rig, 0) - 15 };
        assert_eq!(rig.put(10 + key, between), STORED);
        assert_eq!((rig.device_of(key), rig.device_of(10 + key)), (1, 0));
    }
    assert_eq!((rig.place_of(0), rig.place_of(2)), (start, start));
    // Free space behind object 2, and a longer run between two that stay.
    rig.make_holes([3, 5]);
    for key in [1u64, 4, 6] {
        rig.shard.lease(rig.now, &[key.into()], Time::NEVER).expect("a lease");
    }
    rig.touch((11..17).chain([1, 4, 6]));
    assert_eq!(rig.put(1000, 20), STORED);
    assert_eq!((rig.gone_of(0..3), rig.went()), (vec![2], 1));
    assert_eq!(rig.place_of(1000), start);
}

#[test]
fn places_are_looked_at_around_old_objects_that_are_not_close_to_one_before() {
    let lengths = [[1; 14].as_slice(), &[40, 10, 10, 10, 10, 30, 15]].concat();
    for (second, third, goes) in [(16, 17, [15, 16].as_slice()), (17, 16, &[17])] {
        let mut rig = large_rig(2, Durability::Restart);
        rig.lay_out(&lengths);
        assert_eq!(rig.put(21, rig.capacity() - lengths.iter().sum::<u64>()), STORED);
        // A hole beside 17, too far from 15, and a longer one between two that stay.
        rig.make_holes([18, 20]);
        for key in [14u64, 19, 21] {
            rig.shard.lease(rig.now, &[key.into()], Time::NEVER).expect("a lease");
        }
        // As many as are looked at, and one that is younger. Object 16 is close to 15, and 17 is not.
        rig.touch([15, second].into_iter().chain(0..14));
        rig.touch([third]);
        assert_eq!(rig.put(1000, 20), STORED);
        let gone: Vec<u64> =
            rig.gone_of(0..22).into_iter().filter(|key| ![18, 20].contains(key)).collect();
        assert_eq!(gone, goes);
    }
}

#[test]
fn objects_as_old_as_can_be_are_still_worth_more_than_one_beside_much_free_space() {
    let mut rig = large_rig(6, Durability::Volatile);
    let end = rig.fill_up(0);
    assert_eq!(rig.place_of(799) - rig.place_of(500), 299);
    rig.make_holes(500..800);
    let id = rig.id_of(0).expect("it is there");
    while rig.shard.parts.objects.order().age(id) < Ages::MAX {
        rig.touch((400..500).chain(800..end));
    }
    assert_eq!(rig.put(5000, 301), STORED);
    assert_eq!(rig.went(), 1);
    let gone = [rig.gone_of(499..500), rig.gone_of(800..801)].concat();
    assert_eq!(gone.len(), 1, "beside the hole");
}

#[test]
fn space_that_soon_will_be_free_is_waited_for_and_nothing_goes_for_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    // The oldest that may go is long enough, too.
    assert_eq!((rig.put(0, 20), rig.put(1, 10)), (STORED, STORED));
    let end = rig.fill_up(2);
    let place = rig.place_of(0);
    rig.devices[0].medium().held = vec![Kind::Flush];
    assert_eq!(rig.wait(Action::Delete(0u64.into())), Ok(Outcome::Deleted));
    let put = rig.submit(Time::NEVER, Action::Put(item(1000, 10)));
    rig.turn(20);
    assert_eq!((rig.taken(put), rig.went()), (vec![], 0));
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    assert_eq!((rig.taken(put), rig.went()), (vec![STORED], 0));
    assert!((place..place + 20).contains(&rig.place_of(1000)));
    assert!(rig.gone_of(1..end).is_empty());
}

#[test]
fn space_in_pieces_that_is_just_enough_is_no_lack_of_space() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let end = rig.fill_up(0);
    rig.make_holes([10, 11, 13, 14]);
    assert_eq!(rig.put(1000, 4), STORED);
    let gone = rig.shard.stats().evictions;
    assert_eq!((gone.fragmentation.objects, gone.space.objects), (1, 0));
    assert_eq!(rig.gone_of(0..end), [10, 11, 12, 13, 14]);
}

#[test]
fn free_space_that_one_of_a_batch_fits_is_kept_for_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let end = rig.fill_up(0);
    let hole = rig.place_of(4);
    rig.make_holes(4..8);
    let tag = rig.submit_puts([item(1000, 4), item(1001, 8)]);
    rig.turn(200);
    assert_eq!(rig.taken(tag), [STORED; 2]);
    assert_eq!((rig.place_of(1000), rig.place_of(1001)), (hole, hole + 4));
    assert_eq!((rig.gone_of(0..end), rig.went()), ((4..16).collect(), 8));
    assert_eq!(rig.shard.stats().used_units, rig.capacity());
}

#[test]
fn an_object_that_was_numbered_like_a_claimed_one_stays() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let mut expiring = item(0, 1);
    expiring.options.ttl_s = Some(1);
    assert_eq!(rig.wait(Action::Put(expiring)), STORED);
    assert_eq!(rig.put(1, rig.capacity() - 2), STORED);
    rig.devices[0].medium().held = vec![Kind::Write];
    let last = rig.submit(Time::NEVER, Action::Put(item(2, 1)));
    // This turn evicts no more: the next object only claims the place of the oldest.
    rig.shard.parts.room.set_evictions_left(0);
    let next = rig.submit(Time::NEVER, Action::Put(item(3, 1)));
    let id = rig.id_of(0);
    rig.now = rig.now + std::time::Duration::from_secs(2);
    let (objects, log) = (&mut rig.shard.parts.objects, &mut rig.shard.parts.log);
    objects.expire(log, rig.now);
    assert_eq!(rig.gone_of(0..1), [0]);
    rig.devices[0].medium().held.clear();
    rig.turn(100);
    assert_eq!((rig.taken(last), rig.taken(next)), (vec![STORED], vec![STORED]));
    assert_eq!(rig.id_of(2), id, "it was numbered alike");
    assert_eq!(rig.went(), 0);
}

/// Returns a full shard of objects of one unit, 0 to 11, and blocks of a layout that are newer.
fn blocks_behind_units() -> (Rig, LayoutId) {
    let mut rig = large_rig(2, Durability::Restart);
    let id = layout(&mut rig, SHAPE, 4);
    rig.lay_out(&[1; 12]);
    let blocks = (rig.capacity() - 12) / 8 * 4;
    for key in 100..100 + blocks {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    rig.fill_up(1000);
    (rig, id)
}

#[test]
fn a_slab_is_worth_what_all_units_of_its_blocks_are() {
    let (mut rig, _) = blocks_behind_units();
    assert_eq!(rig.put(5000, 8), STORED);
    assert_eq!(rig.gone_of(0..12), (0..8).collect::<Vec<_>>(), "they are older than any block");
    assert_eq!(rig.went(), 8);
}

#[test]
fn a_block_gets_a_new_slab_where_that_is_worth_less_than_the_oldest_block() {
    let (mut rig, id) = blocks_behind_units();
    assert_eq!(rig.wait(Action::Put(block(5000, id))), STORED);
    assert_eq!((rig.gone_of(0..12), rig.went()), ((0..8).collect(), 8));
}

#[test]
fn a_block_gets_the_slot_of_the_oldest_block_where_a_new_slab_is_worth_more() {
    let mut rig = large_rig(2, Durability::Restart);
    let id = layout(&mut rig, SHAPE, 4);
    for key in 0..32 {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    let end = rig.fill_up(100);
    // The oldest of all is an object of one unit among younger ones.
    let oldest = (100 + end) / 2;
    rig.touch((0..32).chain((100..end).filter(|key| *key != oldest)));
    assert_eq!(rig.wait(Action::Put(block(5000, id))), STORED);
    assert_eq!((rig.gone_of(0..32), rig.went()), (vec![0], 1));
}

#[test]
fn with_all_else_leased_a_block_gets_the_slot_of_the_oldest_block() {
    let mut rig = large_rig(2, Durability::Restart);
    let id = layout(&mut rig, SHAPE, 4);
    for key in 0..16 {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    let end = rig.fill_up(100);
    // One block of each slab is leased, and all objects outside but the oldest.
    let leased = (0..16).filter(|key| key % 4 == 3);
    let keys: Vec<Key> = leased.clone().chain(101..end).map(Into::into).collect();
    rig.shard.lease(rig.now, &keys, Time::NEVER).expect("a lease");
    // Between blocks of different ages others are used.
    let mut apart = (end - 80..end).step_by(20).map(|key| key..key + 20);
    let mut pause = |rig: &mut Rig| rig.touch(apart.next().expect("there are more"));
    rig.touch(leased);
    pause(&mut rig);
    rig.touch([6]);
    pause(&mut rig);
    rig.touch([9]);
    pause(&mut rig);
    rig.touch((0..16).filter(|key| key % 4 != 3 && ![6, 9].contains(key)));
    let tag = rig.submit_puts([block(5000, id), block(5001, id)]);
    rig.turn(100);
    assert_eq!(rig.taken(tag), [STORED; 2]);
    assert_eq!((rig.gone_of(0..16), rig.went()), (vec![6, 9], 2));
}

#[test]
fn a_block_that_is_leased_before_it_goes_stays() {
    let mut rig = large_rig(2, Durability::Restart);
    let id = layout(&mut rig, SHAPE, 4);
    let count = rig.capacity() / 8 * 4;
    for key in 0..count {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    // This turn evicts no more: the next block only claims the slot of the oldest.
    rig.shard.parts.room.set_evictions_left(0);
    let put = rig.submit(Time::NEVER, Action::Put(block(count, id)));
    assert_eq!(rig.went(), 0);
    rig.shard.lease(rig.now, &[0u64.into()], Time::NEVER).expect("a lease");
    rig.turn(100);
    assert_eq!(rig.taken(put), [STORED]);
    assert_eq!((rig.gone_of(0..count), rig.went()), (vec![1], 1));
}

#[test]
fn an_extent_is_that_of_an_object_or_of_its_slab() {
    let mut rig = large_rig(2, Durability::Restart);
    let id = layout(&mut rig, SHAPE, 4);
    let object = |rig: &Rig, key| {
        rig.shard.parts.objects.index().object(rig.id_of(key).expect("it is there"))
    };
    assert_eq!((rig.put(0, 7), rig.wait(Action::Put(block(1, id)))), (STORED, STORED));
    assert_eq!(rig.wait(Action::Put(block(2, id))), STORED);
    let extent = |rig: &Rig, key| rig.shard.parts.objects.spaces().extent_of(&object(rig, key));
    let (start, slab) = (rig.place_of(0), rig.place_of(1));
    assert_eq!(extent(&rig, 0), start..start + 7);
    assert_eq!((extent(&rig, 1), extent(&rig, 2)), (slab..slab + 8, slab..slab + 8));
}

#[test]
fn the_whole_share_is_searched_over_several_turns() {
    let mut rig = large_rig(40, Durability::Volatile);
    let start = rig.shard.parts.objects.spaces().on(0).range_from(0).expect("a range").start;
    let end = rig.fill_up(0);
    assert!(end > 9000 && (0..end).all(|key| rig.place_of(key) == start + key));
    // Two objects in three may go, but three only beside one of these, whose leases end. The first lies where a step
    // of the search ends and the next begins.
    let doors = [4097u64, 8999];
    let keys: Vec<Key> =
        (2..end).step_by(3).filter(|key| !doors.contains(key)).map(Into::into).collect();
    rig.shard.lease(rig.now, &keys, Time::NEVER).expect("a lease");
    let leases =
        doors.map(|key| rig.shard.lease(rig.now, &[key.into()], Time::NEVER).expect("a lease").0);
    for (at, key) in [(1, 20_000), (0, 20_001)] {
        rig.shard.release(leases[at]);
        let before = rig.went();
        let put = rig.submit(Time::NEVER, Action::Put(item(key, 3)));
        let is_far = at == 1;
        assert_eq!(rig.shard.parts.room.is_searching(), is_far);
        assert_eq!(rig.went() - before, if is_far { 0 } else { 3 });
        rig.turn(3);
        assert_eq!((rig.taken(put), rig.went() - before), (vec![STORED], 3));
        let door = start + doors[at];
        assert!((door - 2..=door).contains(&rig.place_of(key)));
    }
}

#[test]
fn a_large_window_is_searched_for_in_large_steps() {
    let mut rig = large_rig(72, Durability::Volatile);
    let (capacity, units) = (rig.capacity(), 5000);
    let count = capacity / 100;
    rig.lay_out(&vec![100; count as usize]);
    rig.fill_up(1000);
    assert!(count > 135);
    for key in [40u64, 80] {
        rig.shard.lease(rig.now, &[key.into()], Time::NEVER).expect("a lease");
    }
    let put = rig.submit(Time::NEVER, Action::Put(item(500, units)));
    assert_eq!(rig.went(), 50, "at once");
    rig.turn(100);
    assert_eq!(rig.taken(put), [STORED]);
    assert_eq!((rig.gone_of(0..81), rig.went()), (vec![], 50));
}
