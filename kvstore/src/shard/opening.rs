//! Opening a shard, which rebuilds its tables from the media, and reattaching a device that was lost.

mod rebuild;

use std::ops::Range;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::batch::Batches;
use super::capacity::Capacity;
use super::checkpointing::{Checkpoints, KeptAges};
use super::evicting::EVICTIONS_PER_TURN;
use super::journaling::HeldObjects;
use super::key_order::KeyOrder;
use super::log::Log;
use super::making::Making;
use super::renewed::{Claim, Renewed};
use super::replaced::Replaced;
use super::space::Spaces;
use super::stalled::Line;
use super::tenants::Shrinking;
use super::tier::Tier;
use super::writers::Writers;
use super::{Scratch, Shard, ShardOptions, Stats};
use crate::catalog::expiry::Expiry;
use crate::catalog::hash::NumberMap;
use crate::catalog::index::{Index, Loading, NewObject};
use crate::catalog::lease::Leases;
use crate::catalog::regions::Regions;
use crate::catalog::tenant::Tenants;
use crate::error::{Error, Result};
use crate::io::lane::{Lane, Load};
use crate::media::block::{JOURNAL_BLOCK_BYTES, Lineage};
use crate::media::device_set::Agreed;
use crate::media::format::{Set, Waiting, begin_session};
use crate::media::geometry::Geometry;
use crate::media::journal::{FIRST_SEQUENCE, Journal, Mark};
use crate::media::record::{Put, Record, record_bytes};
use crate::media::recovery::{Areas, Recovered, recover};
use crate::model::key::KeyHasher;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, ObjectId, Version};
use crate::model::options::Durability;
use crate::model::options::Quota;
use crate::model::place::{Place, UNIT_BYTES};
use crate::model::plan;
use crate::policy::age::Ages;
use crate::policy::budget::Budget;
use crate::policy::evict::OwnOrder;
use crate::policy::order::Order;
use crate::space::extent::Extents;
use crate::space::slab::Slabs;

/// At most one `LEASED_PARTS`th of the objects may be leased at a time.
const LEASED_PARTS: u32 = 2;
/// Maximum slices of one command: the limit of io_uring.
const SLICES_MAX: u32 = 256;
/// Most bytes of a command. A longer one ends as a whole where it could end in parts, of which one is summed while the
/// device moves the next; and a command for the memory of several objects is none for registered memory.
const COMMAND_BYTES_MAX: u64 = 2 << 20;
/// Extra entries while loading, one per `SPARE_PART` objects plus `SPARE_MIN`, because a checkpoint contains objects
/// that came and went while it was taken.
const SPARE_PART: u32 = 8;
const SPARE_MIN: u32 = 4096;

