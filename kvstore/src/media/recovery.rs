//! Recovery of a shard: the newest whole checkpoint, and the journal over it.
//!
//! 1. Read both headers. Candidates are the whole ones, newer first, then the empty store in which the journal's
//!    first block was written.
//! 2. Load a candidate's body block by block; damage rules it out.
//! 3. Replay the journal from the candidate's begin until a block does not follow the previous one. That is the cut,
//!    where appending continues. Blocks behind the cut are void for ever, whatever is written before them.
//! 4. If the replay passed the checkpoint's end, the state is exactly that after the last block before the cut.
//!    Otherwise try the next candidate. If none is left, take the newest whole one; the result is *inconsistent*:
//!    records of objects may then contradict each other about space.
//!
//! Records are passed on in order, and the last one for a key counts. In between there may be more objects than the
//! shard ever held at one time, and extents may overlap, so compute free space at the end.
//!
//! A power cut may have taken the data of an object and left its record, unless a flush covered both. Each block tells
//! which blocks before it were flushed. Of those that were not, a put that replaces an older object
//! ([`Put::is_provisional`]) counts only if its data is intact; otherwise the older object stays. Damage to such data
//! looks the same. No other data is read.
//!
//! Recovery writes nothing, and trusts nothing that it reads.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::error::Result;
use crate::media::block::{
    BODY_BLOCK_BYTES, BlockKind, BlockReader, JOURNAL_BLOCK_BYTES, Lineage, Records, Void,
};
use crate::media::checkpoint::{
    BODY_BLOCK_UNITS, CHECKPOINT_HEADER_BYTES, CheckpointHeader, CheckpointReader,
};
use crate::media::checksum;
use crate::media::journal::{FIRST_SEQUENCE, Mark};
use crate::media::record::{Put, Record};
use crate::model::layout::Piece;
use crate::model::object::{LayoutId, TenantId};
use crate::model::options::Quota;
use crate::model::place::{Place, UNIT_BYTES, units};

/// Bytes of the journal per read.
const CHUNK_BYTES: usize = 64 << 10;
/// How many blocks behind a cut to inspect, to report its cost.
const BEHIND_BLOCKS: u64 = 64;
/// The number of the first checkpoint.
const FIRST_NUMBER: u64 = 1;
/// Limit of blocks held back until it is known whether a flush covered them. A shard flushes long before.
const UNFLUSHED_BLOCKS_MAX: usize = 8192;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(JOURNAL_BLOCK_BYTES));
const _: () = assert!(BEHIND_BLOCKS > 0, "a later block tells damage from a power cut");

/// The source of the bytes.
///
/// Data that the medium cannot return (an uncorrectable error) is delivered as zeroes: it is void like any other
/// damage. An error means that the device does not answer, and ends the recovery.
pub trait Media {
    /// Reads at `unit`.
    ///
    /// # Errors
    /// If the device does not answer.
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> Result<()>;

    /// Reads `units` in chunks of `chunk_bytes`, the last possibly shorter, and passes each to `each` in order until
    /// that returns false. An implementation may read ahead as far as it likes.
    ///
    /// # Errors
    /// If the device does not answer, or the error of `each`.
    fn read_stream(
        &mut self,
        device: u8,
        units: Range<u64>,
        chunk_bytes: usize,
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut chunk = vec![0; chunk_bytes];
        let chunk_units = chunk_bytes as u64 / UNIT_BYTES;
        assert!(chunk_units > 0, "a chunk has a unit");
        assert_eq!(chunk_units * UNIT_BYTES, chunk_bytes as u64, "a chunk is whole units");
        let mut unit = units.start;
        while unit < units.end {
            let count = chunk_units.min(units.end - unit);
            debug_assert!(unit + count <= units.end, "nothing behind the units is read");
            let bytes = &mut chunk[..(count * UNIT_BYTES) as usize];
            self.read(device, unit, bytes)?;
            if !each(bytes)? {
                break;
            }
            unit += count;
        }
        Ok(())
    }
}

