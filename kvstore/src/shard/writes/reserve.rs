//! Objects written in parts: room is reserved first, parts come in any order, and the object is invisible until it is
//! sealed.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;
use smallvec::SmallVec;

use super::Writes;
use super::begin::refuse;
use super::put::new_object;
use super::share::Share;
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::object::{LayoutId, Object};
use crate::model::place::UNIT_BYTES;
use crate::policy::evict::Newcomer;
use crate::shard::answer::{Done, Outcome};
use crate::shard::batch::{Item, Items, Job, PartWrite};
use crate::shard::change::{Change, NewObject, Reserving, Sealing, Waiting};
use crate::shard::extract::extract;
use crate::shard::lanes::Trouble;
use crate::shard::memory::{Memory, Sums};
use crate::shard::objects::spaces::Allocated;
use crate::shard::parts::Parts;
use crate::shard::request::{
    Action, Arriving, FillItem, Hashed, Part, PutOptions, Request, ReserveItem, WriterId,
};
use crate::shard::room::Wanted;

impl<R> Writes<R> {
    /// Checks the reservations that come next, answers invalid ones and begins the rest, or lets them wait.
    pub(crate) fn reserve<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (now, deadline): (Time, Time),
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut checked = SmallVec::<[Reserving<R>; 1]>::new();
        let most = Share::most(&parts.objects, &parts.log, &parts.room);
        let mut share = Share::default();
        while let Some(Hashed {
            hash,
            request: Request { reply, action: Action::Reserve(item), .. },
        }) = requests.next.take_if(|next| matches!(next.request.action, Action::Reserve(_)))
        {
            let ReserveItem { key, bytes, options } = item;
            // It is written in parts by a caller that counts on it, so it is not declined.
            let sequence = (None, Newcomer::alone(hash));
            match self.check_put(parts, now, (&key, bytes), &options, sequence) {
                Ok((object, _)) => {
                    let expires_s = parts.objects.expires_s(now, &options);
                    if !share.add(parts.objects.units_of(&object), 0, &most) {
                        let change = Change::Reserve(std::mem::take(&mut checked));
                        self.enter(parts, now, Waiting { deadline, change });
                    }
                    let PutOptions { after, condition, .. } = options;
                    let item = Reserving { reply, key, hash, object, expires_s, condition, after };
                    checked.push(item);
                }
                Err(refusal) => parts.answers.give(reply, refusal, AnyBuffer::None),
            }
            requests.advance();
        }
        if !checked.is_empty() {
            let change = Change::Reserve(checked);
            self.enter(parts, now, Waiting { deadline, change });
        }
    }

    /// Turns reservations into writers, all of them or none yet.
    pub(super) fn begin_reserves<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        items: SmallVec<[Reserving<R>; 1]>,
    ) -> Option<Change<R>> {
        let mut wanted: SmallVec<[Wanted<'_>; 1]> =
            items.iter().map(|item| (item.object, u64::MAX, item.after.as_ref())).collect();
        let rooms = parts.find_room(now, &mut wanted, &|_| items.len(), 0);
        drop(wanted);
        match rooms {
            Ok(None) => return Some(Change::Reserve(items)),
            Err(failure) => refuse(parts, Change::Reserve(items), &failure),
            Ok(Some(rooms)) => {
                for (item, room) in items.into_iter().zip(rooms) {
                    let (reply, new) = writers_object(parts, item, room);
                    let writer = self.writers.add(parts.boxes.fill(new));
                    let reserved = Outcome::Reserved { writer, device: room.place.device };
                    parts.answers.give(reply, Ok(reserved), AnyBuffer::None);
                }
            }
        }
        None
    }

    /// Writes the parts of the fills that come next, neighbours with shared commands.
    pub(crate) fn fill<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (now, deadline): (Time, Time),
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut items = Items::new();
        while let Some(Hashed {
            request: Request { reply, action: Action::Fill(item), .. }, ..
        }) = requests.next.take_if(|next| matches!(next.request.action, Action::Fill(_)))
        {
            let FillItem { writer, part, data } = item;
            let mut memory = Memory::of(data);
            match self.claim(parts, (writer, &part), &mut memory, items.len() as u32) {
                Ok(filling) => {
                    items.push(Some(Item::new(reply, Job::Fill(filling), memory)));
                }
                Err(failure) => parts.answers.give(reply, Err(failure), memory.into_any()),
            }
            requests.advance();
        }
        if !items.is_empty() {
            parts.launch(now, deadline, Direction::Write, items);
        }
    }

    /// Locates a part as `item` of a batch, and computes its checksums.
    fn claim<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (id, part): (WriterId, &Part),
        memory: &mut Memory,
        item: u32,
    ) -> Result<PartWrite, Failure> {
        let writer = self.writers.usable(id)?;
        let object = writer.object().object;
        let layout = parts.objects.layouts().get(object.layout);
        let before = parts.batches.parts().len();
        let extract = extract(layout, &object, part, item, parts.batches.parts())?;
        let first = extract.first_checksum as usize;
        let pieces = first..first + extract.pieces.count as usize;
        let device = object.place.device;
        let (needs, has) = (extract.padded_bytes, memory.bytes());
        let refusal = if writer.is_claimed(&pieces) {
            Some(Failure::Part("this part was filled before: a part is filled once".into()))
        } else if has < needs || !memory.is_whole(UNIT_BYTES) {
            Some(Failure::Memory { needs, has })
        } else if !memory.is_accepted(&parts.lanes.of(device).info.accepts) {
            Some(Failure::Foreign { device })
        } else {
            None
        };
        if let Some(failure) = refusal {
            parts.batches.parts().truncate(before);
            return Err(failure);
        }
        writer.claim(pieces);
        if object.layout == LayoutId::PLAIN {
            memory.zero(extract.bytes, extract.padded_bytes - extract.bytes);
        }
        let mut checksums = Sums::new();
        memory.checksums(&extract.pieces, &mut checksums);
        Ok(PartWrite { writer: id, extract, checksums })
    }

    /// Handles the end of a part's writes.
    pub(crate) fn finish_fill<Q>(
        &mut self,
        parts: &mut Parts<Q, R>,
        reply: R,
        filling: &PartWrite,
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        if let Some(new) = self.writers.fill(filling, trouble.is_none()) {
            parts.objects.give_up(&new);
        }
        let result = trouble.map_or(Ok(Outcome::Filled), |trouble| Err(trouble.into_failure()));
        parts.answers.give(reply, result, memory.into_any());
    }

    /// Turns what a writer wrote into an object.
    pub(super) fn begin_seal<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        Sealing { reply, writer }: Sealing<R>,
    ) -> Option<Change<R>> {
        match self.can_seal(parts, now, writer) {
            Ok(false) => return Some(Change::Seal(Sealing { reply, writer })),
            Err(failure) => parts.answers.give(reply, Err(failure), AnyBuffer::None),
            Ok(true) => {
                self.stats.puts += 1;
                let answer = Done::new(reply, Ok(Outcome::Stored), AnyBuffer::None);
                parts.begin_written(now, self.writers.take(writer), answer);
            }
        }
        None
    }

    /// Returns whether a writer's object has room for its record and an index entry, and its turn comes; makes that
    /// room.
    fn can_seal<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        writer: WriterId,
    ) -> Result<bool, Failure> {
        parts.lanes.check_home()?;
        let writer = self.writers.usable(writer)?;
        if !writer.is_filled() {
            return Err(Failure::Unfilled { missing_bytes: writer.missing_bytes() });
        }
        let new = writer.object();
        let record_bytes = new.record_bytes();
        if parts.waits_for_key(new.hash, new.condition) || !parts.log.asks_room(record_bytes) {
            return Ok(false);
        }
        let fresh =
            |index: &Index| usize::from(index.find_hashed(new.hash, new.key.as_bytes()).is_none());
        // The records of victims must leave room for the object's own record.
        parts.log.reserve(record_bytes);
        let found = parts.room_maker(now).find_entries((&fresh, record_bytes));
        parts.log.unreserve(record_bytes);
        found
    }

    /// Gives up a writer's object and its room. Ignores an unknown writer.
    pub(crate) fn abandon<Q>(&mut self, parts: &mut Parts<Q, R>, writer: WriterId) {
        if let Some(new) = self.writers.abandon(writer) {
            parts.objects.give_up(&new);
        }
    }
}

/// Returns the object of a reservation that has room.
fn writers_object<Q: CommandQueue<Load>, R>(
    parts: &Parts<Q, R>,
    item: Reserving<R>,
    room: Allocated,
) -> (R, NewObject) {
    let Reserving { reply, key, hash, object, expires_s, condition, .. } = item;
    let object = Object { place: room.place, ..object };
    let checksums = Sums::from_elem(0, parts.objects.layouts().checksums_of(&object));
    let new = new_object((key, hash), object, (expires_s, condition), checksums);
    let attachment = parts.lanes.of(room.place.device).attachment;
    (reply, NewObject { slab_base: room.slab_base, attachment, ..new })
}