/// The result of an opening.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// What came from the checkpoint and the journal; `None` in a volatile store, which begins empty.
    pub recovered: Option<Recovered>,
    /// Number of objects.
    pub objects: u64,
    /// Objects dropped because their records are impossible: outside the store or overlapping another object.
    pub dropped: u64,
    /// Objects dropped because they were put before a block of the journal that damage took: it may have replaced or
    /// deleted them. With [`ShardOptions::keep_outdated`], those that were kept.
    pub outdated: u64,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Opens shard `shard` of a store. Open shard 0 first: it records on the media that a session has begun.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for an invalid option; [`crate::Error::Media`] if a device does not answer.
    pub fn open(
        shard: u16,
        mut lanes: Vec<Lane<Q>>,
        set: &Set,
        options: ShardOptions,
        clock: &mut dyn FnMut() -> Time,
    ) -> Result<(Shard<Q, R>, Recovery)> {
        let geometry = set.geometry();
        assert_eq!(lanes.len(), usize::from(geometry.devices()), "a lane to each device");
        options.watermarks.check()?;
        let agreed = set.next_session(options.durability);
        let lineage = Lineage { store: set.store_id(), epoch: agreed.epoch, shard };
        let mut tables = Tables::new(shard, set, &options)?;
        let areas = geometry.areas(shard);
        let mut waiting = Waiting { lanes: &mut lanes, clock };
        let mut recovered = match options.durability {
            Durability::Volatile => None,
            _ => {
                let witness = set.witness(shard);
                Some(recover(&mut waiting, &mut tables, &lineage, &areas, witness)?)
            }
        };
        // Data just read may exist only in a drive's volatile cache.
        waiting.flush()?;
        if shard == 0 {
            begin_session(&mut lanes, set, options.durability, clock)?;
        }
        if let Some(recovered) = &mut recovered {
            let mut waiting = Waiting { lanes: &mut lanes, clock };
            if recovered.needs_voucher() {
                vouch(&mut waiting, &areas, agreed, recovered)?;
            }
            waiting.void(&areas, recovered)?;
        }
        let now = clock();
        let mut recovery = Recovery { recovered, objects: 0, dropped: tables.dropped, outdated: 0 };
        let (settled, lost) = tables.settle(&mut recovery);
        let log = new_log(shard, geometry, &options, &recovery, agreed, now);
        let mut opened = Shard { log, ..Shard::new(shard, lanes, geometry, options, settled, now) };
        opened.checkpoints = recovery.recovered.as_ref().map(|recovered| {
            let next = (recovered.next_number, recovered.next_slot);
            let begin = recovered.checkpoint.map_or(FIRST_SEQUENCE, |chosen| chosen.begin.sequence);
            let ages = KeptAges { ticks: opened.policy.ticks(), at: now };
            let session = agreed.sequence;
            let mut checkpoints = Checkpoints::new(areas, lineage, session, next, begin, ages);
            if recovered.is_damaged() {
                checkpoints.hurry();
            }
            checkpoints
        });
        opened.tell_damage(shard, &recovery);
        let reverted = recovery.recovered.as_ref().map_or(0, |recovered| recovered.reverted);
        if reverted > 0 {
            tracing::warn!(
                "shard {shard}: a power cut took the newest version of {reverted} objects; what they replaced is back"
            );
        }
        // What was dropped stays so, also if the block can be read the next time.
        if reverted > 0 || recovery.outdated > 0 && !opened.options.keep_outdated {
            opened.checkpoint_at_once(clock)?;
        }
        for (key, place) in lost {
            if opened.log.has_room_for_small() {
                opened.log.append(now, &Record::Delete { key: &key, place });
            }
        }
        recovery.objects = u64::from(opened.index.len());
        Ok((opened, recovery))
    }

    /// Counts what damage to the journal and the checkpoints took, and warns.
    fn tell_damage(&mut self, shard: u16, recovery: &Recovery) {
        let damaged = recovery.recovered.as_ref().filter(|recovered| recovered.is_damaged());
        let Some(recovered) = damaged else { return };
        let Recovered { lost_blocks, .. } = recovered;
        let (outdated, objects) = (recovery.outdated, self.index.len());
        self.stats.journal_lost_blocks = *lost_blocks;
        self.stats.journal_outdated_objects = outdated;
        if recovered.is_index_lost() {
            tracing::warn!(
                "shard {shard}: its index cannot be read, neither the checkpoints nor the journal: it held objects and \
                 opens with none; check the drive"
            );
            return;
        }
        let became = if self.options.keep_outdated {
            "are kept, as keep_outdated says: they may be older versions, or deleted ones"
        } else {
            "are dropped"
        };
        tracing::warn!(
            "shard {shard}: {lost_blocks} flushed blocks of the journal cannot be read: {outdated} objects, which these \
             blocks may have replaced or deleted, {became}; {objects} objects are left; check the drive"
        );
    }

    fn new(
        shard: u16,
        lanes: Vec<Lane<Q>>,
        geometry: &Geometry,
        options: ShardOptions,
        settled: Settled,
        now: Time,
    ) -> Shard<Q, R> {
        let Settled { index, regions, policy, expiry, newest, tenants, spaces, .. } = settled;
        let (objects_max, record_bytes) = (settled.objects_max, settled.record_bytes);
        let splits = lanes.iter().map(|lane| lane.info.split());
        let command_bytes_max = splits.clone().map(|split| split.command_bytes_max).min();
        let boundary_bytes = splits.map(|split| split.boundary_bytes).fold(0, common_boundary);
        let capacity = Capacity {
            objects_max,
            live_units_max: options.watermarks.high_units(spaces.capacity_units()),
            is_draining: false,
            record_bytes,
            record_bytes_max: geometry.record_bytes_max(),
            coming: 0,
            coming_record_bytes: 0,
        };
        Shard {
            home: usize::from(geometry.home(shard)),
            limits: plan::Limits {
                command_bytes_max: command_bytes_max.unwrap_or(UNIT_BYTES).min(COMMAND_BYTES_MAX),
                boundary_bytes,
                slices_max: SLICES_MAX,
            },
            lanes,
            own: OwnOrder::new(index.capacity()),
            shrinking: Shrinking::default(),
            index,
            regions,
            policy,
            expiry,
            newest,
            tenants,
            spaces,
            capacity,
            leases: Leases::new((objects_max / LEASED_PARTS).max(1) as usize),
            tier: Tier::default(),
            budget: options.write_bytes_per_day.map(|bytes| Budget::new(now, bytes)),
            log: Log::new(None, options.durability, Default::default(), now),
            checkpoints: None,
            batches: Batches::default(),
            stalled: Line::default(),
            making: Making::default(),
            evictions_left: EVICTIONS_PER_TURN,
            unlogged: Default::default(),
            order: KeyOrder::default(),
            sweeps: Default::default(),
            writers: Writers::default(),
            held: HeldObjects::default(),
            unsent_bytes: 0,
            rests_until: Time::ZERO,
            answers: Default::default(),
            stats: Stats::default(),
            scratch: Scratch::default(),
            options,
        }
    }
}

