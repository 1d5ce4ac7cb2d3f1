//! Storing objects, whole or in parts by a writer.
//!
//! Submitting a put checks it and computes its checksums. It then needs room in the journal, an index entry and an
//! extent. If it has to wait for any of them, everything behind it waits too, so that large objects do not starve.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;
use smallvec::SmallVec;

use super::Shard;
use super::batch::{Item, Items, Job, NewObject, Sums, Trouble};
use super::evicting::Evicted;
use super::key_order::Ready;
use super::log::{Event, put_record};
use super::parts::{Memory, extract};
use super::request::{
    Action, Arriving, Condition, Done, Hashed, Outcome, Part, PutItem, PutOptions, Request,
};
use super::room::SomeRooms;
use super::space::Room;
use super::stalled::{Begun, Change, Stalled};
use crate::catalog::index::{self, Index};
use crate::error::{Decline, Failure};
use crate::io::lane::Load;
use crate::media::record::{Put, Record};
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, ObjectId, Version};
use crate::model::place::{Place, UNIT_BYTES};
use crate::policy::evict::Newcomer;

/// Room for each object of a batch.
pub(super) type Rooms = SmallVec<[Room; 1]>;

/// Units of a list of puts that begin together: devices write them while the next are summed.
const SHARE_UNITS: u64 = (4 << 20) / UNIT_BYTES;

/// A put that passed its checks.
#[derive(Debug)]
pub(super) struct Putting<R> {
    pub(super) reply: R,
    pub(super) new: Box<NewObject>,
    memory: Memory,
    after: Option<Key>,
    /// Devices whose queues can use the memory, one bit each.
    devices: u64,
}

/// An object that needs room: its shape, a bit mask of the devices it may go to, and its predecessor.
pub(super) type Wanted<'a> = (Object, u64, Option<&'a Key>);

/// A part of a request that begins as a whole, and so needs all its room at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    items: u64,
    units: u64,
    record_bytes: u64,
}

