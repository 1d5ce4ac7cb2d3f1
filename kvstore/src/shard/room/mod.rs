//! Room for changes: index entries, bytes of a checkpoint, and space on a device.
//!
//! [`RoomMaker::find_room`] gives a change all of its room at one time, or has objects evicted for it and lets it wait.
//!
//! | file | holds |
//! |---|---|
//! | `find` | which objects are evicted so that a change finds space |
//! | `claim`, `claims` | the space that a waiting change will get |
//! | `pieces` | what lies in a stretch of a device |
//! | `evict` | evicting objects, for any reason |
//! | `quotas` | evictions for quotas of tenants |
//! | `unlogged` | log lines about evictions |

mod claim;
mod claims;
mod evict;
mod find;
mod pieces;
mod quotas;
mod unlogged;

use adit_driver::Time;
use smallvec::SmallVec;

use self::claims::Claims;
use self::unlogged::Unlogged;
use super::change::NewObject;
use super::log::Log;
use super::objects::Objects;
use super::objects::spaces::Allocated;
use super::stats::Stats;
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::model::key::Key;
use crate::model::object::Object;
use crate::model::options::Watermarks;

/// Limit of evictions per turn, which bounds a turn.
pub(super) const EVICTIONS_PER_TURN: u32 = 512;

/// An object that needs room: its shape, a bit mask of the devices it may go to, and its predecessor.
pub(super) type Wanted<'a> = (Object, u64, Option<&'a Key>);
/// Where each object of a change lies.
pub(super) type Rooms = SmallVec<[Allocated; 1]>;
/// Where the objects of a change lie, as far as there is space.
type SomeRooms = SmallVec<[Option<Allocated>; 1]>;

/// The result of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// An object was removed; its room will become free.
    One,
    /// Nothing may be evicted, but work in progress will end and may leave room.
    Wait,
    /// The journal is full, and a checkpoint must come first; or the turn has evicted or searched enough.
    NotYet,
    /// Nothing may be evicted, and nothing is about to become free.
    Nothing,
}

/// Why an object is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictReason {
    /// There is too little space, or less than the watermarks leave free.
    Space,
    /// There are as many objects as the store was formatted for, or as many records as fit in a checkpoint.
    Records,
    /// There is enough free space, but not in one run.
    Fragmentation,
}

/// Room for changes, and the evictions that make it.
#[derive(Debug)]
pub(super) struct Room {
    /// How many objects there may be, and how many bytes their records may have, which must fit in a checkpoint.
    objects_max: u32,
    record_bytes_max: u64,
    /// Objects on their way into the index, and bytes of their records: their data is being written, or their records
    /// are not durable. Each has an entry set aside.
    coming: u64,
    coming_record_bytes: u64,
    watermarks: Watermarks,
    /// Eviction begins above this number of live units.
    live_units_max: u64,
    /// Whether evictions continue until the low watermark is reached.
    is_draining: bool,
    /// Whether the number of objects is bounded by the format, not by an option.
    is_as_formatted: bool,
    /// Evictions that this turn may still make.
    evictions_left: u32,
    /// The room that the first change in line will get.
    claims: Claims,
    /// For records, and against fragmentation.
    unlogged: [Unlogged; 2],
    stats: Stats,
}

