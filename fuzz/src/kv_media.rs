//! What a device may return to the KV store, with checksums computed by an attacker.
//!
//! An input is raw bytes, or a list of patches to a valid structure. After each patch the checksums may be corrected,
//! so that the code behind them is reached.

use std::collections::BTreeMap;
use std::ops::Range;

use adit_kvstore::internals::block::{
    BLOCK_HEADER_BYTES, BODY_BLOCK_BYTES, BlockKind, BlockReader, BlockWriter, JOURNAL_BLOCK_BYTES,
    Lineage, Stamp,
};
use adit_kvstore::internals::chart::Chart;
use adit_kvstore::internals::checkpoint::{
    CHECKPOINT_HEADER_BYTES, CheckpointHeader, CheckpointReader, CheckpointWriter, Pushed,
};
use adit_kvstore::internals::device_set::{Given, Lengths, check_set};
use adit_kvstore::internals::geometry::Geometry;
use adit_kvstore::internals::journal::{FIRST_SEQUENCE, Journal, Mark};
use adit_kvstore::internals::record::{Put, Record};
use adit_kvstore::internals::recovery::{Areas, Media, Rebuild, recover};
use adit_kvstore::internals::superblock::{Revision, SUPERBLOCK_BYTES, Superblock, choose};
use adit_kvstore::{Durability, LayoutId, Object, Place, Quota, TenantId};
use crc_fast::{CrcAlgorithm, checksum};

use crate::input::Input;

const UNIT: usize = 4096;
const LINEAGE: Lineage = Lineage { store: [5; 16], epoch: 2, shard: 1 };
const MARK: Mark = Mark { sequence: 3, chain: 9 };

/// Runs one input against the superblock: its copies, the set of devices, and the resulting geometry.
pub fn superblock(data: &[u8]) {
    let input = &mut Input::new(data);
    let (mut a, mut b) = (whole_superblock(), whole_superblock());
    patch(input, &mut a, reseal_unit);
    patch(input, &mut b, reseal_unit);
    let Ok(copies) = choose(&a, &b).map_err(|absent| absent.into_error("a").to_string()) else {
        return;
    };
    let found = copies.superblock;
    let mut again = [0; SUPERBLOCK_BYTES];
    found.encode(&mut again);
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&found), "it comes back");
    let index = found.device_index().expect("a decoded one names its device");
    let units = found.chart.members[usize::from(index)].units;
    let given =
        |units| Given { device: "a", superblock: &found, units, lba_bytes: found.lba_bytes };
    let set = [given(units), given(input.edgy())];
    for (set, lengths) in [(&set[..1], Lengths::Same), (&set[..], Lengths::Grown)] {
        let _ = check_set(set, lengths).map_err(|why| why.to_string());
    }
    check_geometry(&found.geometry().expect("a decoded one is possible"));
}

fn whole_superblock() -> [u8; SUPERBLOCK_BYTES] {
    let superblock = Superblock {
        store: [5; 16],
        sequence: 1,
        epoch: 2,
        device_id: 0,
        journal_units: 256,
        checkpoint_units: 256,
        objects_max: 1000,
        lba_bytes: 4096,
        shards: 2,
        durability: Durability::Restart,
        label: "label".into(),
        stop: None,
        revision: Revision::first(2),
        chart: Chart::new(&[1 << 16], 2, 768).with_length(0, 1 << 17),
    };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    superblock.encode(&mut bytes);
    bytes
}

fn check_geometry(geometry: &Geometry) {
    let last = geometry.shards() - 1;
    for shard in [0, last / 2, last] {
        let Areas { device, journal, slots: [first, second] } = geometry.areas(shard);
        let [_, end] = geometry.superblocks(device);
        let order =
            [1, journal.start, journal.end, first.start, first.end, second.start, second.end, end];
        assert!(order.is_sorted(), "{geometry:?}");
        for other in [0, last] {
            for data in geometry.data(other, device) {
                let is_apart = data.end <= journal.start || second.end <= data.start;
                assert!(is_apart && data.start >= 1 && data.end <= end, "{geometry:?}");
            }
        }
    }
}

/// Runs one input against records: what decodes must encode to the same bytes.
pub fn record(data: &[u8]) {
    let mut rest = data;
    while let Ok((record, behind)) = Record::decode(rest) {
        let used = rest.len() - behind.len();
        let mut again = vec![0; used];
        assert_eq!(record.encode(&mut again), Some(used), "{record:?}");
        assert_eq!(again, &rest[..used], "{record:?}");
        rest = behind;
    }
}