impl Share {
    /// Adds an item. Returns false if it does not fit; it is then the first of the next share.
    pub(super) fn add(&mut self, units: u64, record_bytes: u64, most: &Share) -> bool {
        let with = Share {
            items: self.items + 1,
            units: self.units + units,
            record_bytes: self.record_bytes + record_bytes,
        };
        let fits = with.items <= most.items
            && with.units <= most.units
            && with.record_bytes <= most.record_bytes;
        if fits || self.items == 0 {
            *self = with;
            return true;
        }
        *self = Share { items: 1, units, record_bytes };
        false
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Checks the puts that come next, answers invalid ones and queues the rest.
    pub(super) fn put(
        &mut self,
        now: Time,
        deadline: Time,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut puts = SmallVec::<[Putting<R>; 1]>::new();
        let most = self.share_max();
        let most = Share { units: most.units.min(SHARE_UNITS), ..most };
        let mut share = Share::default();
        let mut before: Option<(u64, Option<ObjectId>)> = None;
        while let Some(Hashed { hash, request: Request { reply, action: Action::Put(item), .. } }) =
            requests.next.take_if(|next| matches!(next.request.action, Action::Put(_)))
        {
            self.stats.puts += 1;
            let PutItem { key, bytes, data, options } = item;
            let mut memory = Memory::of(data);
            requests.advance();
            let waits_alone = self.log.is_strict() && options.condition != Condition::Always;
            let is_followed = matches!(&requests.next, Some(next) if next.request.action.is_put());
            let named = options.after.as_ref().map(|key| self.named(key));
            let sequence = Newcomer {
                after: named.or(before),
                is_in_sequence: named.is_some() || before.is_some() || is_followed,
                is_last: before.is_some() && !is_followed,
                ..Newcomer::alone(hash)
            };
            before = Some((hash, None));
            match self.check_put(now, &key, bytes, &options, (Some(&memory), sequence)) {
                Ok((object, devices)) => {
                    let expires_s = self.expires_s(now, &options);
                    let mut new = self.prepared((key, hash), object, expires_s, &mut memory);
                    new.condition = options.condition;
                    let fits = share.add(self.spaces.units_of(&object), new.record_bytes(), &most);
                    if !fits || (waits_alone && !puts.is_empty()) {
                        let change = Change::Put(std::mem::take(&mut puts));
                        self.enter(now, Stalled { deadline, change });
                        self.send(now);
                    }
                    self.order.expect(hash);
                    puts.push(Putting { reply, new, memory, after: options.after, devices });
                }
                Err(refusal) => self.answer(reply, refusal, memory.into_any()),
            }
        }
        if !puts.is_empty() {
            self.enter(now, Stalled { deadline, change: Change::Put(puts) });
        }
    }

    /// Returns how much of a request begins at one time, so that no request is too large to begin.
    pub(super) fn share_max(&self) -> Share {
        Share {
            items: u64::from(self.capacity.objects_max),
            units: self.spaces.capacity_units() / 2,
            record_bytes: self.log.share_bytes_max().min(self.capacity.record_bytes_max / 2),
        }
    }

    /// Determines an object's shape and the devices it may go to, and charges its tenant.
    pub(super) fn check_put(
        &mut self,
        now: Time,
        key: &Key,
        bytes: u64,
        options: &PutOptions,
        (memory, sequence): (Option<&Memory>, Newcomer),
    ) -> Result<(Object, u64), Result<Outcome, Failure>> {
        let hash = sequence.key_hash;
        let object = self.shape(bytes, options).map_err(Err)?;
        self.refuse_early(now, (key, hash), options.condition).map_err(Err)?;
        let needs = self.spaces.units_of(&object);
        let most = self.spaces.extent_units_max();
        if needs > most {
            let (needs, has) = (needs * UNIT_BYTES, most * UNIT_BYTES);
            return Err(Err(Failure::TooLarge { needs, has }));
        }
        let devices =
            memory.map_or(Ok(u64::MAX), |memory| self.devices_for(memory, needs)).map_err(Err)?;
        self.charge((key, hash), (options.tenant, options.layout), needs).map_err(Err)?;
        if let Some(decline) = self.declines(now, key, needs, sequence) {
            self.uncharge((key, hash), &object);
            self.stats.declined += 1;
            return Err(Ok(Outcome::Declined(decline)));
        }
        Ok((object, devices))
    }

    /// Returns an object of this length and layout, without a place.
    fn shape(&self, bytes: u64, options: &PutOptions) -> Result<Object, Failure> {
        if let Some(what) = options.undefined {
            return Err(Failure::Undefined(what));
        }
        if self.tenants.name(options.tenant).is_none() {
            return Err(Failure::Undefined("tenant"));
        }
        let bytes = match self.spaces.layout(options.layout) {
            None if options.layout != LayoutId::PLAIN => return Err(Failure::Undefined("layout")),
            None => bytes,
            Some(layout) => whole_block(layout, bytes)?,
        };
        if bytes >= Object::BYTES_END {
            return Err(Failure::Part("an object has up to 2^40 - 1 bytes"));
        }
        let place = Place { device: 0, unit: 0 };
        let (layout, tenant, version) = (options.layout, options.tenant, Version::NONE);
        Ok(Object { place, bytes, layout, tenant, version })
    }

    /// Returns the devices whose queues can use this memory, which must be large enough.
    fn devices_for(&self, memory: &Memory, needs: u64) -> Result<u64, Failure> {
        let (needs, has) = (needs * UNIT_BYTES, memory.bytes());
        if has < needs || !memory.is_whole(UNIT_BYTES) {
            return Err(Failure::Memory { needs, has });
        }
        let accepts = |device: &usize| memory.is_accepted(&self.lanes[*device].info.accepts);
        let devices =
            (0..self.lanes.len()).filter(accepts).fold(0, |bits, device| bits | 1 << device);
        if devices == 0 { Err(Failure::Foreign { device: 0 }) } else { Ok(devices) }
    }

    /// Returns why admission or the write budget rejects an object.
    fn declines(
        &mut self,
        now: Time,
        key: &Key,
        units: u64,
        sequence: Newcomer,
    ) -> Option<Decline> {
        // Replacing an object is never declined: its old contents would stay. Nor is replacing one that is on its way.
        let hash = sequence.key_hash;
        let is_there = self.index.find_hashed(hash, key.as_bytes()).is_some();
        if !is_there && !self.order.is_under_way(hash) {
            let is_short = self.is_short_of(units);
            if !self.policy.admits(&Newcomer { is_short, ..sequence }) {
                return Some(Decline::Admission);
            }
        }
        let bytes = units * UNIT_BYTES;
        let allowed = self.budget.as_mut().is_none_or(|budget| budget.allow(now, bytes));
        (!allowed).then_some(Decline::Budget)
    }

    /// Returns whether something goes for a new object of so many units, now or when the high watermark is reached.
    fn is_short_of(&self, units: u64) -> bool {
        let low_units = self.options.watermarks.low_units(self.spaces.capacity_units());
        let live_units = self.spaces.used_units() - self.spaces.buried_units();
        live_units + units > low_units || !self.capacity.fits(self.index.len(), 1, 0)
    }

    /// Returns the hash of a predecessor's key, and its object if there is one.
    fn named(&self, key: &Key) -> (u64, Option<ObjectId>) {
        let hash = self.index.hash(key.as_bytes());
        (hash, self.index.find_hashed(hash, key.as_bytes()))
    }

    /// Computes the checksums and zeroes the memory behind the object's end.
    fn prepared(
        &mut self,
        (key, hash): (Key, u64),
        object: Object,
        expires_s: Option<u64>,
        memory: &mut Memory,
    ) -> Box<NewObject> {
        let extract = extract(&self.spaces, &object, &Part::All, 0, &mut self.scratch.parts);
        self.scratch.parts.clear();
        let extract = extract.expect("an object has all of its parts");
        if object.layout == LayoutId::PLAIN {
            memory.zero(object.bytes, extract.padded_bytes - object.bytes);
        }
        let mut checksums = Sums::new();
        memory.checksums(&extract.pieces, &mut checksums);
        self.scratch.news.fill(NewObject {
            key,
            hash,
            turn: 0,
            object,
            slab_base: None,
            attachment: 0,
            expires_s,
            condition: Condition::Always,
            recorded: None,
            checksums,
        })
    }

    /// Returns when an object with these options expires, in seconds of Unix time.
    pub(super) fn expires_s(&self, now: Time, options: &PutOptions) -> Option<u64> {
        options.ttl_s.map(|ttl_s| self.wall_s(now).saturating_add(ttl_s))
    }

    /// Begins puts that passed their checks, all of them or none yet.
    pub(super) fn begin_puts(
        &mut self,
        now: Time,
        deadline: Time,
        puts: SmallVec<[Putting<R>; 1]>,
    ) -> Begun<R> {
        if puts.iter().any(|put| self.waits_for_key(put.new.hash, put.new.condition)) {
            // What it waits for never ends while the journal's device is away.
            return match self.check_home() {
                Ok(()) => Begun::Later(Change::Put(puts)),
                Err(failure) => {
                    puts.into_iter().for_each(|put| self.fail_put(put, failure.clone()));
                    Begun::Yes
                }
            };
        }
        let wanted: SmallVec<[Wanted<'_>; 1]> =
            puts.iter().map(|put| (put.new.object, put.devices, put.after.as_ref())).collect();
        let fresh = |index: &Index| {
            let is_new = |put: &&Putting<R>| {
                index.find_hashed(put.new.hash, put.new.key.as_bytes()).is_none()
            };
            puts.iter().filter(is_new).count()
        };
        let record_bytes = puts.iter().map(|put| put.new.record_bytes()).sum();
        let rooms = self.rooms(now, &wanted, &fresh, record_bytes);
        drop(wanted);
        let rooms = match rooms {
            Ok(Some(rooms)) => rooms,
            Ok(None) => return Begun::Later(Change::Put(puts)),
            Err(failure) => {
                puts.into_iter().for_each(|put| self.fail_put(put, failure.clone()));
                return Begun::Yes;
            }
        };
        let mut items = Items::new();
        for (index, (mut put, room)) in puts.into_iter().zip(rooms).enumerate() {
            put.new.object.place = room.place;
            put.new.slab_base = room.slab_base;
            put.new.attachment = self.lanes[usize::from(room.place.device)].attachment;
            put.new.turn = self.order.take_turn(put.new.hash);
            self.order.expect_no_more(put.new.hash);
            let object = &put.new.object;
            let all =
                extract(&self.spaces, object, &Part::All, index as u32, &mut self.scratch.parts);
            all.expect("an object has all of its parts");
            self.capacity.promise(&put.new);
            if self.records_ahead(&put.new) {
                self.record_ahead(now, &mut put.new);
            }
            items.push(Some(Item::new(put.reply, Job::Put(put.new), put.memory)));
        }
        self.launch(now, deadline, Direction::Write, items);
        Begun::Yes
    }

    /// Allocates room for objects of these shapes, with `fresh` new index entries, and reserves journal room for
    /// their records. Returns `None` if room has to be made first, which this starts.
    pub(super) fn rooms(
        &mut self,
        now: Time,
        wanted: &[Wanted<'_>],
        fresh: &dyn Fn(&Index) -> usize,
        record_bytes: u64,
    ) -> Result<Option<Rooms>, Failure> {
        self.check_home()?;
        for (shape, devices, _) in wanted {
            self.check_usable(shape, *devices)?;
        }
        if !self.log.has_room(record_bytes) {
            self.want_journal();
            return Ok(None);
        }
        // Reserve first, so that the records of victims leave room for these.
        self.log.reserve(record_bytes);
        let rooms = self.rooms_in_devices(now, wanted, fresh, record_bytes);
        if !matches!(rooms, Ok(Some(_))) {
            self.log.unreserve(record_bytes);
        }
        rooms
    }

    /// Checks that some working device can hold the object at all. Nothing is evicted for an object that no device
    /// can hold.
    fn check_usable(&self, shape: &Object, devices: u64) -> Result<(), Failure> {
        let needs = self.spaces.units_of(shape);
        let asked = || (0..self.lanes.len()).filter(|device| devices & 1 << device != 0);
        let mut able = asked().filter(|device| self.spaces.extent_units_on(*device) >= needs);
        let Some(first) = able.next() else {
            let most = asked().map(|device| self.spaces.extent_units_on(device)).max();
            let (needs, has) = (needs * UNIT_BYTES, most.unwrap_or(0) * UNIT_BYTES);
            return Err(Failure::TooLarge { needs, has });
        };
        let works = |device: usize| self.lanes[device].failure().is_none();
        if works(first) || able.any(works) { Ok(()) } else { Err(self.failure_of(first)) }
    }

    fn rooms_in_devices(
        &mut self,
        now: Time,
        wanted: &[Wanted<'_>],
        fresh: &dyn Fn(&Index) -> usize,
        record_bytes: u64,
    ) -> Result<Option<Rooms>, Failure> {
        if !self.make_entries(now, fresh, record_bytes)? {
            return Ok(None);
        }
        let rooms = self.allocate_all(wanted);
        if let Some(all) = rooms.iter().copied().collect() {
            let needs = wanted.iter().map(|(object, ..)| self.spaces.units_of(object)).sum();
            self.making.end();
            self.making.pay(needs, self.spaces.slack_units());
            self.keep_below_watermark(now);
            return Ok(Some(all));
        }
        self.claim_again(wanted, &rooms);
        if self.make_rooms(now, wanted) == Evicted::Nothing {
            self.making.end();
            return Err(Failure::Full);
        }
        Ok(None)
    }

    /// Allocates room for as many as possible, in order; for none while claims are not free.
    fn allocate_all(&mut self, wanted: &[Wanted<'_>]) -> SomeRooms {
        let Some(mut rooms) = self.take_claimed(wanted) else {
            return SomeRooms::from_elem(None, wanted.len());
        };
        let mut near: SmallVec<[Option<Object>; 4]> = SmallVec::from_elem(None, self.lanes.len());
        for (at, (shape, devices, after)) in wanted.iter().enumerate() {
            let before = after.as_ref().and_then(|key| self.index.find(key.as_bytes()));
            if let Some(before) = before.map(|id| self.index.object(id)) {
                near[usize::from(before.place.device)] = Some(before);
                self.spaces.follow(&before);
            }
            let lanes = &self.lanes;
            let usable = |device: u8| {
                devices & 1 << device != 0 && lanes[usize::from(device)].failure().is_none()
            };
            let ahead = (wanted.len() - at) as u32;
            rooms[at] = rooms[at].or_else(|| self.spaces.allocate(shape, &near, ahead, usable));
            if let Some(Room { place, .. }) = rooms[at] {
                near[usize::from(place.device)] = Some(Object { place, ..*shape });
            }
        }
        rooms
    }

    /// Fails a put that never got room.
    pub(super) fn fail_put(&mut self, put: Putting<R>, failure: Failure) {
        self.order.expect_no_more(put.new.hash);
        self.uncharge((&put.new.key, put.new.hash), &put.new.object);
        self.scratch.news.keep(put.new);
        self.answer(put.reply, Err(failure), put.memory.into_any());
    }

    /// Handles the end of a put's writes.
    pub(super) fn finish_put(
        &mut self,
        now: Time,
        reply: R,
        new: Box<NewObject>,
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        let (hash, turn) = (new.hash, new.turn);
        let memory = memory.into_any();
        if let Some(sequence) = new.recorded {
            let failure = trouble.map(Trouble::into_failure).or_else(|| self.never_durable(&new));
            let version = failure.is_none().then_some(new.object.version);
            let result = failure.map_or(Ok(Outcome::Stored), Err);
            let answer = Done { reply, result, memory, version, unverified: None };
            self.finish_recorded(now, sequence, new, answer);
            return self.take_effect(now, hash, turn, Ready::Nothing);
        }
        if let Some(trouble) = trouble {
            self.log.unreserve(new.record_bytes());
            self.capacity.settle(&new);
            self.drop_new(&new);
            self.scratch.news.keep(new);
            self.answer(reply, Err(trouble.into_failure()), memory);
            return self.take_effect(now, hash, turn, Ready::Nothing);
        }
        let answer =
            Done { reply, result: Ok(Outcome::Stored), memory, version: None, unverified: None };
        self.take_effect(now, hash, turn, Ready::Put(new, answer));
    }

    /// Lets a change take effect once those of its key that began before it have, and those that waited for it.
    pub(super) fn take_effect(&mut self, now: Time, hash: u64, turn: u32, ready: Ready<R>) {
        let mut next = self.order.arrive(hash, turn, ready);
        while let Some(ready) = next {
            match ready {
                Ready::Put(new, answer) => self.record(now, new, answer),
                Ready::Delete(deleting) => self.delete_in_turn(now, deleting),
                Ready::Touch(touching) => self.touch_in_turn(now, touching),
                Ready::Nothing => {}
            }
            next = self.order.use_turn(hash);
        }
    }

    /// Returns why data that were written will never be durable: no flush goes to a device that is out of service, and
    /// none brings back what was lost before it was attached again.
    fn never_durable(&self, new: &NewObject) -> Option<Failure> {
        let device = new.object.place.device;
        let lane = &self.lanes[usize::from(device)];
        if !self.log.is_strict() {
            None
        } else if lane.failure().is_some() {
            Some(self.failure_of(usize::from(device)))
        } else {
            let why = "it failed, and may have lost what was written: put the object again";
            (lane.attachment != new.attachment)
                .then(|| Failure::Device { device, why: why.to_owned() })
        }
    }

    /// Gives up an object that was never visible.
    pub(super) fn drop_new(&mut self, new: &NewObject) {
        self.uncharge((&new.key, new.hash), &new.object);
        self.spaces.give_back(&new.object);
    }

    /// Records an object whose data is written: at once or, in a `durable` store with an object or put of its key, when
    /// the data is flushed. Its record has room reserved.
    fn record(&mut self, now: Time, mut new: Box<NewObject>, mut answer: Done<R>) {
        let check = || self.check_condition(now, (&new.key, new.hash), new.condition);
        if let Err(failure) = self.never_durable(&new).map_or_else(check, Err) {
            self.log.unreserve(new.record_bytes());
            self.capacity.settle(&new);
            self.drop_new(&new);
            self.scratch.news.keep(new);
            return self.answers.push_back(Done { result: Err(failure), ..answer });
        }
        new.object.version = self.next_version(now);
        answer.version = Some(new.object.version);
        if self.log.is_strict() {
            let supersedes = self.supersedes(&new);
            self.order.hide(new.hash);
            if supersedes {
                return self.hold_back(new, answer);
            }
            let sequence = self.append_put(now, &new);
            return self.log.wait(sequence, Event::Put(new, Some(answer)));
        }
        let sequence = self.append_put(now, &new);
        self.apply(sequence, &new);
        self.scratch.news.keep(new);
        self.acknowledge(now, sequence, answer);
    }

    /// Returns whether the key of a put has an object.
    pub(super) fn is_there(&self, new: &NewObject) -> bool {
        self.index.find_hashed(new.hash, new.key.as_bytes()).is_some()
    }

    /// Returns whether the record of a put in a `durable` store will supersede an object, or a put that is not visible.
    pub(super) fn supersedes(&self, new: &NewObject) -> bool {
        self.order.is_hidden(new.hash) || self.is_there(new)
    }

    /// Appends the record of an object, using its reservation, and returns its sequence.
    pub(super) fn append_put(&mut self, now: Time, new: &NewObject) -> u64 {
        self.log.unreserve(new.record_bytes());
        let NewObject { key, object, slab_base, expires_s, checksums, .. } = new;
        let checksums = checksums.as_slice().into();
        let put = put_record(key.as_bytes(), *object, *slab_base, *expires_s, checksums);
        // In `durable`, what it supersedes is never to come back.
        let is_provisional = !self.log.is_strict() && self.is_there(new);
        if is_provisional {
            self.log.note_replaced(object.bytes);
        }
        self.log.append(now, &Record::Put(Put { is_provisional, ..put }))
    }

    /// Makes an object visible that block `sequence` of the journal records, replacing one with the same key.
    pub(super) fn apply(&mut self, sequence: u64, new: &NewObject) {
        self.capacity.settle(new);
        let (key, hash) = (new.key.as_bytes(), new.hash);
        let id = match self.index.find_hashed(hash, key) {
            Some(id) => {
                self.capacity.record_bytes -= self.record_bytes_of(id);
                let old = self.index.replace(id, new.object, &new.checksums);
                self.tier.forget(id);
                self.forget_tenants(id, &old);
                self.spaces.bury(sequence, old, self.leases.is_leased(old.place));
                self.regions.remove(id, old.place);
                self.regions.insert(id, new.object.place);
                if self.has_failed(new.object.place.device) {
                    // Readers were told of the failure before this was one of the device's objects.
                    self.options.removals.enter(key);
                }
                self.policy.touched(id);
                id
            }
            None => {
                let checksums = &new.checksums;
                let object = index::NewObject { key, object: new.object, checksums };
                let inserted = self.index.insert_hashed(hash, object);
                let id = inserted.expect("there was an entry for each put under way");
                self.regions.insert(id, new.object.place);
                self.policy.inserted(id, hash);
                id
            }
        };
        self.capacity.record_bytes += self.record_bytes_of(id);
        match new.expires_s {
            Some(at_s) => self.expiry.set(id, at_s),
            None => self.expiry.clear(id),
        }
        self.stats.bytes_written += new.object.bytes;
        self.note_stored(id, new.object.tenant);
    }
}

/// Checks that a KV block has its layout's length, with or without padding. Returns the padded length.
fn whole_block(layout: &Layout, bytes: u64) -> Result<u64, Failure> {
    let padded = layout.block_units() * UNIT_BYTES;
    if bytes == padded || bytes == layout.block_bytes() {
        return Ok(padded);
    }
    Err(Failure::Part("a KV block has the bytes of all its tensors"))
}