/// Receives the records found.
pub trait Rebuild {
    /// Forgets all records so far: their checkpoint turned out to be damaged.
    fn clear(&mut self);

    /// Adds an object, replacing any other with its key.
    ///
    /// # Errors
    /// An error ends the recovery.
    fn put(&mut self, put: &Put<'_>) -> Result<()>;

    /// Removes the object with this key if it lies at this place.
    ///
    /// # Errors
    /// An error ends the recovery.
    fn delete(&mut self, key: &[u8], place: Place) -> Result<()>;

    /// Adds a tenant, replacing any other with its id.
    ///
    /// # Errors
    /// An error ends the recovery.
    fn tenant(&mut self, id: TenantId, name: &str, quota: Option<Quota>) -> Result<()>;

    /// Adds a layout, replacing any other with its id.
    ///
    /// # Errors
    /// An error ends the recovery.
    fn layout(&mut self, id: LayoutId, bytes: &[u8]) -> Result<()>;

    /// Removes the object with this key, wherever it lies: a record that does not count names it.
    fn drop_superseded(&mut self, key: &[u8]);

    /// Returns the pieces of an object, one for each checksum; `None` if it cannot lie where its record says.
    fn pieces(&self, put: &Put<'_>) -> Option<Vec<Piece>>;
}

/// Reads an object and compares its pieces with their checksums.
///
/// # Errors
/// If the device does not answer.
pub(crate) fn is_intact<M: Media>(media: &mut M, put: &Put<'_>, pieces: &[Piece]) -> Result<bool> {
    let place = put.object.place;
    let mut room = Vec::new();
    for ((offset, bytes), checksum) in pieces.iter().zip(put.checksums.iter()) {
        assert!(*bytes > 0, "a piece has bytes");
        room.resize((units(*bytes) * UNIT_BYTES) as usize, 0);
        assert!(room.len() as u64 >= *bytes, "whole units hold the piece");
        media.read(place.device, place.unit + offset, &mut room)?;
        if checksum::of(&room[..*bytes as usize]) != checksum {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where a shard's metadata lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The device.
    pub device: u8,
    /// The units of the journal's ring.
    pub journal: Range<u64>,
    /// The units of the two checkpoint slots.
    pub slots: [Range<u64>; 2],
}

/// The checkpoint chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its number.
    pub number: u64,
    /// Its slot: 0 or 1.
    pub slot: usize,
    /// Where its replay begins.
    pub begin: Mark,
}

/// The result of a recovery, and where to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Where the journal continues.
    pub next: Mark,
    /// The oldest journal block still needed.
    pub tail: u64,
    /// The checkpoint loaded; `None` if everything comes from the journal.
    pub checkpoint: Option<Chosen>,
    /// The number of the next checkpoint.
    pub next_number: u64,
    /// The slot of the next checkpoint: the other one than that loaded.
    pub next_slot: usize,
    /// Records read from the checkpoint.
    pub checkpoint_records: u64,
    /// Records read from the journal.
    pub journal_records: u64,
    /// Blocks read from the journal.
    pub journal_blocks: u64,
    /// Bytes of metadata read in all.
    pub bytes_read: u64,
    /// Objects of which a power cut took the latest version, so that the one before came back. Take a checkpoint before
    /// the journal continues: its blocks would count the lost version as flushed.
    pub reverted: u64,
    /// What lies at the cut in place of the next block; `None` if the whole ring was replayed. [`Void::Damaged`] is a
    /// torn or damaged block.
    pub cut: Option<Void>,
    /// Blocks lost behind the cut: of the next 64, and those read along with them, the ones that are whole and no
    /// older than the blocks before the cut.
    pub blocks_behind: u64,
    /// Numbers of the checkpoints passed over, with the reason. [`Void::Chain`] means that the journal ends before
    /// the checkpoint's end.
    pub passed_over: Vec<(u64, Void)>,
    /// For each slot, whether its header is damaged.
    pub damaged_headers: [bool; 2],
    /// Whether no checkpoint was consistent (step 4 of the module's documentation). Take a checkpoint at once.
    pub is_inconsistent: bool,
    /// Whether flushed blocks or checkpoints are known to be lost, by damage rather than by a cut. Keys may then have
    /// come back in an older state. A shard that must never return superseded data starts empty from `next`, and
    /// takes a checkpoint of that at once.
    pub is_flushed_lost: bool,
    /// Slots whose header must be zeroed and flushed before the journal continues: a void checkpoint must stay void,
    /// even if the medium only failed to read it today.
    pub void_slots: [bool; 2],
}

/// Finds everything that a shard had and passes it to `rebuild`.
///
/// # Errors
/// Only errors of `media` and `rebuild`; damage is in the result.
pub fn recover<M: Media, R: Rebuild>(
    media: &mut M,
    rebuild: &mut R,
    lineage: &Lineage,
    areas: &Areas,
) -> Result<Recovered> {
    let passed_over = Vec::new();
    let lost = BTreeMap::new();
    let mut search = Search { media, rebuild, lineage, areas, bytes_read: 0, lost, passed_over };
    let headers = search.headers()?;
    let found = search.first_consistent(&candidates(&headers))?;
    let recovered = search.result(&headers, found);
    recovered.assert_sound(areas);
    Ok(recovered)
}

impl Recovered {
    /// Asserts what a journal and checkpoints that go on from here rely on, whatever was read.
    fn assert_sound(&self, areas: &Areas) {
        let blocks = areas.journal.end - areas.journal.start;
        assert!(FIRST_SEQUENCE <= self.tail, "blocks are numbered from 1");
        assert!(self.tail <= self.next.sequence, "what is needed was read");
        assert!(self.next.sequence - self.tail <= blocks, "what is needed is in the ring");
        assert!(self.journal_blocks <= blocks, "the ring is read once");
        assert!(self.blocks_behind <= blocks, "what lies behind the cut is in the ring");
        assert!(self.next_number >= FIRST_NUMBER, "checkpoints are numbered from 1");
        if let Some(Chosen { number, slot, begin }) = self.checkpoint {
            assert!(number < self.next_number, "numbers of checkpoints only grow");
            assert!(slot == 1 - self.next_slot, "the next checkpoint spares the one loaded");
            assert!(!self.void_slots[slot], "the checkpoint that was loaded stays");
            assert!(begin.sequence <= self.next.sequence, "the journal goes on behind the replay");
        }
    }
}

type Headers = [Result<CheckpointHeader, Void>; 2];

type Candidate = (usize, CheckpointHeader);

/// The checkpoint loaded, if any, and the journal's replay.
struct Found {
    checkpoint: Option<Candidate>,
    checkpoint_records: u64,
    replay: Replay,
    is_inconsistent: bool,
}

struct Search<'a, M, R> {
    media: &'a mut M,
    rebuild: &'a mut R,
    lineage: &'a Lineage,
    areas: &'a Areas,
    bytes_read: u64,
    /// The place of each put that does not count, by its key.
    lost: BTreeMap<Box<[u8]>, Place>,
    passed_over: Vec<(u64, Void)>,
}

impl<M: Media, R: Rebuild> Search<'_, M, R> {
    fn headers(&mut self) -> Result<Headers> {
        Ok([self.header(0)?, self.header(1)?])
    }

