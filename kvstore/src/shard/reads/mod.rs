//! Reading objects: look up, keep in place while the device reads, and verify before delivering. Objects in memory are
//! delivered at once ([`super::tier`]).
//!
//! | file | holds |
//! |---|---|
//! | `reading` | a read in progress |
//! | `unverified`, `digest` | reads that their callers verify, or another process |
//! | `plan` | reads that another executor carries out |

pub(super) mod digest;
pub(super) mod plan;
pub(super) mod reading;
pub(super) mod unverified;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;

use self::reading::Reading;
use self::unverified::{Unverified, Verdict};
use super::answer::{Done, Outcome};
use super::batch::{Boxes, Item, Items, Job};
use super::extract::{Extract, extract};
use super::lanes::{Lanes, Trouble};
use super::memory::{Memory, Sums};
use super::objects::Objects;
use super::parts::Parts;
use super::request::{Action, Arriving, Found, GetItem, Hashed, Part, Request};
use super::stats::Stats;
use super::tier::{About, Resident, Used};
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::{Object, ObjectId, TenantId, Version};
use crate::model::place::UNIT_BYTES;

/// Number of keys looked up together.
const LOOKUP_GROUP: usize = 64;

/// How a shard reads, and what it read.
#[derive(Debug)]
pub(super) struct Reads {
    /// Whether reads end unverified, for their callers to verify.
    callers_verify: bool,
    /// For reads in progress, so that a get allocates no memory.
    boxes: Boxes<Reading>,
    /// The results of a lookup, kept so that it allocates no memory.
    prefix: Vec<ObjectId>,
    stats: Stats,
}

impl Reads {
    pub(super) fn new(callers_verify: bool) -> Reads {
        Reads {
            callers_verify,
            boxes: Boxes::default(),
            prefix: Vec::new(),
            stats: Stats::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns how many of `keys` exist before the first miss. The policy learns that they are a sequence.
    pub(super) fn lookup_prefix<Q: CommandQueue<Load>>(
        &mut self,
        objects: &mut Objects,
        lanes: &Lanes<Q>,
        now: Time,
        keys: &[Key],
    ) -> usize {
        let mut found = Vec::new();
        self.prefix.clear();
        for group in keys.chunks(LOOKUP_GROUP) {
            found.clear();
            objects.index().find_many(group, &mut found);
            let live = |id: &Option<ObjectId>| id.filter(|id| objects.is_live(lanes, now, *id));
            let before = self.prefix.len();
            self.prefix.extend(found.iter().map_while(live));
            if self.prefix.len() - before < group.len() {
                break;
            }
        }
        objects.order_mut().found(&self.prefix);
        self.prefix.len()
    }

    /// Reads the objects of the gets that come next, neighbours with shared commands.
    pub(super) fn get<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (now, deadline): (Time, Time),
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        choose: &mut impl FnMut(&mut Option<Hashed<R>>, Found, Option<&Resident>) -> bool,
    ) {
        let mut items = Items::new();
        while let Some(Hashed { hash, request: Request { action: Action::Get(item), .. } }) =
            &requests.next
        {
            let id = parts.lookup(now, *hash, &item.key);
            let object = id.map(|id| (id, parts.objects.index().object(id)));
            if let Some((_, object)) = &object
                && item.version.is_some_and(|version| version != object.version)
            {
                self.refuse_get(parts, requests, object.version);
                continue;
            }
            if let Some((id, object)) = &object {
                if parts.objects.tier().has_objects()
                    && self.get_from_memory(parts, (*id, object), requests, choose)
                {
                    continue;
                }
                choose(&mut requests.next, parts.objects.layouts().found(object), None);
            }
            if let Some(Hashed { request: Request { reply, action, .. }, .. }) =
                requests.next.take()
            {
                let Action::Get(GetItem { part, into, .. }) = action else {
                    unreachable!("a get stays one: {action:?}");
                };
                let memory = Memory::of(into);
                self.stats.gets += 1;
                let reading = object.map(|(id, object)| {
                    pin_part(parts, (id, &object), &part, &memory, items.len() as u32)
                });
                match reading {
                    Some(Ok(reading)) => {
                        let reading = self.boxes.fill(reading);
                        items.push(Some(Item::new(reply, Job::Get(reading), memory)));
                    }
                    Some(Err(failure)) => {
                        parts.answers.give(reply, Err(failure), memory.into_any());
                    }
                    None => {
                        self.stats.misses += 1;
                        parts.answers.give(reply, Ok(Outcome::Miss), memory.into_any());
                    }
                }
            }
            requests.advance();
        }
        if !items.is_empty() {
            parts.launch(now, deadline, Direction::Read, items);
        }
    }

    /// Answers the get that comes next if its object is in memory; returns whether it did, or the caller took the get
    /// away. Not inlined, so that gets of a store without a tier stay short.
    #[inline(never)]
    pub(super) fn get_from_memory<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (id, object): (ObjectId, &Object),
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        choose: &mut impl FnMut(&mut Option<Hashed<R>>, Found, Option<&Resident>) -> bool,
    ) -> bool {
        let Some(resident) = parts.objects.resident(id, object) else { return false };
        let is_shared =
            choose(&mut requests.next, parts.objects.layouts().found(object), Some(&resident));
        if let Some(Hashed { request: Request { reply, action, .. }, .. }) = requests.next.take() {
            let Action::Get(GetItem { part, into, .. }) = action else {
                unreachable!("a get stays one: {action:?}");
            };
            self.stats.gets += 1;
            let mut memory = Memory::of(into);
            let copies = if is_shared { None } else { Some(&resident[..]) };
            let read = self.read_from_memory(parts, (id, object), &part, (&mut memory, copies));
            let version = read.is_ok().then_some(object.version);
            let (result, memory) = (read.map(|bytes| Outcome::Hit { bytes }), memory.into_any());
            parts.answers.push(Done { version, ..Done::new(reply, result, memory) });
        }
        requests.advance();
        true
    }

