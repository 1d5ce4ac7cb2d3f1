//! A checkpoint: all objects, tenants and layouts of a shard, taken while the shard keeps working.
//!
//! A slot holds a header of one unit, followed by body blocks of 64 KiB. The body's records are taken at different
//! moments between two marks of the journal, *begin* and *end*. Replaying the journal from begin over them yields,
//! once end is reached, exactly the state at end. A checkpoint is therefore consistent only together with the journal
//! up to its end; the chain at end identifies that history.
//!
//! The header is written last, after a flush that covers the body and the journal up to end. It names the seal of the
//! last body block, and through the chain all of them. The two slots alternate. The journal's tail may advance to the
//! begin of the *older* complete checkpoint and no further, so that the older one and a longer replay can replace a
//! damaged newest one.
//!
//! This module does not choose between slots ([`crate::media::recovery`]), and does not decide when to take a
//! checkpoint.

use std::ops::Range;

use crate::media::block::{
    BLOCK_HEADER_BYTES, BODY_BLOCK_BYTES, BlockKind, BlockReader, BlockWriter, Lineage, Records,
    Stamp, Void,
};
use crate::media::bytes::{Reader, Writer};
use crate::media::checksum;
use crate::media::journal::Mark;
use crate::media::record::{RECORD_BYTES_MAX, Record};
use crate::model::place::UNIT_BYTES;

/// Bytes of a header: one unit.
pub const CHECKPOINT_HEADER_BYTES: usize = UNIT_BYTES as usize;
/// Units of a body block.
pub const BODY_BLOCK_UNITS: u64 = BODY_BLOCK_BYTES as u64 / UNIT_BYTES;

const MAGIC: [u8; 8] = *b"ADITCKP\x01";
const CRC_AT: usize = CHECKPOINT_HEADER_BYTES - 4;

const _: () = assert!(BODY_BLOCK_UNITS * UNIT_BYTES == BODY_BLOCK_BYTES as u64);
const _: () = assert!(RECORD_BYTES_MAX <= BODY_BLOCK_BYTES - BLOCK_HEADER_BYTES);

/// Returns the bytes of records that certainly fit in a slot of `units`, in any order.
pub const fn slot_record_bytes(units: u64) -> u64 {
    let blocks = units.saturating_sub(1) / BODY_BLOCK_UNITS;
    assert!(blocks * BODY_BLOCK_UNITS <= units, "the blocks lie in the slot");
    // The end of a block may leave unused almost the length of the longest record.
    blocks * (BODY_BLOCK_BYTES - BLOCK_HEADER_BYTES - (RECORD_BYTES_MAX - 1)) as u64
}

/// Returns the units of the smallest slot that certainly holds `record_bytes` of records.
pub const fn slot_units(record_bytes: u64) -> u64 {
    let units =
        1 + record_bytes.div_ceil(slot_record_bytes(1 + BODY_BLOCK_UNITS)) * BODY_BLOCK_UNITS;
    assert!(slot_record_bytes(units) >= record_bytes, "the slot holds the records");
    units
}

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// The owner.
    pub lineage: Lineage,
    /// The session that took the checkpoint.
    pub session: u64,
    /// Its number, one more than that of the previous checkpoint.
    pub number: u64,
    /// Where replay begins.
    pub begin: Mark,
    /// Where replay must arrive.
    pub end: Mark,
    /// Number of records in its body.
    pub records: u64,
    /// Number of blocks in its body.
    pub blocks: u64,
    /// The seal of the last block; the origin if there is none.
    pub seal: u64,
}

impl CheckpointHeader {
    /// Encodes the header.
    pub fn encode(&self, into: &mut [u8; CHECKPOINT_HEADER_BYTES]) {
        into.fill(0);
        let mut writer = Writer::new(into);
        writer.put(&MAGIC).put(&self.lineage.store);
        let Mark { sequence: begin, chain: begin_chain } = self.begin;
        let Mark { sequence: end, chain: end_chain } = self.end;
        let (epoch, shard) = (self.lineage.epoch, u64::from(self.lineage.shard));
        for number in [epoch, shard, self.session, self.number, begin, begin_chain, end, end_chain]
        {
            writer.put(&number.to_le_bytes());
        }
        for number in [self.records, self.blocks, self.seal] {
            writer.put(&number.to_le_bytes());
        }
        let crc = checksum::of(&into[..CRC_AT]);
        into[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(
            CheckpointHeader::parse(&mut Reader(&into[MAGIC.len()..])),
            Some(*self),
            "a header is read as it was written"
        );
    }

    /// Decodes the header in `bytes`, which must be of `lineage` and have a body that fits a slot of `slot_units`.
    ///
    /// # Errors
    /// The reason if it is not; [`Void::Chain`] for a header of another store or shard.
    pub fn decode(
        bytes: &[u8],
        lineage: &Lineage,
        slot_units: u64,
    ) -> Result<CheckpointHeader, Void> {
        if bytes.len() != CHECKPOINT_HEADER_BYTES {
            return Err(Void::Damaged);
        }
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(Void::Blank);
        }
        if bytes[CRC_AT..] != checksum::of(&bytes[..CRC_AT]).to_le_bytes() {
            return Err(Void::Damaged);
        }
        let header = CheckpointHeader::parse(&mut Reader(&bytes[MAGIC.len()..]));
        header.ok_or(Void::Damaged)?.check(lineage, slot_units)
    }

