//! What an opening makes of records that cannot be true, and of checkpoints that cannot be read.

use std::ops::Range;

use super::checkpointing::long_rig;
use super::device::TestDevice;
use super::{Rig, SHAPE, STORED, UNITS, form, format, item, layout, options};
use crate::media::checkpoint::BODY_BLOCK_UNITS;
use crate::media::checksum;
use crate::media::format::read_set;
use crate::media::record::{Put, Record};
use crate::media::superblock::SUPERBLOCK_BYTES;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, TenantId, Version};
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES};
use crate::shard::{Action, Condition, Failure, Outcome, PutItem, PutOptions};

const RESTART: Durability = Durability::Restart;

/// Returns an object of whole units outside slabs.
pub(super) fn object(unit: u64, units: u64) -> Object {
    let (layout, tenant) = (LayoutId::PLAIN, TenantId::default());
    let place = Place { device: 0, unit };
    Object { place, bytes: units * UNIT_BYTES, layout, tenant, version: Version::NONE }
}

/// Returns a put of an object of one piece.
pub(super) fn put(key: &'static str, object: Object) -> Put<'static> {
    Put {
        key: key.as_bytes(),
        object,
        slab_base: None,
        expires_s: None,
        age: None,
        is_provisional: false,
        checksums: [1][..].into(),
    }
}

/// Returns a put of a block of [`SHAPE`] in this slot of the slab at `base`.
pub(super) fn block(key: &'static str, layout: LayoutId, base: u64, slot: u64) -> Put<'static> {
    let object = Object { layout, ..object(base + slot, 2) };
    Put { slab_base: Some(base), checksums: [1, 2][..].into(), ..put(key, object) }
}

impl Rig {
    /// Returns the shard's units on the first device.
    pub(super) fn share(&self) -> Range<u64> {
        self.shard.parts.objects.spaces().on(0).range_from(0).expect("it has a share")
    }

    /// Returns the units of a slab of four blocks of [`SHAPE`], and defines their layout.
    pub(super) fn slab(&mut self) -> (LayoutId, u64) {
        let id = layout(self, SHAPE, 4);
        let slab = self.shard.layouts().get(id).and_then(Layout::slab).expect("it has slabs");
        assert_eq!(slab.units(), 8);
        (id, slab.units())
    }

    /// Writes records to the journal, whatever the shard holds, and makes them durable. Returns the last block.
    pub(super) fn record<'a>(&mut self, records: impl IntoIterator<Item = Record<'a>>) -> u64 {
        for record in records {
            self.shard.parts.log.append(self.now, &record);
        }
        assert_eq!(self.wait(Action::Commit), Ok(Outcome::Committed));
        self.shard.parts.log.newest()
    }

    pub(super) fn record_puts(&mut self, puts: &[Put<'_>]) {
        self.record(puts.iter().copied().map(Record::Put));
    }

    /// Returns whether the index has this key.
    pub(super) fn holds(&self, key: &str) -> bool {
        self.shard.parts.objects.index().find(key.as_bytes()).is_some()
    }

    /// Opens the shard again. Returns how many objects were dropped and how many are there.
    fn reopen(self) -> (Rig, (u64, u64)) {
        let rig = self.reopened(options(RESTART));
        let found = (rig.recovery.dropped, rig.recovery.objects);
        (rig, found)
    }
}

#[test]
fn an_impossible_object_is_dropped_together_with_what_it_replaced() {
    let mut rig = Rig::new(1, 32, options(RESTART));
    let (id, slab) = rig.slab();
    let (Range { start, end }, key) = (rig.share(), "key");
    let plain = put(key, object(start, 1));
    let with = |object| Put { object, ..plain };
    let cases = [
        ("layout", with(Object { layout: LayoutId(id.0 + 1), ..plain.object })),
        ("tenant", with(Object { tenant: TenantId(1), ..plain.object })),
        ("device", with(Object { place: Place { device: 1, unit: start }, ..plain.object })),
        ("checksums", Put { checksums: [1, 2][..].into(), ..plain }),
        ("no slab", Put { slab_base: None, ..block(key, id, start, 0) }),
        ("a slab from before the share", block(key, id, start - 1, 1)),
        ("a slab beyond the share", block(key, id, end - slab + 1, 0)),
    ];
    for (dropped, (what, impossible)) in (1..).zip(cases) {
        rig.record_puts(&[plain, impossible]);
        let (again, found) = rig.reopen();
        assert_eq!(found, (dropped, 0), "{what}");
        rig = again;
    }
    rig.record_puts(&[plain, block("block", id, end - slab, 3)]);
    let (rig, found) = rig.reopen();
    assert_eq!(found.1, 2);
    assert!(rig.holds(key) && rig.holds("block"));
}

#[test]
fn an_object_outside_the_share_is_dropped_unread() {
    let share = Rig::new(1, 64, options(RESTART)).share();
    for (unit, units) in [(UNITS + 8, 1), (share.start, UNITS), (share.end - 1, 3)] {
        let mut rig = Rig::new(1, 64, options(RESTART));
        // Whether the data of a provisional put is there decides what counts.
        let sums = vec![1; units.div_ceil(32) as usize];
        let (is_provisional, checksums) = (true, sums[..].into());
        rig.record_puts(&[Put { is_provisional, checksums, ..put("key", object(unit, units)) }]);
        let (_, found) = rig.reopen();
        assert_eq!(found, (1, 0), "{units} units from {unit} on");
    }
}

#[test]
fn of_objects_that_overlap_the_later_one_is_dropped_for_good() {
    let mut rig = Rig::new(1, 64, options(RESTART));
    let start = rig.share().start;
    let places = [("first", 0, 4), ("second", 2, 4), ("third", 4, 2)];
    rig.record_puts(&places.map(|(key, at, units)| put(key, object(start + at, units))));
    for expected in [(1, 2), (0, 2)] {
        let (again, found) = rig.reopen();
        assert_eq!(found, expected);
        rig = again;
        assert_eq!(places.map(|(key, ..)| rig.holds(key)), [true, false, true]);
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    }
}

#[test]
fn an_opening_has_room_for_an_eighth_and_4096_objects_that_came_and_went() {
    let devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    format(&devices, &form(256));
    let mut rig = Rig::open(devices, options(RESTART));
    let most = 300 + 300 / 8 + 4096_u64;
    let keys: Vec<Key> = (0..most + 1).map(Key::from).collect();
    let object = object(rig.share().start, 1);
    let puts = keys.iter().map(|key| Record::Put(Put { key: key.as_bytes(), ..put("", object) }));
    let deletes = keys[1..].iter().map(|key| {
        let (key, place) = (key.as_bytes(), object.place);
        Record::Delete { key, place }
    });
    rig.record(puts.chain(deletes));
    let (_, found) = rig.reopen();
    assert_eq!(found, (1, 1), "one had no room, and one stays");
}

#[test]
fn tenants_have_their_numbers_in_order_and_one_each() {
    let mut rig = Rig::new(1, 64, options(RESTART));
    let tenant = |id, name| Record::Tenant { id: TenantId(id), name, quota: None };
    let start = rig.share().start;
    let owned =
        |key, id, unit| Record::Put(put(key, Object { tenant: TenantId(id), ..object(unit, 1) }));
    rig.record([tenant(1, "a"), tenant(3, "c"), tenant(2, "a")]);
    rig.record([owned("first", 1, start), owned("second", 2, start + 1)]);
    let (rig, found) = rig.reopen();
    assert_eq!((found, rig.holds("first")), ((1, 1), true));
    assert_eq!(rig.shard.tenants().stats().len(), 2, "the default one and a");
}

#[test]
fn nothing_stays_of_checkpoints_that_are_damaged_behind_their_first_block() {
    let mut rig = long_rig(512);
    let (id, _) = rig.slab();
    rig.put_long();
    rig.checkpoint();
    let mut lanes = [rig.devices[0].lane()];
    let set = read_set(&mut lanes, &mut || adit_driver::Time::ZERO).expect("a store");
    let areas = set.geometry().areas(0);
    let bytes = |unit: u64| (unit * UNIT_BYTES) as usize;
    {
        let mut medium = rig.devices[0].medium();
        for slot in &areas.slots {
            medium.bytes[bytes(slot.start + 1 + BODY_BLOCK_UNITS)] ^= 1;
        }
        medium.bytes[bytes(areas.journal.start)..bytes(areas.journal.end)].fill(0);
    }
    let rig = Rig::open(vec![rig.devices[0].after_power_cut(true)], options(RESTART));
    let recovered = rig.recovery.recovered.as_ref().expect("it has a journal");
    assert!(recovered.checkpoint.is_none() && !recovered.passed_over.is_empty());
    assert_eq!((rig.recovery.objects, rig.shard.stats().objects), (0, 0));
    assert_eq!(rig.shard.layouts().get(id), None);
}

/// Makes both copies of a superblock those of format 2, which differs in its number and in what records may have.
fn as_of_format_2(device: &TestDevice) {
    for unit in [0, UNITS - 1] {
        let at = (unit * UNIT_BYTES) as usize;
        let mut medium = device.medium();
        let copy = &mut medium.bytes[at..at + SUPERBLOCK_BYTES];
        copy[8..12].copy_from_slice(&2u32.to_le_bytes());
        let crc = checksum::of(&copy[..SUPERBLOCK_BYTES - 4]);
        copy[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn a_store_of_format_2_opens_with_its_objects_and_becomes_one_of_format_3() {
    let mut rig = Rig::new(1, 64, options(RESTART));
    let start = rig.share().start;
    rig.record_puts(&[put("old", object(start, 1)), put("other", object(start + 1, 1))]);
    let device = rig.devices[0].after_power_cut(false);
    as_of_format_2(&device);
    let mut rig = Rig::open(vec![device], options(RESTART));
    let key = |text: &str| Key::new(text.as_bytes()).expect("a key");
    let version = |rig: &Rig, text| rig.shard.info(rig.now, &key(text)).expect("there").version;
    assert_eq!((rig.recovery.objects, version(&rig, "old")), (2, Version::NONE));
    assert_eq!(Version::NONE.time(), None);
    let number = rig.devices[0].medium().bytes[8];
    assert_eq!(number, 3, "an Adit that does not know it refuses the store from now on");
    let condition = Condition::Version(Version::NONE);
    let replace = |condition| {
        let options = PutOptions { condition, ..PutOptions::default() };
        Action::Put(PutItem { key: key("old"), options, ..item(1, 1) })
    };
    assert_eq!(rig.wait(replace(condition)), STORED);
    let found = version(&rig, "old");
    assert_eq!(rig.wait(replace(condition)), Err(Failure::Conflict { found: Some(found) }));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let rig = rig.reopened(options(RESTART));
    assert_eq!([version(&rig, "old"), version(&rig, "other")], [found, Version::NONE]);
}
