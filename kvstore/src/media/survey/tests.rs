//! A handmade store on one device, intact and with one fault at a time.

use super::*;
use crate::media::chart::Chart;
use crate::media::geometry::superblock_units;
use crate::media::journal::{Journal, Mark};
use crate::media::record::{Put, Record};
use crate::media::superblock::{Revision, Superblock};
use crate::model::key::Key;
use crate::model::layout::{BlockShape, Dtype, Layout, Order};
use crate::model::object::{LayoutId, Object, TenantId, Version};
use crate::model::options::Durability;
use crate::model::place::Place;

const UNITS: u64 = 65536;
const STORE: [u8; 16] = [7; 16];

struct Disk(Vec<u8>);

impl Media for Disk {
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> Result<()> {
        assert_eq!(device, 0);
        let at = (unit * UNIT_BYTES) as usize;
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }
}

impl Disk {
    fn write(&mut self, unit: u64, bytes: &[u8]) {
        let at = (unit * UNIT_BYTES) as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn facts() -> Vec<DeviceFacts> {
    vec![DeviceFacts { device: "disk".to_owned(), bytes: UNITS * UNIT_BYTES, lba_bytes: 4096 }]
}

fn superblock() -> Superblock {
    Superblock {
        store: STORE,
        sequence: 1,
        epoch: 1,
        device_id: 0,
        journal_units: 256,
        checkpoint_units: 1024,
        objects_max: 4096,
        lba_bytes: 4096,
        shards: 1,
        durability: Durability::Restart,
        label: "by hand".to_owned(),
        stop: None,
        revision: Revision::first(1),
        chart: Chart::new(&[UNITS], 1, 256 + 2 * 1024),
    }
}

/// Builds a store whose journal has these records.
fn disk(records: &[Record<'_>]) -> (Disk, Heads) {
    let mut disk = Disk(vec![0; (UNITS * UNIT_BYTES) as usize]);
    let mut bytes = [0; UNIT_BYTES as usize];
    superblock().encode(&mut bytes);
    superblock_units(UNITS).into_iter().for_each(|unit| disk.write(unit, &bytes));
    let found = heads(&mut disk, &facts()).expect("a store");
    let (_, ring) = found.geometry.journal(0);
    let lineage = Lineage { store: STORE, epoch: 1, shard: 0 };
    let start = Mark::start(&lineage);
    let mut journal = Journal::new(ring, 1, 1, start, start.sequence);
    for record in records {
        journal.append(record).expect("there is room");
    }
    journal.seal();
    let mut room = vec![0; 1 << 20];
    while let Some(write) = journal.take(&mut room) {
        disk.write(write.unit, &room[..write.bytes()]);
    }
    (disk, found)
}

fn first_unit(heads: &Heads) -> u64 {
    heads.geometry.data(0, 0)[0].start
}

fn put(key: &'static [u8], unit: u64, bytes: u64, checksums: &'static [u32]) -> Record<'static> {
    let place = Place { device: 0, unit };
    let object = Object {
        place,
        bytes,
        layout: LayoutId::PLAIN,
        tenant: TenantId(0),
        version: Version::NONE,
    };
    let checksums = checksums.into();
    let (slab_base, expires_s, age, is_provisional) = (None, None, None, false);
    Record::Put(Put { key, object, slab_base, expires_s, age, is_provisional, checksums })
}

fn survey(records: impl FnOnce(u64) -> Vec<Record<'static>>) -> ShardSurvey {
    let (_, empty) = disk(&[]);
    let (mut disk, heads) = disk(&records(first_unit(&empty)));
    assert!(of_heads(&heads, &facts()).is_empty());
    shard(&mut disk, &heads, 0).expect("the disk answers")
}

fn codes(survey: &ShardSurvey) -> Vec<&'static str> {
    survey.faults.iter().map(|fault| fault.code).collect()
}

#[test]
fn a_store_that_is_whole_has_no_fault_and_all_its_objects() {
    let found = survey(|at| {
        vec![
            put(b"b", at, 8192, &[1]),
            put(b"a", at + 2, 5000, &[2]),
            put(b"c", at + 10, 1, &[3]),
            Record::Delete { key: b"c", place: Place { device: 0, unit: at + 10 } },
            Record::Delete { key: b"b", place: Place { device: 0, unit: at + 77 } },
        ]
    });
    assert_eq!(codes(&found), Vec::<&str>::new(), "{:?}", found.faults);
    let keys: Vec<Key> = found.objects.iter().map(|object| object.key.clone()).collect();
    assert_eq!(keys, [Key::new(b"a").expect("a key"), Key::new(b"b").expect("a key")]);
    assert_eq!((found.space.used_units, found.space.free_runs), (4, 1));
    assert_eq!(found.space.largest_free_units, found.space.data_units - 4);
}

#[test]
fn overlaps_are_found_with_both_that_overlap() {
    let found = survey(|at| {
        vec![
            put(b"long", at, 8 * 4096, &[1]),
            put(b"one", at + 1, 4096, &[2]),
            put(b"two", at + 3, 4096, &[3]),
        ]
    });
    assert_eq!(codes(&found), ["object-overlap", "object-overlap"]);
    assert!(found.faults[1].text.contains("'long' and 'two'"), "{}", found.faults[1]);
    assert_eq!(found.space.used_units, 8, "nothing is counted twice");
}

#[test]
fn an_object_outside_the_data_area_is_lost() {
    let found = survey(|at| vec![put(b"x", at - 1, 4096, &[1]), put(b"y", UNITS - 1, 4096, &[1])]);
    assert_eq!(codes(&found), ["object-outside", "object-outside"]);
    assert_eq!(found.space.used_units, 0);
}

#[test]
fn an_object_has_as_many_checksums_as_pieces_and_a_layout_that_is_there() {
    let found = survey(|at| vec![put(b"x", at, 4096, &[1, 2])]);
    assert_eq!(codes(&found), ["object-checksums"]);
    let found = survey(|at| {
        let Record::Put(mut one) = put(b"x", at, 4096, &[1]) else { panic!("a put") };
        (one.object.layout, one.object.tenant) = (LayoutId(3), TenantId(0));
        vec![Record::Put(one)]
    });
    assert_eq!(codes(&found), ["object-layout"]);
    let found = survey(|at| {
        let Record::Put(mut one) = put(b"x", at, 4096, &[1]) else { panic!("a put") };
        one.object.tenant = TenantId(9);
        vec![Record::Put(one)]
    });
    assert_eq!(codes(&found), ["object-tenant"]);
}

#[test]
fn blocks_of_a_layout_take_the_runs_that_it_says() {
    let block = BlockShape {
        layers: 4,
        tensors_per_layer: 2,
        kv_heads: 2,
        head_dim: 64,
        dtype: Dtype::F16,
        tokens: 16,
    };
    let layout = Layout::new(block, Order::LayerMajor { slots: 4 }).expect("a layout");
    let bytes: &'static [u8] = Box::leak(Box::new(layout.encode()));
    let checksums: &'static [u32] = vec![0; layout.tensors() as usize].leak();
    let block = move |at| {
        let Record::Put(mut one) = put(b"x", at, layout.block_bytes(), checksums) else {
            panic!("a put")
        };
        one.object.layout = LayoutId(1);
        one.slab_base = layout.slab().map(|_| at);
        Record::Put(one)
    };
    let found = survey(|at| vec![Record::Layout { id: LayoutId(1), bytes }, block(at)]);
    assert_eq!(codes(&found), Vec::<&str>::new(), "{:?}", found.faults);
    assert_eq!(found.space.used_units, layout.block_units());
    let found =
        survey(|at| vec![Record::Layout { id: LayoutId(1), bytes: &bytes[1..] }, block(at)]);
    assert_eq!(codes(&found), ["layout", "object-layout"]);
}

#[test]
fn an_object_is_right_where_its_checksums_are_those_of_its_bytes() {
    let (_, empty) = disk(&[]);
    let at = first_unit(&empty);
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let sums: Vec<u32> = data.chunks(128 << 10).map(crate::media::checksum::of).collect();
    let (mut disk, heads) = disk(&[put(b"x", at, 300_000, sums.leak())]);
    disk.write(at, &data);
    let found = shard(&mut disk, &heads, 0).expect("the disk answers");
    let is_right = |disk: &mut Disk| found.verify(disk, &found.objects[0]).expect("it answers");
    assert!(is_right(&mut disk));
    for byte in [0, 131_072, 299_999] {
        let byte = (at * UNIT_BYTES) as usize + byte;
        disk.0[byte] ^= 1;
        assert!(!is_right(&mut disk));
        disk.0[byte] ^= 1;
    }
    disk.0[(at * UNIT_BYTES) as usize + 300_000] ^= 1;
    assert!(is_right(&mut disk), "padding belongs to no file");
}

#[test]
fn a_torn_journal_is_cut_there() {
    let (_, empty) = disk(&[]);
    let at = first_unit(&empty);
    let many: Vec<Record<'_>> = (0..200)
        .map(|n| put(Box::leak(Box::new(u64::to_be_bytes(n))), at + n, 4096, &[1]))
        .collect();
    let (mut disk, heads) = disk(&many);
    let (_, ring) = heads.geometry.journal(0);
    disk.0[((ring.start + 2) * UNIT_BYTES) as usize + 100] ^= 1;
    let found = shard(&mut disk, &heads, 0).expect("the disk answers");
    assert_eq!(codes(&found), ["journal-cut"], "{:?}", found.faults);
    assert!(!found.objects.is_empty() && found.objects.len() < 200);
}

#[test]
fn a_bad_copy_of_the_superblock_is_a_fault_and_two_are_an_error() {
    let (mut disk, _) = disk(&[]);
    disk.0[100] ^= 1;
    let found = heads(&mut disk, &facts()).expect("the other copy");
    let faults = of_heads(&found, &facts());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].text.contains("first unit"), "{}", faults[0]);
    let last = ((UNITS - 1) * UNIT_BYTES) as usize;
    disk.0[last + 100] ^= 1;
    let why = heads(&mut disk, &facts()).expect_err("both are gone").to_string();
    assert!(why.contains("both copies"), "{why}");
}

