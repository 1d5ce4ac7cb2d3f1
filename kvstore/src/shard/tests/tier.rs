//! The memory tier: what it answers, when it forgets, and how much memory it has.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::memory;
use super::slabs::block;
use super::{Rig, SHAPE, STORED, get, item, layout, options};
use crate::model::key::Key;
use crate::model::options::{Durability, PolicyKind};
use crate::model::place::UNIT_BYTES;
use crate::shard::memory::Memory;
use crate::shard::reads::pin_part;
use crate::shard::{
    Action, Done, Failure, GetItem, Outcome, Part, PutItem, PutOptions, ShardOptions, Stats,
    TouchItem,
};

const UNIT: usize = UNIT_BYTES as usize;

/// Returns a shard whose tier has memory for this many units.
fn rig(units: usize) -> Rig {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    rig.shard.lend_to_tier([memory(units * UNIT)]);
    rig
}

/// Reads a part of an object into `units` of memory, and returns the answer, with the bytes of a hit.
fn read(rig: &mut Rig, key: u64, part: Part, units: usize) -> Result<Option<Vec<u8>>, Failure> {
    let into = AnyBuffer::One(memory(units * UNIT));
    let get = GetItem { key: key.into(), part, into, version: None };
    let tag = rig.submit(Time::NEVER, Action::Get(get));
    rig.turn(20);
    let at = rig.answers.iter().position(|done| done.reply == tag).expect("answered");
    let Done { result, memory, .. } = rig.answers.swap_remove(at);
    let AnyBuffer::One(memory) = memory else { panic!("one buffer was given") };
    match result? {
        Outcome::Hit { bytes } => Ok(Some(memory[..bytes as usize].to_vec())),
        Outcome::Miss => Ok(None),
        other => panic!("{other:?}"),
    }
}

fn all(rig: &mut Rig, key: u64, units: usize) -> Option<Vec<u8>> {
    read(rig, key, Part::All, units).expect("no failure")
}

/// Returns an object's bytes whose number tells the version.
fn version(key: u64, units: u64, byte: u8) -> Action {
    let mut data = memory(units as usize * UNIT);
    data.fill(byte);
    Action::Put(PutItem { data: AnyBuffer::One(data), ..item(key, units) })
}

fn stats(rig: &Rig) -> Stats {
    rig.shard.stats()
}

#[test]
fn without_memory_nothing_is_kept() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    assert_eq!(rig.put(1, 2), STORED);
    for _ in 0..3 {
        assert_eq!(all(&mut rig, 1, 2), Some(vec![1; 2 * UNIT]));
    }
    let stats = stats(&rig);
    assert_eq!((stats.tier_hits, stats.tier_objects, stats.tier_bytes), (0, 0, 0));
    assert_eq!(stats.commands_read, 3);
}

#[test]
fn what_was_read_intact_is_answered_from_memory_as_from_the_device() {
    let mut rig = rig(32);
    assert_eq!(rig.put(1, 2), STORED);
    let first = all(&mut rig, 1, 2);
    let (before, second) = (stats(&rig), all(&mut rig, 1, 2));
    let after = stats(&rig);
    assert_eq!((&first, &second), (&Some(vec![1; 2 * UNIT]), &first));
    assert_eq!(after.commands_read, before.commands_read, "no command");
    let counted = |stats: Stats| (stats.gets, stats.hits, stats.bytes_read, stats.tier_hits);
    let bytes = 2 * UNIT_BYTES;
    assert_eq!(counted(before), (1, 1, bytes, 0));
    assert_eq!(counted(after), (2, 2, 2 * bytes, 1));
    assert_eq!((after.tier_hit_bytes, after.tier_object_bytes), (bytes, bytes));
    assert_eq!((after.tier_objects, after.tier_bytes), (1, 32 * UNIT_BYTES));
    let tenant = &rig.shard.tenants().stats()[0];
    assert_eq!((tenant.gets, tenant.hits), (2, 2));
}

