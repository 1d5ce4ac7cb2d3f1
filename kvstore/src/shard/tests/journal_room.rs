//! The journal's room: waiting requests get it, whatever else is open or in progress.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{Kind, memory};
use super::{Rig, STORED, item, options};
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::Place;
use crate::shard::{Action, Failure, FillItem, Outcome, Part, PutOptions, ReserveItem, WriterId};

/// More turns than any unobstructed work of a small rig takes.
const TURNS_MAX: u32 = 500;

/// Returns a key of maximum length, so that few records fit in a block.
pub(super) fn long_key(number: u64) -> Key {
    Key::new(&[&[9; 500][..], &number.to_le_bytes()].concat()).expect("a key")
}

pub(super) fn long_item(number: u64, units: u64) -> crate::shard::PutItem {
    crate::shard::PutItem { key: long_key(number), ..item(number, units) }
}

/// A seeded generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % end
    }
}

impl Rig {
    /// Creates a filled writer of one unit.
    fn filled_writer(&mut self, key: Key) -> WriterId {
        let options = PutOptions::default();
        let reserve = ReserveItem { key, bytes: 4096, options };
        let Ok(Outcome::Reserved { writer, .. }) = self.wait(Action::Reserve(reserve)) else {
            panic!("there is room")
        };
        let fill = FillItem { writer, part: Part::All, data: AnyBuffer::One(memory(4096)) };
        assert_eq!(self.wait(Action::Fill(fill)), Ok(Outcome::Filled));
        writer
    }

    /// Fills the journal with blocks of one record each.
    pub(super) fn fill_journal(&mut self) {
        while self.shard.parts.log.has_room_for_small() {
            let place = Place { device: 0, unit: 0 };
            self.shard.parts.log.append(self.now, &Record::Delete { key: b"gone", place });
            self.shard.parts.log.mark();
        }
    }

    /// Takes turns as a thread does, which sleeps when the shard reports no work.
    pub(super) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.shard.is_idle() {
                return;
            }
            let answers = &mut self.answers;
            let turn = self.shard.poll(self.now, &mut |done| answers.push(done));
            if turn.moved == 0 && turn.in_flight == 0 {
                assert!(turn.next < Time::NEVER, "{} wait for ever", self.shard.waiting());
                self.now = self.now.max(turn.next);
            }
        }
        panic!("{} still wait, {:?}", self.shard.waiting(), self.shard.stats());
    }
}

#[test]
fn writers_are_sealed_behind_puts_that_wait_for_room_in_the_journal() {
    for durability in [Durability::Restart, Durability::Durable] {
        for seed in 0..10 {
            let mut numbers = Numbers(seed);
            let mut rig = Rig::new(
                1,
                16,
                crate::shard::ShardOptions {
                    capacity_objects: (seed % 2 == 0).then_some(3),
                    ..options(durability)
                },
            );
            for round in 0..4 {
                let writers: Vec<_> = (0..24)
                    .map(|index| rig.filled_writer(long_key(numbers.below(40) + index)))
                    .collect();
                let kinds = [vec![Kind::Write], vec![Kind::Flush], vec![Kind::Write, Kind::Flush]];
                rig.devices[0].medium().held = kinds[numbers.below(3) as usize].clone();
                let mut tags = Vec::new();
                for writer in writers {
                    for _ in 0..numbers.below(4) {
                        let put = long_item(100 + numbers.below(20), 1 + numbers.below(40));
                        tags.push(rig.submit(Time::NEVER, Action::Put(put)));
                    }
                    tags.push(rig.submit(Time::NEVER, Action::Seal(writer)));
                    rig.turn(numbers.below(2) as u32);
                }
                rig.devices[0].medium().held.clear();
                rig.settle();
                for tag in tags {
                    assert_eq!(rig.taken(tag), [STORED], "seed {seed}, round {round}");
                }
            }
            assert!(rig.shard.stats().checkpoints > 2);
        }
    }
}

#[test]
fn a_seal_that_waited_for_a_checkpoint_needs_no_other_request_to_go_on() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 16, options(durability));
        let writer = rig.filled_writer(long_key(1));
        rig.fill_journal();
        let tag = rig.submit(Time::NEVER, Action::Seal(writer));
        assert_eq!(rig.shard.waiting(), 1);
        rig.settle();
        assert_eq!(rig.taken(tag), [STORED], "{durability:?}");
    }
}

#[test]
fn changes_that_wait_for_room_are_refused_at_once_when_the_store_closes() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let writer = rig.filled_writer(long_key(1));
    rig.fill_journal();
    let waiting = [
        rig.submit(Time::NEVER, Action::Seal(writer)),
        rig.submit(Time::NEVER, Action::Put(item(2, 1))),
        rig.submit(Time::NEVER, Action::Delete(long_key(3))),
    ];
    assert_eq!(rig.shard.waiting(), 3);
    rig.shard.refuse_stalled();
    assert_eq!(rig.shard.waiting(), 0);
    rig.settle();
    for tag in waiting {
        assert_eq!(rig.taken(tag), [Err(Failure::Closed)]);
    }
}

#[test]
fn a_delete_of_nothing_that_waited_for_a_checkpoint_needs_no_other_request_to_go_on() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 16, options(durability));
        rig.fill_journal();
        let tag = rig.submit(Time::NEVER, Action::Delete(long_key(1)));
        assert_eq!(rig.shard.waiting(), 1);
        rig.settle();
        assert_eq!(rig.taken(tag), [Ok(Outcome::Miss)], "{durability:?}");
    }
}