/// Returns the boundary that keeps both, their greatest common divisor; 0 is none.
fn common_boundary(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_boundary(other, one % other) }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns whether a device failed and was not reattached.
    pub fn has_failed(&self, device: u8) -> bool {
        self.lanes.get(usize::from(device)).is_some_and(|lane| lane.failure().is_some())
    }

    /// Replaces the lane of a failed device and returns the old one. The caller must have checked the superblocks on
    /// the device.
    ///
    /// Its objects were misses meanwhile and become hits again if their bytes are still those that were put. A device
    /// that lost power for a moment has forgotten unflushed data. On the journal's device that could lose records
    /// behind the hole at the next opening, so all blocks that are not durable are written again before any later
    /// ones, and a checkpoint in progress starts over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device still works, still has commands in flight, or has a different size.
    pub fn attach(&mut self, device: u8, lane: Lane<Q>) -> Result<Lane<Q>> {
        let Some(old) = self.lanes.get_mut(usize::from(device)) else {
            return Err(Error::invalid("device", device, "the store has no such device"));
        };
        if old.failure().is_none() {
            return Err(Error::invalid("device", device, "it works: there is nothing to attach"));
        }
        if !old.is_idle() {
            let fix = "it still has commands in flight: poll until they are over";
            return Err(Error::invalid("device", device, fix));
        }
        if old.units() != lane.units() || old.info.lba_bytes != lane.info.lba_bytes {
            let fix = "it has another size than the device that failed: attach that one";
            return Err(Error::invalid("device", device, fix));
        }
        self.wake();
        // It may have failed since the last turn.
        self.note_failures();
        if usize::from(device) == self.home {
            self.fail_events();
            self.abandon_checkpoint();
            self.log.write_again();
            // The flush in progress was dropped, so what it covered must be flushed again.
            let at_work = self.lanes.iter_mut().filter(|lane| lane.failure().is_none());
            at_work.for_each(|lane| lane.is_dirty = true);
        }
        let here = &mut self.lanes[usize::from(device)];
        let old = std::mem::replace(here, lane);
        here.attachment = old.attachment + 1;
        // Data written before the failure may not have been flushed.
        here.is_dirty = true;
        Ok(old)
    }
}

