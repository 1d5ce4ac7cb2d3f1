//! Objects written in parts: what a part may be, what is missing, and what an abandoned writer gives back.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{Kind, memory};
use super::{Rig, STORED, device_failed, item, options};
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Failure, FillItem, Outcome, Part, PutOptions, Request, ReserveItem, WriterId,
};

const FILLED: Result<Outcome, Failure> = Ok(Outcome::Filled);
/// A piece, which has a checksum, and its units.
const PIECE_BYTES: u64 = 128 << 10;
const PIECE_UNITS: u64 = PIECE_BYTES / UNIT_BYTES;

fn reserve(rig: &mut Rig, bytes: u64) -> WriterId {
    let reserve = ReserveItem { key: 1u64.into(), bytes, options: PutOptions::default() };
    let Ok(Outcome::Reserved { writer, device: 0 }) = rig.wait(Action::Reserve(reserve)) else {
        panic!("there is room")
    };
    writer
}

fn fill(writer: WriterId, part: Part, units: u64) -> Action {
    let mut data = memory((units * UNIT_BYTES) as usize);
    data.fill(0xee);
    Action::Fill(FillItem { writer, part, data: AnyBuffer::One(data) })
}

#[test]
fn an_object_is_sealed_once_each_piece_was_filled_once() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    // Three pieces, of which the last is short.
    let bytes = 2 * PIECE_BYTES + 5000;
    let writer = reserve(&mut rig, bytes);
    let piece = |at: u64| Part::Bytes(at * PIECE_BYTES..bytes.min((at + 1) * PIECE_BYTES));
    let missing = |rig: &mut Rig| match rig.wait(Action::Seal(writer)) {
        Err(Failure::Unfilled { missing_bytes }) => missing_bytes,
        other => panic!("{other:?}"),
    };
    let each = bytes.div_ceil(3);
    assert_eq!(missing(&mut rig), bytes, "never more than there are");
    assert_eq!(rig.wait(fill(writer, piece(1), PIECE_UNITS)), FILLED);
    assert_eq!(missing(&mut rig), 2 * each);
    let twice = Err(Failure::Part("this part was filled before: a part is filled once".into()));
    assert_eq!(rig.wait(fill(writer, piece(1), PIECE_UNITS)), twice);
    assert_eq!(rig.wait(fill(writer, Part::All, 2 * PIECE_UNITS + 2)), twice, "parts of it were");
    assert_eq!(rig.wait(fill(writer, piece(2), 2)), FILLED);
    assert_eq!(missing(&mut rig), each);
    assert_eq!(rig.shard.stats().puts, 0);
    assert_eq!(rig.wait(fill(writer, piece(0), PIECE_UNITS)), FILLED);
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
    assert_eq!(rig.shard.stats().puts, 1);
    assert_eq!(rig.wait(Action::Seal(writer)), Err(Failure::Writer));
    assert_eq!(rig.get(1, 2 * PIECE_UNITS + 2), Ok(Outcome::Hit { bytes }));
    let id = rig.shard.parts.objects.index().find(Key::from(1u64).as_bytes()).expect("it is there");
    let start = (rig.shard.parts.objects.index().object(id).place.unit * UNIT_BYTES) as usize;
    let end = start + bytes as usize;
    let medium = rig.devices[0].medium();
    assert!(medium.bytes[start..end].iter().all(|byte| *byte == 0xee));
    let rest = 2 * UNIT_BYTES as usize - 5000;
    assert!(medium.bytes[end..end + rest].iter().all(|byte| *byte == 0), "zeroes behind its end");
}

#[test]
fn a_part_takes_memory_of_whole_units_that_its_device_can_use() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let writer = reserve(&mut rig, UNIT_BYTES + 1);
    let (needs, has) = (2 * UNIT_BYTES, UNIT_BYTES);
    assert_eq!(rig.wait(fill(writer, Part::All, 1)), Err(Failure::Memory { needs, has }));
    let mut first = memory(2 * UNIT_BYTES as usize);
    let rest = first.split_off(UNIT_BYTES as usize + 512);
    let data = AnyBuffer::Many(vec![first, rest]);
    let part = Part::All;
    let refused = rig.wait(Action::Fill(FillItem { writer, part, data }));
    assert_eq!(refused, Err(Failure::Memory { needs, has: needs }));
    rig.shard.parts.lanes[0].info.accepts = Box::new(|_| false);
    assert_eq!(rig.wait(fill(writer, Part::All, 2)), Err(Failure::Foreign { device: 0 }));
    rig.shard.parts.lanes[0].info.accepts = Box::new(|_| true);
    assert_eq!(rig.wait(fill(writer, Part::All, 3)), FILLED, "more than it needs");
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
}