    fn header(&mut self, slot: usize) -> Result<Result<CheckpointHeader, Void>> {
        let units = &self.areas.slots[slot];
        assert!(units.start < units.end, "a slot has a unit for the header");
        let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
        self.media.read(self.areas.device, units.start, &mut bytes)?;
        self.bytes_read += bytes.len() as u64;
        Ok(CheckpointHeader::decode(&bytes, self.lineage, units.end - units.start))
    }

    /// Tries the candidates in order, as the module's documentation says.
    fn first_consistent(&mut self, candidates: &[Candidate]) -> Result<Found> {
        let mut inconsistent = None;
        assert!(candidates.len() <= self.areas.slots.len(), "a slot has one header");
        for candidate in candidates {
            match self.attempt(candidate)? {
                Ok(found) if !found.is_inconsistent => return Ok(found),
                Ok(_) => inconsistent = inconsistent.or(Some(candidate)),
                Err(_) => (),
            }
        }
        let empty = self.empty()?;
        match inconsistent {
            // It was whole a moment ago. If it is damaged now, only the empty store remains.
            Some(candidate) if empty.replay.blocks == 0 => match self.attempt(candidate)? {
                Ok(found) => Ok(found),
                Err(_) => self.empty(),
            },
            _ => Ok(empty),
        }
    }