/// Writes and flushes a block that tells which blocks of the journal were flushed.
fn vouch<Q: CommandQueue<Load>>(
    waiting: &mut Waiting<'_, Q>,
    areas: &Areas,
    agreed: Agreed,
    recovered: &mut Recovered,
) -> Result<()> {
    let (next, tail) = (recovered.next, recovered.tail);
    let mut journal =
        Journal::new(areas.journal.clone(), agreed.epoch, agreed.sequence, next, tail);
    let mut bytes = [0; JOURNAL_BLOCK_BYTES];
    journal.vouch();
    if let Some(write) = journal.take(&mut bytes) {
        waiting.write_run(areas.device, write.unit, &bytes)?;
        waiting.flush()?;
        recovered.next = journal.mark();
    }
    Ok(())
}

fn new_log<R>(
    shard: u16,
    geometry: &Geometry,
    options: &ShardOptions,
    recovery: &Recovery,
    agreed: Agreed,
    now: Time,
) -> Log<R> {
    let ring = geometry.journal(shard).1;
    let journal = recovery.recovered.as_ref().map(|recovered| {
        let next: Mark = recovered.next;
        Journal::new(ring, agreed.epoch, agreed.sequence, next, recovered.tail)
    });
    let intervals = (options.seal_interval, options.flush_interval);
    Log::new(journal, options.durability, intervals, now)
}

/// The tables of a shard while they are filled.
struct Tables {
    index: Loading,
    expiry: Expiry,
    /// The highest version of any record.
    newest: Version,
    /// How long ago each object was used: by the checkpoint, and by its place in the journal.
    ages: Ages,
    /// Names and quotas, by number from 1.
    tenants: Vec<(Box<str>, Option<Quota>)>,
    replaced: Replaced,
    /// Whether this is shard 0, whose journal holds the quotas.
    is_first: bool,
    spaces: Spaces,
    /// The ranges of each device.
    ranges: Vec<Vec<Range<u64>>>,
    /// Maximum number of objects that the store was formatted for.
    entries: u32,
    hasher: KeyHasher,
    slab_bases: NumberMap<ObjectId, u64>,
    renewed: Renewed,
    dropped: u64,
    /// Checksums of the last object; kept to reuse its memory.
    checksums: Vec<u32>,
    options: ShardOptions,
}

/// The tables without impossible objects.
struct Settled {
    index: Index,
    regions: Regions,
    policy: Order,
    expiry: Expiry,
    newest: Version,
    tenants: Tenants,
    spaces: Spaces,
    objects_max: u32,
    record_bytes: u64,
}

/// Keys and places of removed objects, to be recorded in the journal.
type Lost = Vec<(Box<[u8]>, Place)>;

/// Creates an index with spare entries for objects that came and went.
fn new_index(entries: u32, hasher: KeyHasher) -> Result<Loading> {
    Loading::new(entries, entries / SPARE_PART + SPARE_MIN, hasher)
}

impl Tables {
    fn new(shard: u16, set: &Set, options: &ShardOptions) -> Result<Tables> {
        let ranges = set.geometry().data_of(shard);
        let capacity_units =
            options.capacity_bytes.map_or(u64::MAX, |bytes| (bytes / UNIT_BYTES).max(1));
        let index = new_index(set.objects_max(), set.hasher())?;
        Ok(Tables {
            ages: Ages::new(index.index().capacity()),
            index,
            expiry: Expiry::new(),
            newest: Version::NONE,
            tenants: Vec::new(),
            replaced: Replaced::default(),
            is_first: shard == 0,
            spaces: Spaces::new(&ranges, capacity_units, options.discard_after),
            ranges,
            entries: set.objects_max(),
            hasher: set.hasher(),
            slab_bases: NumberMap::default(),
            renewed: Renewed::default(),
            dropped: 0,
            checksums: Vec::new(),
            options: options.clone(),
        })
    }

