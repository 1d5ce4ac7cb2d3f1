//! Storing objects.
//!
//! Submitting a put checks it and computes its checksums. It then needs room in the journal, an index entry and an
//! extent. If it has to wait for any of them, everything behind it waits too, so that large objects do not starve.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;
use smallvec::SmallVec;

use super::Writes;
use super::begin::refuse;
use super::share::Share;
use crate::catalog::index::Index;
use crate::error::{Decline, Failure};
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, ObjectId, Version};
use crate::model::place::{Place, UNIT_BYTES};
use crate::policy::evict::Newcomer;
use crate::shard::answer::Outcome;
use crate::shard::batch::{Item, Items, Job};
use crate::shard::change::{Change, NewObject, Putting, Waiting};
use crate::shard::extract::extract;
use crate::shard::memory::{Memory, Sums};
use crate::shard::objects::Objects;
use crate::shard::parts::Parts;
use crate::shard::request::{
    Action, Arriving, Condition, Hashed, Part, PutItem, PutOptions, Request,
};
use crate::shard::room::Wanted;

impl<R> Writes<R> {
    /// Checks the puts that come next, answers invalid ones and begins the rest, or lets them wait.
    pub(crate) fn put<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (now, deadline): (Time, Time),
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        let mut puts = SmallVec::<[Putting<R>; 1]>::new();
        let most = Share::most(&parts.objects, &parts.log, &parts.room).of_puts();
        let mut share = Share::default();
        let mut before: Option<(u64, Option<ObjectId>)> = None;
        while let Some(Hashed { hash, request: Request { reply, action: Action::Put(item), .. } }) =
            requests.next.take_if(|next| matches!(next.request.action, Action::Put(_)))
        {
            self.stats.puts += 1;
            let PutItem { key, bytes, data, options } = item;
            let mut memory = Memory::of(data);
            requests.advance();
            let waits_alone = parts.log.is_strict() && options.condition != Condition::Always;
            let is_followed = matches!(&requests.next, Some(next) if next.request.action.is_put());
            let named = options.after.as_ref().map(|key| named(&parts.objects, key));
            let sequence = Newcomer {
                after: named.or(before),
                is_in_sequence: named.is_some() || before.is_some() || is_followed,
                is_last: before.is_some() && !is_followed,
                ..Newcomer::alone(hash)
            };
            before = Some((hash, None));
            let checked =
                self.check_put(parts, now, (&key, bytes), &options, (Some(&memory), sequence));
            match checked {
                Ok((object, devices)) => {
                    let expires_s = parts.objects.expires_s(now, &options);
                    let checksums = prepared(parts, &object, &mut memory);
                    let terms = (expires_s, options.condition);
                    let new = parts.boxes.fill(new_object((key, hash), object, terms, checksums));
                    let units = parts.objects.units_of(&object);
                    let fits = share.add(units, new.record_bytes(), &most);
                    if !fits || (waits_alone && !puts.is_empty()) {
                        let change = Change::Put(std::mem::take(&mut puts));
                        self.enter(parts, now, Waiting { deadline, change });
                        parts.lanes.send(now);
                    }
                    parts.order.expect(hash);
                    puts.push(Putting { reply, new, memory, after: options.after, devices });
                }
                Err(refusal) => parts.answers.give(reply, refusal, memory.into_any()),
            }
        }
        if !puts.is_empty() {
            let change = Change::Put(puts);
            self.enter(parts, now, Waiting { deadline, change });
        }
    }

    /// Determines an object's shape and the devices it may go to, and charges its tenant.
    pub(super) fn check_put<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        (key, bytes): (&Key, u64),
        options: &PutOptions,
        (memory, sequence): (Option<&Memory>, Newcomer),
    ) -> Result<(Object, u64), Result<Outcome, Failure>> {
        let hash = sequence.key_hash;
        let object = shape(&parts.objects, bytes, options).map_err(Err)?;
        self.refuse_early(parts, now, (key, hash), options.condition).map_err(Err)?;
        let needs = parts.objects.units_of(&object);
        let most = parts.objects.spaces().extent_units_max();
        if needs > most {
            let (needs, has) = (needs * UNIT_BYTES, most * UNIT_BYTES);
            return Err(Err(Failure::TooLarge { needs, has }));
        }
        let devices = memory.map_or(Ok(u64::MAX), |memory| parts.lanes.devices_for(memory, needs));
        let devices = devices.map_err(Err)?;
        let account = (options.tenant, options.layout);
        parts.objects.charge((key, hash), account, needs).map_err(Err)?;
        if let Some(decline) = self.declines(parts, now, key, (needs, sequence)) {
            parts.objects.uncharge((key, hash), &object);
            self.stats.declined += 1;
            return Err(Ok(Outcome::Declined(decline)));
        }
        Ok((object, devices))
    }

    /// Checks a condition on arrival: accepts what an earlier change may still make true.
    fn refuse_early<Q: CommandQueue<Load>>(
        &self,
        parts: &Parts<Q, R>,
        now: Time,
        (key, hash): (&Key, u64),
        condition: Condition,
    ) -> Result<(), Failure> {
        if !self.waiting.is_empty() || parts.order.is_unsettled(hash) {
            return Ok(());
        }
        parts.check_condition(now, (key, hash), condition)
    }

    /// Returns why admission or the write budget rejects an object.
    fn declines<Q>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        key: &Key,
        (units, sequence): (u64, Newcomer),
    ) -> Option<Decline> {
        // Replacing an object is never declined: its old contents would stay. Nor is replacing one that is on its way.
        let hash = sequence.key_hash;
        let objects = &mut parts.objects;
        if objects.find(hash, key).is_none() && !parts.order.is_under_way(hash) {
            let is_short = parts.room.is_short_of(objects, units);
            if !objects.order_mut().admits(&Newcomer { is_short, ..sequence }) {
                return Some(Decline::Admission);
            }
        }
        let bytes = units * UNIT_BYTES;
        let allowed = self.budget.as_mut().is_none_or(|budget| budget.allow(now, bytes));
        (!allowed).then_some(Decline::Budget)
    }

    /// Begins puts that passed their checks, all of them or none yet.
    pub(super) fn begin_puts<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        (now, deadline): (Time, Time),
        puts: SmallVec<[Putting<R>; 1]>,
    ) -> Option<Change<R>> {
        let waits = |put: &Putting<R>| parts.waits_for_key(put.new.hash, put.new.condition);
        let found = if puts.iter().any(waits) {
            // Its wait never ends while the journal's device is away.
            parts.lanes.check_home().map(|()| None)
        } else {
            let mut wanted: SmallVec<[Wanted<'_>; 1]> =
                puts.iter().map(|put| (put.new.object, put.devices, put.after.as_ref())).collect();
            let fresh = |index: &Index| {
                let is_new = |put: &&Putting<R>| {
                    index.find_hashed(put.new.hash, put.new.key.as_bytes()).is_none()
                };
                puts.iter().filter(is_new).count()
            };
            let record_bytes = puts.iter().map(|put| put.new.record_bytes()).sum();
            parts.find_room(now, &mut wanted, &fresh, record_bytes)
        };
        let rooms = match found {
            Ok(Some(rooms)) => rooms,
            Ok(None) => return Some(Change::Put(puts)),
            Err(failure) => {
                refuse(parts, Change::Put(puts), &failure);
                return None;
            }
        };
        let mut items = Items::new();
        for (index, (mut put, room)) in puts.into_iter().zip(rooms).enumerate() {
            put.new.object.place = room.place;
            put.new.slab_base = room.slab_base;
            put.new.attachment = parts.lanes.of(room.place.device).attachment;
            parts.begin_put(now, &mut put.new);
            let object = &put.new.object;
            let layout = parts.objects.layouts().get(object.layout);
            let all = extract(layout, object, &Part::All, index as u32, parts.batches.parts());
            all.expect("an object has all of its parts");
            items.push(Some(Item::new(put.reply, Job::Put(put.new), put.memory)));
        }
        parts.launch(now, deadline, Direction::Write, items);
        None
    }
}