#[test]
fn memory_behind_the_units_of_a_part_is_left_alone() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let writer = reserve(&mut rig, 5000);
    rig.submit(Time::NEVER, fill(writer, Part::All, 4));
    rig.turn(5);
    let done = rig.answers.pop().expect("an answer");
    assert_eq!(done.result, FILLED);
    let AnyBuffer::One(given) = done.memory else { panic!("one buffer") };
    let end = 2 * UNIT_BYTES as usize;
    assert!(given[..5000].iter().all(|byte| *byte == 0xee));
    assert!(given[5000..end].iter().all(|byte| *byte == 0), "zeroed up to its last unit's end");
    assert!(given[end..].iter().all(|byte| *byte == 0xee), "the rest is not the part's");
}

#[test]
fn reservations_submitted_together_get_room_as_far_as_there_is_any() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let (half, deadline) = (rig.capacity() / 2, Time::NEVER);
    let requests = (1..4u64).map(|key| {
        let (bytes, options) = (half * UNIT_BYTES, PutOptions::default());
        let action = Action::Reserve(ReserveItem { key: key.into(), bytes, options });
        Request { reply: 100 + key, deadline, action }
    });
    rig.shard.submit_many(rig.now, requests);
    rig.turn(20);
    for tag in [101, 102] {
        let answer = rig.taken(tag);
        assert!(matches!(answer[..], [Ok(Outcome::Reserved { .. })]), "{answer:?}");
    }
    assert_eq!(rig.taken(103), [Err(Failure::Full)], "two halves are taken");
}

#[test]
fn a_part_that_was_not_written_is_filled_again() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let writer = reserve(&mut rig, UNIT_BYTES);
    rig.devices[0].medium().failing = vec![(Kind::Write, 1)];
    assert!(device_failed(0, &rig.wait(fill(writer, Part::All, 1))));
    let missing = Err(Failure::Unfilled { missing_bytes: UNIT_BYTES });
    assert_eq!(rig.wait(Action::Seal(writer)), missing);
    assert_eq!(rig.wait(fill(writer, Part::All, 1)), FILLED);
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
}

#[test]
fn an_abandoned_writer_gives_its_room_back_when_its_parts_are_no_more_in_flight() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    let used = |rig: &Rig| rig.shard.stats().used_units;
    let writer = reserve(&mut rig, all * UNIT_BYTES);
    assert_eq!(used(&rig), all);
    rig.shard.abandon(writer);
    assert_eq!(used(&rig), 0);
    rig.shard.abandon(writer);
    assert_eq!(rig.wait(fill(writer, Part::All, all)), Err(Failure::Writer));

    let writer = reserve(&mut rig, 2 * PIECE_BYTES);
    rig.devices[0].medium().held = vec![Kind::Write];
    let halves = [0, 1].map(|at: u64| {
        let part = Part::Bytes(at * PIECE_BYTES..(at + 1) * PIECE_BYTES);
        rig.submit(Time::NEVER, fill(writer, part, PIECE_UNITS))
    });
    rig.turn(3);
    rig.shard.abandon(writer);
    assert_eq!(rig.wait(Action::Seal(writer)), Err(Failure::Writer));
    assert_eq!(used(&rig), 2 * PIECE_UNITS, "the device may still write there");
    rig.devices[0].medium().commands_per_poll = Some(1);
    rig.devices[0].medium().held.clear();
    rig.turn(1);
    assert_eq!(used(&rig), 2 * PIECE_UNITS, "one of two has ended");
    rig.turn(1);
    assert_eq!(used(&rig), 0);
    assert_eq!(halves.map(|tag| rig.taken(tag)), [[FILLED], [FILLED]]);
    assert_eq!(rig.put(2, all), STORED);
}

#[test]
fn a_writer_whose_data_are_in_flight_is_no_object_for_anybody() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let writer = reserve(&mut rig, UNIT_BYTES);
    assert_eq!(rig.get(1, 1), Ok(Outcome::Miss));
    let put = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
    rig.turn(5);
    assert_eq!(rig.taken(put), [STORED]);
    assert_eq!(rig.wait(fill(writer, Part::All, 1)), FILLED);
    assert_eq!(rig.get(1, 2), Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES }));
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
    assert_eq!(rig.get(1, 2), Ok(Outcome::Hit { bytes: UNIT_BYTES }));
    rig.turn(5);
    assert_eq!(rig.shard.stats().used_units - rig.shard.parts.objects.spaces().sinking_units(), 1);
}

/// Its cache may have had what was filled.
#[test]
fn a_writer_whose_device_failed_and_came_back_is_not_said_to_be_durable() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    let writer = reserve(&mut rig, PIECE_BYTES);
    assert_eq!(rig.wait(fill(writer, Part::All, PIECE_UNITS)), FILLED);
    rig.lose_cache(0);
    let sealed = rig.wait(Action::Seal(writer));
    assert!(device_failed(0, &sealed), "{sealed:?}");
    assert_eq!(rig.shard.stats().used_units, 0, "its room came back");
    let writer = reserve(&mut rig, PIECE_BYTES);
    assert_eq!(rig.wait(fill(writer, Part::All, PIECE_UNITS)), FILLED);
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
}