    fn is_possible(&self, put: &Put<'_>) -> bool {
        let Object { place, layout, tenant, .. } = put.object;
        let units = self.spaces.units_of(&put.object);
        let inside =
            |range: &Range<u64>| range.contains(&place.unit) && units <= range.end - place.unit;
        let known = self.spaces.layout(layout);
        let is_known = layout == LayoutId::PLAIN || known.is_some();
        let slab = known.and_then(Layout::slab);
        let slab_fits = |range: &Range<u64>| match (slab, put.slab_base) {
            (None, None) => true,
            (Some(slab), Some(base)) => range.contains(&base) && slab.units() <= range.end - base,
            _ => false,
        };
        is_known
            && usize::from(tenant.0) <= self.tenants.len()
            && self
                .ranges
                .get(usize::from(place.device))
                .is_some_and(|ranges| ranges.iter().any(|range| inside(range) && slab_fits(range)))
            && put.checksums.len() == self.spaces.checksums_of(&put.object)
    }

    /// Removes objects that are outdated, unless they are to be kept, and those that overlap another. Those that have
    /// expired stay for the shard's turns, which keep their space until a record of the removal is durable: one of them
    /// may have replaced an object that comes back once its data are overwritten.
    fn settle(mut self, recovery: &mut Recovery) -> (Settled, Lost) {
        let mut lost = Lost::new();
        self.link();
        for id in self.replaced.strangers(self.index.index()) {
            lost.push(self.remove(id));
        }
        let outdated = self.renewed.outdated(self.index.index().live().map(|live| live.id));
        recovery.outdated = outdated.len() as u64;
        if !self.options.keep_outdated {
            outdated.into_iter().for_each(|id| drop(self.remove(id)));
        }
        for id in self.overwritten() {
            recovery.dropped += 1;
            lost.push(self.remove(id));
        }
        for device in 0..self.ranges.len() {
            for id in self.place_all(device as u8) {
                recovery.dropped += 1;
                lost.push(self.remove(id));
            }
        }
        (self.counted(), lost)
    }

    /// Counts the objects and enters them into the policy by their ages.
    fn counted(self) -> Settled {
        let mut tenants = self.tenants();
        let Tables { index, ranges, mut expiry, newest, mut ages, mut spaces, entries, .. } = self;
        let options = self.options;
        let mut index = index.into_index();
        index.shed_spare(&mut |from, to| {
            if let Some(at_s) = expiry.get(from) {
                expiry.clear(from);
                expiry.set(to, at_s);
            }
            ages.rename(from, to);
        });
        ages.shed(index.capacity());
        let mut regions = Regions::new(&ranges, index.capacity());
        let mut all_record_bytes = 0;
        let ids = index.live().map(|live| {
            let object = live.object();
            let units = spaces.units_of(&object);
            tenants.count(object.tenant, units);
            spaces.count(units);
            spaces.enter(object.layout);
            regions.insert(live.id, object.place);
            all_record_bytes += record_bytes(live.key_bytes(), live.checksums()) as u64;
            live.id
        });
        let policy = Order::new(options.build_policy(index.capacity()), ages, ids);
        let objects_max = options.capacity_objects.map_or(entries, |most| most.clamp(1, entries));
        let record_bytes = all_record_bytes;
        Settled {
            index,
            regions,
            policy,
            expiry,
            newest,
            tenants,
            spaces,
            objects_max,
            record_bytes,
        }
    }

    /// Enters the tenants into the ledger of all shards.
    fn tenants(&self) -> Tenants {
        let mut tenants = Tenants::new(&self.options.ledger);
        for (name, quota) in &self.tenants {
            let id = tenants.add(name, false).expect("each was checked");
            if self.is_first {
                tenants.set_quota(id, *quota);
            }
        }
        tenants
    }

    fn remove(&mut self, id: ObjectId) -> (Box<[u8]>, Place) {
        let index = self.index.index_mut();
        let key = index.key_bytes(id).into();
        let place = index.remove(id).place;
        forget(&mut self.expiry, &mut self.slab_bases, &mut self.ages, &mut self.renewed, id);
        (key, place)
    }

