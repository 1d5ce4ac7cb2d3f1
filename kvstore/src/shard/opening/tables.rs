//! The tables of a shard while an opening fills them.

use std::ops::Range;

use super::renewed::{Renewed, UnitsNeeded};
use super::replaced::Replaced;
use crate::catalog::expiry::Expiry;
use crate::catalog::hash::NumberMap;
use crate::catalog::index::{Loading, NewObject};
use crate::catalog::regions::Regions;
use crate::catalog::tenant::Tenants;
use crate::error::Result;
use crate::media::format::Set;
use crate::media::record::{Put, record_bytes as record_bytes_of};
use crate::media::recovery::Recovered;
use crate::model::key::KeyHasher;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, ObjectId, Version};
use crate::model::options::Quota;
use crate::model::place::{Place, UNIT_BYTES};
use crate::policy::age::Ages;
use crate::policy::order::EvictionOrder;
use crate::shard::objects::FoundTables;
use crate::shard::objects::spaces::Spaces;
use crate::shard::options::ShardOptions;
use crate::space::extent::Extents;
use crate::space::slab::Slabs;

/// One extra entry while loading per this many objects, plus `SPARE_MIN`, because a checkpoint contains objects that
/// were put and removed while it was taken.
const SPARE_PART: u32 = 8;
const SPARE_MIN: u32 = 4096;

/// The result of an opening.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The result of reading the checkpoint and the journal; `None` in a volatile store, which begins empty.
    pub recovered: Option<Recovered>,
    /// Number of objects.
    pub objects: u64,
    /// Objects dropped because their records are impossible: outside the store or overlapping another object.
    pub dropped: u64,
    /// Objects dropped because they were put before a lost block of the journal, which may have replaced or deleted
    /// them. With [`ShardOptions::keep_outdated`], the number of such objects that were kept.
    pub outdated: u64,
}

/// The tables of a shard being filled.
pub(super) struct Tables {
    pub(super) index: Loading,
    pub(super) expiry: Expiry,
    /// The highest version of any record.
    pub(super) newest: Version,
    /// The age of each object's last use, from the checkpoint and its position in the journal.
    pub(super) ages: Ages,
    /// Names and quotas, by number from 1.
    pub(super) tenants: Vec<(Box<str>, Option<Quota>)>,
    pub(super) replaced: Replaced,
    /// Whether this is shard 0, whose journal holds the quotas.
    is_first: bool,
    pub(super) spaces: Spaces,
    /// The ranges of each device.
    ranges: Vec<Vec<Range<u64>>>,
    /// Maximum number of objects that the store was formatted for.
    pub(super) entries: u32,
    /// Maximum number of objects that the shard may have.
    objects_max: u32,
    pub(super) hasher: KeyHasher,
    pub(super) slab_bases: NumberMap<ObjectId, u64>,
    pub(super) renewed: Renewed,
    pub(super) dropped: u64,
    /// Checksums of the last object; kept to reuse its memory.
    checksums: Vec<u32>,
    options: ShardOptions,
}

/// Keys and places of removed objects, to be recorded in the journal.
pub(super) type Lost = Vec<(Box<[u8]>, Place)>;

/// Creates an index with spare entries for objects that were put and removed during a checkpoint.
pub(super) fn new_index(entries: u32, hasher: KeyHasher) -> Result<Loading> {
    Loading::new(entries, entries / SPARE_PART + SPARE_MIN, hasher)
}

impl Tables {
    pub(super) fn new(shard: u16, set: &Set, options: &ShardOptions) -> Result<Tables> {
        let ranges = set.geometry().data_of(shard);
        let capacity_units =
            options.capacity_bytes.map_or(u64::MAX, |bytes| (bytes / UNIT_BYTES).max(1));
        let entries = set.objects_max();
        let objects_max = options.capacity_objects.map_or(entries, |most| most.clamp(1, entries));
        let most = (capacity_units, objects_max);
        let index = new_index(entries, set.hasher())?;
        Ok(Tables {
            ages: Ages::new(index.index().capacity()),
            index,
            expiry: Expiry::new(),
            newest: Version::NONE,
            tenants: Vec::new(),
            replaced: Replaced::default(),
            is_first: shard == 0,
            spaces: Spaces::new(&ranges, most, options.discard_after),
            ranges,
            entries,
            objects_max,
            hasher: set.hasher(),
            slab_bases: NumberMap::default(),
            renewed: Renewed::default(),
            dropped: 0,
            checksums: Vec::new(),
            options: options.clone(),
        })
    }