    /// Copies a part of an object to the caller's memory, unless it has the bytes already, and counts a hit. Returns
    /// how many bytes the part has.
    fn read_from_memory<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (id, object): (ObjectId, &Object),
        part: &Part,
        (memory, copies): (&mut Memory, Option<&[u8]>),
    ) -> Result<u64, Failure> {
        let before = parts.batches.parts().len();
        let found = match copies {
            None => {
                let layout = parts.objects.layouts().get(object.layout);
                extract(layout, object, part, 0, parts.batches.parts())
            }
            Some(_) => extract_into(parts, object, part, memory, 0),
        };
        // Only where the bytes lie in the object matters, not where on its device.
        parts.batches.parts().truncate(before);
        let Extract { bytes, padded_bytes, first_checksum, pieces } = found?;
        if let Some(copies) = copies {
            let start = u64::from(first_checksum) * pieces.stride_bytes;
            memory.fill(&copies[start as usize..(start + padded_bytes) as usize]);
        }
        note_read(parts, id, object.tenant);
        self.stats.hits += 1;
        self.stats.bytes_read += bytes;
        parts.objects.accounts_mut().counters(object.tenant).hits += 1;
        parts.objects.tier_mut().count_hits(1, bytes);
        Ok(bytes)
    }

    /// Counts the reads that other threads answered from memory, and notes that their objects are in use.
    pub(crate) fn note_hits<Q, R>(&mut self, parts: &mut Parts<Q, R>) {
        let objects = &mut parts.objects;
        #[cfg(feature = "internals")]
        objects.tier_mut().forget_late();
        while objects.tier().has_used()
            && let Some((entry, Used { count, bytes })) = objects.tier_mut().take_used()
        {
            let About { id, tenant, .. } = entry.meta;
            let counters = objects.accounts_mut().counters(tenant);
            (counters.gets, counters.hits) = (counters.gets + count, counters.hits + count);
            self.stats.gets += count;
            self.stats.hits += count;
            self.stats.bytes_read += bytes;
            objects.tier_mut().count_hits(count, bytes);
            if !entry.is_gone() {
                objects.note_used(id, tenant);
            }
        }
    }

    /// Refuses the get that comes next: the object has another version than it asks for.
    fn refuse_get<Q, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        found: Version,
    ) {
        if let Some(Hashed { request: Request { reply, action, .. }, .. }) = requests.next.take() {
            let conflict = Failure::Conflict { found: Some(found) };
            self.stats.gets += 1;
            parts.answers.give(reply, Err(conflict), action.into_memory());
        }
        requests.advance();
    }

    /// Handles the end of a read.
    pub(super) fn finish_get<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        (reply, reading): (R, Box<Reading>),
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        parts.objects.spaces_mut().unpin(reading.place);
        let result = match trouble {
            None if self.callers_verify => {
                return answer_unverified(parts, (reply, reading), memory);
            }
            None if reading.is_intact(&memory) => {
                if let Some(tier) = parts.objects.offer_to_tier(&reading) {
                    tier.fill(&reading, |into| memory.copy_to(into), memory.is_shared());
                }
                Ok(self.count_hit(parts, &reading))
            }
            None | Some(Trouble::Unreadable(_)) => {
                self.lose(parts, now, &reading);
                Ok(Outcome::Miss)
            }
            Some(Trouble::Gone(_)) => {
                self.stats.misses += 1;
                Ok(Outcome::Miss)
            }
            Some(Trouble::Expired) => Err(Failure::Deadline),
        };
        let version = result.as_ref().is_ok_and(Outcome::is_hit).then_some(reading.version);
        self.boxes.keep(reading);
        let answer = Done { version, ..Done::new(reply, result, memory.into_any()) };
        parts.answers.push(answer);
    }

    /// Counts a read that its caller has verified. Drops the object if its bytes are not what was put.
    pub(super) fn judge<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        verdict: Verdict,
    ) {
        let (reading, is_intact) = verdict.into_parts();
        if is_intact {
            self.count_hit(parts, &reading);
        } else {
            self.lose(parts, now, &reading);
        }
        self.boxes.keep(reading);
    }

    /// Counts a read that found its bytes as they were put.
    fn count_hit<Q, R>(&mut self, parts: &mut Parts<Q, R>, reading: &Reading) -> Outcome {
        self.stats.hits += 1;
        parts.objects.accounts_mut().counters(reading.tenant).hits += 1;
        self.stats.bytes_read += reading.extract.bytes;
        Outcome::Hit { bytes: reading.extract.bytes }
    }

    /// Handles bytes that differ from what was put: counts a miss and removes the object.
    fn lose<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        reading: &Reading,
    ) {
        self.stats.misses += 1;
        self.stats.misses_corrupt += 1;
        let objects = &mut parts.objects;
        let is_there = objects.is_current(reading);
        let device = &parts.lanes.of(reading.place.device).info.device;
        let what = is_there.then(|| objects.index().key(reading.id));
        let what = what.map_or_else(|| "gone since".to_owned(), |key| key.to_string());
        tracing::warn!(
            "{device}: the object ({what}) at {} is not what was put there; it is dropped",
            reading.place
        );
        if !is_there {
            return;
        }
        objects.tier_mut().forget(reading.id);
        if parts.log.has_room_for_small() {
            objects.remove(&mut parts.log, now, reading.id);
        }
    }
}

