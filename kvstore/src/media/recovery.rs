//! Recovers a shard: loads the newest whole checkpoint and replays the journal over it.
//!
//! 1. Read both headers. Candidates are the whole ones, newer first, then the empty store in which the journal's
//!    first block was written.
//! 2. Load a candidate's body block by block; damage rules it out.
//! 3. Replay the journal from the candidate's begin up to the first block that neither follows the previous one nor is
//!    known to have been flushed. That is the cut, where appending continues. Blocks behind the cut stay void forever,
//!    whatever is written before them.
//! 4. A flushed block that cannot be read is *lost*, by damage: its records are missing, and the replay continues
//!    behind it ([`Rebuild::lose_block`]). A later block, a checkpoint's end, or the clean stop of the store
//!    ([`Witness`]) tells which blocks were flushed.
//! 5. If the replay passed the checkpoint's end and lost no block, the state is exactly that after the last block
//!    before the cut. If it did not pass the end, try the next candidate. If none is left, take the newest whole one;
//!    the result is *inconsistent*: records of objects may then contradict each other about space. All its objects were
//!    put before missing records.
//!
//! Records are passed on in order, and the last one for a key counts. In between there may be more objects than the
//! shard ever held at one time, and extents may overlap, so compute free space at the end.
//!
//! A power cut may have taken an object's data and left its record, unless a flush covered both. Each block states
//! which blocks before it were flushed. In the others, a put that replaces an older object ([`Put::is_provisional`])
//! counts only if its data is intact; otherwise the older object stays. Damage to such data looks the same. Recovery
//! reads no other data.
//!
//! Recovery writes nothing, and trusts nothing that it reads.

use std::collections::BTreeMap;
use std::ops::Range;

use self::replay::{Replay, UNFLUSHED_BLOCKS_MAX, hand_over};
use crate::error::Result;
use crate::media::block::{BODY_BLOCK_BYTES, JOURNAL_BLOCK_BYTES, Lineage, Records, Void};
use crate::media::checkpoint::{
    BODY_BLOCK_UNITS, CHECKPOINT_HEADER_BYTES, CheckpointHeader, CheckpointReader,
};
use crate::media::checksum;
use crate::media::journal::{FIRST_SEQUENCE, Mark};
use crate::media::record::{Put, Record};
use crate::model::layout::Piece;
use crate::model::object::{LayoutId, TenantId, Version};
use crate::model::options::Quota;
use crate::model::place::{Place, UNIT_BYTES, units};

/// Bytes of the journal per read.
const CHUNK_BYTES: usize = 64 << 10;
/// The number of the first checkpoint.
const FIRST_NUMBER: u64 = 1;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(JOURNAL_BLOCK_BYTES));

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

    /// Announces the approximate number of objects in a checkpoint, which may be wrong.
    fn expect(&mut self, _objects: u64) {}

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

    /// Records that a flushed block cannot be read here. The objects so far are *outdated*: the block may have
    /// superseded them without trace. Later deletes remove their key at any place, unless it was put since; and where
    /// objects overlap, those put since are right.
    fn lose_block(&mut self);

    /// Records that a put of this version is void, because its data are not whole. Once a flush has covered its record,
    /// later openings do not read its data.
    fn pass_over(&mut self, _version: Version) {}

    /// Removes the object with this key at any place: a void record names it.
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
        assert!(*bytes > 0 || pieces.len() == 1, "only an empty object has a piece without bytes");
        room.resize((units(*bytes) * UNIT_BYTES) as usize, 0);
        assert!(room.len() as u64 >= *bytes, "whole units hold the piece");
        if *bytes > 0 {
            media.read(place.device, place.unit + offset, &mut room)?;
        }
        if checksum::of(&room[..*bytes as usize]) != checksum {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The areas of a shard's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The device.
    pub device: u8,
    /// The units of the journal's ring.
    pub journal: Range<u64>,
    /// The units of the two checkpoint slots.
    pub slots: [Range<u64>; 2],
}