#[test]
fn what_is_no_store_is_told_by_what_it_is() {
    let why = |bytes: Vec<u8>| heads(&mut Disk(bytes), &facts()).expect_err("no store").to_string();
    let mut bytes = vec![0; (UNITS * UNIT_BYTES) as usize];
    assert!(why(bytes.clone()).contains("adit kv format"));
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    assert!(why(bytes).contains("ext"));
}

/// A disk that changes with each look; a look begins by reading the first unit.
struct Moving {
    looks: Vec<Disk>,
    heads_read: usize,
}

impl Moving {
    fn of(looks: Vec<Disk>) -> Moving {
        Moving { looks, heads_read: 0 }
    }

    /// Looks repeatedly; returns the codes of the shard's faults and of the data in motion.
    fn survey(mut self) -> Option<(Vec<&'static str>, Vec<&'static str>)> {
        let count = self.looks.len();
        let (heads, faults) = heads_in_use(&mut self, &facts(), &mut || false).expect("a store");
        assert!(faults.is_empty());
        self.heads_read = 0;
        let mut looks = Looks::default();
        let mut look = || looks.look(&mut self, (&heads, &facts()), 0).expect("the disk answers");
        let mut found = look()?;
        for _ in 1..count {
            assert!(!found.is_whole(), "there would be no other look");
            found = look()?;
        }
        let codes = |faults: &[Fault]| faults.iter().map(|fault| fault.code).collect();
        Some((codes(&found.survey.faults), codes(&found.moving)))
    }
}

