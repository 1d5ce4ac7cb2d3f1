//! Blocks: the containers of records on the media.
//!
//! A block is a header followed by records; zeroes fill the rest. Its *seal* is the CRC-64/NVME of everything after
//! the seal itself. Its *chain* is the seal of the previous block; the first block's chain is derived from the store,
//! the epoch and the shard ([`Lineage`]). A block therefore follows another only if it was written after exactly that
//! one: blocks of an earlier lap of a ring, of a history that was cut off, of another shard or of another store never
//! follow. Each block also names the session that wrote it, so a block rewritten after a cut with the same records is
//! still a different block.
//!
//! The seal has 64 bits rather than the 32 of CRC-32C, because a block of a cut-off history must never follow by
//! chance, not even once in four thousand million crashes.

use crate::media::bytes::{Reader, Writer};
use crate::media::checksum::crc64;
use crate::media::record::{Malformed, RECORD_BYTES_MAX, Record};
use crate::model::place::UNIT_BYTES;

/// Bytes of a journal block: one unit.
pub const JOURNAL_BLOCK_BYTES: usize = UNIT_BYTES as usize;
/// Bytes of a checkpoint body block.
pub const BODY_BLOCK_BYTES: usize = 64 << 10;
/// Bytes of the header of either kind of block.
pub const BLOCK_HEADER_BYTES: usize = 56;

const SEAL_BYTES: usize = 8;

const _: () = assert!(RECORD_BYTES_MAX <= JOURNAL_BLOCK_BYTES - BLOCK_HEADER_BYTES);

/// The structure that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A journal.
    Journal,
    /// The body of a checkpoint.
    Body,
}

impl BlockKind {
    fn magic(self) -> [u8; 4] {
        match self {
            BlockKind::Journal => *b"AKVJ",
            BlockKind::Body => *b"AKVC",
        }
    }

    /// Returns the length of its blocks in bytes.
    pub fn block_bytes(self) -> usize {
        match self {
            BlockKind::Journal => JOURNAL_BLOCK_BYTES,
            BlockKind::Body => BODY_BLOCK_BYTES,
        }
    }
}

/// The owner of blocks: no block of one lineage ever follows one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The store's random id.
    pub store: [u8; 16],
    /// The store's epoch.
    pub epoch: u64,
    /// The shard of the journal and the checkpoints.
    pub shard: u16,
}

impl Lineage {
    /// Returns the chain of a first block: of the journal, with number 0, or of a checkpoint's body.
    pub fn origin(&self, kind: BlockKind, number: u64) -> u64 {
        let mut bytes = [0; 38];
        let mut writer = Writer::new(&mut bytes);
        writer.put(&self.store).put(&self.epoch.to_le_bytes()).put(&self.shard.to_le_bytes());
        writer.put(&kind.magic()).put(&number.to_le_bytes());
        crc64(&bytes)
    }
}

/// The header fields of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The store's epoch when the block was written.
    pub epoch: u64,
    /// The session that wrote it, unique to one opening of the store.
    pub session: u64,
    /// Its position in the journal's history or in the body.
    pub sequence: u64,
    /// The seal of the previous block.
    pub chain: u64,
    /// In a journal: blocks below this were flushed when this one was sealed, so damage to them cannot come from a
    /// power cut. In a body: 0.
    pub durable_end: u64,
}

/// Why bytes are not the expected block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Void {
    /// All zeroes, or unrelated bytes: no block was written there.
    #[error("no block was written there")]
    Blank,
    /// A torn or damaged block.
    #[error("the block is torn or damaged")]
    Damaged,
    /// A whole block of another epoch.
    #[error("the block is of another epoch")]
    Epoch,
    /// A whole block with another sequence: of an earlier lap of the ring, or misdirected.
    #[error("another block is there, of sequence {0}")]
    Sequence(u64),
    /// A whole block with the right sequence that follows another block: of a history that was cut off.
    #[error("the block belongs to another history")]
    Chain,
    /// A whole block with contents that no version of this format writes.
    #[error("{0}")]
    Records(#[from] Malformed),
}

/// A block being filled.
#[derive(Debug)]
pub struct BlockWriter {
    kind: BlockKind,
    bytes: Box<[u8]>,
    used: usize,
}

impl BlockWriter {
    /// Creates an empty block.
    pub fn new(kind: BlockKind) -> BlockWriter {
        BlockWriter { kind, bytes: vec![0; kind.block_bytes()].into(), used: BLOCK_HEADER_BYTES }
    }

    /// Returns whether the block holds no record.
    pub fn is_empty(&self) -> bool {
        self.used == BLOCK_HEADER_BYTES
    }