    pub(super) fn is_possible(&self, put: &Put<'_>) -> bool {
        let Object { place, layout, tenant, .. } = put.object;
        let units = self.spaces.layouts().units_of(&put.object);
        let inside =
            |range: &Range<u64>| range.contains(&place.unit) && units <= range.end - place.unit;
        let known = self.spaces.layouts().get(layout);
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
            && put.checksums.len() == self.spaces.layouts().checksums_of(&put.object)
    }

    /// Returns the maximum number of objects.
    pub(super) fn objects_max(&self) -> u32 {
        self.objects_max
    }

    /// Removes overlapping objects and, unless they are to be kept, outdated ones. Expired objects stay for the shard's
    /// turns, which keep their space until the removal's record is durable: an expired object may have replaced one
    /// that would reappear once the expired object's data are overwritten.
    pub(super) fn settle(mut self, recovery: &mut Recovery) -> (FoundTables, Lost) {
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
    fn counted(self) -> FoundTables {
        let mut tenants = self.tenants();
        let Tables { index, ranges, mut expiry, newest, mut ages, mut spaces, .. } = self;
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
        let mut record_bytes = 0;
        let ids = index.live().map(|live| {
            let object = live.object();
            let units = spaces.layouts().units_of(&object);
            tenants.count(object.tenant, units);
            spaces.count(units);
            spaces.layouts_mut().enter(object.layout);
            regions.insert(live.id, object.place);
            record_bytes += record_bytes_of(live.key_bytes(), live.checksums()) as u64;
            live.id
        });
        let order = EvictionOrder::new(options.build_policy(index.capacity()), ages, ids);
        FoundTables { index, regions, order, expiry, newest, tenants, spaces, record_bytes }
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

    pub(super) fn remove(&mut self, id: ObjectId) -> (Box<[u8]>, Place) {
        let index = self.index.index_mut();
        let key = index.key_bytes(id).into();
        let place = index.remove(id).place;
        forget(&mut self.expiry, &mut self.slab_bases, &mut self.ages, &mut self.renewed, id);
        (key, place)
    }

    /// Returns the objects whose units later objects took; the records of their ends are lost.
    fn overwritten(&self) -> Vec<ObjectId> {
        let ids = self.index.index().live().map(|live| live.id);
        self.renewed.overwritten(ids.map(|id| (id, self.units_needed(id))))
    }

    fn units_needed(&self, id: ObjectId) -> UnitsNeeded {
        let object = self.index.index().object(id);
        let Place { device, unit } = object.place;
        let slab = self.spaces.layouts().get(object.layout).and_then(Layout::slab);
        let slab = slab.zip(self.slab_bases.get(&id));
        let units = match slab {
            Some((shape, base)) => *base..*base + shape.units(),
            None => unit..unit + self.spaces.layouts().units_of(&object),
        };
        UnitsNeeded { device, unit, units, slab: slab.map(|_| object.layout) }
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
            if is_here && !self.spaces.layouts().restore_slot(&mut slabs, &object, base) {
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
            is_one.then(|| (live.id, unit..unit + self.spaces.layouts().units_of(&object)))
        })
    }
}

impl Tables {
    pub(super) fn find(&mut self, key: &[u8]) -> Option<ObjectId> {
        let Tables { index, expiry, slab_bases, ages, renewed, .. } = self;
        index.find(key, &mut |id| forget(expiry, slab_bases, ages, renewed, id))
    }

    /// Enters all objects into the index's table.
    pub(super) fn link(&mut self) {
        let Tables { index, expiry, slab_bases, ages, renewed, .. } = self;
        index.linked(&mut |id| forget(expiry, slab_bases, ages, renewed, id));
    }

    /// Adds an object, replacing one with the same key. Returns `None` if there is no room.
    pub(super) fn insert(&mut self, put: &Put<'_>) -> Option<ObjectId> {
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

/// Removes an object's data that is kept outside the index.
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