    fn parse(reader: &mut Reader<'_>) -> Option<CheckpointHeader> {
        let store = reader.array()?;
        let (epoch, shard) = (reader.u64()?, u16::try_from(reader.u64()?).ok()?);
        Some(CheckpointHeader {
            lineage: Lineage { store, epoch, shard },
            session: reader.u64()?,
            number: reader.u64()?,
            begin: Mark { sequence: reader.u64()?, chain: reader.u64()? },
            end: Mark { sequence: reader.u64()?, chain: reader.u64()? },
            records: reader.u64()?,
            blocks: reader.u64()?,
            seal: reader.u64()?,
        })
    }

    fn check(self, lineage: &Lineage, slot_units: u64) -> Result<CheckpointHeader, Void> {
        if (self.lineage.store, self.lineage.shard) != (lineage.store, lineage.shard) {
            return Err(Void::Chain);
        }
        if self.lineage.epoch != lineage.epoch {
            return Err(Void::Epoch);
        }
        let fits = self.blocks <= slot_units.saturating_sub(1) / BODY_BLOCK_UNITS;
        let in_order = self.begin.sequence >= 1 && self.begin.sequence <= self.end.sequence;
        // Leave room for later checkpoint numbers, and for the sequences of any journal.
        let counts = self.number < u64::MAX / 2 && self.end.sequence < u64::MAX / 2;
        let is_possible = fits && in_order && counts;
        debug_assert!(
            !is_possible || self.blocks <= slot_units,
            "the body is shorter than its slot"
        );
        if is_possible { Ok(self) } else { Err(Void::Damaged) }
    }

    /// Returns the chain of the first body block.
    pub fn origin(&self) -> u64 {
        self.lineage.origin(BlockKind::Body, self.number)
    }
}

/// The result of adding a record to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The record was taken.
    Taken,
    /// The block is full. Take it with [`CheckpointWriter::block`], then push the record again.
    BlockFull,
    /// The slot is full. The checkpoint must be abandoned: too many records were added since it began.
    SlotFull,
}

/// A checkpoint being taken, block by block.
#[derive(Debug)]
pub struct CheckpointWriter {
    slot: Range<u64>,
    header: CheckpointHeader,
    block: BlockWriter,
}

impl CheckpointWriter {
    /// Begins checkpoint `number` in the units `slot`. `begin` is the journal's current mark: later records are
    /// replayed over the checkpoint.
    pub fn begin(
        slot: Range<u64>,
        lineage: Lineage,
        session: u64,
        number: u64,
        begin: Mark,
    ) -> CheckpointWriter {
        assert!(slot.start < slot.end, "a slot has a unit for the header");
        let seal = lineage.origin(BlockKind::Body, number);
        let (end, records, blocks) = (begin, 0, 0);
        let header =
            CheckpointHeader { lineage, session, number, begin, end, records, blocks, seal };
        assert_eq!(header.origin(), seal, "a reader looks for the first block's chain");
        CheckpointWriter { slot, header, block: BlockWriter::new(BlockKind::Body) }
    }

    /// Takes a record in its present state.
    pub fn push(&mut self, record: &Record<'_>) -> Pushed {
        if self.end() + BODY_BLOCK_UNITS > self.slot.end {
            return Pushed::SlotFull;
        }
        if !self.block.push(record) {
            assert!(!self.block.is_empty(), "a record fits an empty block");
            return Pushed::BlockFull;
        }
        self.header.records += 1;
        Pushed::Taken
    }