    /// Loads a checkpoint and replays the journal over it. The outer error is a device's, the inner one damage.
    fn attempt(&mut self, (slot, header): &Candidate) -> Result<Result<Found, Void>> {
        assert_eq!(header.lineage, *self.lineage, "a candidate is of the shard's lineage");
        self.rebuild.clear();
        let found = match self.load(*slot, header)? {
            Ok(checkpoint_records) => {
                let replay = self.replay(header.begin, header.end)?;
                let is_inconsistent = !replay.has_reached_end;
                let checkpoint = Some((*slot, *header));
                Ok(Found { checkpoint, checkpoint_records, replay, is_inconsistent })
            }
            Err(void) => Err(void),
        };
        let void = found
            .as_ref()
            .map_or_else(|void| Some(*void), |found| found.is_inconsistent.then_some(Void::Chain));
        self.passed_over.extend(void.map(|void| (header.number, void)));
        assert!(self.passed_over.len() <= 3, "two candidates are tried, and one of them again");
        Ok(found)
    }

    /// Replays the journal from its first block over an empty store.
    fn empty(&mut self) -> Result<Found> {
        self.rebuild.clear();
        let start = Mark::start(self.lineage);
        let replay = self.replay(start, start)?;
        assert!(replay.has_reached_end, "a replay that starts at its end has reached it");
        Ok(Found { checkpoint: None, checkpoint_records: 0, replay, is_inconsistent: false })
    }

    /// Passes on the body of a checkpoint and returns its number of records. The inner error is damage.
    fn load(&mut self, slot: usize, header: &CheckpointHeader) -> Result<Result<u64, Void>> {
        let mut body = CheckpointReader::new(*header);
        let first = self.areas.slots[slot].start + 1;
        let units = first..first + header.blocks * BODY_BLOCK_UNITS;
        assert!(units.end <= self.areas.slots[slot].end, "a header is void unless its body fits");
        let (rebuild, bytes_read) = (&mut *self.rebuild, &mut self.bytes_read);
        let mut damage = None;
        self.media.read_stream(self.areas.device, units, BODY_BLOCK_BYTES, &mut |chunk| {
            *bytes_read += chunk.len() as u64;
            damage = load_block(&mut body, chunk, rebuild)?.err();
            Ok(damage.is_none())
        })?;
        Ok(damage.map_or_else(|| body.finish().map(|()| header.records), Err))
    }

    /// Passes on the records of the journal from `begin`.
    fn replay(&mut self, begin: Mark, end: Mark) -> Result<Replay> {
        let ring = &self.areas.journal;
        let at = ring.start + begin.sequence % (ring.end - ring.start);
        assert!(ring.contains(&at), "a block lies in the ring");
        assert!(begin.sequence <= end.sequence, "a header is void unless it ends after it begins");
        let mut replay = Replay::new(self.lineage.epoch, begin, end);
        for units in [at..ring.end, ring.start..at] {
            let (rebuild, bytes_read) = (&mut *self.rebuild, &mut self.bytes_read);
            self.media.read_stream(self.areas.device, units, CHUNK_BYTES, &mut |chunk| {
                *bytes_read += chunk.len() as u64;
                replay.chunk(chunk, rebuild)
            })?;
            if replay.is_over() {
                break;
            }
        }
        self.hand_over_unflushed(&mut replay)?;
        assert!(replay.blocks <= ring.end - ring.start, "the ring is read once");
        assert_eq!(
            replay.next.sequence - begin.sequence,
            replay.blocks,
            "no block is left out of a replay"
        );
        Ok(replay)
    }

