//! Replays a journal: finds the next blocks, the lost ones, and the cut.
//!
//! A block is the next one if its chain is the seal of the block before. Behind a lost block, a block is recognized by
//! its sequence, epoch and session if it was flushed, or states that all before it were: the journal never rewrites
//! flushed blocks. A journal that ends with a lost block continues with the seal of the last whole block as the chain,
//! so that the next replay is the same.

use std::collections::VecDeque;
use std::ops::Range;

use super::Rebuild;
use crate::error::Result;
use crate::media::block::{BlockKind, BlockReader, JOURNAL_BLOCK_BYTES, Records, Void};
use crate::media::journal::{FIRST_SEQUENCE, Mark};
use crate::media::record::Record;

/// Consecutive unrelated blocks that end the search behind a cut.
const BEHIND_BLOCKS: u64 = 64;
/// Limit of blocks held back until they are known to be flushed. A shard flushes long before.
pub(super) const UNFLUSHED_BLOCKS_MAX: usize = 8192;

const _: () = assert!(BEHIND_BLOCKS > 0, "a later block tells damage from a power cut");

/// Passes on the checked records in the bytes of a block. Returns their number.
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
pub(super) fn hand_over<R: Rebuild>(record: &Record<'_>, rebuild: &mut R) -> Result<()> {
    match record {
        Record::Put(put) => rebuild.put(put),
        Record::Delete { key, place } => rebuild.delete(key, *place),
        Record::Tenant { id, name, quota } => rebuild.tenant(*id, name, *quota),
        Record::Layout { id, bytes } => rebuild.layout(*id, bytes),
    }
}

/// The state of reading the journal.
pub(super) struct Replay {
    epoch: u64,
    pub(super) next: Mark,
    end: Mark,
    /// The blocks of the ring; `ring_end` is the block behind the last readable one.
    ring_blocks: u64,
    pub(super) ring_end: u64,
    /// The latest session known to have written to the journal before the next block.
    pub(super) session: u64,
    pub(super) has_reached_end: bool,
    /// Whether the next block must match the chain, that is, does not follow a lost one.
    is_chained: bool,
    pub(super) records: u64,
    pub(super) blocks: u64,
    pub(super) lost_blocks: u64,
    pub(super) cut: Option<Void>,
    behind: Behind,
    pub(super) blocks_behind: u64,
    /// Blocks below this one were flushed.
    pub(super) flushed_end: u64,
    /// The records of the last blocks, not known to be flushed. They are passed on once they are, or at the end.
    pub(super) unflushed: VecDeque<Vec<u8>>,
}

/// A search behind a cut.
#[derive(Default)]
struct Behind {
    /// Examined blocks, the cut included.
    looked: u64,
    /// Examined blocks up to the last that continues the journal.
    whole: u64,
    /// The seal of the previous block, if that continues the journal.
    seal: Option<u64>,
    session: u64,
}

impl Replay {
    pub(super) fn new(
        epoch: u64,
        session: u64,
        marks: Range<Mark>,
        flushed_end: u64,
        ring_blocks: u64,
    ) -> Replay {
        let Range { start: begin, end } = marks;
        assert!(begin.sequence >= FIRST_SEQUENCE, "blocks are numbered from 1");
        Replay {
            epoch,
            next: begin,
            end,
            ring_blocks,
            ring_end: begin.sequence + ring_blocks,
            session,
            has_reached_end: begin == end,
            is_chained: true,
            records: 0,
            blocks: 0,
            lost_blocks: 0,
            cut: None,
            behind: Behind::default(),
            blocks_behind: 0,
            flushed_end,
            unflushed: VecDeque::new(),
        }
    }

    /// Returns whether reading is finished.
    pub(super) fn is_over(&self) -> bool {
        assert!(self.behind.looked == 0 || self.cut.is_some(), "only a cut has blocks behind it");
        self.behind.looked - self.behind.whole > BEHIND_BLOCKS
    }