    /// Seals the current block, copies it to `into` and returns the unit to write it to, or `None` if it is empty.
    /// Call this when the block is full, and once after the last record.
    pub fn block(&mut self, into: &mut [u8; BODY_BLOCK_BYTES]) -> Option<u64> {
        if self.block.is_empty() {
            return None;
        }
        let CheckpointHeader { lineage, session, blocks: sequence, seal: chain, .. } = self.header;
        let (epoch, durable_end) = (lineage.epoch, 0);
        self.header.seal = self.block.seal(&Stamp { epoch, session, sequence, chain, durable_end });
        into.copy_from_slice(self.block.bytes());
        self.block.clear();
        self.header.blocks += 1;
        assert!(self.header.blocks <= self.header.records, "each block has a record");
        assert!(self.end() <= self.slot.end, "the block lies in the slot");
        Some(self.slot.start + 1 + sequence * BODY_BLOCK_UNITS)
    }

    /// Returns the first unit after the header and the blocks.
    fn end(&self) -> u64 {
        self.slot.start + 1 + self.header.blocks * BODY_BLOCK_UNITS
    }

    /// Completes the checkpoint. `end` is the journal's mark after the last record was taken and the open block was
    /// sealed. Returns the unit to write `into` to; write it only after a flush has covered the body and the journal
    /// up to `end`. The checkpoint is complete once its header is flushed.
    ///
    /// # Panics
    /// If a block with records was not taken, or `end` lies before the begin.
    pub fn finish(mut self, end: Mark, into: &mut [u8; CHECKPOINT_HEADER_BYTES]) -> u64 {
        assert!(self.block.is_empty(), "all blocks were taken");
        assert!(end.sequence >= self.header.begin.sequence, "it ends after it began");
        assert!(self.header.blocks <= self.header.records, "each block has a record");
        assert_eq!(self.header.records == 0, self.header.blocks == 0, "each record is in a block");
        assert!(self.end() <= self.slot.end, "the body lies in the slot");
        self.header.end = end;
        self.header.encode(into);
        self.slot.start
    }

    /// Returns where replay begins.
    pub fn begin_mark(&self) -> Mark {
        self.header.begin
    }
}

/// Reads a body. Checks each block against the previous one and, at the end, against the header.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointReader {
    header: CheckpointHeader,
    blocks: u64,
    records: u64,
    chain: u64,
}

impl CheckpointReader {
    /// Creates a reader of this header's body.
    pub fn new(header: CheckpointHeader) -> CheckpointReader {
        CheckpointReader { header, blocks: 0, records: 0, chain: header.origin() }
    }