#[test]
fn parts_of_an_object_in_memory_are_the_bytes_and_the_failures_of_the_device() {
    let piece = 128 << 10;
    let units = 2 * piece / UNIT + 1;
    let mut rig = rig(8 * units);
    let mut data = memory(units * UNIT);
    data.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at / 100) as u8);
    let bytes = (units * UNIT) as u64 - 7;
    let put = PutItem { bytes, data: AnyBuffer::One(data), ..item(1, units as u64) };
    assert_eq!(rig.wait(Action::Put(put)), STORED);
    let piece = piece as u64;
    let parts =
        [0..piece, piece..2 * piece, piece..u64::MAX, 2 * piece..bytes, 1..2, bytes..bytes + 1];
    let parts = || parts.iter().cloned().map(Part::Bytes).chain([Part::Layer(0)]);
    let ask = |rig: &mut Rig| -> Vec<_> {
        let each = parts().flat_map(|part| [(part.clone(), units), (part, 1)]);
        each.map(|(part, units)| read(rig, 1, part, units)).collect()
    };
    let cold = ask(&mut rig);
    assert_eq!(stats(&rig).tier_objects, 0, "parts do not come in");
    assert!(all(&mut rig, 1, units).is_some());
    assert_eq!((stats(&rig).tier_objects, stats(&rig).tier_hits), (1, 0));
    let commands = stats(&rig).commands_read;
    assert_eq!(ask(&mut rig), cold);
    assert_eq!((stats(&rig).tier_hits, stats(&rig).commands_read), (5, commands));
}

#[test]
fn layers_of_a_block_in_memory_are_those_on_the_device() {
    let mut rig = rig(64);
    let id = layout(&mut rig, SHAPE, 4);
    assert_eq!(rig.wait(Action::Put(block(1, id))), STORED);
    // The padding behind a tensor has no checksum, and is zero in memory.
    let tensor = |bytes: Option<Vec<u8>>| bytes.map(|bytes| bytes[..2560].to_vec());
    let layers =
        |rig: &mut Rig| [0, 1].map(|layer| read(rig, 1, Part::Layer(layer), 1).map(tensor));
    let cold = layers(&mut rig);
    assert!(matches!(&cold, [Ok(Some(_)), Ok(Some(_))]), "{cold:?}");
    assert!(all(&mut rig, 1, 2).is_some());
    let before = stats(&rig);
    assert_eq!(layers(&mut rig), cold);
    assert_eq!(stats(&rig).tier_hits, before.tier_hits + 2);
    assert_eq!(stats(&rig).commands_read, before.commands_read);
}

#[test]
fn a_version_is_forgotten_before_the_next_is_acknowledged_and_a_deleted_object_before_that() {
    for durability in [Durability::Volatile, Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 64, options(durability));
        rig.shard.lend_to_tier([memory(32 * UNIT)]);
        for byte in 1..4 {
            assert_eq!(rig.wait(version(1, 2, byte)), STORED);
            assert_eq!(stats(&rig).tier_objects, 0, "{byte} {durability}");
            for _ in 0..2 {
                assert_eq!(all(&mut rig, 1, 2), Some(vec![byte; 2 * UNIT]), "{durability}");
            }
            assert_eq!(stats(&rig).tier_objects, 1);
        }
        assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
        assert_eq!((stats(&rig).tier_objects, stats(&rig).tier_invalidations), (0, 3));
        assert_eq!(all(&mut rig, 1, 2), None);
        // The next object gets its number in the index.
        assert_eq!(rig.put(2, 2), STORED);
        assert_eq!(all(&mut rig, 2, 2), Some(vec![2; 2 * UNIT]));
    }
}

#[test]
fn a_read_that_ends_after_its_object_was_replaced_leaves_nothing() {
    let mut rig = rig(32);
    assert_eq!(rig.put(1, 2), STORED);
    rig.devices[0].medium().held = vec![super::device::Kind::Read];
    let old = rig.submit(Time::NEVER, get(1, 2));
    rig.turn(3);
    assert_eq!(rig.wait(version(1, 2, 9)), STORED);
    rig.devices[0].medium().held.clear();
    rig.turn(20);
    assert_eq!(rig.taken(old), [Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES })]);
    assert_eq!(stats(&rig).tier_admissions, 0);
    assert_eq!(all(&mut rig, 1, 2), Some(vec![9; 2 * UNIT]));
}

