//! Tests power cuts that take objects' data: the replaced objects return, and damage changes nothing else.

use super::model::{Device, LINEAGE, State, areas, open};
use super::*;
use crate::media::journal::Journal;
use crate::model::object::{Object, Version};

/// The first unit of data.
const DATA: u64 = 300;

/// A journal with one record per block.
struct Told {
    device: Device,
    journal: Journal,
}

impl Told {
    fn new() -> Told {
        let start = Mark::start(&LINEAGE);
        let journal = Journal::new(areas().journal, LINEAGE.epoch, 1, start, FIRST_SEQUENCE);
        Told { device: Device::default(), journal }
    }

    fn tell(&mut self, record: &Record<'_>) {
        self.journal.append(record).expect("room");
        self.journal.seal();
        let mut memory = vec![0; JOURNAL_BLOCK_BYTES];
        let write = self.journal.take(&mut memory).expect("a block");
        self.device.write(write.unit, &memory);
        self.journal.written(&write);
    }

    /// Puts an object of one unit at `unit`, with its data unless `is_lost`.
    fn put(&mut self, key: &[u8], unit: u64, is_provisional: bool, is_lost: bool) {
        let data = [unit as u8; UNIT_BYTES as usize];
        if !is_lost {
            self.device.write(DATA + unit, &data);
        }
        let place = Place { device: 0, unit: DATA + unit };
        let (layout, tenant) = (LayoutId::PLAIN, TenantId(0));
        let version = Version::NONE;
        let object = Object { place, bytes: UNIT_BYTES, layout, tenant, version };
        let checksums = [checksum::of(&data)];
        let checksums = checksums.as_slice().into();
        let (slab_base, expires_s, age) = (None, None, None);
        self.tell(&Record::Put(Put {
            key,
            object,
            slab_base,
            expires_s,
            age,
            is_provisional,
            checksums,
        }));
    }

    fn delete(&mut self, key: &[u8], unit: u64) {
        self.tell(&Record::Delete { key, place: Place { device: 0, unit: DATA + unit } });
    }

    fn flush(&mut self) {
        self.device.flush();
        self.journal.durable(self.journal.written_end());
    }

    /// Returns the place of each object, and how many reverted to an older version.
    fn found(&mut self) -> (Vec<u64>, u64) {
        let (State { objects, .. }, recovered) = open(&mut self.device);
        assert_eq!(recovered.cut, Some(Void::Blank), "all blocks are replayed");
        (objects.into_values().map(|unit| unit - DATA).collect(), recovered.reverted)
    }
}

#[test]
fn a_put_whose_data_is_lost_gives_way_to_the_object_that_it_replaced() {
    for is_lost in [false, true] {
        let mut told = Told::new();
        told.put(b"a", 1, false, false);
        told.put(b"b", 2, false, false);
        told.flush();
        told.put(b"a", 3, true, is_lost);
        told.put(b"c", 4, false, false);
        let a = if is_lost { 1 } else { 3 };
        assert_eq!(told.found(), (vec![a, 2, 4], u64::from(is_lost)));
    }
}

#[test]
fn of_several_versions_the_last_whose_data_is_there_counts() {
    for lost in 0..8u64 {
        let mut told = Told::new();
        told.put(b"a", 1, false, false);
        told.flush();
        let is_lost = |version: u64| lost & 1 << (version - 2) != 0;
        (2..5).for_each(|version| told.put(b"a", version, true, is_lost(version)));
        let last = (2..5).rev().find(|version| !is_lost(*version)).unwrap_or(1);
        assert_eq!(told.found(), (vec![last], u64::from(is_lost(4))), "lost: {lost:b}");
    }
}

#[test]
fn a_put_that_was_flushed_is_not_looked_at_so_that_damage_never_brings_back_an_older_object() {
    let mut told = Told::new();
    told.put(b"a", 1, false, false);
    told.flush();
    told.put(b"a", 2, true, true);
    told.flush();
    assert_eq!(told.found(), (vec![1], 1), "no block tells of the flush");
    told.put(b"b", 3, false, false);
    assert_eq!(told.found(), (vec![2, 3], 0), "this one does");
}

#[test]
fn a_put_that_replaced_nothing_or_was_flushed_first_is_not_looked_at() {
    let mut told = Told::new();
    told.put(b"a", 1, false, true);
    told.put(b"a", 2, false, true);
    assert_eq!(told.found(), (vec![2], 0));
}

#[test]
fn a_delete_of_a_lost_version_removes_the_older_ones_too() {
    for lost in [2, 3] {
        let mut told = Told::new();
        told.put(b"a", 1, false, false);
        told.flush();
        told.put(b"a", 2, true, lost >= 2);
        told.put(b"a", 3, true, lost >= 3);
        told.delete(b"a", 3);
        assert_eq!(told.found(), (vec![], 0));
        told.put(b"a", 4, false, false);
        assert_eq!(told.found(), (vec![4], 0));
    }
}

#[test]
fn what_is_recorded_before_a_flush_is_handed_over_in_order_however_long_the_journal_is() {
    let mut told = Told::new();
    for round in 0..15u64 {
        told.put(&[round as u8 % 4], round, round >= 4, false);
        if round % 3 == 0 {
            told.flush();
        }
    }
    let (state, found) = open(&mut told.device);
    assert_eq!(
        state.objects.into_values().collect::<Vec<_>>(),
        [12, 13, 14, 11].map(|at| DATA + at)
    );
    assert_eq!((found.journal_records, found.journal_blocks, found.reverted), (15, 15, 0));
}
