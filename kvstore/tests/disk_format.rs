//! Checks each field against `docs/design/disk-format.md`. A change here means a new version of the format.

use adit_kvstore::internals::block::{
    BODY_BLOCK_BYTES, BlockKind, BlockReader, BlockWriter, Lineage, Stamp,
};
use adit_kvstore::internals::chart::{Chart, Homes, Member, Segment};
use adit_kvstore::internals::checkpoint::{CHECKPOINT_HEADER_BYTES, CheckpointHeader};
use adit_kvstore::internals::geometry::{FormatOptions, Geometry};
use adit_kvstore::internals::journal::Mark;
use adit_kvstore::internals::record::{Put, RECORD_BYTES_MAX, Record};
use adit_kvstore::internals::superblock::{Revision, SUPERBLOCK_BYTES, Stop, Superblock};
use adit_kvstore::{Durability, LayoutId, Object, Place, Quota, TenantId, Version, WhenReached};
use crc_fast::{CrcAlgorithm, checksum};

/// Reads a little-endian number from a range of bytes.
fn number(bytes: &[u8], range: std::ops::Range<usize>) -> u64 {
    bytes[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = vec![0; record.encoded_bytes()];
    record.encode(&mut bytes).expect("it is as long as it says");
    bytes
}

#[test]
fn the_superblock_is_as_documented() {
    let chart = Chart {
        members: vec![Member { id: 13, units: 2000 }, Member { id: 7, units: 0x12_3456_789a }],
        segments: vec![
            Segment { device: 0, units: 1..1999 },
            Segment { device: 1, units: 1000..0x12_3456_7899 },
        ],
        homes: vec![Homes { device: 1, unit: 2, first: 0, step: 3, count: 1 }],
    };
    let superblock = Superblock {
        store: *b"0123456789abcdef",
        sequence: 11,
        epoch: 12,
        device_id: 13,
        journal_units: 16,
        checkpoint_units: 300,
        objects_max: 16,
        lba_bytes: 512,
        shards: 1,
        durability: Durability::Durable,
        label: "name".into(),
        stop: Some(Stop { session: 10, ends: vec![0x1234_5678_9abc] }),
        revision: Revision { number: 20, id: 21, before: 22 },
        chart,
    };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    superblock.encode(&mut bytes);
    assert_eq!(&bytes[..8], b"ADITKV\0\x01");
    assert_eq!(&bytes[16..32], b"0123456789abcdef");
    let fields = [8..12, 12..16, 32..40, 40..48, 48..56, 56..64, 64..72, 72..76, 76..80, 80..82];
    assert_eq!(fields.map(|range| number(&bytes, range)), [3, 0, 11, 12, 13, 16, 300, 16, 512, 1]);
    assert_eq!(&bytes[82..88], b"\x02\x04name");
    assert!(bytes[88..240].iter().all(|byte| *byte == 0));
    assert_eq!([240..248, 4084..4092].map(|at| number(&bytes, at)), [10, 0x1234_5678_9abc]);
    let fields = [248..256, 256..264, 264..272, 272..274, 274..276, 276..278];
    assert_eq!(fields.map(|range| number(&bytes, range)), [20, 21, 22, 2, 2, 1]);
    let members = [278..286, 286..294, 294..302, 302..310];
    assert_eq!(members.map(|range| number(&bytes, range)), [13, 2000, 7, 0x12_3456_789a]);
    let segments = [310..311, 311..316, 316..321, 321..322, 322..327, 327..332];
    let numbers = [0, 1, 1999, 1, 1000, 0x12_3456_7899];
    assert_eq!(segments.map(|range| number(&bytes, range)), numbers);
    let homes = [332..333, 333..338, 338..340, 340..342, 342..344];
    assert_eq!(homes.map(|range| number(&bytes, range)), [1, 2, 0, 3, 1]);
    assert!(bytes[344..4084].iter().all(|byte| *byte == 0));
    assert_eq!(number(&bytes, 4092..4096), checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..4092]));
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
}

#[test]
fn records_are_as_documented() {
    let place = Place { device: 3, unit: 0x0a_0b0c_0d0e };
    let (layout, tenant, version) = (LayoutId(5), TenantId(4), Version::NONE);
    let object = Object { place, bytes: 0x10_0000_0001, layout, tenant, version };
    let checksums = [0x0403_0201, 0x0807_0605];
    let checksums = checksums.as_slice().into();
    let mut put = Put {
        key: b"key",
        object,
        slab_base: None,
        expires_s: None,
        age: None,
        is_provisional: false,
        checksums,
    };
    let start = b"\x01\0\x04\x05\x03\0\x02\0\x0e\x0d\x0c\x0b\x0a\x03\x01\0\0\0\x10";
    let end = b"key\x01\x02\x03\x04\x05\x06\x07\x08";
    assert_eq!(encoded(&Record::Put(put)), [&start[..], end].concat());
    (put.slab_base, put.expires_s) = (Some(6), Some(7));
    let bytes = encoded(&Record::Put(put));
    assert_eq!((bytes[1], &bytes[19..32]), (3, &b"\x06\0\0\0\0\x07\0\0\0\0\0\0\0"[..]));
    assert_eq!(&bytes[32..], end);
    (put.is_provisional, put.age) = (true, Some(191));
    let bytes = encoded(&Record::Put(put));
    assert_eq!((bytes[1], bytes[32], &bytes[33..]), (15, 191, &end[..]));
    put.object.version = Version(0x0807_0605_0403_0201);
    let bytes = encoded(&Record::Put(put));
    assert_eq!((bytes[1], &bytes[33..41]), (31, &b"\x01\x02\x03\x04\x05\x06\x07\x08"[..]));
    assert_eq!(&bytes[41..], end);
    let delete = Record::Delete { key: b"key", place };
    assert_eq!(encoded(&delete), b"\x02\0\x03\0\x0e\x0d\x0c\x0b\x0a\x03key");
    for (flags, when_reached) in [(1, WhenReached::Refuse), (3, WhenReached::EvictOwn)] {
        let quota = Some(Quota { bytes: 8, when_reached });
        let tenant = Record::Tenant { id: TenantId(9), name: "me", quota };
        let bytes = [&[3, flags], &b"\x09\x02\x08\0\0\0\0\0\0\0me"[..]].concat();
        assert_eq!(encoded(&tenant), bytes);
    }
    let layout = Record::Layout { id: LayoutId(7), bytes: b"abc" };
    assert_eq!(encoded(&layout), b"\x04\0\x07\x03abc");
    assert_eq!(RECORD_BYTES_MAX, 2601);
}

