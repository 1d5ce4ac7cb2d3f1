//! Free runs, what of them is deallocated once others were taken, and places that several reads share.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::slabs::block;
use super::{Rig, SHAPE, STORED, UNITS, form, format, get, item, layout, options, used_units};
use crate::model::layout::Layout;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, ShardOptions};

/// Opens a shard whose device deallocates runs that were free for half a second.
fn discarding() -> Rig {
    let mut devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    devices[0].deallocates = true;
    format(&devices, &form(64));
    let discard_after = Duration::from_millis(500);
    Rig::open(devices, ShardOptions { discard_after, ..options(Durability::Restart) })
}

impl Rig {
    /// Removes an object and frees its space.
    fn free(&mut self, key: u64) {
        assert_eq!(self.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
        assert_eq!(self.wait(Action::Commit), Ok(Outcome::Committed));
    }
}

#[test]
fn free_runs_are_counted_and_the_longest_is_known() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    assert_eq!(rig.shard.parts.objects.spaces().runs(), (1, all));
    assert_eq!((rig.put(1, 3), rig.put(2, 5), rig.put(3, all - 8)), (STORED, STORED, STORED));
    assert_eq!(rig.shard.parts.objects.spaces().runs(), (0, 0));
    rig.free(1);
    assert_eq!(rig.shard.parts.objects.spaces().runs(), (1, 3));
    rig.free(3);
    assert_eq!(rig.shard.parts.objects.spaces().runs(), (2, all - 8));
}

#[test]
fn what_an_object_or_a_slab_left_of_a_free_run_is_deallocated() {
    for is_block in [false, true] {
        let mut rig = discarding();
        let id = layout(&mut rig, SHAPE, 4);
        let slab = rig.shard.layouts().get(id).and_then(Layout::slab).expect("it has slabs");
        assert_eq!(rig.put(1, 600), STORED);
        assert_eq!(rig.put(2, rig.capacity() - 600), STORED);
        let start = rig.place_of(1);
        rig.free(1);
        let put = if is_block { block(3, id) } else { item(3, slab.units()) };
        assert_eq!(rig.wait(Action::Put(put)), STORED);
        assert_eq!(rig.place_of(3), start);
        rig.turn(1500);
        let left = start + slab.units()..start + 600;
        assert_eq!(rig.devices[0].medium().deallocated, [left], "blocks: {is_block}");
    }
}

#[test]
fn a_free_run_is_deallocated_although_the_place_of_another_object_was_claimed() {
    let mut rig = discarding();
    let large = rig.capacity() - 280;
    assert_eq!((rig.put(1, large), rig.put(2, 280)), (STORED, STORED));
    let (claimed, start) = (rig.place_of(1), rig.place_of(2));
    assert!(claimed < start);
    rig.free(2);
    assert_eq!(rig.put(3, large), STORED);
    assert_eq!((rig.place_of(3), rig.shard.stats().evictions.objects()), (claimed, 1));
    rig.turn(1500);
    let run = start..start + 280;
    assert_eq!(rig.devices[0].medium().deallocated, [run]);
}

#[test]
fn a_place_is_free_when_the_last_of_its_reads_ends() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    assert_eq!(rig.put(1, all), STORED);
    rig.devices[0].medium().held = vec![Kind::Read];
    let reads = [1, 1, 1].map(|key| rig.submit(Time::NEVER, get(key, all)));
    rig.turn(2);
    rig.free(1);
    let put = rig.submit(Time::NEVER, Action::Put(item(2, all)));
    rig.turn(20);
    assert_eq!(rig.taken(put), [], "it is being read");
    for (ended, read) in reads.into_iter().enumerate() {
        assert_eq!(rig.shard.parts.objects.spaces().buried_units(), all, "{ended} reads ended");
        rig.devices[0].medium().commands_per_poll = Some(1);
        rig.devices[0].medium().held.clear();
        rig.turn(1);
        rig.devices[0].medium().held = vec![Kind::Read];
        assert_eq!(rig.taken(read), [Ok(Outcome::Hit { bytes: all * UNIT_BYTES })]);
    }
    rig.devices[0].medium().commands_per_poll = None;
    rig.turn(20);
    assert_eq!(rig.taken(put), [STORED]);
}

#[test]
fn what_sinks_counts_against_the_capacity_also_where_the_device_has_room() {
    let few =
        ShardOptions { capacity_bytes: Some(10 * UNIT_BYTES), ..options(Durability::Restart) };
    let mut rig = Rig::new(1, 64, few);
    assert_eq!(rig.put(1, 10), STORED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.devices[0].medium().held = vec![Kind::Flush];
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    let put = rig.submit(Time::NEVER, Action::Put(item(2, 10)));
    rig.turn(20);
    assert!(rig.shard.parts.objects.spaces().runs().1 > 10);
    assert_eq!((rig.taken(put), used_units(&rig.shard)), (vec![], 10));
    rig.devices[0].medium().held.clear();
    rig.turn(100);
    assert_eq!((rig.taken(put), used_units(&rig.shard)), (vec![STORED], 10));
}

#[test]
fn a_free_run_that_is_almost_long_enough_costs_one_neighbour() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    for key in 0..rig.capacity() {
        assert_eq!(rig.put(key, 1), STORED);
    }
    // Far from what goes next.
    let places: Vec<u64> = (99..108).map(|key| rig.place_of(key)).collect();
    assert!(places.windows(2).all(|two| two[0] + 1 == two[1]), "{places:?}");
    (100..107).for_each(|key| rig.free(key));
    assert_eq!(rig.put(1000, 8), STORED);
    assert_eq!(rig.shard.stats().evictions.objects(), 1);
    assert!([places[0], places[1]].contains(&rig.place_of(1000)));
}
