//! What the tier does for a shard's gets.

use adit_driver::Buffer;
#[cfg(feature = "internals")]
use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::super::Shard;
use super::super::batch::Reading;
use super::super::parts::{Extract, Memory, extract};
use super::super::request::{Outcome, Part};
use super::{Known, Resident};
use crate::io::lane::Load;
#[cfg(feature = "internals")]
use crate::model::key::Key;
use crate::model::object::{Object, ObjectId};
use crate::model::place::UNIT_BYTES;

/// A get of an object that is in memory.
pub(in crate::shard) struct Warm<R> {
    pub(in crate::shard) reply: R,
    /// The hash of the key.
    pub(in crate::shard) hash: u64,
    pub(in crate::shard) id: ObjectId,
    pub(in crate::shard) object: Object,
    pub(in crate::shard) resident: Resident,
    /// Whether the caller shares the bytes, so that none are copied.
    pub(in crate::shard) is_shared: bool,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Lends memory to the memory tier, which keeps hot objects there: memory of any device, in whole units. Without any,
    /// the tier is off.
    ///
    /// # Panics
    /// If it is no whole units.
    pub fn lend_to_tier(&mut self, memory: Buffer) {
        let is_whole = (memory.len() as u64).is_multiple_of(UNIT_BYTES);
        assert!(is_whole, "{} bytes are no whole units", memory.len());
        self.tier.lend(memory);
    }

    /// Takes memory from the memory tier, and drops the objects in it, until `bytes` at most are left. Returns how many
    /// bytes those are: memory goes as it was lent. Memory whose bytes readers hold is freed when they drop them.
    pub fn shrink_tier(&mut self, bytes: u64) -> u64 {
        self.tier.shrink(bytes)
    }

    /// Returns the bytes of an object, padding included, if they are in memory.
    #[cfg(feature = "internals")]
    pub fn resident(&mut self, now: Time, key: &Key) -> Option<Resident> {
        let id = self.lookup(now, self.index.hash(key.as_bytes()), key)?;
        self.in_memory(id, &self.index.object(id))
    }

    /// Breaks the rule that the memory tier forgets objects that are replaced or removed, which a simulation has to
    /// notice.
    #[cfg(feature = "internals")]
    pub fn deafen_tier(&mut self) {
        self.tier.deafen();
    }

    /// Returns the bytes of an object if they are in memory.
    #[inline]
    pub(in crate::shard) fn in_memory(
        &mut self,
        id: ObjectId,
        object: &Object,
    ) -> Option<Resident> {
        let (tier, spaces) = (&mut self.tier, &self.spaces);
        let bytes = || spaces.units_of(object) * UNIT_BYTES;
        tier.hit(|| Known { id, place: object.place, bytes: bytes() })
    }

    /// Answers a get of an object that is in memory.
    pub(in crate::shard) fn answer_warm(&mut self, warm: Warm<R>, part: &Part, mut memory: Memory) {
        let Warm { reply, hash, id, object, resident, is_shared } = warm;
        let before = self.scratch.parts.len();
        let found = match is_shared {
            true => extract(&self.spaces, &object, part, 0, &mut self.scratch.parts),
            false => self.extract_into(&object, part, &memory, 0),
        };
        // Only where the bytes lie in the object matters, not where on its device.
        self.scratch.parts.truncate(before);
        let Extract { bytes, padded_bytes, first_checksum, pieces } = match found {
            Ok(extract) => extract,
            Err(failure) => return self.answer(reply, Err(failure), memory.into_any()),
        };
        if !is_shared {
            let start = u64::from(first_checksum) * pieces.stride_bytes;
            memory.fill(&resident[start as usize..(start + padded_bytes) as usize]);
        }
        self.note_read(id, hash, object.tenant);
        self.stats.hits += 1;
        self.stats.bytes_read += bytes;
        self.tenants.counters(object.tenant).hits += 1;
        self.tier.count_hit(bytes);
        self.answer(reply, Ok(Outcome::Hit { bytes }), memory.into_any());
    }

    /// Offers the tier an object that was read and found intact, if all of it was read and it is still there.
    pub(in crate::shard) fn offer_to_tier(&mut self, reading: &Reading, memory: &Memory) {
        if !self.tier.is_on() || !self.is_current(reading) {
            return;
        }
        let id = reading.id;
        let object = self.index.object(id);
        let bytes = self.spaces.units_of(&object) * UNIT_BYTES;
        if reading.extract.padded_bytes != bytes {
            return;
        }
        let hash = self.index.hash(self.index.key_bytes(id));
        let known = Known { id, place: object.place, bytes };
        self.tier.offer(known, hash, |into| memory.copy_to(into));
    }

    /// Returns whether the object of a read is the one that the index has.
    pub(in crate::shard) fn is_current(&self, reading: &Reading) -> bool {
        self.index.contains(reading.id) && self.index.object(reading.id).place == reading.place
    }
}