impl Room {
    /// Creates room for at most `objects_max` objects, which the format bounds unless `is_as_formatted` is false, in so
    /// many units.
    pub(super) fn new(
        (objects_max, is_as_formatted): (u32, bool),
        record_bytes_max: u64,
        watermarks: Watermarks,
        capacity_units: u64,
    ) -> Room {
        Room {
            objects_max,
            record_bytes_max,
            coming: 0,
            coming_record_bytes: 0,
            live_units_max: watermarks.high_units(capacity_units),
            watermarks,
            is_draining: false,
            is_as_formatted,
            evictions_left: EVICTIONS_PER_TURN,
            claims: Claims::default(),
            unlogged: Default::default(),
            stats: Stats::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    pub(super) fn objects_max(&self) -> u32 {
        self.objects_max
    }

    /// Returns the most bytes of the records of all objects.
    pub(super) fn record_bytes_max(&self) -> u64 {
        self.record_bytes_max
    }

    /// Returns how many objects are on their way into the index.
    pub(super) fn coming(&self) -> u64 {
        self.coming
    }

    /// Sets room aside for an object on its way into the index.
    pub(super) fn promise(&mut self, new: &NewObject) {
        self.coming += 1;
        self.coming_record_bytes += new.record_bytes();
    }

    /// Ends [`Room::promise`]: the object is in the index now, or was given up.
    pub(super) fn settle(&mut self, new: &NewObject) {
        self.coming -= 1;
        self.coming_record_bytes -= new.record_bytes();
    }

    /// Lets a turn evict as many objects as a turn may.
    pub(super) fn begin_turn(&mut self) {
        self.evictions_left = EVICTIONS_PER_TURN;
    }

    /// Returns whether the next turn continues evictions, or a search for the change that waits.
    pub(super) fn is_busy(&self, has_waiting: bool) -> bool {
        self.evictions_left == 0 || (self.claims.is_searching() && has_waiting)
    }

    /// Returns whether there is room for `fresh` objects and `record_bytes` beside those that are there, or on their
    /// way.
    fn fits(&self, objects: &Objects, fresh: usize, record_bytes: u64) -> bool {
        let count = u64::from(objects.index().len()) + self.coming + fresh as u64;
        let bytes = objects.record_bytes() + self.coming_record_bytes + record_bytes;
        count <= u64::from(self.objects_max) && bytes <= self.record_bytes_max
    }

    fn low_units(&self, objects: &Objects) -> u64 {
        self.watermarks.low_units(objects.spaces().capacity_units())
    }

    /// Returns whether a new object of so many units causes evictions, now or when the high watermark is reached.
    pub(super) fn is_short_of(&self, objects: &Objects, units: u64) -> bool {
        let is_above_low = objects.spaces().live_units() + units > self.low_units(objects);
        is_above_low || !self.fits(objects, 1, 0)
    }
}

/// A room with the parts that it changes at `now`: evictions remove objects, and each writes a record.
pub(super) struct RoomMaker<'a> {
    pub(super) room: &'a mut Room,
    pub(super) objects: &'a mut Objects,
    pub(super) log: &'a mut Log,
    pub(super) now: Time,
}

impl RoomMaker<'_> {
    /// Evicts further down to the low watermark, if that is not reached.
    pub(super) fn drain(&mut self) {
        if self.room.is_draining {
            self.keep_below_watermark();
        }
    }

    /// Allocates space for objects of these shapes, on devices in service, with `fresh` new index entries. Returns
    /// `None` if room has to be made first, which this starts.
    ///
    /// # Errors
    /// [`Failure::Full`] if nothing may be evicted, and nothing is about to become free.
    pub(super) fn find_room(
        &mut self,
        wanted: &[Wanted<'_>],
        entries: (&dyn Fn(&Index) -> usize, u64),
    ) -> Result<Option<Rooms>, Failure> {
        if !self.find_entries(entries)? {
            return Ok(None);
        }
        let rooms = self.allocate_all(wanted);
        if let Some(all) = rooms.iter().copied().collect() {
            let needs = wanted.iter().map(|(object, ..)| self.objects.units_of(object)).sum();
            self.room.claims.end();
            self.room.claims.pay(needs, self.objects.spaces().slack_units());
            self.keep_below_watermark();
            return Ok(Some(all));
        }
        self.claim_again(wanted, &rooms);
        if self.make_rooms(wanted) == Eviction::Nothing {
            self.room.claims.end();
            return Err(Failure::Full);
        }
        Ok(None)
    }

    /// Allocates space for as many as possible, in order; for none while claims are not free.
    fn allocate_all(&mut self, wanted: &[Wanted<'_>]) -> SomeRooms {
        let Some(mut rooms) = self.take_claimed(wanted) else {
            return SomeRooms::from_elem(None, wanted.len());
        };
        let objects = &mut *self.objects;
        let devices = usize::from(objects.spaces().devices());
        let mut near: SmallVec<[Option<Object>; 4]> = SmallVec::from_elem(None, devices);
        for (at, (shape, devices, after)) in wanted.iter().enumerate() {
            let before = after.as_ref().and_then(|key| objects.index().find(key.as_bytes()));
            if let Some(before) = before.map(|id| objects.index().object(id)) {
                near[usize::from(before.place.device)] = Some(before);
                objects.spaces_mut().follow(&before);
            }
            let usable = |device: u8| devices & 1 << device != 0;
            let ahead = (wanted.len() - at) as u32;
            let spaces = objects.spaces_mut();
            rooms[at] = rooms[at].or_else(|| spaces.allocate(shape, &near, ahead, usable));
            if let Some(Allocated { place, .. }) = rooms[at] {
                near[usize::from(place.device)] = Some(Object { place, ..*shape });
            }
        }
        rooms
    }
}

#[cfg(test)]
impl Room {
    pub(super) fn set_evictions_left(&mut self, evictions: u32) {
        self.evictions_left = evictions;
    }

    pub(super) fn evictions_left(&self) -> u32 {
        self.evictions_left
    }

    pub(super) fn is_searching(&self) -> bool {
        self.claims.is_searching()
    }

    pub(super) fn set_record_bytes_max(&mut self, bytes: u64) {
        self.record_bytes_max = bytes;
    }

    pub(super) fn coming_record_bytes(&self) -> u64 {
        self.coming_record_bytes
    }
}