/// Leaves it to the caller to verify what was read.
fn answer_unverified<Q, R>(
    parts: &mut Parts<Q, R>,
    (reply, reading): (R, Box<Reading>),
    memory: Memory,
) {
    let (bytes, version) = (reading.extract.bytes, Some(reading.version));
    let (result, memory) = (Ok(Outcome::Hit { bytes }), memory.into_any());
    let tier = parts.objects.offer_to_tier(&reading);
    let unverified = Some(Unverified { reading, tier });
    parts.answers.push(Done { reply, result, memory, version, unverified });
}

/// Pins the part to read as `item` of a batch.
pub(super) fn pin_part<Q: CommandQueue<Load>, R>(
    parts: &mut Parts<Q, R>,
    (id, object): (ObjectId, &Object),
    part: &Part,
    memory: &Memory,
    item: u32,
) -> Result<Reading, Failure> {
    let extract = extract_into(parts, object, part, memory, item)?;
    let objects = &mut parts.objects;
    let first = extract.first_checksum as usize;
    let sums = &objects.index().checksums(id)[first..first + extract.pieces.count as usize];
    let checksums = Sums::from_slice(sums);
    objects.spaces_mut().pin(object.place);
    note_read(parts, id, object.tenant);
    let Object { tenant, place, version, .. } = *object;
    Ok(Reading { id, tenant, place, version, extract, checksums })
}

/// Locates a part to be read as `item` of a batch, and checks the memory for it.
#[inline(always)]
fn extract_into<Q: CommandQueue<Load>, R>(
    parts: &mut Parts<Q, R>,
    object: &Object,
    part: &Part,
    memory: &Memory,
    item: u32,
) -> Result<Extract, Failure> {
    let before = parts.batches.parts().len();
    let layout = parts.objects.layouts().get(object.layout);
    let extract = extract(layout, object, part, item, parts.batches.parts())?;
    let (needs, has) = (extract.padded_bytes, memory.bytes());
    let fits = has >= needs && memory.is_whole(UNIT_BYTES);
    let device = object.place.device;
    if fits && memory.is_accepted(&parts.lanes.of(device).info.accepts) {
        return Ok(extract);
    }
    parts.batches.parts().truncate(before);
    Err(if fits { Failure::Foreign { device } } else { Failure::Memory { needs, has } })
}

/// Notes that an object is read: it is in use.
#[inline(always)]
fn note_read<Q, R>(parts: &mut Parts<Q, R>, id: ObjectId, tenant: TenantId) {
    parts.objects.note_used(id, tenant);
    parts.objects.accounts_mut().counters(tenant).gets += 1;
}