impl Media for Moving {
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> Result<()> {
        let last = self.looks.len() - 1;
        let read = self.looks[self.heads_read.min(last)].read(device, unit, into);
        self.heads_read += usize::from(unit == UNITS - 1);
        read
    }
}

/// Builds a store with a long journal that lacks the blocks with these numbers.
fn disk_without(missing: &[u64]) -> Disk {
    let (_, empty) = disk(&[]);
    let at = first_unit(&empty);
    let many: Vec<Record<'_>> = (0..2000)
        .map(|n| put(Box::leak(Box::new(u64::to_be_bytes(n))), at + n, 4096, &[1]))
        .collect();
    let (mut disk, heads) = disk(&many);
    let (_, ring) = heads.geometry.journal(0);
    let zeroes = [0; UNIT_BYTES as usize];
    missing.iter().for_each(|block| disk.write(ring.start + block, &zeroes));
    disk
}

#[test]
fn a_block_that_is_on_its_way_is_no_fault_once_it_is_there() {
    let looks = vec![disk_without(&[3]), disk_without(&[])];
    assert_eq!(Moving::of(looks).survey(), Some((vec![], vec![])));
}

#[test]
fn what_is_elsewhere_at_each_look_is_in_motion_and_no_damage() {
    let looks = vec![disk_without(&[2]), disk_without(&[3]), disk_without(&[4])];
    assert_eq!(Moving::of(looks).survey(), Some((vec![], vec!["journal-cut"])));
}

#[test]
fn what_stays_wherever_the_journal_ends_is_damage() {
    let looks = vec![disk_without(&[2]), disk_without(&[2, 5]), disk_without(&[2])];
    assert_eq!(Moving::of(looks).survey(), Some((vec!["journal-cut"], vec![])));
}

#[test]
fn a_store_that_was_formatted_or_emptied_meanwhile_is_to_be_read_anew() {
    let mut other = disk_without(&[]);
    let mut bytes = [0; UNIT_BYTES as usize];
    Superblock { epoch: 2, sequence: 2, ..superblock() }.encode(&mut bytes);
    superblock_units(UNITS).into_iter().for_each(|unit| other.write(unit, &bytes));
    let mut looks = Moving::of(vec![disk_without(&[]), other]);
    let (heads, _) = heads_in_use(&mut looks, &facts(), &mut || false).expect("a store");
    let found = Looks::default().look(&mut looks, (&heads, &facts()), 0);
    assert!(found.expect("the disk answers").is_none());
}

#[test]
fn a_superblock_that_is_torn_while_it_is_written_is_no_fault_and_one_that_stays_is() {
    let torn = || {
        let mut torn = disk_without(&[]);
        torn.0[100] ^= 1;
        torn
    };
    let of = |looks: Vec<Disk>| {
        let mut pauses = looks.len() - 1;
        let mut pause = || {
            pauses = pauses.saturating_sub(1);
            pauses > 0
        };
        heads_in_use(&mut Moving::of(looks), &facts(), &mut pause).expect("a copy").1.len()
    };
    assert_eq!(of(vec![torn(), torn(), disk_without(&[]), torn()]), 0);
    assert_eq!(of(vec![torn(), torn(), torn(), torn()]), 1);
}
