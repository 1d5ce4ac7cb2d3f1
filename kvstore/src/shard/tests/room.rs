//! Making room: what goes for a change, and why.

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, SHAPE, STORED, UNITS, form, format, item, layout, options};
use crate::media::format::FormatOptions;
use crate::model::options::Durability;
use crate::shard::room::EVICTIONS_PER_TURN;
use crate::shard::{Action, Evictions, Failure, PutItem, PutOptions};

/// Opens a shard on a device with room for `factor` times as many objects as others in these tests.
pub(super) fn large_rig(factor: u64, durability: Durability) -> Rig {
    let devices = vec![TestDevice::new("memory:0", factor * UNITS)];
    let objects_max = factor as u32 * 300;
    format(&devices, &FormatOptions { objects_max, journal_bytes: None, ..form(0) });
    Rig::open(devices, options(durability))
}

/// Fills the shard with objects of one unit, and then uses them in no order of their places.
fn fill(rig: &mut Rig) -> u64 {
    let count = rig.capacity();
    let tag = rig.submit_puts((0..count).map(|key| item(key, 1)));
    let mut left = count as usize;
    while left > 0 {
        rig.turn(1);
        left -= rig.taken(tag).len();
    }
    for at in 0..count.next_power_of_two() {
        let key = at.wrapping_mul(0x9e37_79b9) % count.next_power_of_two();
        if key < count {
            rig.get(key, 1).expect("a healthy device");
        }
    }
    count
}

fn evictions(rig: &Rig) -> Evictions {
    rig.shard.stats().evictions
}

#[test]
fn an_object_takes_the_place_of_neighbours_whatever_their_age() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let count = fill(&mut rig);
    for key in 0..4 {
        assert_eq!(rig.put(1000 + key, count / 8), STORED);
    }
    let gone = evictions(&rig);
    assert_eq!(gone.objects(), count / 8 * 4, "one unit for each that was asked for");
    assert_eq!((gone.records.objects, gone.fragmentation.objects), (0, 0));
}

#[test]
fn what_finds_space_in_pieces_is_evicted_against_fragmentation_for_the_rest() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let count = fill(&mut rig);
    for key in (0..count).step_by(2) {
        rig.wait(Action::Delete(key.into())).expect("a healthy device");
    }
    assert_eq!(rig.wait(Action::Commit), Ok(crate::shard::Outcome::Committed));
    assert_eq!(rig.put(1000, count / 8), STORED);
    let gone = evictions(&rig);
    assert_eq!(gone.space.objects, 0);
    assert!((1..=count / 8).contains(&gone.fragmentation.objects), "{gone:?}");
}

#[test]
fn nothing_goes_for_an_object_that_leases_leave_no_run_for() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let count = fill(&mut rig);
    let place = |rig: &Rig, key: u64| {
        let id = rig.shard.parts.objects.index().find(crate::model::key::Key::from(key).as_bytes());
        rig.shard.parts.objects.index().object(id.expect("it is there")).place.unit
    };
    let first = (0..count).map(|key| place(&rig, key)).min().expect("objects");
    let is_eighth = |key: &u64| (place(&rig, *key) - first) % 8 == 7;
    let keys: Vec<_> = (0..count).filter(is_eighth).map(Into::into).collect();
    for key in &keys {
        rig.shard.lease(rig.now, std::slice::from_ref(key), Time::NEVER).expect("a lease");
    }
    assert_eq!(rig.put(1000, 8), Err(Failure::Full));
    assert_eq!(evictions(&rig).objects(), 0);
    assert_eq!(rig.put(1000, 7), STORED);
    assert_eq!(evictions(&rig).objects(), 7, "those between two that are leased");
}