    /// Passes on the records of the blocks that no flush is known to have covered.
    fn hand_over_unflushed(&mut self, replay: &mut Replay) -> Result<()> {
        self.lost.clear();
        assert!(replay.unflushed.len() <= UNFLUSHED_BLOCKS_MAX, "more were passed on before");
        assert!(replay.unflushed.len() as u64 <= replay.blocks, "only blocks read are held back");
        for bytes in std::mem::take(&mut replay.unflushed) {
            for record in Records::of(&bytes) {
                replay.records += 1;
                match record.expect("each was checked") {
                    Record::Put(put) if self.is_lost(&put)? => {
                        self.lost.insert(put.key.into(), put.object.place);
                    }
                    Record::Delete { key, place } if self.lost.get(key) == Some(&place) => {
                        self.lost.remove(key);
                        self.rebuild.drop_superseded(key);
                    }
                    record => {
                        if let Record::Put(put) = &record {
                            self.lost.remove(put.key);
                        }
                        hand_over(&record, self.rebuild)?;
                    }
                }
            }
        }
        assert!(replay.unflushed.is_empty(), "all were passed on");
        Ok(())
    }

    /// Returns whether a put replaces an older object and its own data is not there.
    fn is_lost(&mut self, put: &Put<'_>) -> Result<bool> {
        if !put.is_provisional {
            return Ok(false);
        }
        let Some(pieces) = self.rebuild.pieces(put) else { return Ok(false) };
        assert!(!pieces.is_empty(), "an object has a piece");
        Ok(!is_intact(self.media, put, &pieces)?)
    }

    fn result(self, headers: &Headers, found: Found) -> Recovered {
        let numbers = headers.iter().flatten().map(|header| header.number);
        let damaged_headers = [0, 1].map(|slot| headers[slot] == Err(Void::Damaged));
        let Found { checkpoint, checkpoint_records, replay, is_inconsistent } = found;
        assert!(checkpoint.is_some() || !is_inconsistent, "an empty store is consistent");
        let is_gone = checkpoint.is_none() && replay.lacks_its_start();
        let mut whole = headers.iter().flatten();
        let is_short =
            is_inconsistent || whole.any(|header| header.end.sequence > replay.next.sequence);
        Recovered {
            next: replay.next,
            tail: self.tail(headers, checkpoint.as_ref(), replay.next.sequence),
            checkpoint: checkpoint.map(|(slot, header)| Chosen {
                number: header.number,
                slot,
                begin: header.begin,
            }),
            next_number: numbers.max().map_or(FIRST_NUMBER, |number| number + 1),
            next_slot: 1 - checkpoint.map_or(1, |(slot, _)| slot),
            checkpoint_records,
            journal_records: replay.records,
            journal_blocks: replay.blocks,
            bytes_read: self.bytes_read,
            reverted: self.lost.len() as u64,
            cut: replay.cut,
            blocks_behind: replay.blocks_behind,
            damaged_headers,
            is_inconsistent,
            is_flushed_lost: replay.is_flushed_lost || is_gone || is_short,
            void_slots: [0, 1].map(|slot| {
                checkpoint.is_none_or(|(chosen, _)| chosen != slot) && !self.is_kept(&headers[slot])
            }),
            passed_over: self.passed_over,
        }
    }

    /// Returns whether a header is whole and was not passed over, as that of the older checkpoint.
    fn is_kept(&self, header: &Result<CheckpointHeader, Void>) -> bool {
        let number = header.as_ref().ok().map(|header| header.number);
        number.is_some_and(|number| self.passed_over.iter().all(|(passed, _)| *passed != number))
    }