/// One shard's part of the record of a clean stop, from the superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The session that stopped.
    pub session: u64,
    /// Blocks of the journal below this one were flushed.
    pub end: u64,
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
    /// The slot of the next checkpoint: the one that was not loaded.
    pub next_slot: usize,
    /// Records read from the checkpoint.
    pub checkpoint_records: u64,
    /// Records read from the journal.
    pub journal_records: u64,
    /// Blocks read from the journal.
    pub journal_blocks: u64,
    /// Bytes of metadata read in all.
    pub bytes_read: u64,
    /// Objects whose latest version a power cut took, so that the previous one returned. Take a checkpoint before the
    /// journal continues: its blocks would count the lost version as flushed.
    pub reverted: u64,
    /// The reason for the cut: why no next block lies there; `None` if the whole ring was replayed. [`Void::Damaged`]
    /// is a torn or damaged block.
    pub cut: Option<Void>,
    /// Whole blocks behind the cut that continue the journal, until 64 others in a row. They were never flushed.
    pub blocks_behind: u64,
    /// Needed flushed blocks that cannot be read: damage, not a cut. Keys that they name may have reverted to an older
    /// state, unless a later block names them.
    pub lost_blocks: u64,
    /// Numbers of the skipped checkpoints, with the reason. [`Void::Chain`] means that the journal ends before the
    /// checkpoint's end.
    pub passed_over: Vec<(u64, Void)>,
    /// For each slot, whether its header is damaged.
    pub damaged_headers: [bool; 2],
    /// Whether no checkpoint was consistent (step 5 of the module's documentation). If so, take a checkpoint at once.
    pub is_inconsistent: bool,
    /// Slots whose header must be zeroed and flushed before the journal continues: a void checkpoint must stay void,
    /// even if the medium only failed to read it today.
    pub void_slots: [bool; 2],
    /// Whether the journal must be zeroed too: nothing was found although checkpoints existed, and remaining blocks
    /// could pass for the continuation of the next ones.
    pub is_journal_void: bool,
}

/// Finds the contents of a shard and passes them to `rebuild`. `witness` is the record of the last clean stop.
///
/// # Errors
/// Only errors of `media` and `rebuild`; damage is in the result.
pub fn recover<M: Media, R: Rebuild>(
    media: &mut M,
    rebuild: &mut R,
    lineage: &Lineage,
    areas: &Areas,
    witness: Option<Witness>,
) -> Result<Recovered> {
    let mut search = Search {
        media,
        rebuild,
        lineage,
        areas,
        witness,
        headed_end: FIRST_SEQUENCE,
        bytes_read: 0,
        lost: BTreeMap::new(),
        passed_over: Vec::new(),
    };
    let headers = search.headers()?;
    let ends = headers.iter().flatten().map(|header| header.end.sequence);
    search.headed_end = ends.max().unwrap_or(FIRST_SEQUENCE);
    let found = search.first_consistent(&candidates(&headers))?;
    if found.lacks_end() {
        search.rebuild.lose_block();
    }
    let recovered = search.result(&headers, found);
    recovered.assert_sound(areas);
    Ok(recovered)
}

impl Recovered {
    /// Returns whether a new block of the journal must state that those before it were flushed ([`Journal::vouch`]),
    /// before the void slots are zeroed: a header among them may be the only sign that a block was lost and the journal
    /// continues.
    ///
    /// [`Journal::vouch`]: crate::media::journal::Journal::vouch
    pub fn needs_voucher(&self) -> bool {
        self.lost_blocks > 0 && !self.is_journal_void
    }

    /// Returns whether damage cost records.
    pub fn is_damaged(&self) -> bool {
        self.lost_blocks > 0 || self.is_inconsistent || self.is_journal_void
    }

    /// Returns whether the shard had records and none of them can be read.
    pub fn is_index_lost(&self) -> bool {
        let is_empty = self.checkpoint.is_none() && self.journal_blocks == 0;
        assert!(!is_empty || self.journal_records == 0, "records are in blocks");
        self.is_journal_void || is_empty && self.lost_blocks > 0
    }

    /// Asserts invariants that the journal and later checkpoints rely on, whatever was read.
    fn assert_sound(&self, areas: &Areas) {
        let blocks = areas.journal.end - areas.journal.start;
        assert!(FIRST_SEQUENCE <= self.tail, "blocks are numbered from 1");
        assert!(self.tail <= self.next.sequence, "what is needed was read");
        assert!(self.next.sequence - self.tail <= blocks, "what is needed is in the ring");
        assert!(self.journal_blocks <= blocks, "the ring is read once");
        assert!(self.blocks_behind <= blocks, "what lies behind the cut is in the ring");
        assert!(self.next_number >= FIRST_NUMBER, "checkpoints are numbered from 1");
        assert!(
            self.reverted <= self.journal_records,
            "what is reverted was read from the journal"
        );
        assert!(
            self.checkpoint.is_some() || self.checkpoint_records == 0,
            "what was read of a void checkpoint does not count"
        );
        let is_void = self.is_journal_void;
        assert!(!is_void || self.journal_records == 0, "only what holds nothing is void");
        assert!(!is_void || self.void_slots == [true; 2], "no checkpoint counts without a journal");
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

impl Found {
    /// Returns whether flushed blocks are missing behind the last block replayed.
    fn lacks_end(&self) -> bool {
        let (passed, all) = (self.replay.lost_blocks, self.replay.lost_blocks_in_all());
        assert!(passed <= all, "what was lost on the way is lost");
        self.is_inconsistent || all > passed
    }
}

struct Search<'a, M, R> {
    media: &'a mut M,
    rebuild: &'a mut R,
    lineage: &'a Lineage,
    areas: &'a Areas,
    witness: Option<Witness>,
    /// The highest end in a whole header: the journal was flushed up to this end.
    headed_end: u64,
    bytes_read: u64,
    /// The place of each void put, by key.
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

    /// Tries the candidates in order (see the module's documentation).
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
            // The checkpoint was whole a moment ago. If it is damaged now, only the empty store remains.
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
                let replay = self.replay(header.begin, header.end, header.session)?;
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
        let replay = self.replay(start, start, 0)?;
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
        rebuild.expect(header.records);
        let mut damage = None;
        self.media.read_stream(self.areas.device, units, BODY_BLOCK_BYTES, &mut |chunk| {
            *bytes_read += chunk.len() as u64;
            damage = load_block(&mut body, chunk, rebuild)?.err();
            Ok(damage.is_none())
        })?;
        Ok(damage.map_or_else(|| body.finish().map(|()| header.records), Err))
    }