const LINEAGE: Lineage = Lineage { store: *b"0123456789abcdef", epoch: 2, shard: 3 };

#[test]
fn blocks_are_as_documented() {
    for (kind, magic, len) in
        [(BlockKind::Journal, b"AKVJ", 4096), (BlockKind::Body, b"AKVC", BODY_BLOCK_BYTES)]
    {
        let mut writer = BlockWriter::new(kind);
        assert!(writer.push(&Record::Layout { id: LayoutId(7), bytes: b"abc" }));
        let seal =
            writer.seal(&Stamp { epoch: 2, session: 3, sequence: 4, chain: 5, durable_end: 6 });
        let bytes = writer.bytes();
        assert_eq!((bytes.len(), &bytes[8..12]), (len, &magic[..]));
        assert_eq!(number(bytes, 0..8), seal);
        assert_eq!(seal, checksum(CrcAlgorithm::Crc64Nvme, &bytes[8..]));
        let fields = [12..16, 16..24, 24..32, 32..40, 40..48, 48..56];
        assert_eq!(fields.map(|range| number(bytes, range)), [7, 2, 3, 4, 5, 6]);
        assert_eq!(&bytes[56..63], b"\x04\0\x07\x03abc");
        assert!(bytes[63..].iter().all(|byte| *byte == 0));
        assert!(BlockReader::open(kind, bytes).is_ok());
        let origin =
            [&LINEAGE.store[..], b"\x02\0\0\0\0\0\0\0\x03\0", magic, &[9, 0, 0, 0, 0, 0, 0, 0]];
        let origin = checksum(CrcAlgorithm::Crc64Nvme, &origin.concat());
        assert_eq!(LINEAGE.origin(kind, 9), origin);
    }
}

#[test]
fn the_header_of_a_checkpoint_is_as_documented() {
    let header = CheckpointHeader {
        lineage: LINEAGE,
        session: 4,
        number: 5,
        begin: Mark { sequence: 6, chain: 7 },
        end: Mark { sequence: 8, chain: 9 },
        records: 10,
        blocks: 11,
        seal: 12,
    };
    let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
    header.encode(&mut bytes);
    assert_eq!(&bytes[..24], b"ADITCKP\x010123456789abcdef");
    let fields = (0..11usize).map(|at| number(&bytes, 24 + 8 * at..32 + 8 * at));
    assert_eq!(fields.collect::<Vec<_>>(), (2..13).collect::<Vec<_>>());
    assert!(bytes[112..4092].iter().all(|byte| *byte == 0));
    assert_eq!(number(&bytes, 4092..4096), checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..4092]));
}

#[test]
fn areas_are_as_documented() {
    let objects_max = 100_000;
    let options = FormatOptions {
        shards: 3,
        objects_max,
        key_bytes: 64,
        journal_bytes: None,
        checkpoint_bytes: None,
        device_units: vec![30_000, 40_000],
    };
    let geometry = Geometry::new(&options).expect("room");
    let journal = (96 * u64::from(objects_max)).div_ceil(4096);
    let records = (109 * u64::from(objects_max) + 36_720) * 5 / 4;
    let slot = 1 + 16 * records.div_ceil(62_880);
    let each = journal + 2 * slot;
    assert_eq!(geometry.journal(0), (0, 1..1 + journal));
    assert_eq!(geometry.checkpoint(0, 0), (0, 1 + journal..1 + journal + slot));
    assert_eq!(geometry.checkpoint(0, 1), (0, 1 + journal + slot..1 + each));
    assert_eq!(geometry.journal(1), (1, 1..1 + journal));
    assert_eq!(geometry.journal(2), (0, 1 + each..1 + each + journal));
    assert_eq!(geometry.data(0, 0)[0].start, 1 + 2 * each);
    assert_eq!((geometry.data(2, 0)[0].end, geometry.superblocks(0)), (29_999, [0, 29_999]));
    assert_eq!(geometry.record_bytes_max(), (slot - 1) / 16 * 62_880 / 5 * 4);
}
