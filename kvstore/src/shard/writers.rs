//! Objects written in parts: room is reserved first, parts come in any order, and the object is invisible until it is
//! sealed.

use std::collections::BTreeMap;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;
use smallvec::SmallVec;

use super::Shard;
use super::batch::{Filling, Item, Items, Job, NewObject, Sums, Trouble};
use super::key_order::Ready;
use super::parts::{Memory, extract};
use super::put::{Share, Wanted};
use super::request::{
    Action, Arriving, Condition, Done, FillItem, Hashed, Outcome, Part, PutOptions, Request,
    ReserveItem, WriterId,
};
use super::stalled::{Begun, Change, Stalled};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::{LayoutId, Object};
use crate::model::place::UNIT_BYTES;
use crate::policy::evict::Newcomer;

/// An object being written in parts.
#[derive(Debug)]
struct Writer {
    new: Box<NewObject>,
    /// Pieces whose data is on the device.
    filled: Vec<bool>,
    /// Pieces being filled, or filled.
    claimed: Vec<bool>,
    in_flight: u32,
    is_abandoned: bool,
}

/// The writers of a shard. Their numbers are not used again.
#[derive(Debug, Default)]
pub(super) struct Writers {
    open: BTreeMap<WriterId, Writer>,
    made: u64,
}

impl Writers {
    fn add(&mut self, writer: Writer) -> WriterId {
        self.made += 1;
        let id = WriterId(self.made);
        self.open.insert(id, writer);
        id
    }

    /// Returns a writer that was not given up.
    fn usable(&mut self, id: WriterId) -> Result<&mut Writer, Failure> {
        let writer = self.open.get_mut(&id).filter(|writer| !writer.is_abandoned);
        writer.ok_or(Failure::Writer)
    }
}

/// A reservation that passed its checks.
#[derive(Debug)]
pub(super) struct Reserving<R> {
    pub(super) reply: R,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) object: Object,
    expires_s: Option<u64>,
    condition: Condition,
    after: Option<Key>,
}

#[derive(Debug)]
pub(super) struct Sealing<R> {
    pub(super) reply: R,
    pub(super) writer: WriterId,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Checks the reservations that come next, answers invalid ones and queues the rest.
    pub(super) fn reserve(
        &mut self,
        now: Time,
        deadline: Time,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut checked = SmallVec::<[Reserving<R>; 1]>::new();
        let (mut share, most) = (Share::default(), self.share_max());
        while let Some(Hashed {
            hash,
            request: Request { reply, action: Action::Reserve(item), .. },
        }) = requests.next.take_if(|next| matches!(next.request.action, Action::Reserve(_)))
        {
            let ReserveItem { key, bytes, options } = item;
            // It is written in parts by a caller that counts on it, so it is not declined.
            let sequence = Newcomer::alone(hash);
            match self.check_put(now, &key, bytes, &options, (None, sequence)) {
                Ok((object, _)) => {
                    let expires_s = self.expires_s(now, &options);
                    if !share.add(self.spaces.units_of(&object), 0, &most) {
                        let change = Change::Reserve(std::mem::take(&mut checked));
                        self.enter(now, Stalled { deadline, change });
                    }
                    let PutOptions { after, condition, .. } = options;
                    let item = Reserving { reply, key, hash, object, expires_s, condition, after };
                    checked.push(item);
                }
                Err(refusal) => self.answer(reply, refusal, AnyBuffer::None),
            }
            requests.advance();
        }
        if !checked.is_empty() {
            self.enter(now, Stalled { deadline, change: Change::Reserve(checked) });
        }
    }