    /// Passes on the records of the journal from `begin`, which `session` or a later one wrote.
    fn replay(&mut self, begin: Mark, end: Mark, session: u64) -> Result<Replay> {
        assert!(begin.sequence <= end.sequence, "a header is void unless it ends after it begins");
        let blocks = self.areas.journal.end - self.areas.journal.start;
        let stopped = self.witness.filter(|witness| witness.session >= session);
        let stopped_end = stopped.map_or(FIRST_SEQUENCE, |witness| witness.end);
        // A header is written only after the journal up to its end is flushed.
        let flushed_end = self.headed_end.max(stopped_end);
        assert!(end.sequence <= flushed_end, "what a checkpoint needs was flushed");
        let mut replay = Replay::new(self.lineage.epoch, session, begin..end, flushed_end, blocks);
        self.read_on(&mut replay)?;
        // Blocks behind the cut may show that the journal continues there.
        while replay.resumes() {
            self.read_on(&mut replay)?;
        }
        self.hand_over_unflushed(&mut replay)?;
        assert!(replay.blocks + replay.lost_blocks <= blocks, "the ring is read once");
        assert_eq!(
            replay.next.sequence - begin.sequence,
            replay.blocks + replay.lost_blocks,
            "no block is left out of a replay"
        );
        Ok(replay)
    }

    /// Reads the journal from the replay's next block, at most once around the ring from where the replay began.
    fn read_on(&mut self, replay: &mut Replay) -> Result<()> {
        let ring = &self.areas.journal;
        let at = ring.start + replay.next.sequence % (ring.end - ring.start);
        assert!(ring.contains(&at), "a block lies in the ring");
        let left = replay.ring_end - replay.next.sequence;
        let straight = at..ring.end.min(at + left);
        let around = ring.start..ring.start + left - (straight.end - straight.start);
        assert!(around.end <= at || around.is_empty(), "no block is read twice");
        assert!(straight.end <= ring.end && around.end <= ring.end, "blocks lie in the ring");
        for units in [straight, around] {
            let (rebuild, bytes_read) = (&mut *self.rebuild, &mut self.bytes_read);
            self.media.read_stream(self.areas.device, units, CHUNK_BYTES, &mut |chunk| {
                *bytes_read += chunk.len() as u64;
                replay.chunk(chunk, rebuild)
            })?;
            if replay.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Passes on the records of blocks not known to be flushed.
    fn hand_over_unflushed(&mut self, replay: &mut Replay) -> Result<()> {
        self.lost.clear();
        assert!(replay.unflushed.len() <= UNFLUSHED_BLOCKS_MAX, "more were passed on before");
        assert!(replay.unflushed.len() as u64 <= replay.blocks, "only blocks read are held back");
        for bytes in std::mem::take(&mut replay.unflushed) {
            for record in Records::of(&bytes) {
                replay.records += 1;
                match record.expect("each was checked") {
                    Record::Put(put) if self.is_lost(&put)? => {
                        self.rebuild.pass_over(put.object.version);
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

    /// Returns whether a put replaces an older object and its own data is missing.
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
        let overwritten = if checkpoint.is_none() { replay.overwritten_blocks() } else { 0 };
        let had_checkpoints =
            overwritten > 0 || damaged_headers.contains(&true) || !self.passed_over.is_empty();
        let is_journal_void = checkpoint.is_none() && replay.blocks == 0 && had_checkpoints;
        let next = if is_journal_void { Mark::start(self.lineage) } else { replay.next };
        Recovered {
            next,
            tail: self.tail(headers, checkpoint.as_ref(), next.sequence),
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
            lost_blocks: replay.lost_blocks_in_all().max(overwritten),
            damaged_headers,
            is_inconsistent,
            void_slots: [0, 1].map(|slot| {
                checkpoint.is_none_or(|(chosen, _)| chosen != slot) && !self.is_kept(&headers[slot])
            }),
            is_journal_void,
            passed_over: self.passed_over,
        }
    }

    /// Returns whether a header is whole and was not skipped, like that of the older checkpoint.
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
            // A header with a lower number may still have a wrong begin.
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

mod replay;

#[cfg(test)]
mod model;
#[cfg(test)]
mod reverting;
#[cfg(test)]
mod tests;
