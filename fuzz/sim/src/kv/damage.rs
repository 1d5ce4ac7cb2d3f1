//! Clean stops, and damage to journals after them. A flipped bit in a flushed block costs only objects that were put
//! before it: what later blocks name is exact. The others are as they were, or missing; where openings keep what is
//! outdated, they are exact as well, but for those that the block names, which may have any version.

use std::collections::BTreeSet;

use adit_kvstore::internals::block::{BlockKind, BlockReader, JOURNAL_BLOCK_BYTES};
use adit_kvstore::internals::format;
use adit_kvstore::internals::record::Record;
use adit_kvstore::internals::recovery::Areas;
use adit_kvstore::shard::{Recovery, Shard};
use adit_kvstore::{Durability, Key, UNIT_BYTES};

use super::counts::Sum;
use super::machine::lock;
use super::world::StoreWorld;
use crate::world::violated;

/// A flushed block of a journal: its unit, and the keys that it names.
struct Flushed {
    unit: u64,
    keys: Vec<usize>,
}

impl StoreWorld {
    /// Ends the shards, and records on the media that the store has stopped. Returns below which sequence each journal was flushed, unless the
    /// store has none or the power is off.
    pub(crate) fn record_stop(&mut self) -> Option<Vec<u64>> {
        let ends = self.shards.iter().map(Shard::flushed_end).collect::<Option<Vec<u64>>>()?;
        let set = self.set.clone().filter(|_| !ends.is_empty())?;
        self.count_shards();
        self.end_shards();
        let (mut lanes, durability) = (self.lanes(), self.durability);
        let recorded = self.while_time_passes(|_, clock| {
            format::end_session(&mut lanes, &set, durability, &ends, clock)
        });
        self.give_lanes(lanes);
        self.excuse_if_struck();
        let is_off = lock(&self.machine).is_off();
        if let (Err(error), false, false) = (&recorded, is_off, self.model.is_excused()) {
            violated(2, format_args!("a stop cannot be recorded on healthy devices: {error}"));
        }
        recorded.ok().filter(|()| !is_off).map(|()| ends)
    }

    /// Flips a bit of one flushed block, often one of the last, of one journal, while the devices are at rest.
    pub(crate) fn damage_journal(&mut self, ends: &[u64]) {
        let shard = self.random.index(ends.len());
        let Some(set) = self.set.clone() else { return };
        let areas = set.geometry().areas(shard as u16);
        let blocks = self.flushed_blocks(&areas, ends[shard]);
        if blocks.is_empty() || self.durability == Durability::Volatile {
            return;
        }
        let last = blocks.len() - 1;
        let at = if self.random.one_in(3) { last } else { self.random.index(blocks.len()) };
        let Flushed { unit, keys } = &blocks[at];
        let later: BTreeSet<usize> =
            blocks[at + 1..].iter().flat_map(|block| &block.keys).copied().collect();
        let bit = self.random.index(JOURNAL_BLOCK_BYTES * 8);
        {
            let media = &mut lock(&self.machine).media[usize::from(areas.device)];
            let (lba_bytes, at) = (media.lba_bytes(), bit / 8);
            let lbas = UNIT_BYTES / lba_bytes as u64;
            media.flip(unit * lbas + (at / lba_bytes) as u64, bit % (8 * lba_bytes));
        }
        self.damaged_blocks += 1;
        self.counts.count(Sum::Damaged, 1);
        self.note(&[48, *unit], format_args!("bit {bit} of unit {unit} flips: {keys:?}"));
        if self.shape.keep_outdated {
            return keys.iter().for_each(|key| self.model.damaged(*key));
        }
        let of_shard = |key: &usize| usize::from(self.model.shard(*key)) == shard;
        let keys: Vec<usize> = (0..self.model.len()).filter(of_shard).collect();
        let earlier = keys.into_iter().filter(|key| !later.contains(key));
        earlier.for_each(|key| self.model.outdated(key));
    }

    /// Returns the blocks of a journal below `end` that define nothing: what names a lost tenant or layout is lost, too.
    fn flushed_blocks(&self, areas: &Areas, end: u64) -> Vec<Flushed> {
        let mut blocks = Vec::new();
        for unit in areas.journal.clone() {
            let bytes = {
                let media = &lock(&self.machine).media[usize::from(areas.device)];
                media.read(unit * UNIT_BYTES / media.lba_bytes() as u64, JOURNAL_BLOCK_BYTES)
            };
            let Ok(block) = BlockReader::open(BlockKind::Journal, &bytes) else { continue };
            let key = |record: Record<'_>| match record {
                Record::Put(put) => Some(put.key.to_vec()),
                Record::Delete { key, .. } => Some(key.to_vec()),
                Record::Tenant { .. } | Record::Layout { .. } => None,
            };
            let keys = block.records().map(|record| key(record.expect("it was written so")));
            let Some(keys) = keys.collect::<Option<Vec<_>>>() else { continue };
            let find = |key: &Vec<u8>| self.model.find(&Key::new(key).expect("a key of the run's"));
            let keys = keys.iter().map(|key| find(key).expect("a key of the run's")).collect();
            blocks.push((block.stamp.sequence, Flushed { unit, keys }));
        }
        blocks.retain(|(sequence, _)| *sequence < end);
        blocks.sort_by_key(|(sequence, _)| *sequence);
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// Checks that an opening reports no more lost blocks than were damaged.
    pub(crate) fn check_losses(&mut self, recovery: &Recovery) {
        let Some(recovered) = &recovery.recovered else { return };
        self.counts.count(Sum::LostBlocks, recovered.lost_blocks);
        self.excuse_if_struck();
        let is_sound = recovered.lost_blocks <= self.damaged_blocks && !recovered.is_inconsistent;
        if !is_sound && !self.model.is_excused() {
            violated(2, format_args!("{} damaged blocks, and {recovered:?}", self.damaged_blocks));
        }
    }
}
