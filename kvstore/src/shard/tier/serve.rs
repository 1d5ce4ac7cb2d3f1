//! What the tier does for a shard's gets.

use std::sync::Arc;

use adit_driver::Buffer;
#[cfg(feature = "internals")]
use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::super::Shard;
use super::super::batch::Reading;
use super::super::parts::{Extract, Memory, extract};
use super::super::request::{
    Action, Arriving, Done, Found, GetItem, Hashed, Outcome, Part, Request,
};
#[cfg(feature = "internals")]
use super::Stale;
use super::hot::About;
#[cfg(feature = "internals")]
use super::hot::HotReader;
use super::shelf::Used;
use super::{Filling, GivenUp, Hot, Known, Resident};
use crate::error::Failure;
use crate::io::lane::Load;
#[cfg(feature = "internals")]
use crate::model::key::Key;
use crate::model::object::{Object, ObjectId};
use crate::model::place::UNIT_BYTES;

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Lends memory to the memory tier, which keeps hot objects there: memory of any device, in whole units. Each buffer
    /// goes back as a whole, and an object lies in one of them. Without any, the tier is off.
    ///
    /// # Panics
    /// If a buffer is no whole units.
    pub fn lend_to_tier(&mut self, memory: impl IntoIterator<Item = Buffer>) {
        let whole = memory.into_iter().inspect(|memory| {
            let is_whole = (memory.len() as u64).is_multiple_of(UNIT_BYTES);
            assert!(is_whole, "{} bytes are no whole units", memory.len());
        });
        self.tier.lend(whole);
    }

    /// Takes memory from the memory tier, with the objects in it, until `bytes` at most are left. Returns how many
    /// bytes those are, and what it took, which is freed by dropping it: memory goes as it was lent, the last first.
    /// Memory whose bytes readers hold is freed when they drop them.
    pub fn shrink_tier(&mut self, bytes: u64) -> (u64, GivenUp) {
        self.tier.shrink(bytes)
    }

    /// Lets values pin `bytes` of the memory tier, until its size changes.
    #[cfg(test)]
    pub(crate) fn set_pinned_bytes_max(&self, bytes: u64) {
        self.tier.set_pinned_bytes_max(bytes);
    }

    /// Returns the bytes of an object, padding included, if they are in memory.
    #[cfg(feature = "internals")]
    pub fn resident(&mut self, now: Time, key: &Key) -> Option<Resident> {
        let id = self.lookup(now, self.index.hash(key.as_bytes()), key)?;
        self.in_memory(id, &self.index.object(id))
    }

    /// Breaks a rule of the memory tier's, which a simulation has to notice.
    #[cfg(feature = "internals")]
    pub fn keep_stale_in_tier(&mut self, stale: Stale) {
        self.tier.keep_stale(stale);
    }

    /// Returns a reader of the objects in memory, for any thread.
    #[cfg(feature = "internals")]
    pub fn hot_reader(&self) -> HotReader {
        HotReader::new(self.hot(), self.index.hasher())
    }

    /// Answers the get that comes next if its object is in memory; returns whether it did, or the caller took the get
    /// away. Not inlined, so that gets of a store without a tier stay short.
    #[inline(never)]
    pub(in crate::shard) fn get_from_memory(
        &mut self,
        id: ObjectId,
        object: &Object,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        choose: &mut impl FnMut(&mut Option<Hashed<R>>, Found, Option<&Resident>) -> bool,
    ) -> bool {
        let Some(resident) = self.in_memory(id, object) else { return false };
        let is_shared = choose(&mut requests.next, self.found(object), Some(&resident));
        if let Some(Hashed { request: Request { reply, action, .. }, .. }) = requests.next.take() {
            let Action::Get(GetItem { part, into, .. }) = action else {
                unreachable!("a get stays one: {action:?}");
            };
            self.stats.gets += 1;
            let mut memory = Memory::of(into);
            let copies = if is_shared { None } else { Some(&resident[..]) };
            let read = self.read_from_memory(id, object, &part, (&mut memory, copies));
            let version = read.is_ok().then_some(object.version);
            let (result, memory) = (read.map(|bytes| Outcome::Hit { bytes }), memory.into_any());
            self.answers.push_back(Done { reply, result, memory, version, unverified: None });
        }
        requests.advance();
        true
    }

    fn in_memory(&mut self, id: ObjectId, object: &Object) -> Option<Resident> {
        let bytes = self.spaces.units_of(object) * UNIT_BYTES;
        self.tier.hit(Known { id, place: object.place, bytes })
    }

    /// Copies a part of an object to the caller's memory, unless it has the bytes already, and counts a hit. Returns how
    /// many bytes the part has.
    fn read_from_memory(
        &mut self,
        id: ObjectId,
        object: &Object,
        part: &Part,
        (memory, copies): (&mut Memory, Option<&[u8]>),
    ) -> Result<u64, Failure> {
        let before = self.scratch.parts.len();
        let found = match copies {
            None => extract(&self.spaces, object, part, 0, &mut self.scratch.parts),
            Some(_) => self.extract_into(object, part, memory, 0),
        };
        // Only where the bytes lie in the object matters, not where on its device.
        self.scratch.parts.truncate(before);
        let Extract { bytes, padded_bytes, first_checksum, pieces } = found?;
        if let Some(copies) = copies {
            let start = u64::from(first_checksum) * pieces.stride_bytes;
            memory.fill(&copies[start as usize..(start + padded_bytes) as usize]);
        }
        self.note_read(id, object.tenant);
        self.stats.hits += 1;
        self.stats.bytes_read += bytes;
        self.tenants.counters(object.tenant).hits += 1;
        self.tier.count_hits(1, bytes);
        Ok(bytes)
    }

    /// Offers the tier an object that was read, if all of it was read and it is still there. Returns what to fill with a
    /// copy of its bytes, once they are verified.
    #[inline(never)]
    pub(in crate::shard) fn offer_to_tier(&mut self, reading: &Reading) -> Option<Filling> {
        if !self.tier.is_on() || !self.is_current(reading) {
            return None;
        }
        let id = reading.id;
        let object = self.index.object(id);
        let bytes = self.spaces.units_of(&object) * UNIT_BYTES;
        if reading.extract.padded_bytes != bytes {
            return None;
        }
        let hash = self.index.hash(self.index.key_bytes(id));
        let found = self.found(&object);
        let Shard { tier, index, expiry, .. } = self;
        let about = || About::new(id, index.key(id), &object, found, expiry.get(id));
        tier.offer(Known { id, place: object.place, bytes }, hash, about)
    }

    /// Returns the table of objects in memory, for any thread.
    pub(crate) fn hot(&self) -> &Arc<Hot> {
        self.tier.hot()
    }

    /// Counts the reads that other threads answered from memory, and notes that their objects are in use.
    pub(crate) fn note_hits(&mut self) {
        #[cfg(feature = "internals")]
        self.tier.forget_late();
        while let Some((entry, Used { count, bytes })) = self.tier.take_used() {
            let About { id, tenant, .. } = entry.meta;
            let counters = self.tenants.counters(tenant);
            (counters.gets, counters.hits) = (counters.gets + count, counters.hits + count);
            self.stats.gets += count;
            self.stats.hits += count;
            self.stats.bytes_read += bytes;
            self.tier.count_hits(count, bytes);
            if !entry.is_gone() {
                self.policy.touched(id);
                self.own.used(id, tenant);
            }
        }
    }

    /// Returns whether the object of a read is the one that the index has.
    pub(in crate::shard) fn is_current(&self, reading: &Reading) -> bool {
        let is_it =
            |object: Object| (object.place, object.version) == (reading.place, reading.version);
        self.index.contains(reading.id) && is_it(self.index.object(reading.id))
    }
}
