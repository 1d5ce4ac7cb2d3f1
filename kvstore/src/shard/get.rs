//! Reading objects: look up, keep in place while the device reads, and verify before delivering. Objects in memory are
//! delivered at once ([`super::tier`]).

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;

use super::Shard;
use super::batch::{Item, Items, Job, Reading, Sums, Trouble};
use super::parts::{Extract, Memory, extract};
use super::request::{Action, Arriving, Done, Found, GetItem, Hashed, Outcome, Part, Request};
use super::tier::Resident;
use super::unverified::Unverified;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::{Object, ObjectId, TenantId, Version, piece_bytes};
use crate::model::place::UNIT_BYTES;

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Reads the objects of the gets that come next, neighbours with shared commands.
    pub(super) fn get(
        &mut self,
        now: Time,
        deadline: Time,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        choose: &mut impl FnMut(&mut Option<Hashed<R>>, Found, Option<&Resident>) -> bool,
    ) {
        let mut items = Items::new();
        while let Some(Hashed { hash, request: Request { action: Action::Get(item), .. } }) =
            &requests.next
        {
            let id = self.lookup(now, *hash, &item.key);
            let object = id.map(|id| (id, self.index.object(id)));
            if let Some((_, object)) = &object
                && item.version.is_some_and(|version| version != object.version)
            {
                self.refuse_get(requests, object.version);
                continue;
            }
            if let Some((id, object)) = &object {
                if self.tier.has_objects() && self.get_from_memory(*id, object, requests, choose) {
                    continue;
                }
                choose(&mut requests.next, self.found(object), None);
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
                    self.pin_part((id, &object), &part, &memory, items.len() as u32)
                });
                match reading {
                    Some(Ok(reading)) => {
                        let reading = self.scratch.readings.fill(reading);
                        items.push(Some(Item::new(reply, Job::Get(reading), memory)));
                    }
                    Some(Err(failure)) => self.answer(reply, Err(failure), memory.into_any()),
                    None => {
                        self.stats.misses += 1;
                        self.answer(reply, Ok(Outcome::Miss), memory.into_any());
                    }
                }
            }
            requests.advance();
        }
        if !items.is_empty() {
            self.launch(now, deadline, Direction::Read, items);
        }
    }

    /// Refuses the get that comes next: the object has another version than it asks for.
    fn refuse_get(
        &mut self,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
        found: Version,
    ) {
        if let Some(Hashed { request: Request { reply, action, .. }, .. }) = requests.next.take() {
            let conflict = Failure::Conflict { found: Some(found) };
            self.stats.gets += 1;
            self.answer(reply, Err(conflict), action.into_memory());
        }
        requests.advance();
    }

    pub(super) fn found(&self, &Object { place, bytes, layout, .. }: &Object) -> Found {
        let layout = self.spaces.layout(layout);
        let (bytes, piece_bytes) = match layout {
            None => (bytes, piece_bytes(bytes)),
            Some(layout) => (layout.block_units() * UNIT_BYTES, layout.run_units() * UNIT_BYTES),
        };
        Found { device: place.device, bytes, piece_bytes }
    }

    /// Pins the part to read as `item` of a batch.
    pub(super) fn pin_part(
        &mut self,
        (id, object): (ObjectId, &Object),
        part: &Part,
        memory: &Memory,
        item: u32,
    ) -> Result<Reading, Failure> {
        let extract = self.extract_into(object, part, memory, item)?;
        let first = extract.first_checksum as usize;
        let sums = &self.index.checksums(id)[first..first + extract.pieces.count as usize];
        let checksums = Sums::from_slice(sums);
        self.spaces.pin(object.place);
        self.note_read(id, object.tenant);
        let Object { tenant, place, version, .. } = *object;
        Ok(Reading { id, tenant, place, version, extract, checksums })
    }

    /// Locates a part to be read as `item` of a batch, and checks the memory for it.
    #[inline(always)]
    pub(super) fn extract_into(
        &mut self,
        object: &Object,
        part: &Part,
        memory: &Memory,
        item: u32,
    ) -> Result<Extract, Failure> {
        let before = self.scratch.parts.len();
        let extract = extract(&self.spaces, object, part, item, &mut self.scratch.parts)?;
        let (needs, has) = (extract.padded_bytes, memory.bytes());
        let fits = has >= needs && memory.is_whole(UNIT_BYTES);
        let device = object.place.device;
        let lane = &self.lanes[usize::from(device)];
        if fits && memory.is_accepted(&lane.info.accepts) {
            return Ok(extract);
        }
        self.scratch.parts.truncate(before);
        Err(if fits { Failure::Foreign { device } } else { Failure::Memory { needs, has } })
    }

    /// Notes that an object is read: it is in use.
    #[inline(always)]
    pub(super) fn note_read(&mut self, id: ObjectId, tenant: TenantId) {
        self.policy.touched(id);
        self.own.used(id, tenant);
        self.tenants.counters(tenant).gets += 1;
    }

    /// Returns the object of a key, if it has not expired and its device works.
    pub(crate) fn lookup(&self, now: Time, hash: u64, key: &Key) -> Option<ObjectId> {
        let id = self.index.find_hashed(hash, key.as_bytes())?;
        self.is_live(now, id).then_some(id)
    }

    /// Handles the end of a read.
    pub(super) fn finish_get(
        &mut self,
        now: Time,
        reply: R,
        reading: Box<Reading>,
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        self.spaces.unpin(reading.place);
        let result = match trouble {
            None if self.options.callers_verify => {
                return self.answer_unverified(reply, reading, memory);
            }
            None if reading.is_intact(&memory) => {
                if let Some(tier) = self.offer_to_tier(&reading) {
                    tier.fill(&reading, |into| memory.copy_to(into), memory.is_shared());
                }
                Ok(self.count_hit(&reading))
            }
            None | Some(Trouble::Unreadable(_)) => {
                self.lose(now, &reading);
                Ok(Outcome::Miss)
            }
            Some(Trouble::Gone(_)) => {
                self.stats.misses += 1;
                Ok(Outcome::Miss)
            }
            Some(Trouble::Expired) => Err(Failure::Deadline),
        };
        let version = result.as_ref().is_ok_and(Outcome::is_hit).then_some(reading.version);
        self.scratch.readings.keep(reading);
        let memory = memory.into_any();
        self.answers.push_back(Done { reply, result, memory, version, unverified: None });
    }

    /// Leaves it to the caller to verify what was read.
    fn answer_unverified(&mut self, reply: R, reading: Box<Reading>, memory: Memory) {
        let (bytes, version) = (reading.extract.bytes, Some(reading.version));
        let (result, memory) = (Ok(Outcome::Hit { bytes }), memory.into_any());
        let tier = self.offer_to_tier(&reading);
        let unverified = Some(Unverified { reading, tier });
        self.answers.push_back(Done { reply, result, memory, version, unverified });
    }

    /// Handles bytes that differ from what was put: counts a miss and removes the object.
    pub(super) fn lose(&mut self, now: Time, reading: &Reading) {
        self.stats.misses += 1;
        self.stats.misses_corrupt += 1;
        let is_there = self.is_current(reading);
        let device = &self.lanes[usize::from(reading.place.device)].info.device;
        let what = is_there.then(|| self.index.key(reading.id));
        let what = what.map_or_else(|| "gone since".to_owned(), |key| key.to_string());
        tracing::warn!(
            "{device}: the object ({what}) at {} is not what was put there; it is dropped",
            reading.place
        );
        if !is_there {
            return;
        }
        self.tier.forget(reading.id);
        if self.log.has_room_for_small() {
            self.remove(now, reading.id);
        }
    }
}
