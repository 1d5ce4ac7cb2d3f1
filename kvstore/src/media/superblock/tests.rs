//! Superblocks: round trips, damage, and foreign data.

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn superblocks()(
        store: [u8; 16],
        (sequence, epoch) in (0..1u64 << 62, 0..1u64 << 62),
        (journal_units, checkpoint_units) in (16u64..1000, 200u64..1000),
        objects_max: u32,
        shards in 1u16..50,
        (devices, index) in (1usize..6).prop_flat_map(|devices| (Just(devices), 0..devices)),
        lba_bytes in prop_oneof![Just(512u32), Just(4096)],
        durability in prop_oneof![Just(Durability::Volatile), Just(Durability::Restart), Just(Durability::Durable)],
        label in "[a-zé]{0,16}",
        (number, id, before) in (1..1u64 << 62, any::<u64>(), any::<u64>()),
        grows: bool,
        stopped in proptest::option::of((1..u64::MAX, 1..1u64 << 62)),
    ) -> Superblock {
        let metadata_units = journal_units + 2 * checkpoint_units;
        let mut chart = Chart::new(&vec![200_000; devices], shards, metadata_units);
        if grows {
            chart = chart.with_length(index as u8, 300_000);
        }
        let stop = stopped.map(|(session, end)| Stop { session, ends: (end..).take(shards.into()).collect() });
        Superblock {
            store, sequence, epoch, device_id: chart.members[index].id, journal_units, checkpoint_units, objects_max,
            lba_bytes, shards, durability, label, stop, revision: Revision { number, id, before }, chart,
        }
    }
}

fn encoded(superblock: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0xee; SUPERBLOCK_BYTES];
    superblock.encode(&mut bytes);
    bytes
}