/// Returns the hash of a predecessor's key, and its object if there is one.
fn named(objects: &Objects, key: &Key) -> (u64, Option<ObjectId>) {
    let hash = objects.index().hash(key.as_bytes());
    (hash, objects.find(hash, key))
}

/// Returns an object of this length and layout, without a place.
fn shape(objects: &Objects, bytes: u64, options: &PutOptions) -> Result<Object, Failure> {
    if let Some(what) = options.undefined {
        return Err(Failure::Undefined(what));
    }
    if objects.tenants().name(options.tenant).is_none() {
        return Err(Failure::Undefined("tenant"));
    }
    let bytes = match objects.layouts().get(options.layout) {
        None if options.layout != LayoutId::PLAIN => return Err(Failure::Undefined("layout")),
        None => bytes,
        Some(layout) => whole_block(layout, bytes)?,
    };
    if bytes >= Object::BYTES_END {
        return Err(Failure::Part("an object has up to 2^40 - 1 bytes".into()));
    }
    let place = Place { device: 0, unit: 0 };
    let (layout, tenant, version) = (options.layout, options.tenant, Version::NONE);
    Ok(Object { place, bytes, layout, tenant, version })
}

/// Zeroes the memory behind an object's end, and returns the checksums.
fn prepared<Q, R>(parts: &mut Parts<Q, R>, object: &Object, memory: &mut Memory) -> Sums {
    let layout = parts.objects.layouts().get(object.layout);
    let extract = extract(layout, object, &Part::All, 0, parts.batches.parts());
    parts.batches.parts().clear();
    let extract = extract.expect("an object has all of its parts");
    if object.layout == LayoutId::PLAIN {
        memory.zero(object.bytes, extract.padded_bytes - object.bytes);
    }
    let mut checksums = Sums::new();
    memory.checksums(&extract.pieces, &mut checksums);
    checksums
}

/// Returns an object that has no place and turn yet.
pub(super) fn new_object(
    (key, hash): (Key, u64),
    object: Object,
    (expires_s, condition): (Option<u64>, Condition),
    checksums: Sums,
) -> NewObject {
    NewObject {
        key,
        hash,
        turn: 0,
        object,
        slab_base: None,
        attachment: 0,
        expires_s,
        condition,
        recorded: None,
        checksums,
    }
}

/// Checks that a KV block has its layout's length, with or without padding. Returns the padded length.
fn whole_block(layout: &Layout, bytes: u64) -> Result<u64, Failure> {
    let padded = layout.block_units() * UNIT_BYTES;
    if bytes == padded || bytes == layout.block_bytes() {
        return Ok(padded);
    }
    Err(Failure::Part("a KV block has the bytes of all its tensors".into()))
}