    /// Returns the records of the next block. The caller reports how many it read with [`CheckpointReader::counted`].
    ///
    /// # Errors
    /// [`Void`] if these bytes are not the next block.
    pub fn block<'a>(&mut self, bytes: &'a [u8]) -> Result<Records<'a>, Void> {
        let block = BlockReader::open(BlockKind::Body, bytes)?;
        block.check(self.header.lineage.epoch, self.blocks, self.chain)?;
        self.chain = block.seal;
        self.blocks += 1;
        Ok(block.records())
    }

    /// Counts `records` as read.
    pub fn counted(&mut self, records: u64) {
        assert!(self.blocks > 0, "records are counted after their block");
        assert!(records <= BODY_BLOCK_BYTES as u64, "a record has a byte");
        self.records += records;
    }

    /// Checks that the whole body was read and matches the header.
    ///
    /// # Errors
    /// [`Void::Damaged`] if it does not match.
    pub fn finish(&self) -> Result<(), Void> {
        let read = (self.blocks, self.records, self.chain);
        let wanted = (self.header.blocks, self.header.records, self.header.seal);
        if read == wanted { Ok(()) } else { Err(Void::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::media::record::tests::{Owned, records};

    const LINEAGE: Lineage = Lineage { store: [9; 16], epoch: 4, shard: 3 };
    const BEGIN: Mark = Mark { sequence: 10, chain: 1 };
    const END: Mark = Mark { sequence: 12, chain: 2 };

    /// Writes a checkpoint and returns its header and body.
    fn taken(records: &[Owned], slot_units: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut writer = CheckpointWriter::begin(50..50 + slot_units, LINEAGE, 6, 8, BEGIN);
        let (mut body, mut block) = (Vec::new(), Box::new([0; BODY_BLOCK_BYTES]));
        for owned in records {
            loop {
                match writer.push(&owned.record()) {
                    Pushed::Taken => break,
                    Pushed::BlockFull => {
                        assert_eq!(writer.block(&mut block), Some(51 + body.len() as u64 / 4096));
                        body.extend_from_slice(&*block);
                    }
                    Pushed::SlotFull => return None,
                }
            }
        }
        if writer.block(&mut block).is_some() {
            body.extend_from_slice(&*block);
        }
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        assert_eq!(writer.finish(END, &mut header), 50);
        Some((header.to_vec(), body))
    }

    fn read(header: &[u8], body: &[u8]) -> Result<Vec<Owned>, Void> {
        let header = CheckpointHeader::decode(header, &LINEAGE, 1000)?;
        assert_eq!((header.number, header.begin, header.end), (8, BEGIN, END));
        let mut reader = CheckpointReader::new(header);
        let mut read = Vec::new();
        for block in body.chunks(BODY_BLOCK_BYTES) {
            let before = read.len();
            for record in reader.block(block)? {
                read.push(Owned::of(&record?));
            }
            reader.counted((read.len() - before) as u64);
        }
        reader.finish().map(|()| read)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_checkpoint_gives_back_what_was_taken(records in vec(records(), 0..300)) {
            let (header, body) = taken(&records, 1000).expect("room");
            prop_assert_eq!(body.len() > BODY_BLOCK_BYTES, body.len() / BODY_BLOCK_BYTES > 1);
            let read: Vec<_> = read(&header, &body).expect("whole");
            let given: Vec<_> = records.iter().map(Owned::record).collect();
            prop_assert_eq!(read.iter().map(Owned::record).collect::<Vec<_>>(), given);
        }

        #[test]
        fn a_damaged_exchanged_or_missing_block_is_seen(records in vec(records(), 200..300), at: usize, bit in 0u32..8) {
            let (header, body) = taken(&records, 1000).expect("room");
            let mut flipped = body.clone();
            flipped[at % body.len()] ^= 1u8 << bit;
            prop_assert!(read(&header, &flipped).is_err());
            let mut flipped = header.clone();
            flipped[at % header.len()] ^= 1u8 << bit;
            prop_assert!(read(&flipped, &body).is_err());
            let (first, rest) = body.split_at(BODY_BLOCK_BYTES);
            prop_assert!(read(&header, rest).is_err());
            prop_assert_eq!(read(&header, first).is_err(), !rest.is_empty());
            prop_assert!(rest.is_empty() || read(&header, &[rest, first].concat()).is_err());
        }

        #[test]
        fn what_was_accounted_fits(records in vec(records(), 1..300)) {
            let bytes: usize = records.iter().map(|owned| owned.record().encoded_bytes()).sum();
            let units = slot_units(bytes as u64);
            prop_assert!(slot_record_bytes(units) >= bytes as u64);
            prop_assert!(slot_record_bytes(units - BODY_BLOCK_UNITS) < bytes as u64);
            prop_assert!(taken(&records, units).is_some());
        }
    }

    #[test]
    fn a_full_slot_is_said_before_anything_lies_outside_it() {
        let owned = Owned::Layout { id: 1, bytes: vec![0; 64] };
        let fits = (BODY_BLOCK_BYTES - BLOCK_HEADER_BYTES) / 68;
        assert!(taken(&vec![owned.clone(); fits], 1 + BODY_BLOCK_UNITS).is_some());
        assert!(taken(&vec![owned.clone(); fits + 1], 1 + BODY_BLOCK_UNITS).is_none());
        assert!(taken(&vec![owned; fits], BODY_BLOCK_UNITS).is_none(), "no whole block");
    }

    #[test]
    fn headers_of_others_and_impossible_ones_are_void() {
        let (bytes, _) = taken(&[], 1000).expect("room");
        let decode = |bytes: &[u8], lineage| CheckpointHeader::decode(bytes, &lineage, 1000);
        let header = decode(&bytes, LINEAGE).expect("whole");
        assert_eq!(decode(&bytes, Lineage { shard: 1, ..LINEAGE }), Err(Void::Chain));
        assert_eq!(decode(&bytes, Lineage { store: [1; 16], ..LINEAGE }), Err(Void::Chain));
        assert_eq!(decode(&bytes, Lineage { epoch: 5, ..LINEAGE }), Err(Void::Epoch));
        assert_eq!(decode(&[0; 4096], LINEAGE), Err(Void::Blank));
        assert_eq!(decode(&bytes[..100], LINEAGE), Err(Void::Damaged));
        let impossible = [
            CheckpointHeader { blocks: 63, ..header },
            CheckpointHeader { begin: Mark { sequence: 13, chain: 0 }, ..header },
            CheckpointHeader { begin: Mark { sequence: 0, chain: 0 }, ..header },
            CheckpointHeader { number: u64::MAX, ..header },
        ];
        for header in impossible {
            let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
            header.encode(&mut bytes);
            assert_eq!(decode(&bytes, LINEAGE), Err(Void::Damaged), "{header:?}");
        }
    }
}
