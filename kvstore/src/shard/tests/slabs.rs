//! KV blocks in slabs: which blocks go for others, and for objects outside slabs.

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, SHAPE, STORED, UNITS, form, format, item, layout, options};
use crate::model::layout::Layout;
use crate::model::object::LayoutId;
use crate::model::options::Durability;
use crate::shard::{Action, Failure, Outcome, PutItem, PutOptions};

pub(super) fn block(key: u64, layout: LayoutId) -> PutItem {
    PutItem { options: PutOptions { layout, ..PutOptions::default() }, ..item(key, 2) }
}

/// Returns a store that is large enough for slabs of four blocks.
fn large() -> Rig {
    let devices = vec![TestDevice::new("memory:0", 2 * UNITS)];
    format(&devices, &form(64));
    Rig::open(devices, options(Durability::Restart))
}

impl Rig {
    fn has(&self, key: u64) -> bool {
        self.shard.exists(self.now, &key.into())
    }

    fn evicted(&self) -> u64 {
        self.shard.stats().evictions.objects()
    }

    fn lease_of(&mut self, keys: std::ops::Range<u64>) {
        let keys: Vec<_> = keys.map(Into::into).collect();
        self.shard.lease(self.now, &keys, Time::NEVER).expect("a lease");
    }
}

/// Returns a store full of blocks with keys from 0 on, in slabs of four, their layout, and how many there are. What is
/// left is less than a slab.
fn full() -> (Rig, LayoutId, u64) {
    let mut rig = large();
    let id = layout(&mut rig, SHAPE, 4);
    let count = rig.capacity() / 8 * 4;
    assert!(count >= 16, "{count} blocks");
    for key in 0..count {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(20);
    assert_eq!(rig.evicted(), 0);
    (rig, id, count)
}

#[test]
fn a_layout_is_defined_once_and_its_slabs_are_small_beside_the_store() {
    let mut rig = large();
    let ids = [4, 2, 4, 2].map(|slots| layout(&mut rig, SHAPE, slots));
    assert_eq!(ids, [LayoutId(1), LayoutId(2), LayoutId(1), LayoutId(2)]);
    // A slab takes at most a sixteenth of the device's share.
    let most = rig.shard.parts.objects.spaces().extent_units_on(0) / 16;
    let huge = layout(&mut rig, SHAPE, 1024);
    let slab = rig.shard.layouts().get(huge).and_then(Layout::slab).expect("it has slabs");
    assert!(slab.units() <= most && 2 * slab.units() > most, "{} of {most}", slab.units());
}

#[test]
fn a_block_takes_the_slot_of_the_oldest_of_its_layout() {
    let (mut rig, id, count) = full();
    for round in 0..6 {
        assert_eq!(rig.wait(Action::Put(block(count + round, id))), STORED);
        assert_eq!(rig.evicted(), round + 1);
        assert!(!rig.has(round) && (round + 1..=count + round).all(|key| rig.has(key)));
    }
    // Two that are leased stay.
    rig.lease_of(6..8);
    assert_eq!(rig.wait(Action::Put(block(1000, id))), STORED);
    assert!(!rig.has(8) && rig.has(6) && rig.has(7) && rig.has(9));
    assert_eq!(rig.evicted(), 7);
}

#[test]
fn an_object_outside_slabs_takes_a_whole_slab_and_none_with_a_leased_block() {
    for leased in [false, true] {
        let (mut rig, _, count) = full();
        if leased {
            rig.lease_of(1..2);
        }
        assert_eq!(rig.put(1000, 8), STORED);
        assert_eq!(rig.evicted(), 4);
        let gone: Vec<u64> = (0..count).filter(|key| !rig.has(*key)).collect();
        assert_eq!(gone, if leased { [4, 5, 6, 7] } else { [0, 1, 2, 3] });
    }
}

#[test]
fn a_block_of_another_layout_takes_a_slab_that_others_of_it_share() {
    let (mut rig, _, count) = full();
    let other = layout(&mut rig, SHAPE, 2);
    // What a slab of another layout leaves behind may be as long as one of this.
    let spare = (rig.capacity() - 2 * count) / 4 * 2;
    for key in 0..spare + 4 {
        assert_eq!(rig.wait(Action::Put(block(1000 + key, other))), STORED);
        assert_eq!(rig.evicted(), if key < spare { 0 } else { 4 }, "block {key}");
    }
    assert!((0..4).all(|key| !rig.has(key)) && (4..count).all(|key| rig.has(key)));
}

#[test]
fn blocks_of_a_batch_share_the_slabs_that_are_made_for_them() {
    for (blocks, slabs) in [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)] {
        let mut rig = large();
        let id = layout(&mut rig, SHAPE, 4);
        let count = rig.capacity() / 2;
        for key in 0..count {
            assert_eq!(rig.put(key, 2), STORED);
        }
        let tag = rig.submit_puts((0..blocks).map(|key| block(1000 + key, id)));
        rig.turn(100);
        assert_eq!(rig.taken(tag), vec![STORED; blocks as usize]);
        assert_eq!(rig.evicted(), 4 * slabs, "{blocks} blocks");
        assert!((0..4 * slabs).all(|key| !rig.has(key)), "the oldest go");
    }
}