/// Runs one input against blocks of both kinds.
pub fn block(data: &[u8]) {
    let input = &mut Input::new(data);
    let kind = input.pick(&[BlockKind::Journal, BlockKind::Body]);
    let mut writer = BlockWriter::new(kind);
    let stamp = Stamp { epoch: 2, session: 1, sequence: 3, chain: 9, durable_end: 1 };
    writer.push(&delete(1));
    writer.seal(&stamp);
    let mut bytes = writer.bytes().to_vec();
    patch(input, &mut bytes, reseal_block);
    let Ok(block) = BlockReader::open(kind, &bytes) else { return };
    let room = kind.block_bytes() - BLOCK_HEADER_BYTES;
    let records: Vec<_> = block.records().collect();
    let used: usize = records.iter().flatten().map(Record::encoded_bytes).sum();
    assert!(used <= room && records.iter().filter(|record| record.is_err()).count() <= 1);
    let Stamp { epoch, sequence, chain, .. } = block.stamp;
    assert_eq!(block.check(2, 3, 9).is_ok(), (epoch, sequence, chain) == (2, 3, 9));
}

/// Runs one input against the header of a checkpoint, and a body that it claims.
pub fn checkpoint(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
    CheckpointWriter::begin(0..100, LINEAGE, 1, 4, MARK).finish(MARK, &mut bytes);
    patch(input, &mut bytes, reseal_unit);
    let slot_units = input.edgy().max(1);
    let Ok(header) = CheckpointHeader::decode(&bytes, &LINEAGE, slot_units) else { return };
    assert!(header.blocks.checked_mul(16).is_some_and(|units| units < slot_units));
    let mut again = [0; CHECKPOINT_HEADER_BYTES];
    header.encode(&mut again);
    assert_eq!(CheckpointHeader::decode(&again, &LINEAGE, slot_units), Ok(header));
    let mut body = CheckpointReader::new(header);
    assert!(body.block(&vec![input.byte(); BODY_BLOCK_BYTES]).is_err(), "no block is all alike");
    assert_eq!(
        body.finish().is_ok(),
        (header.blocks, header.records, header.seal) == (0, 0, header.origin())
    );
}

/// Runs one input against recovery: whatever is on the media, it ends, reads at most a few times what exists, and the
/// journal can continue.
pub fn recovery(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut media = whole_media();
    while !input.is_spent() {
        let at = usize::from(input.byte()) % media.units.len();
        let unit = media.units.values_mut().nth(at).expect("a unit");
        patch_once(input, unit, reseal_any);
    }
    let found = recover(&mut media, &mut Nothing, &LINEAGE, &areas(), None).expect("it answers");
    assert!(found.bytes_read <= 8 * 220 * UNIT as u64, "{found:?}");
    assert_eq!(found.bytes_read, media.bytes_read, "what is read is counted");
    assert!(found.blocks_behind <= 64 && found.next_slot < 2 && found.next_number > 0, "{found:?}");
    let mut journal = Journal::new(areas().journal, LINEAGE.epoch, 9, found.next, found.tail);
    if journal.append(&delete(7)).is_ok() {
        assert_eq!(journal.seal().sequence, found.next.sequence + 1);
    }
}

/// Replaces the start of `bytes` with raw bytes, or patches it.
fn patch(input: &mut Input, bytes: &mut [u8], reseal: fn(&mut [u8])) {
    if input.byte() == 0xff {
        bytes.fill(0);
        bytes.iter_mut().take(128).for_each(|byte| *byte = input.byte());
    }
    for _ in 0..input.byte() % 8 {
        patch_once(input, bytes, reseal);
    }
}

/// Writes a number somewhere, most often in the first bytes, where the fields are.
fn patch_once(input: &mut Input, bytes: &mut [u8], reseal: fn(&mut [u8])) {
    let at = match input.byte() {
        at @ 0..200 => usize::from(at),
        _ => input.number(2) as usize % bytes.len(),
    };
    let number = input.edgy().to_le_bytes();
    let count = usize::from(input.pick(&[1u8, 2, 4, 8])).min(bytes.len() - at);
    bytes[at..at + count].copy_from_slice(&number[..count]);
    if input.byte() % 4 != 3 {
        reseal(bytes);
    }
}

/// Corrects the CRC-32C at the end of a unit.
fn reseal_unit(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..at]) as u32;
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Corrects the CRC-64 at the start of a block.
fn reseal_block(bytes: &mut [u8]) {
    let seal = checksum(CrcAlgorithm::Crc64Nvme, &bytes[8..]);
    bytes[..8].copy_from_slice(&seal.to_le_bytes());
}

