//! Reading objects: look up, keep in place while the device reads, and verify before delivering.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;
use smallvec::SmallVec;

use super::Shard;
use super::batch::{Item, Job, Reading, Sums, Trouble};
use super::memory::Memory;
use super::parts::extract;
use super::request::{GetItem, Outcome, Part};
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::ObjectId;
use crate::model::place::UNIT_BYTES;

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Reads items, neighbours with shared commands.
    pub(super) fn get(
        &mut self,
        now: Time,
        tag: u64,
        deadline: Time,
        asked: impl Iterator<Item = GetItem>,
    ) {
        let mut items = SmallVec::<[Item; 1]>::new();
        for (number, item) in (0u32..).zip(asked) {
            self.stats.gets += 1;
            let memory = Memory::of(item.into);
            let found = self.find_part(now, &item.key, &item.part, &memory, items.len() as u32);
            match found {
                Ok(Some(reading)) => {
                    let reading = self.readings.fill(reading);
                    items.push(Item::new(number, Job::Get(reading), memory));
                }
                Ok(None) => {
                    self.stats.misses += 1;
                    self.answer(tag, number, Ok(Outcome::Miss), memory.into_any());
                }
                Err(failure) => self.answer(tag, number, Err(failure), memory.into_any()),
            }
        }
        if !items.is_empty() {
            self.launch(now, tag, deadline, Direction::Read, items);
        }
    }

    /// Looks up and pins the part to read as `item` of a batch.
    fn find_part(
        &mut self,
        now: Time,
        key: &Key,
        part: &Part,
        memory: &Memory,
        item: u32,
    ) -> Result<Option<Reading>, Failure> {
        let hash = self.index.hash(key.as_bytes());
        let Some(id) = self.lookup(now, hash, key) else { return Ok(None) };
        let object = self.index.object(id);
        let before = self.parts.len();
        let extract = extract(&self.spaces, &object, part, item, &mut self.parts)?;
        let has = memory.bytes();
        let fits = has >= extract.padded_bytes && memory.is_whole(UNIT_BYTES);
        let device = object.place.device;
        let lane = &self.lanes[usize::from(device)];
        if !fits || !memory.is_accepted(&lane.info.accepts) {
            self.parts.truncate(before);
            let needs = extract.padded_bytes;
            return Err(if fits {
                Failure::Foreign { device }
            } else {
                Failure::Memory { needs, has }
            });
        }
        let first = extract.first_checksum as usize;
        let sums = &self.index.checksums(id)[first..first + extract.pieces.count as usize];
        let checksums = Sums::from_slice(sums);
        self.spaces.pin(object.place);
        self.policy.touched(id);
        if let Some(admission) = &mut self.admission {
            admission.touched(hash);
        }
        Ok(Some(Reading { id, place: object.place, extract, checksums }))
    }

    /// Returns the object of a key, if it has not expired and its device works.
    pub(super) fn lookup(&self, now: Time, hash: u64, key: &Key) -> Option<ObjectId> {
        let id = self.index.find_hashed(hash, key.as_bytes())?;
        self.is_live(now, id).then_some(id)
    }

    /// Handles the end of a read.
    pub(super) fn finish_get(
        &mut self,
        now: Time,
        tag: u64,
        mut item: Item,
        reading: Box<Reading>,
    ) {
        let memory = std::mem::take(&mut item.memory);
        let result = match item.failure {
            None if memory
                .is_intact(&reading.extract.pieces, reading.checksums.iter().copied()) =>
            {
                self.stats.hits += 1;
                self.stats.bytes_read += reading.extract.bytes;
                Ok(Outcome::Hit { bytes: reading.extract.bytes })
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
        self.spaces.unpin(reading.place);
        self.readings.keep(reading);
        self.answer(tag, item.number, result, memory.into_any());
    }

    /// Handles bytes that differ from what was put: counts a miss and removes the object.
    fn lose(&mut self, now: Time, reading: &Reading) {
        self.stats.misses += 1;
        self.stats.misses_corrupt += 1;
        let is_there =
            self.index.contains(reading.id) && self.index.object(reading.id).place == reading.place;
        let device = &self.lanes[usize::from(reading.place.device)].info.device;
        let what = is_there.then(|| self.index.key(reading.id));
        let what = what.map_or_else(|| "gone since".to_owned(), |key| key.to_string());
        tracing::warn!(
            "{device}: the object ({what}) at {} is not what was put there; it is dropped",
            reading.place
        );
        if is_there && self.log.has_room_for_small() {
            self.remove(now, reading.id);
        }
    }
}