#[test]
fn what_expires_or_is_evicted_is_forgotten() {
    let wall =
        ShardOptions { wall_at_zero: Duration::from_secs(1000), ..options(Durability::Restart) };
    let mut rig = Rig::new(1, 64, wall);
    rig.shard.lend_to_tier([memory(64 * UNIT)]);
    let soon = PutOptions { ttl_s: Some(3), ..PutOptions::default() };
    assert_eq!(rig.wait(Action::Put(PutItem { options: soon, ..item(1, 2) })), STORED);
    assert_eq!(rig.put(2, 2), STORED);
    assert!(all(&mut rig, 2, 2).is_some() && all(&mut rig, 1, 2).is_some());
    assert_eq!(stats(&rig).tier_objects, 2);
    rig.now = rig.now + Duration::from_secs(3);
    // Before the turn that removes it, too.
    let tag = rig.submit(Time::NEVER, get(1, 2));
    rig.turn(5);
    assert_eq!(rig.taken(tag), [Ok(Outcome::Miss)]);
    assert_eq!((stats(&rig).expirations, stats(&rig).tier_objects), (1, 1));
    let all_units = rig.capacity();
    assert_eq!(rig.put(3, all_units), STORED);
    assert_eq!((stats(&rig).objects, stats(&rig).tier_objects), (1, 0));
    assert_eq!(all(&mut rig, 2, 2), None);
}

#[test]
fn damaged_objects_do_not_come_in() {
    let mut rig = rig(32);
    assert_eq!(rig.put(1, 2), STORED);
    let place = rig.shard.parts.objects.index().object(crate::model::object::ObjectId(0)).place;
    rig.devices[0].medium().bytes[place.unit as usize * UNIT + 5] ^= 1;
    assert_eq!(all(&mut rig, 1, 2), None);
    let stats = stats(&rig);
    assert_eq!((stats.misses_corrupt, stats.tier_admissions, stats.tier_objects), (1, 0, 0));
}

/// Offers this as the memory of a read of all of an object that was found intact before.
fn offer(rig: &mut Rig, key: u64, bytes: &[u8]) {
    let hash = rig.shard.parts.objects.index().hash(Key::from(key).as_bytes());
    let id = rig.shard.lookup(rig.now, hash, &key.into()).expect("it is there");
    let object = rig.shard.parts.objects.index().object(id);
    let mut read = memory(bytes.len());
    read.copy_from_slice(bytes);
    let read = Memory::of(AnyBuffer::One(read));
    let reading = pin_part(&mut rig.shard.parts, (id, &object), &Part::All, &read, 0);
    let reading = reading.expect("memory for it");
    if let Some(tier) = rig.shard.parts.objects.offer_to_tier(&reading) {
        tier.fill(&reading, |into| read.copy_to(into), true);
    }
    rig.shard.note_hits();
    rig.shard.parts.objects.spaces_mut().unpin(object.place);
}

/// Other processes may share the caller's memory, and write it between the check and the copy.
#[test]
fn memory_that_changes_after_its_check_does_not_come_in() {
    let mut rig = rig(16);
    let id = layout(&mut rig, SHAPE, 4);
    assert_eq!(rig.wait(Action::Put(PutItem { bytes: 8000, ..item(1, 2) })), STORED);
    assert_eq!(rig.wait(Action::Put(block(2, id))), STORED);
    let tensor = 2560;
    let contents = [(1u64, vec![0..4000, 4000..8000]), (2, vec![0..tensor, UNIT..UNIT + tensor])];
    for (key, runs) in contents {
        let mut read = vec![0xee; 2 * UNIT];
        runs.iter().for_each(|run| read[run.clone()].fill(key as u8));
        let (first, last) = (runs[0].start, runs[runs.len() - 1].end - 1);
        for at in [first, last] {
            read[at] ^= 1;
            (0..20).for_each(|_| offer(&mut rig, key, &read));
            assert_eq!(stats(&rig).tier_admissions, key - 1, "byte {at} of {key}");
            read[at] ^= 1;
        }
        offer(&mut rig, key, &read);
        let resident = rig.shard.resident(rig.now, &key.into()).expect("in memory");
        let mut wanted = vec![0; 2 * UNIT];
        runs.into_iter().for_each(|run| wanted[run].fill(key as u8));
        assert_eq!(resident[..], wanted[..], "nothing comes in that has no checksum");
    }
}