    /// Turns reservations into writers, all of them or none yet.
    pub(super) fn begin_reserves(
        &mut self,
        now: Time,
        items: SmallVec<[Reserving<R>; 1]>,
    ) -> Begun<R> {
        let wanted: SmallVec<[Wanted<'_>; 1]> =
            items.iter().map(|item| (item.object, u64::MAX, item.after.as_ref())).collect();
        let rooms = self.rooms(now, &wanted, &|_| items.len(), 0);
        drop(wanted);
        match rooms {
            Ok(None) => return Begun::Later(Change::Reserve(items)),
            Err(failure) => self.refuse(Change::Reserve(items), &failure),
            Ok(Some(rooms)) => {
                for (item, room) in items.into_iter().zip(rooms) {
                    let object = Object { place: room.place, ..item.object };
                    let id = self.add_writer(&item, object, room.slab_base);
                    let reserved = Outcome::Reserved { writer: id, device: room.place.device };
                    self.answer(item.reply, Ok(reserved), AnyBuffer::None);
                }
            }
        }
        Begun::Yes
    }

    fn add_writer(
        &mut self,
        item: &Reserving<R>,
        object: Object,
        slab_base: Option<u64>,
    ) -> WriterId {
        let mut parts = Vec::new();
        let all = extract(&self.spaces, &object, &Part::All, 0, &mut parts);
        let count = all.expect("an object has all of its parts").pieces.count as usize;
        let Reserving { hash, expires_s, condition, .. } = *item;
        let (key, checksums) = (item.key.clone(), Sums::from_elem(0, count));
        let (turn, recorded) = (0, None);
        let attachment = self.lanes[usize::from(object.place.device)].attachment;
        let new = self.scratch.news.fill(NewObject {
            key,
            hash,
            turn,
            object,
            slab_base,
            attachment,
            expires_s,
            condition,
            recorded,
            checksums,
        });
        // An empty object has nothing to fill, and the checksum of nothing is 0.
        let (filled, claimed) = (vec![object.bytes == 0; count], vec![false; count]);
        self.writers.add(Writer { new, filled, claimed, in_flight: 0, is_abandoned: false })
    }

    /// Writes the parts of the fills that come next, neighbours with shared commands.
    pub(super) fn fill(
        &mut self,
        now: Time,
        deadline: Time,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut items = Items::new();
        while let Some(Hashed {
            request: Request { reply, action: Action::Fill(item), .. }, ..
        }) = requests.next.take_if(|next| matches!(next.request.action, Action::Fill(_)))
        {
            let FillItem { writer, part, data } = item;
            let mut memory = Memory::of(data);
            match self.claim(writer, &part, &mut memory, items.len() as u32) {
                Ok(filling) => {
                    items.push(Some(Item::new(reply, Job::Fill(filling), memory)));
                }
                Err(failure) => self.answer(reply, Err(failure), memory.into_any()),
            }
            requests.advance();
        }
        if !items.is_empty() {
            self.launch(now, deadline, Direction::Write, items);
        }
    }

    /// Locates a part as `item` of a batch, and computes its checksums.
    fn claim(
        &mut self,
        id: WriterId,
        part: &Part,
        memory: &mut Memory,
        item: u32,
    ) -> Result<Filling, Failure> {
        let writer = self.writers.usable(id)?;
        let (object, before) = (writer.new.object, self.scratch.parts.len());
        let extract = extract(&self.spaces, &object, part, item, &mut self.scratch.parts)?;
        let first = extract.first_checksum as usize;
        let claimed = &mut writer.claimed[first..first + extract.pieces.count as usize];
        let device = object.place.device;
        let lane = &self.lanes[usize::from(device)];
        let (needs, has) = (extract.padded_bytes, memory.bytes());
        let refusal = if claimed.contains(&true) {
            Some(Failure::Part("this part was filled before: a part is filled once"))
        } else if has < needs || !memory.is_whole(UNIT_BYTES) {
            Some(Failure::Memory { needs, has })
        } else if !memory.is_accepted(&lane.info.accepts) {
            Some(Failure::Foreign { device })
        } else {
            None
        };
        if let Some(failure) = refusal {
            self.scratch.parts.truncate(before);
            return Err(failure);
        }
        claimed.fill(true);
        writer.in_flight += 1;
        if object.layout == LayoutId::PLAIN {
            memory.zero(extract.bytes, extract.padded_bytes - extract.bytes);
        }
        let mut checksums = Sums::new();
        memory.checksums(&extract.pieces, &mut checksums);
        Ok(Filling { writer: id, extract, checksums })
    }

    /// Handles the end of a part's writes.
    pub(super) fn finish_fill(
        &mut self,
        reply: R,
        filling: &Filling,
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        let writer =
            self.writers.open.get_mut(&filling.writer).expect("a writer waits for its parts");
        writer.in_flight -= 1;
        let first = filling.extract.first_checksum as usize;
        let run = first..first + filling.checksums.len();
        let is_written = trouble.is_none();
        writer.filled[run.clone()].fill(is_written);
        writer.claimed[run.clone()].fill(is_written);
        writer.new.checksums[run].copy_from_slice(&filling.checksums);
        if writer.is_abandoned && writer.in_flight == 0 {
            self.drop_writer(filling.writer);
        }
        let result = trouble.map_or(Ok(Outcome::Filled), |trouble| Err(trouble.into_failure()));
        self.answer(reply, result, memory.into_any());
    }

    /// Turns what a writer wrote into an object.
    pub(super) fn begin_seal(&mut self, now: Time, sealing: Sealing<R>) -> Begun<R> {
        match self.check_seal(sealing.writer) {
            Err(failure) => self.answer(sealing.reply, Err(failure), AnyBuffer::None),
            Ok(_) if self.seal_waits(sealing.writer) => return Begun::Later(Change::Seal(sealing)),
            Ok(record_bytes) if !self.log.has_room(record_bytes) => {
                self.want_journal();
                return Begun::Later(Change::Seal(sealing));
            }
            Ok(record_bytes) => {
                let new = &self.writers.open[&sealing.writer].new;
                let (hash, key) = (new.hash, new.key.clone());
                let fresh =
                    |index: &Index| usize::from(index.find_hashed(hash, key.as_bytes()).is_none());
                // The records of victims must leave room for the object's own record.
                self.log.reserve(record_bytes);
                let made = self.make_entries(now, &fresh, record_bytes);
                self.log.unreserve(record_bytes);
                match made {
                    Err(failure) => self.answer(sealing.reply, Err(failure), AnyBuffer::None),
                    Ok(false) => return Begun::Later(Change::Seal(sealing)),
                    Ok(true) => self.seal_now(now, sealing),
                }
            }
        }
        Begun::Yes
    }

    /// Returns whether a writer's object has a condition that cannot be checked yet.
    fn seal_waits(&self, writer: WriterId) -> bool {
        let new = &self.writers.open[&writer].new;
        self.waits_for_key(new.hash, new.condition)
    }

    fn seal_now(&mut self, now: Time, Sealing { reply, writer }: Sealing<R>) {
        let new = self.writers.open.remove(&writer).expect("it was checked").new;
        let (result, memory) = (Ok(Outcome::Stored), AnyBuffer::None);
        self.stats.puts += 1;
        self.capacity.promise(&new);
        self.log.reserve(new.record_bytes());
        let (hash, turn) = (new.hash, self.order.take_turn(new.hash));
        let answer = Done { reply, result, memory, version: None, unverified: None };
        self.take_effect(now, hash, turn, Ready::Put(new, answer));
    }

    /// Checks that everything was filled, and returns the length of the object's record.
    fn check_seal(&mut self, id: WriterId) -> Result<u64, Failure> {
        self.check_home()?;
        let writer = self.writers.usable(id)?;
        let missing = writer.filled.iter().filter(|filled| !**filled).count() as u64;
        if missing == 0 {
            return Ok(writer.new.record_bytes());
        }
        let each = writer.new.object.bytes.div_ceil(writer.filled.len() as u64);
        Err(Failure::Unfilled { missing_bytes: (missing * each).min(writer.new.object.bytes) })
    }

    /// Gives up a writer's object and its room. Ignores an unknown writer.
    pub fn abandon(&mut self, writer: WriterId) {
        self.wake();
        let Some(found) = self.writers.open.get_mut(&writer) else { return };
        found.is_abandoned = true;
        if found.in_flight == 0 {
            self.drop_writer(writer);
        }
    }

    fn drop_writer(&mut self, id: WriterId) {
        if let Some(writer) = self.writers.open.remove(&id) {
            self.drop_new(&writer.new);
        }
    }
}