/// Corrects the checksum.
fn resealed(mut bytes: [u8; SUPERBLOCK_BYTES]) -> [u8; SUPERBLOCK_BYTES] {
    let crc = checksum::of(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn a_superblock_comes_back(superblock in superblocks()) {
        let bytes = encoded(&superblock);
        prop_assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_seen(superblock in superblocks(), at in 0..SUPERBLOCK_BYTES, bit in 0u32..8) {
        let mut bytes = encoded(&superblock);
        bytes[at] ^= 1u8 << bit;
        prop_assert!(Superblock::decode(&bytes).is_err());
    }

    #[test]
    fn the_newer_whole_copy_counts(superblock in superblocks(), behind in 1u64..9, damage_newer: bool, swap: bool) {
        let newer = Superblock { sequence: superblock.sequence + behind, ..superblock.clone() };
        let mut newer_bytes = encoded(&newer);
        newer_bytes[200] ^= u8::from(damage_newer);
        let older_bytes = encoded(&superblock);
        let (a, b) = if swap { (&newer_bytes, &older_bytes) } else { (&older_bytes, &newer_bytes) };
        let found = choose(a, b).expect("one is whole");
        prop_assert_eq!(&found.superblock, if damage_newer { &superblock } else { &newer });
        let bad = damage_newer.then_some(Absent::Damaged);
        prop_assert_eq!(found.bad, if swap { [bad, None] } else { [None, bad] });
    }
}

fn plain() -> Superblock {
    Superblock {
        store: [1; 16],
        sequence: 4,
        epoch: 1,
        device_id: 0,
        journal_units: 256,
        checkpoint_units: 256,
        objects_max: 1000,
        lba_bytes: 512,
        shards: 2,
        durability: Durability::Restart,
        label: "cache".into(),
        stop: None,
        revision: Revision::first(7),
        chart: Chart::new(&[1 << 20], 2, 768),
    }
}

const ZEROES: [u8; SUPERBLOCK_BYTES] = [0; SUPERBLOCK_BYTES];

#[test]
fn a_blank_device_and_each_known_stranger_are_told_by_name() {
    assert_eq!(choose(&ZEROES, &ZEROES), Err(Absent::Blank));
    for (at, magic, name) in FOREIGN {
        let mut bytes = ZEROES;
        bytes[at..at + magic.len()].copy_from_slice(magic);
        assert_eq!(choose(&bytes, &ZEROES), Err(Absent::Foreign(Some(name))));
        let text = Absent::Foreign(Some(name)).into_error("soft:x").to_string();
        assert!(text.contains(name) && text.contains("soft:x"), "{text}");
    }
    assert_eq!(choose(&[7; SUPERBLOCK_BYTES], &ZEROES), Err(Absent::Foreign(None)));
}

#[test]
fn a_protective_partition_table_is_named_by_what_it_protects() {
    let mut bytes = ZEROES;
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes[512..520].copy_from_slice(b"EFI PART");
    assert_eq!(Superblock::decode(&bytes), Err(Absent::Foreign(Some("a GPT partition table"))));
}

#[test]
fn another_version_is_told_from_damage() {
    let mut bytes = encoded(&plain());
    bytes[8] = 1;
    assert_eq!(choose(&bytes, &bytes), Err(Absent::Damaged), "a version is not believed unchecked");
    let bytes = resealed(bytes);
    assert_eq!(choose(&bytes, &ZEROES), Err(Absent::Version(1)));
    assert_eq!(choose(&encoded(&plain()), &bytes).map(|found| found.superblock), Ok(plain()));
}

#[test]
fn both_copies_gone_is_damage_even_beside_a_blank_one() {
    let mut bytes = encoded(&plain());
    bytes[100] ^= 1;
    assert_eq!(choose(&bytes, &bytes), Err(Absent::Damaged));
    assert_eq!(choose(&bytes, &ZEROES), Err(Absent::Damaged));
    assert_eq!(choose(&ZEROES, &bytes), Err(Absent::Damaged));
}

#[test]
fn what_cannot_be_is_refused_even_with_a_right_checksum() {
    // Another device number, LBA, durability, label, revision, count of devices, segments or homes.
    for (at, value) in
        [(48, 1), (76, 7), (82, 3), (83, 33), (255, 0x80), (272, 2), (274, 2), (276, 0)]
    {
        let mut bytes = encoded(&plain());
        bytes[at] = value;
        assert_eq!(Superblock::decode(&resealed(bytes)), Err(Absent::Damaged), "byte {at}");
    }
    let mut bytes = encoded(&plain());
    bytes[84] = b'C';
    let decoded = Superblock::decode(&resealed(bytes));
    assert_eq!(
        decoded.map(|superblock| superblock.label),
        Ok("Cache".to_owned()),
        "the offsets are right"
    );
}

#[test]
fn the_first_copy_counts_if_the_last_unit_has_another_store() {
    // A grown device may have the last unit of a longer, former store.
    let other = Superblock { store: [2; 16], sequence: 90, ..plain() };
    let found = choose(&encoded(&plain()), &encoded(&other)).expect("a store");
    assert_eq!(found.superblock, plain());
    assert_eq!(choose(&ZEROES, &encoded(&other)).map(|found| found.superblock), Ok(other));
}

#[test]
fn a_revision_follows_itself_and_the_one_before_it() {
    let first = Revision::first(3);
    let (next, another) = (first.next(4), first.next(5));
    assert!(first.follows(&first) && next.follows(&first) && next.follows(&next));
    assert!(!first.follows(&next) && !next.follows(&another) && !next.next(6).follows(&first));
    assert!(!another.next(6).follows(&next), "the numbers fit, the changes do not");
}

#[test]
fn a_stop_is_left_out_where_the_chart_leaves_no_room() {
    let of = |shards: u16| {
        let chart = Chart::new(&[1 << 40], shards, 768);
        let stop = Some(Stop { session: 3, ends: vec![9; shards.into()] });
        Superblock { shards, stop, chart, ..plain() }
    };
    for (shards, fits) in [(1, true), (471, true), (472, false), (1024, false)] {
        let superblock = of(shards);
        let found = Superblock::decode(&encoded(&superblock)).expect("whole");
        assert_eq!(found.stop.is_some(), fits, "{shards} shards");
        assert_eq!(Superblock { stop: superblock.stop.clone(), ..found }, superblock);
    }
}
