//! The shards' memory tiers: memory that is lent and taken away while they work, and readers that hold what is there.
//!
//! Gets are answered from the tiers and checked as all others are. Here come the rules of their own: no tier has more
//! memory than it was left, and bytes that a reader holds do not change, whatever becomes of their object.

use adit_kvstore::shard::{HotReader, Part, Resident, Stale};
use adit_kvstore::{Key, LayoutId, UNIT_BYTES, Version};

use super::canary::StoreCanary;
use super::counts::Sum;
use super::model::Found;
use super::world::StoreWorld;
use crate::world::violated;

/// Readers at most.
const READERS_MAX: usize = 6;

/// The bytes of an object in memory, as a reader holds them.
#[derive(Debug)]
pub(crate) struct Reader {
    key: usize,
    resident: Resident,
    /// What they were at first.
    copy: Vec<u8>,
}

/// A thread that reads from a shard's tier while the shard takes its turn.
pub(crate) struct Meanwhile {
    reader: HotReader,
    /// Keys to read, by number.
    keys: Vec<(usize, Key)>,
    wall_s: u64,
}

/// What it found: the number of the key, the bytes, their number, and the version.
pub(crate) struct HotRead(usize, Resident, u64, Version);

impl Meanwhile {
    /// Reads the next of its keys, if there is one and it is in memory.
    pub(crate) fn read(&mut self) -> Option<HotRead> {
        let (number, key) = self.keys.pop()?;
        let (resident, bytes, version) = self.reader.read(&key, self.wall_s)?;
        Some(HotRead(number, resident, bytes, version))
    }
}

impl StoreWorld {
    /// Returns a thread that reads some keys during the next turn of a shard.
    pub(crate) fn meanwhile(&mut self, shard: usize) -> Option<Meanwhile> {
        if self.shape.tier_units == 0 || self.random.one_in(2) {
            return None;
        }
        let number = |world: &mut StoreWorld| world.random.index(world.model.len());
        let numbers: Vec<usize> = (0..4).map(|_| number(self)).collect();
        let of_shard = |key: &usize| usize::from(self.model.shard(*key)) == shard;
        let numbers = numbers.into_iter().filter(of_shard);
        let keys = numbers.map(|key| (key, self.model.key(key).clone())).collect();
        let reader = self.shards[shard].hot_reader();
        Some(Meanwhile { reader, keys, wall_s: self.wall_s() })
    }

    /// Checks what was read from memory, now that the answers that came before are known.
    pub(crate) fn check_read(&mut self, read: HotRead) {
        let HotRead(key, resident, bytes, version) = read;
        let (begin, since) = (self.model.tick(), self.now);
        let found = Found { bytes: &resident[..bytes as usize], part: &Part::All };
        if let Err(what) = self.model.hit(key, (&found, Some(version)), begin, since) {
            violated(1, format_args!("in memory, on another thread: {what}"));
        }
        self.note(&[62, key as u64], format_args!("{bytes} bytes of {key} are read meanwhile"));
        self.counts.count(Sum::ReadMeanwhile, 1);
    }

    /// Lends the tiers of a store that was opened their first memory.
    pub(crate) fn lend_tiers(&mut self) {
        for shard in 0..self.shards.len() {
            self.lend_tier(shard);
            let stale = match self.canary {
                Some(StoreCanary::StaleMemory) => Stale::Kept,
                Some(StoreCanary::LateInvalidation) => Stale::ForgottenLate,
                _ => continue,
            };
            self.shards[shard].tier_mut().keep_stale(stale);
        }
    }

    fn lend_tier(&mut self, shard: usize) {
        let units = self.shape.tier_units;
        if units == 0 {
            return;
        }
        let bytes = (units * UNIT_BYTES) as usize;
        let mut memory = self.pool.allocate(bytes);
        assert_eq!(memory.len(), bytes, "whole units are whole pages");
        // What was there before must never be taken for an object.
        memory.fill(0xcd);
        self.shards[shard].lend_to_tier([memory]);
    }

    /// Changes a tier, looks at what it has, or ends a reader.
    pub(crate) fn use_tier(&mut self) {
        match self.random.below(6) {
            0 => self.resize_tier(),
            1..4 if self.readers.len() < READERS_MAX => self.hold(),
            _ => self.let_go(),
        }
    }

    fn resize_tier(&mut self) {
        let shard = self.random.index(self.shards.len());
        let has = self.shards[shard].stats().tier_bytes;
        if self.random.one_in(2) && has < 4 * self.shape.tier_units * UNIT_BYTES {
            return self.lend_tier(shard);
        }
        let bytes = self.random.below(has + 1);
        let (left, _) = self.shards[shard].shrink_tier(bytes);
        self.note(&[60, bytes, left], format_args!("the tier of shard {shard}: {bytes}, {left}"));
        self.counts.count(Sum::TiersShrunk, u64::from(left < has));
        let stats = self.shards[shard].stats();
        if left > bytes || stats.tier_bytes != left || stats.tier_object_bytes > left {
            violated(5, format_args!("a tier that shrinks to {bytes} bytes: {stats:?}"));
        }
    }

    /// Takes hold of an object in memory, and checks its bytes.
    fn hold(&mut self) {
        let key = self.random.index(self.model.len());
        let (begin, since) = (self.model.tick(), self.now);
        let (name, shard) = (self.model.key(key).clone(), usize::from(self.model.shard(key)));
        let Some(resident) = self.shards[shard].resident(self.now, &name) else { return };
        let Some(info) = self.shards[shard].info(self.now, &name) else {
            violated(1, format_args!("{name} is in memory and not in the index"));
        };
        let is_plain = info.layout == LayoutId::PLAIN;
        let bytes = if is_plain { info.bytes as usize } else { resident.len() };
        let found = Found { bytes: &resident[..bytes], part: &Part::All };
        if let Err(what) = self.model.hit(key, (&found, Some(info.version)), begin, since) {
            violated(1, format_args!("in memory: {what}"));
        }
        self.note(&[61, key as u64], format_args!("a reader holds {bytes} bytes of {key}"));
        self.counts.count(Sum::Held, 1);
        let copy = resident.to_vec();
        self.readers.push(Reader { key, resident, copy });
    }

    /// Ends a reader, after a last look.
    fn let_go(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let reader = self.readers.swap_remove(self.random.index(self.readers.len()));
        self.check_reader(&reader);
    }

    /// Ends the readers of a store that is gone.
    pub(crate) fn let_all_go(&mut self) {
        for reader in std::mem::take(&mut self.readers) {
            self.check_reader(&reader);
        }
    }

    fn check_reader(&self, Reader { key, resident, copy }: &Reader) {
        if resident[..] != copy[..] {
            let key = self.model.key(*key);
            violated(1, format_args!("bytes of {key} changed while a reader held them"));
        }
    }
}
