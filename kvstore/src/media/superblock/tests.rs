//! Superblocks: round trips, damage, and foreign data.

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn superblocks()(
        store: [u8; 16],
        (sequence, epoch) in (0..1u64 << 62, 0..1u64 << 62),
        sizes: [u64; 3],
        objects_max: u32,
        shards: u16,
        (device_index, more) in (0u8..100, 1u8..100),
        lba_bytes in prop_oneof![Just(512u32), Just(4096)],
        durability in prop_oneof![Just(Durability::Volatile), Just(Durability::Restart), Just(Durability::Durable)],
        label in "[a-zé]{0,16}",
    ) -> Superblock {
        let [device_units, journal_units, checkpoint_units] = sizes;
        Superblock {
            store, sequence, epoch, device_units, journal_units, checkpoint_units, objects_max, lba_bytes, shards,
            device_index, device_count: device_index + more, durability, label,
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
    let crc = crc32c(&bytes[..CRC_AT]);
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
        device_units: 1 << 20,
        journal_units: 256,
        checkpoint_units: 256,
        objects_max: 1000,
        lba_bytes: 512,
        shards: 2,
        device_index: 0,
        device_count: 1,
        durability: Durability::Restart,
        label: "cache".into(),
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
    bytes[8] = 2;
    assert_eq!(choose(&bytes, &bytes), Err(Absent::Damaged), "a version is not believed unchecked");
    let bytes = resealed(bytes);
    assert_eq!(choose(&bytes, &ZEROES), Err(Absent::Version(2)));
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
    for (at, value) in [(80, 3), (82, 1), (83, 0), (84, 3), (85, 33), (76, 7)] {
        let mut bytes = encoded(&Superblock { device_index: 0, device_count: 1, ..plain() });
        bytes[at] = value;
        let decoded = Superblock::decode(&resealed(bytes));
        if at == 80 {
            assert_eq!(decoded.map(|superblock| superblock.shards), Ok(3), "the offsets are right");
        } else {
            assert_eq!(decoded, Err(Absent::Damaged), "byte {at}");
        }
    }
}