    /// Returns the bytes of the records.
    pub fn record_bytes(&self) -> usize {
        self.used - BLOCK_HEADER_BYTES
    }

    /// Appends a record. Returns false and does nothing if it does not fit.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        let written = record.encode(&mut self.bytes[self.used..]);
        self.used += written.unwrap_or(0);
        written.is_some()
    }

    /// Completes the block, whose bytes are then [`BlockWriter::bytes`], and returns its seal.
    pub fn seal(&mut self, stamp: &Stamp) -> u64 {
        let used = (self.used - BLOCK_HEADER_BYTES) as u32;
        let mut writer = Writer::new(&mut self.bytes[SEAL_BYTES..BLOCK_HEADER_BYTES]);
        writer.put(&self.kind.magic()).put(&used.to_le_bytes());
        let Stamp { epoch, session, sequence, chain, durable_end } = *stamp;
        for number in [epoch, session, sequence, chain, durable_end] {
            writer.put(&number.to_le_bytes());
        }
        let seal = crc64(&self.bytes[SEAL_BYTES..]);
        self.bytes[..SEAL_BYTES].copy_from_slice(&seal.to_le_bytes());
        seal
    }

    /// Returns all bytes of the block.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the block for reuse.
    pub fn clear(&mut self) {
        self.bytes[..self.used].fill(0);
        self.used = BLOCK_HEADER_BYTES;
    }

    /// Moves the sealed bytes out and continues, empty, in `other`, which is zeroed.
    ///
    /// # Panics
    /// If `other` is not as long as a block.
    pub fn replace(&mut self, mut other: Box<[u8]>) -> Box<[u8]> {
        assert_eq!(other.len(), self.bytes.len(), "memory for a block");
        other.fill(0);
        self.used = BLOCK_HEADER_BYTES;
        std::mem::replace(&mut self.bytes, other)
    }
}

/// A whole block, read from the media.
#[derive(Clone, Copy, Debug)]
pub struct BlockReader<'a> {
    /// Its header fields.
    pub stamp: Stamp,
    /// Its seal, which is the chain of the next block.
    pub seal: u64,
    records: &'a [u8],
}

impl<'a> BlockReader<'a> {
    /// Opens the block in `bytes` and verifies its seal.
    ///
    /// # Errors
    /// [`Void::Blank`] or [`Void::Damaged`].
    pub fn open(kind: BlockKind, bytes: &'a [u8]) -> Result<BlockReader<'a>, Void> {
        if bytes.len() != kind.block_bytes() {
            return Err(Void::Damaged);
        }
        BlockReader::parse(kind, bytes).unwrap_or(Err(Void::Damaged))
    }

    fn parse(kind: BlockKind, bytes: &'a [u8]) -> Option<Result<BlockReader<'a>, Void>> {
        let mut reader = Reader(bytes);
        let seal = reader.u64()?;
        if reader.array()? != kind.magic() {
            return Some(Err(Void::Blank));
        }
        let used = usize::try_from(reader.u32()?).ok()?;
        let (epoch, session) = (reader.u64()?, reader.u64()?);
        let (sequence, chain, durable_end) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let stamp = Stamp { epoch, session, sequence, chain, durable_end };
        let records = reader.take(used)?;
        let is_whole = seal == crc64(&bytes[SEAL_BYTES..]);
        is_whole.then_some(Ok(BlockReader { stamp, seal, records }))
    }

    /// Checks that this is the expected block: `sequence` of `epoch`, after the block whose seal is `chain`.
    ///
    /// # Errors
    /// [`Void::Epoch`], [`Void::Sequence`] or [`Void::Chain`].
    pub fn check(&self, epoch: u64, sequence: u64, chain: u64) -> Result<(), Void> {
        if self.stamp.epoch != epoch {
            return Err(Void::Epoch);
        }
        if self.stamp.sequence != sequence {
            return Err(Void::Sequence(self.stamp.sequence));
        }
        if self.stamp.chain != chain { Err(Void::Chain) } else { Ok(()) }
    }

    /// Iterates over the records in order. An error is the last item.
    pub fn records(&self) -> Records<'a> {
        Records::of(self.records)
    }

    /// Returns the bytes of the records.
    pub fn record_bytes(&self) -> &'a [u8] {
        self.records
    }
}