fn reseal_any(bytes: &mut [u8]) {
    if bytes.starts_with(b"ADIT") { reseal_unit(bytes) } else { reseal_block(bytes) }
}

fn delete(unit: u64) -> Record<'static> {
    Record::Delete { key: b"a key", place: Place { device: 0, unit } }
}

fn areas() -> Areas {
    Areas { device: 0, journal: 1..17, slots: [20..120, 120..220] }
}

/// Written units; zeroes elsewhere.
struct Written {
    units: BTreeMap<u64, Vec<u8>>,
    bytes_read: u64,
}

impl Written {
    fn write(&mut self, unit: u64, bytes: &[u8]) {
        self.units.extend((unit..).zip(bytes.chunks(UNIT).map(<[u8]>::to_vec)));
    }
}

impl Media for Written {
    fn read(&mut self, _: u8, unit: u64, into: &mut [u8]) -> adit_kvstore::Result<()> {
        let areas = areas();
        let is_in =
            |area: &Range<u64>| area.start <= unit && unit + (into.len() / UNIT) as u64 <= area.end;
        assert!(
            areas.slots.iter().chain([&areas.journal]).any(is_in),
            "unit {unit} is the shard's"
        );
        for (unit, bytes) in (unit..).zip(into.chunks_mut(UNIT)) {
            bytes.fill(0);
            self.units.get(&unit).inspect(|written| bytes.copy_from_slice(written));
        }
        self.bytes_read += into.len() as u64;
        Ok(())
    }
}

/// Checks everything and keeps nothing.
struct Nothing;

impl Rebuild for Nothing {
    fn clear(&mut self) {}

    fn put(&mut self, put: &Put<'_>) -> adit_kvstore::Result<()> {
        let Object { bytes, .. } = put.object;
        assert!((1..=512).contains(&put.key.len()) && (1..Object::BYTES_END).contains(&bytes));
        assert!((1..=512).contains(&put.checksums.len()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8], _: Place) -> adit_kvstore::Result<()> {
        assert!((1..=512).contains(&key.len()));
        Ok(())
    }

    fn lose_block(&mut self) {}

    fn drop_superseded(&mut self, key: &[u8]) {
        assert!((1..=512).contains(&key.len()));
    }

    fn pieces(&self, _: &Put<'_>) -> Option<Vec<(u64, u64)>> {
        None
    }

    fn tenant(&mut self, _: TenantId, name: &str, _: Option<Quota>) -> adit_kvstore::Result<()> {
        assert!((1..=64).contains(&name.len()));
        Ok(())
    }

    fn layout(&mut self, _: LayoutId, bytes: &[u8]) -> adit_kvstore::Result<()> {
        assert!(bytes.len() <= 64);
        Ok(())
    }
}

/// Builds a journal of a few blocks with two checkpoints over them.
fn whole_media() -> Written {
    let mut media = Written { units: BTreeMap::new(), bytes_read: 0 };
    let start = Mark::start(&LINEAGE);
    let mut journal = Journal::new(areas().journal, LINEAGE.epoch, 1, start, FIRST_SEQUENCE);
    for (number, slot) in (1..).zip(areas().slots) {
        let begin = journal.mark();
        let mut taken = CheckpointWriter::begin(slot, LINEAGE, 1, number, begin);
        assert_eq!(taken.push(&delete(1)), Pushed::Taken);
        let mut body = Box::new([0; BODY_BLOCK_BYTES]);
        let unit = taken.block(&mut body).expect("a block");
        media.write(unit, &*body);
        for unit in 0..3 {
            journal.append(&delete(unit)).expect("room");
            journal.seal();
        }
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        media.write(taken.finish(journal.mark(), &mut header), &header);
    }
    let mut blocks = vec![0; 16 * JOURNAL_BLOCK_BYTES];
    let write = journal.take(&mut blocks).expect("blocks");
    media.write(write.unit, &blocks[..write.bytes()]);
    media
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_are_whole_before_they_are_patched() {
        let mut media = whole_media();
        let found =
            recover(&mut media, &mut Nothing, &LINEAGE, &areas(), None).expect("it answers");
        assert_eq!((found.journal_blocks, found.checkpoint_records), (3, 1));
        assert_eq!(found.passed_over, []);
        assert!(Superblock::decode(&whole_superblock()).is_ok());
    }
}