    /// Returns the objects whose units later objects took, because the records of their ends are lost.
    fn overwritten(&self) -> Vec<ObjectId> {
        let ids = self.index.index().live().map(|live| live.id);
        self.renewed.overwritten(ids.map(|id| (id, self.claim(id))))
    }

    fn claim(&self, id: ObjectId) -> Claim {
        let object = self.index.index().object(id);
        let Place { device, unit } = object.place;
        let slab = self.spaces.layout(object.layout).and_then(Layout::slab);
        let slab = slab.zip(self.slab_bases.get(&id));
        let units = match slab {
            Some((shape, base)) => *base..*base + shape.units(),
            None => unit..unit + self.spaces.units_of(&object),
        };
        Claim { device, unit, units, slab: slab.map(|_| object.layout) }
    }

    /// Allocates the space of all objects of a device. Returns those that do not fit.
    fn place_all(&mut self, device: u8) -> Vec<ObjectId> {
        let (mut refused, mut slabs) = (Vec::new(), Slabs::new());
        let mut in_slabs: Vec<(ObjectId, u64)> =
            self.slab_bases.iter().map(|(id, base)| (*id, *base)).collect();
        in_slabs.sort_unstable();
        for (id, base) in in_slabs {
            let object = self.index.index().object(id);
            let is_here = object.place.device == device;
            if is_here && !self.spaces.restore(&mut slabs, &object, base) {
                refused.push(id);
            }
        }
        let slab_ranges: Vec<Range<u64>> = slabs.ranges().collect();
        let count = slab_ranges.len();
        let used = slab_ranges.into_iter().chain(self.plain(device).map(|(_, units)| units));
        let (extents, overlapping) = Extents::from_used(&self.ranges[usize::from(device)], used);
        // Positions in order, in the same walk.
        let mut overlapping = overlapping.into_iter().filter_map(|at| at.checked_sub(count));
        let mut next = overlapping.next();
        for (at, (id, _)) in self.plain(device).enumerate() {
            let Some(wanted) = next else { break };
            if at == wanted {
                refused.push(id);
                next = overlapping.next();
            }
        }
        self.spaces.install(device, extents, slabs);
        refused
    }

    /// Iterates over a device's objects outside slabs, by id, with their units.
    fn plain(&self, device: u8) -> impl Iterator<Item = (ObjectId, Range<u64>)> {
        self.index.index().live().filter_map(move |live| {
            let object = live.object();
            let is_one = object.place.device == device && !self.slab_bases.contains_key(&live.id);
            let unit = object.place.unit;
            is_one.then(|| (live.id, unit..unit + self.spaces.units_of(&object)))
        })
    }
}

impl Tables {
    fn find(&mut self, key: &[u8]) -> Option<ObjectId> {
        let Tables { index, expiry, slab_bases, ages, renewed, .. } = self;
        index.find(key, &mut |id| forget(expiry, slab_bases, ages, renewed, id))
    }

    /// Enters all objects into the index's table.
    fn link(&mut self) {
        let Tables { index, expiry, slab_bases, ages, renewed, .. } = self;
        index.linked(&mut |id| forget(expiry, slab_bases, ages, renewed, id));
    }

    /// Adds an object, replacing one with the same key. Returns `None` if there is no room.
    fn insert(&mut self, put: &Put<'_>) -> Option<ObjectId> {
        let Tables { index, expiry, slab_bases, ages, renewed, checksums, .. } = self;
        put.checksums.copy_into(checksums);
        let new = NewObject { key: put.key, object: put.object, checksums };
        let id = index.put(new, &mut |id| forget(expiry, slab_bases, ages, renewed, id))?;
        renewed.put(id);
        match put.age {
            Some(age) => ages.restore(id, age),
            None => ages.insert(id),
        }
        Some(id)
    }
}

/// Removes the data kept outside the index about an object.
fn forget(
    expiry: &mut Expiry,
    slab_bases: &mut NumberMap<ObjectId, u64>,
    ages: &mut Ages,
    renewed: &mut Renewed,
    id: ObjectId,
) {
    expiry.clear(id);
    slab_bases.remove(&id);
    ages.remove(id);
    renewed.forget(id);
}