/// The records of a block.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Iterates over the records in the bytes of a block.
    pub fn of(bytes: &'a [u8]) -> Records<'a> {
        Records { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match Record::decode(std::mem::take(&mut self.rest)) {
            Ok((record, rest)) => {
                self.rest = rest;
                Some(Ok(record))
            }
            Err(malformed) => Some(Err(malformed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::media::record::tests::{Owned, records};

    const STAMP: Stamp = Stamp { epoch: 3, session: 5, sequence: 7, chain: 11, durable_end: 2 };

    /// Builds a sealed block of as many records as fit, and returns their number.
    fn block(kind: BlockKind, records: &[Owned]) -> (BlockWriter, usize) {
        let mut writer = BlockWriter::new(kind);
        let fits = records.iter().take_while(|owned| writer.push(&owned.record())).count();
        writer.seal(&STAMP);
        (writer, fits)
    }

    fn kinds() -> impl Strategy<Value = BlockKind> {
        prop_oneof![Just(BlockKind::Journal), Just(BlockKind::Body)]
    }

    proptest! {
        #[test]
        fn a_block_gives_back_the_records_that_fitted(kind in kinds(), records in vec(records(), 0..40)) {
            let (writer, fits) = block(kind, &records);
            let reader = BlockReader::open(kind, writer.bytes()).expect("whole");
            prop_assert_eq!(reader.stamp, STAMP);
            prop_assert_eq!(reader.check(3, 7, 11), Ok(()));
            let read: Result<Vec<_>, _> = reader.records().collect();
            let given: Vec<_> = records[..fits].iter().map(Owned::record).collect();
            prop_assert_eq!(read.expect("records"), given);
        }

        #[test]
        fn a_flipped_bit_anywhere_is_seen(at in 0..JOURNAL_BLOCK_BYTES, bit in 0u32..8, records in vec(records(), 0..9)) {
            let (writer, _) = block(BlockKind::Journal, &records);
            let mut bytes = writer.bytes().to_vec();
            bytes[at] ^= 1u8 << bit;
            prop_assert!(BlockReader::open(BlockKind::Journal, &bytes).is_err());
        }

        #[test]
        fn any_bytes_are_a_block_or_are_not(kind in kinds(), start in vec(any::<u8>(), 0..200)) {
            let mut bytes = vec![0; kind.block_bytes()];
            bytes[..start.len()].copy_from_slice(&start);
            prop_assert!(BlockReader::open(kind, &bytes).is_err());
            bytes[8..12].copy_from_slice(&kind.magic());
            let seal = crc64(&bytes[8..]);
            bytes[..8].copy_from_slice(&seal.to_le_bytes());
            // Even a block with a valid seal has its records checked.
            if let Ok(reader) = BlockReader::open(kind, &bytes) {
                prop_assert!(reader.records().count() <= kind.block_bytes());
            }
        }
    }

    #[test]
    fn a_block_is_told_from_every_other() {
        let (writer, _) = block(BlockKind::Journal, &[]);
        let reader = BlockReader::open(BlockKind::Journal, writer.bytes()).expect("whole");
        assert_eq!(reader.check(4, 7, 11), Err(Void::Epoch));
        assert_eq!(reader.check(3, 6, 11), Err(Void::Sequence(7)));
        assert_eq!(reader.check(3, 7, 12), Err(Void::Chain));
        let short = &writer.bytes()[..4095];
        assert_eq!(BlockReader::open(BlockKind::Journal, short).err(), Some(Void::Damaged));
        let zeroes = vec![0; JOURNAL_BLOCK_BYTES];
        assert_eq!(BlockReader::open(BlockKind::Journal, &zeroes).err(), Some(Void::Blank));
    }

    #[test]
    fn a_block_used_again_has_nothing_of_the_last() {
        let owned = Owned::Delete { key: vec![9; 100], place: crate::Place { device: 0, unit: 1 } };
        let (mut writer, _) = block(BlockKind::Journal, &[owned]);
        let fresh = block(BlockKind::Journal, &[]).0;
        writer.clear();
        assert!(writer.is_empty());
        writer.seal(&STAMP);
        assert_eq!(writer.bytes(), fresh.bytes());
        writer.replace(vec![7; JOURNAL_BLOCK_BYTES].into());
        writer.seal(&STAMP);
        assert_eq!(writer.bytes(), fresh.bytes());
    }

    #[test]
    fn lineages_do_not_meet() {
        let lineage = Lineage { store: [1; 16], epoch: 1, shard: 1 };
        let others = [
            lineage.origin(BlockKind::Body, 0),
            lineage.origin(BlockKind::Journal, 1),
            Lineage { epoch: 2, ..lineage }.origin(BlockKind::Journal, 0),
            Lineage { shard: 2, ..lineage }.origin(BlockKind::Journal, 0),
            Lineage { store: [2; 16], ..lineage }.origin(BlockKind::Journal, 0),
        ];
        assert!(!others.contains(&lineage.origin(BlockKind::Journal, 0)));
    }
}