    /// Processes a chunk of the ring. Returns false once no more is needed.
    pub(super) fn chunk<R: Rebuild>(&mut self, chunk: &[u8], rebuild: &mut R) -> Result<bool> {
        assert!(chunk.len().is_multiple_of(JOURNAL_BLOCK_BYTES), "a chunk is whole blocks");
        for bytes in chunk.chunks(JOURNAL_BLOCK_BYTES) {
            if self.cut.is_none() {
                match self.next_block(bytes) {
                    Ok(block) => self.take(&block, rebuild)?,
                    Err(void) if self.is_lost(void) => self.lose(rebuild)?,
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
        let is_behind_flushed =
            self.next.sequence < self.flushed_end || durable_end(&block) == self.next.sequence;
        let is_behind_lost =
            !self.is_chained && is_behind_flushed && block.stamp.session >= self.session;
        let chain = if is_behind_lost { block.stamp.chain } else { self.next.chain };
        block.check(self.epoch, self.next.sequence, chain)?;
        block.records().try_for_each(|record| record.map(|_| ()))?;
        Ok(block)
    }

    /// Returns whether the next, unreadable block was flushed, so that the journal continues behind it.
    fn is_lost(&self, void: Void) -> bool {
        assert!(self.next.sequence <= self.ring_end, "the ring is read once");
        let is_flushed = self.next.sequence < self.flushed_end;
        is_flushed && self.flushed_end <= self.ring_end && self.later_lap(void).is_none()
    }

    /// Returns the sequence of a block that overwrote the next one in a later lap of the ring.
    fn later_lap(&self, void: Void) -> Option<u64> {
        let Void::Sequence(found) = void else { return None };
        let is_later = found > self.next.sequence
            && (found - self.next.sequence).is_multiple_of(self.ring_blocks);
        is_later.then_some(found)
    }

    fn take<R: Rebuild>(&mut self, block: &BlockReader<'_>, rebuild: &mut R) -> Result<()> {
        assert_eq!(block.stamp.sequence, self.next.sequence, "blocks are replayed in order");
        let is_next = block.stamp.chain == self.next.chain;
        assert!(is_next || !self.is_chained, "blocks of one history are replayed");
        self.blocks += 1;
        self.session = self.session.max(block.stamp.session);
        self.flushed_end = self.flushed_end.max(durable_end(block));
        self.is_chained = true;
        self.advance(block.seal);
        self.hold_back(block.record_bytes(), rebuild)?;
        assert!(self.unflushed.len() <= UNFLUSHED_BLOCKS_MAX, "what is held back has a limit");
        assert!(self.unflushed.len() as u64 <= self.blocks, "only blocks read are held back");
        Ok(())
    }

    /// Skips the next block, which was flushed and cannot be read.
    fn lose<R: Rebuild>(&mut self, rebuild: &mut R) -> Result<()> {
        assert!(self.next.sequence < self.flushed_end, "only what was flushed is missed");
        for flushed in std::mem::take(&mut self.unflushed) {
            self.records += hand_over_all(&flushed, rebuild)?;
        }
        rebuild.lose_block();
        self.lost_blocks += 1;
        self.is_chained = false;
        // If the journal ends here, the next session continues with this chain, which no old block has here.
        self.advance(self.next.chain);
        Ok(())
    }

    fn advance(&mut self, chain: u64) {
        self.next = Mark { sequence: self.next.sequence + 1, chain };
        if self.next.sequence == self.end.sequence {
            self.has_reached_end = !self.is_chained || self.next == self.end;
        }
        assert!(self.next.sequence <= self.ring_end, "the ring is read once");
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

    /// Examines a block behind the cut: whether it continues the journal, and whether it states that the cut was flushed.
    /// The first call is for the cut itself.
    fn look_behind(&mut self, bytes: &[u8]) {
        let sequence = self.next.sequence + self.behind.looked;
        assert!(self.cut.is_some(), "only a cut has blocks behind it");
        let Behind { looked, whole, seal, session } = &mut self.behind;
        *looked += 1;
        let found = BlockReader::open(BlockKind::Journal, bytes).ok().filter(|block| {
            (block.stamp.epoch, block.stamp.sequence) == (self.epoch, sequence)
                && block.stamp.session >= self.session.max(*session)
                && seal.is_none_or(|seal| block.stamp.chain == seal)
                && *looked > 1
        });
        *seal = found.as_ref().map(|block| block.seal);
        let Some(block) = found else { return };
        (*whole, *session) = (*looked, block.stamp.session);
        self.blocks_behind += 1;
        if durable_end(&block) > self.next.sequence {
            self.flushed_end = self.flushed_end.max(durable_end(&block));
        }
        assert!(self.blocks_behind < self.behind.looked, "the cut itself is not behind it");
    }

    /// Returns whether the cut turned out to be a lost block, and prepares to continue behind it.
    pub(super) fn resumes(&mut self) -> bool {
        let is_lost = self.cut.is_some_and(|void| self.is_lost(void));
        assert!(self.blocks_behind == 0 || self.cut.is_some(), "only a cut has blocks behind it");
        if is_lost {
            (self.cut, self.behind, self.blocks_behind) = (None, Behind::default(), 0);
        }
        is_lost
    }

    /// Returns the number of flushed blocks missing from the state: those lost on the way, and those behind a cut that
    /// is not the journal's end.
    pub(super) fn lost_blocks_in_all(&self) -> u64 {
        self.lost_blocks + self.flushed_end.saturating_sub(self.next.sequence)
    }

    /// Returns the number of overwritten blocks at the journal's beginning; if any, checkpoints must have existed.
    pub(super) fn overwritten_blocks(&self) -> u64 {
        let later = self.cut.filter(|_| self.blocks == 0).and_then(|void| self.later_lap(void));
        later.map_or(0, |found| found - self.ring_blocks)
    }
}

/// Returns the end of the blocks that were flushed when a block was sealed, at most the block itself.
fn durable_end(block: &BlockReader<'_>) -> u64 {
    block.stamp.durable_end.min(block.stamp.sequence)
}