#[test]
fn a_scan_leaves_what_is_in_use_and_what_is_read_again_comes_in() {
    let mut rig = rig(32);
    assert!((1..21).all(|key| rig.put(key, 4) == STORED));
    for key in 1..9 {
        assert!(all(&mut rig, key, 4).is_some());
    }
    assert_eq!(stats(&rig).tier_objects, 8, "free memory is used at once");
    for key in 9..21 {
        assert!(all(&mut rig, key, 4).is_some());
    }
    assert_eq!((stats(&rig).tier_admissions, stats(&rig).tier_evictions), (8, 0), "a scan");
    for key in 19..21 {
        assert!(all(&mut rig, key, 4).is_some());
    }
    let counted = stats(&rig);
    assert_eq!((counted.tier_admissions, counted.tier_evictions), (10, 2));
    let before = counted.tier_hits;
    for key in 19..21 {
        assert_eq!(all(&mut rig, key, 4), Some(vec![key as u8; 4 * UNIT]));
    }
    assert_eq!(stats(&rig).tier_hits, before + 2);
}

#[test]
fn an_object_that_takes_too_much_of_the_memory_stays_out() {
    let mut rig = rig(32);
    assert_eq!((rig.put(1, 4), rig.put(2, 5)), (STORED, STORED));
    assert!(all(&mut rig, 2, 5).is_some() && all(&mut rig, 1, 4).is_some());
    assert_eq!((stats(&rig).tier_objects, stats(&rig).tier_object_bytes), (1, 4 * UNIT_BYTES));
}

#[test]
fn a_tier_that_shrinks_has_no_more_than_it_was_left_and_grows_again() {
    let mut rig = rig(16);
    rig.shard.lend_to_tier([memory(16 * UNIT)]);
    assert!((1..9).all(|key| rig.put(key, 4) == STORED));
    let read_all = |rig: &mut Rig| {
        assert!((1..9).all(|key| all(rig, key, 4) == Some(vec![key as u8; 4 * UNIT])));
        stats(rig)
    };
    let full = read_all(&mut rig);
    assert_eq!((full.tier_objects, full.tier_object_bytes), (8, 32 * UNIT_BYTES));
    let held = rig.shard.resident(rig.now, &8u64.into()).expect("in memory");
    assert_eq!(rig.shard.shrink_tier(31 * UNIT_BYTES).0, 16 * UNIT_BYTES);
    let half = stats(&rig);
    assert_eq!((half.tier_objects, half.tier_bytes), (4, 16 * UNIT_BYTES));
    read_all(&mut rig);
    assert_eq!(rig.shard.shrink_tier(0).0, 0);
    assert_eq!((stats(&rig).tier_objects, stats(&rig).tier_bytes), (0, 0));
    let off = read_all(&mut rig);
    assert_eq!(off.tier_hits, read_all(&mut rig).tier_hits, "it is off");
    rig.shard.lend_to_tier([memory(32 * UNIT)]);
    read_all(&mut rig);
    assert_eq!(read_all(&mut rig).tier_hits, off.tier_hits + 8);
    assert!(held.iter().all(|byte| *byte == 8), "a reader keeps what it holds");
}

/// Returns whether a reader on another thread finds an object at this Unix time, in seconds.
fn is_hot(rig: &Rig, key: u64, wall_s: u64) -> bool {
    rig.shard.hot_reader().read(&key.into(), wall_s).is_some()
}