    /// Returns the oldest journal block needed by any checkpoint that may still be loaded.
    fn tail(&self, headers: &Headers, chosen: Option<&Candidate>, next: u64) -> u64 {
        let Some((slot, header)) = chosen else { return FIRST_SEQUENCE };
        assert!(header.begin.sequence <= next, "the replay began at the checkpoint's begin");
        let blocks = self.areas.journal.end - self.areas.journal.start;
        let older = match &headers[1 - slot] {
            // A header with a lower number may still lie about where it begins.
            Ok(other) if other.number < header.number => {
                other.begin.sequence.min(header.begin.sequence)
            }
            Ok(_) => header.begin.sequence,
            Err(_) => FIRST_SEQUENCE,
        };
        let is_in_ring = older <= next && next - older <= blocks;
        let tail = if is_in_ring { older } else { header.begin.sequence };
        assert!(next - tail <= blocks, "what is needed is in the ring");
        assert!(tail <= header.begin.sequence, "the loaded checkpoint's blocks are kept");
        tail
    }
}

/// Returns the whole headers, newest first.
fn candidates(headers: &Headers) -> Vec<Candidate> {
    let whole = headers.iter().enumerate();
    let mut whole: Vec<_> =
        whole.filter_map(|(slot, header)| Some((slot, (*header).ok()?))).collect();
    whole.sort_by_key(|(_, header)| std::cmp::Reverse(header.number));
    assert!(whole.len() <= headers.len(), "a slot has one header");
    whole
}

fn load_block<R: Rebuild>(
    body: &mut CheckpointReader,
    bytes: &[u8],
    rebuild: &mut R,
) -> Result<Result<(), Void>> {
    let records = match body.block(bytes) {
        Ok(records) => records,
        Err(void) => return Ok(Err(void)),
    };
    let mut count = 0;
    for record in records {
        match record {
            Ok(record) => hand_over(&record, rebuild)?,
            Err(malformed) => return Ok(Err(malformed.into())),
        }
        count += 1;
    }
    debug_assert!(count <= bytes.len() as u64, "a record has a byte");
    body.counted(count);
    Ok(Ok(()))
}

/// Passes on the records in the bytes of a block, which were checked. Returns their number.
fn hand_over_all<R: Rebuild>(bytes: &[u8], rebuild: &mut R) -> Result<u64> {
    let mut count = 0;
    for record in Records::of(bytes) {
        hand_over(&record.expect("each was checked"), rebuild)?;
        count += 1;
    }
    debug_assert!(count <= bytes.len() as u64, "a record has a byte");
    Ok(count)
}

#[inline(always)]
fn hand_over<R: Rebuild>(record: &Record<'_>, rebuild: &mut R) -> Result<()> {
    match record {
        Record::Put(put) => rebuild.put(put),
        Record::Delete { key, place } => rebuild.delete(key, *place),
        Record::Tenant { id, name, quota } => rebuild.tenant(*id, name, *quota),
        Record::Layout { id, bytes } => rebuild.layout(*id, bytes),
    }
}

/// The state of reading the journal.
struct Replay {
    epoch: u64,
    next: Mark,
    end: Mark,
    session: u64,
    has_reached_end: bool,
    records: u64,
    blocks: u64,
    cut: Option<Void>,
    looked_behind: u64,
    blocks_behind: u64,
    is_flushed_lost: bool,
    /// Blocks below this one were flushed.
    flushed_end: u64,
    /// The records of the last blocks, of which that is not known. They are passed on when it is, or at the end.
    unflushed: VecDeque<Vec<u8>>,
}

impl Replay {
    fn new(epoch: u64, begin: Mark, end: Mark) -> Replay {
        assert!(begin.sequence >= FIRST_SEQUENCE, "blocks are numbered from 1");
        Replay {
            epoch,
            next: begin,
            end,
            session: 0,
            has_reached_end: begin == end,
            records: 0,
            blocks: 0,
            cut: None,
            looked_behind: 0,
            blocks_behind: 0,
            is_flushed_lost: false,
            // A checkpoint is written when its journal is flushed.
            flushed_end: end.sequence,
            unflushed: VecDeque::new(),
        }
    }

    /// Returns whether reading is finished.
    fn is_over(&self) -> bool {
        assert!(self.looked_behind == 0 || self.cut.is_some(), "only a cut has blocks behind it");
        self.looked_behind > BEHIND_BLOCKS
    }