#[test]
fn a_batch_of_blocks_takes_free_slots_and_those_of_the_oldest_blocks() {
    let (mut rig, id, count) = full();
    for key in 2..5u64 {
        assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
    }
    let tag = rig.submit_puts((0..5).map(|key| block(1000 + key, id)));
    rig.turn(100);
    assert_eq!(rig.taken(tag), vec![STORED; 5]);
    assert_eq!(rig.evicted(), 2, "three slots became free");
    assert!(!rig.has(0) && !rig.has(1) && (5..count).all(|key| rig.has(key)));
}

#[test]
fn a_sequence_goes_on_at_the_next_device() {
    let mut rig = Rig::new(3, 64, options(Durability::Restart));
    let device =
        |rig: &Rig, key: u64| rig.shard.info(rig.now, &key.into()).expect("it is there").device;
    for before in 1..4 {
        assert_eq!(rig.put(before, 1), STORED);
    }
    for (before, key) in [(1, 11), (3, 12), (2, 13), (1, 14), (1, 15), (2, 16)] {
        let mut next = item(key, 1);
        next.options.after = Some(before.into());
        assert_eq!(rig.wait(Action::Put(next)), STORED);
        assert_eq!(device(&rig, key), (device(&rig, before) + 1) % 3, "{key} after {before}");
    }
}

#[test]
fn a_neighbour_lies_behind_its_predecessor_though_another_run_fits_better() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let lengths = [3, 9, 2, 5, 1];
    for (key, units) in (1..).zip(lengths) {
        assert_eq!(rig.put(key, units), STORED);
    }
    for key in [2u64, 4] {
        assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
    }
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    let unit = |rig: &Rig, key: u64| {
        let id = rig.shard.parts.objects.index().find(crate::model::key::Key::from(key).as_bytes());
        rig.shard.parts.objects.index().object(id.expect("it is there")).place.unit
    };
    let mut next = item(9, 5);
    next.options.after = Some(1u64.into());
    assert_eq!(rig.wait(Action::Put(next)), STORED);
    assert_eq!(unit(&rig, 9), unit(&rig, 1) + 3, "not the five units behind the third");
}

#[test]
fn a_batch_lies_in_one_run_on_each_device_or_where_it_fits_best() {
    for count in [1u64, 2] {
        let mut rig = Rig::new(count as usize, 64, options(Durability::Restart));
        assert!((0..3 * count).all(|key| rig.put(key, 2) == STORED));
        let unit = |rig: &Rig, key: u64| {
            let id =
                rig.shard.parts.objects.index().find(crate::model::key::Key::from(key).as_bytes());
            let place = rig.shard.parts.objects.index().object(id.expect("it is there")).place;
            (place.device, place.unit)
        };
        // A hole of two units on each device.
        let holes: Vec<_> = (count..2 * count).map(|key| unit(&rig, key)).collect();
        for key in count..2 * count {
            assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
        }
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        rig.turn(50);
        let tag = rig.submit_puts([item(10, 2), item(11, 2)]);
        rig.turn(10);
        assert_eq!(rig.taken(tag), [STORED; 2]);
        let (first, second) = (unit(&rig, 10), unit(&rig, 11));
        assert!(!holes.contains(&first), "the run that it begins is longer");
        if count == 1 {
            assert_eq!(second, (first.0, first.1 + 2), "behind the first");
        } else {
            assert!(holes.contains(&second) && second.0 != first.0, "nothing follows there");
        }
    }
}

#[test]
fn room_that_only_reads_hold_is_waited_for_and_room_that_leases_hold_is_not() {
    for is_leased in [false, true] {
        let mut rig = large();
        let all = rig.capacity();
        assert_eq!(rig.put(1, all), STORED);
        if is_leased {
            rig.lease_of(1..2);
        }
        rig.devices[0].medium().held = vec![Kind::Read];
        let read = rig.submit(Time::NEVER, super::get(1, all));
        rig.turn(3);
        assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        let put = rig.submit(Time::NEVER, Action::Put(item(2, all)));
        rig.turn(20);
        let refused = if is_leased { vec![Err(Failure::Full)] } else { vec![] };
        assert_eq!(rig.taken(put), refused);
        assert_eq!(rig.taken(read), []);
        rig.devices[0].medium().held.clear();
        rig.turn(20);
        assert_eq!(rig.taken(read).len(), 1);
        assert_eq!(rig.taken(put).len(), usize::from(!is_leased));
        assert_eq!(rig.shard.parts.objects.spaces().sinking_units(), 0);
    }
}

#[test]
fn a_block_takes_the_slot_of_one_of_its_layout_where_no_slab_is_near_what_goes_next() {
    let mut rig = large();
    let id = layout(&mut rig, SHAPE, 4);
    // Every other one of the oldest objects is leased: no slab has room among them.
    for key in 0..40 {
        assert_eq!(rig.put(key, 1), STORED);
    }
    let between = rig.capacity() - 40 - 4 * 8;
    assert_eq!(rig.put(40, between), STORED);
    for key in 100..116 {
        assert_eq!(rig.wait(Action::Put(block(key, id))), STORED);
    }
    assert_eq!((rig.evicted(), rig.shard.parts.objects.spaces().runs()), (0, (0, 0)));
    (1..40).step_by(2).chain([40]).for_each(|key| rig.lease_of(key..key + 1));
    assert_eq!(rig.wait(Action::Put(block(200, id))), STORED);
    assert_eq!(rig.evicted(), 1);
    assert_eq!((100..116).filter(|key| rig.has(*key)).count(), 15);
}