#[test]
fn a_reader_on_another_thread_finds_what_the_shard_would_find() {
    let mut rig = rig(32);
    let put = |key, ttl_s| {
        let options = PutOptions { ttl_s, ..PutOptions::default() };
        Action::Put(PutItem { options, ..item(key, 2) })
    };
    assert_eq!((rig.wait(put(1, None)), rig.wait(put(2, Some(100)))), (STORED, STORED));
    assert!(!is_hot(&rig, 1, 0), "it was not read");
    assert!(all(&mut rig, 1, 2).is_some() && all(&mut rig, 2, 2).is_some());
    assert!(is_hot(&rig, 1, 1 << 40) && is_hot(&rig, 2, 0));
    let end_s = rig.shard.info(rig.now, &2u64.into()).and_then(|info| info.ttl_s);
    let end_s = rig.shard.parts.objects.wall_s(rig.now) + end_s.expect("it expires");
    assert!(is_hot(&rig, 2, end_s - 1) && !is_hot(&rig, 2, end_s));
    let touch = TouchItem { key: 2u64.into(), ttl_s: None };
    assert_eq!(rig.wait(Action::Touch(touch)), Ok(Outcome::Touched));
    assert!(is_hot(&rig, 2, 1 << 40), "it never expires now");
    assert_eq!(rig.wait(version(1, 2, 9)), STORED);
    assert!(!is_hot(&rig, 1, 0), "it was replaced");
    assert_eq!(rig.wait(Action::Delete(2u64.into())), Ok(Outcome::Deleted));
    assert!(!is_hot(&rig, 2, 0));
    let stats = {
        rig.turn(1);
        stats(&rig)
    };
    assert_eq!((stats.gets, stats.hits, stats.tier_hits), (6, 6, 4), "both kinds of reads count");
}

#[test]
fn a_use_by_another_thread_counts_before_the_next_put_evicts() {
    for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo] {
        let options = ShardOptions { policy, ..options(Durability::Restart) };
        let mut rig = Rig::new(1, 64, options);
        rig.shard.lend_to_tier([memory(32 * UNIT)]);
        let count = rig.capacity();
        assert!((0..count).all(|key| rig.put(key, 1) == STORED));
        assert!(all(&mut rig, 0, 1).is_some() && (1..count).all(|key| rig.get(key, 1).is_ok()));
        // The oldest now, but for this use, which no turn has noted.
        assert!(is_hot(&rig, 0, 0));
        assert_eq!(rig.put(count, 1), STORED);
        assert!(stats(&rig).evictions.objects() > 0, "room was made");
        assert!(rig.shard.exists(rig.now, &0u64.into()), "it was in use, {policy}");
    }
}

#[test]
fn objects_of_a_device_that_failed_are_not_found_in_memory() {
    let mut rig = rig(32);
    assert_eq!(rig.put(1, 2), STORED);
    assert!(all(&mut rig, 1, 2).is_some() && is_hot(&rig, 1, 0));
    rig.shard.parts.lanes[0].fail("as arranged");
    rig.turn(1);
    assert!(!is_hot(&rig, 1, 0));
    assert_eq!(all(&mut rig, 1, 2), None);
}

#[test]
fn what_its_reader_finds_damaged_is_dropped_and_what_comes_since_stays() {
    for replaces in [false, true] {
        let mut rig =
            Rig::new(1, 64, ShardOptions { callers_verify: true, ..options(Durability::Restart) });
        rig.shard.lend_to_tier([memory(32 * UNIT)]);
        assert_eq!(rig.put(1, 2), STORED);
        let into = AnyBuffer::One(memory(2 * UNIT));
        let get = GetItem { key: 1u64.into(), part: Part::All, into, version: None };
        let tag = rig.submit(Time::NEVER, Action::Get(get));
        rig.turn(20);
        let at = rig.answers.iter().position(|done| done.reply == tag).expect("answered");
        let Done { unverified, memory, .. } = rig.answers.swap_remove(at);
        let AnyBuffer::One(mut memory) = memory else { panic!("one buffer was given") };
        memory[UNIT] ^= 1;
        if replaces {
            assert_eq!(rig.wait(version(1, 2, 9)), STORED);
        }
        let (_, verdict) = unverified.expect("its caller verifies").verify(AnyBuffer::One(memory));
        assert!(!verdict.is_intact());
        rig.shard.judge(rig.now, verdict);
        let stats = stats(&rig);
        assert_eq!((stats.hits, stats.misses, stats.misses_corrupt), (0, 1, 1));
        assert_eq!(rig.shard.exists(rig.now, &1u64.into()), replaces, "only what was read goes");
        rig.turn(1);
        assert_eq!(self::stats(&rig).tier_objects, 0, "what is damaged does not come in");
    }
}