    /// Processes a chunk of the ring. Returns false when no more is needed.
    fn chunk<R: Rebuild>(&mut self, chunk: &[u8], rebuild: &mut R) -> Result<bool> {
        assert!(chunk.len().is_multiple_of(JOURNAL_BLOCK_BYTES), "a chunk is whole blocks");
        for bytes in chunk.chunks(JOURNAL_BLOCK_BYTES) {
            if self.cut.is_none() {
                match self.next_block(bytes) {
                    Ok(block) => self.take(&block, rebuild)?,
                    Err(void) => self.cut = Some(void),
                }
            }
            if self.cut.is_some() {
                self.look_behind(bytes);
            }
        }
        Ok(!self.is_over())
    }

    /// Returns the block if it is the next one and all its records are valid: a block is never replayed in part.
    fn next_block<'a>(&self, bytes: &'a [u8]) -> Result<BlockReader<'a>, Void> {
        assert!(self.cut.is_none(), "what lies behind a cut is void");
        let block = BlockReader::open(BlockKind::Journal, bytes)?;
        block.check(self.epoch, self.next.sequence, self.next.chain)?;
        block.records().try_for_each(|record| record.map(|_| ()))?;
        Ok(block)
    }

    fn take<R: Rebuild>(&mut self, block: &BlockReader<'_>, rebuild: &mut R) -> Result<()> {
        assert_eq!(block.stamp.sequence, self.next.sequence, "blocks are replayed in order");
        assert_eq!(block.stamp.chain, self.next.chain, "blocks of one history are replayed");
        self.blocks += 1;
        self.session = block.stamp.session;
        self.next = Mark { sequence: self.next.sequence + 1, chain: block.seal };
        self.has_reached_end |= self.next == self.end;
        self.flushed_end = self.flushed_end.max(block.stamp.durable_end);
        self.hold_back(block.record_bytes(), rebuild)?;
        assert!(self.unflushed.len() <= UNFLUSHED_BLOCKS_MAX, "what is held back has a limit");
        assert!(self.unflushed.len() as u64 <= self.blocks, "only blocks read are held back");
        Ok(())
    }

    /// Holds back the records of a block, and passes on those of the blocks before it that were flushed.
    fn hold_back<R: Rebuild>(&mut self, records: &[u8], rebuild: &mut R) -> Result<()> {
        let mut room = Vec::new();
        assert!(self.next.sequence > self.unflushed.len() as u64, "blocks are numbered from 1");
        loop {
            let oldest = self.next.sequence - 1 - self.unflushed.len() as u64;
            let is_full = self.unflushed.len() == UNFLUSHED_BLOCKS_MAX;
            if oldest >= self.flushed_end && !is_full {
                break;
            }
            let Some(flushed) = self.unflushed.pop_front() else {
                self.records += hand_over_all(records, rebuild)?;
                return Ok(());
            };
            self.records += hand_over_all(&flushed, rebuild)?;
            room = flushed;
        }
        room.clear();
        room.extend_from_slice(records);
        self.unflushed.push_back(room);
        Ok(())
    }

    /// Returns whether a block of a later lap lies where the journal's first was, which means that there once were
    /// checkpoints.
    fn lacks_its_start(&self) -> bool {
        self.blocks == 0 && matches!(self.cut, Some(Void::Sequence(_)))
    }

    /// Counts lost blocks behind the cut. The first call is for the cut itself.
    fn look_behind(&mut self, bytes: &[u8]) {
        let sequence = self.next.sequence + self.looked_behind;
        assert!(self.cut.is_some(), "only a cut has blocks behind it");
        let block = BlockReader::open(BlockKind::Journal, bytes).ok();
        let lost = block.map(|block| block.stamp).filter(|stamp| {
            (stamp.epoch, stamp.sequence) == (self.epoch, sequence)
                && stamp.session >= self.session
                && self.looked_behind > 0
        });
        self.blocks_behind += u64::from(lost.is_some());
        self.is_flushed_lost |= lost.is_some_and(|stamp| stamp.durable_end > self.next.sequence);
        self.looked_behind += 1;
        assert!(self.blocks_behind < self.looked_behind, "the cut itself is not behind it");
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod reverting;
#[cfg(test)]
mod tests;