#[test]
fn a_place_among_many_objects_is_emptied_over_several_turns() {
    for durability in [Durability::Volatile, Durability::Restart] {
        let mut rig = large_rig(8, durability);
        let count = fill(&mut rig);
        let large = count * 3 / 4;
        assert!(large > 2 * u64::from(EVICTIONS_PER_TURN));
        let tag = rig.submit(Time::NEVER, Action::Put(item(5000, large)));
        let (mut before, mut turns) = (evictions(&rig).objects(), 0);
        assert!(before <= EVICTIONS_PER_TURN.into());
        while rig.taken(tag).is_empty() {
            let answers = &mut rig.answers;
            let turn = rig.shard.poll(rig.now, &mut |done| answers.push(done));
            turns += 1;
            let gone = evictions(&rig).objects() - before;
            assert!(gone <= EVICTIONS_PER_TURN.into() && turns < 3000, "in turn {turns}");
            assert!(gone < EVICTIONS_PER_TURN.into() || turn.next <= rig.now, "it goes on at once");
            rig.now = rig.now + std::time::Duration::from_millis(1);
            before += gone;
        }
        assert_eq!(before, large, "{durability:?}");
    }
}

#[test]
fn an_object_that_is_leased_while_its_place_is_being_emptied_stays() {
    let mut rig = large_rig(8, Durability::Volatile);
    let count = fill(&mut rig);
    let places: Vec<u64> = (0..count).map(|key| rig.place_of(key)).collect();
    let tag = rig.submit(Time::NEVER, Action::Put(item(5000, u64::from(EVICTIONS_PER_TURN) + 100)));
    assert_eq!(evictions(&rig).objects(), u64::from(EVICTIONS_PER_TURN), "more in later turns");
    let is_gone = |rig: &Rig, key: u64| !rig.shard.exists(rig.now, &key.into());
    let gone = (0..count).filter(|key| is_gone(&rig, *key)).map(|key| places[key as usize]);
    let next = gone.max().expect("some went") + 1;
    let key = places.iter().position(|place| *place == next).expect("there are more") as u64;
    rig.shard.lease(rig.now, &[key.into()], Time::NEVER).expect("a lease");
    rig.settle();
    assert_eq!(rig.taken(tag), [STORED], "elsewhere");
    assert!(!is_gone(&rig, key) && rig.place_of(key) == next);
}

#[test]
fn who_waits_for_a_place_to_become_free_is_refused_in_time_and_the_next_one_gets_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let count = fill(&mut rig);
    rig.devices[0].medium().held = vec![Kind::Flush];
    let until = rig.now + std::time::Duration::from_millis(20);
    let first = rig.submit(until, Action::Put(item(1000, count / 4)));
    rig.turn(30);
    assert_eq!(rig.taken(first), [Err(Failure::Deadline)]);
    rig.devices[0].medium().held.clear();
    assert_eq!(rig.put(1001, count / 4), STORED);
    assert_eq!(evictions(&rig).objects(), count / 4, "nothing went twice");
}

#[test]
fn a_batch_of_many_lengths_gets_the_places_that_it_emptied() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let count = fill(&mut rig);
    let lengths = [1, 12, 2, 5, 1, 9, 3];
    let asked: u64 = lengths.iter().sum();
    assert!(asked < count / 2);
    let puts = lengths.iter().enumerate().map(|(at, units)| item(1000 + at as u64, *units));
    let tag = rig.submit_puts(puts);
    rig.turn(200);
    assert_eq!(rig.taken(tag), vec![STORED; lengths.len()]);
    assert_eq!(evictions(&rig).objects(), asked);
}

#[test]
fn a_batch_of_blocks_of_two_layouts_gets_slabs_of_both() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    fill(&mut rig);
    let layouts = [1, 1, 4, 4].map(|slots| layout(&mut rig, SHAPE, slots));
    let puts = layouts.iter().zip(1000..).map(|(layout, key)| PutItem {
        options: PutOptions { layout: *layout, ..PutOptions::default() },
        ..item(key, 2)
    });
    let tag = rig.submit_puts(puts);
    rig.turn(200);
    assert_eq!(rig.taken(tag), vec![STORED; layouts.len()]);
}
