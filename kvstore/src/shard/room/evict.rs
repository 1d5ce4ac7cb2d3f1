//! Evicting objects: for space, for index entries and records, and down to the low watermark.

use super::{EvictReason, Eviction, Room, RoomMaker};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::model::object::ObjectId;
use crate::model::place::UNIT_BYTES;
use crate::shard::objects::Objects;
use crate::shard::stats::Evictions;

impl RoomMaker<'_> {
    /// Evicts the next victim.
    fn evict(&mut self, why: EvictReason) -> Eviction {
        match self.objects.victim() {
            Some(victim) => self.evict_object(victim, why),
            None => self.room.what_else(self.objects),
        }
    }

    /// Evicts an object that is not leased, unless the turn or the journal does not allow it.
    pub(super) fn evict_object(&mut self, id: ObjectId, why: EvictReason) -> Eviction {
        let RoomMaker { room, objects, log, now } = self;
        if room.evictions_left == 0 || !log.asks_small() {
            return Eviction::NotYet;
        }
        room.evictions_left -= 1;
        let units = objects.evict(log, *now, id);
        let Evictions { space, records, fragmentation, .. } = &mut room.stats.evictions;
        let counted = match why {
            EvictReason::Space => space,
            EvictReason::Records => {
                let objects_max = room.objects_max;
                room.unlogged[0].note(*now, room.is_as_formatted, || {
                    format!(
                        "this shard is formatted for {objects_max} objects, fewer if keys or objects are long, and \
                          has as many. Format the store with a larger objects_max (adit kv format --objects N)"
                    )
                });
                records
            }
            EvictReason::Fragmentation => {
                room.unlogged[1].note(*now, false, || {
                    "it was not in one run. Objects of similar lengths, or lower watermarks, avoid that"
                        .to_owned()
                });
                fragmentation
            }
        };
        counted.objects += 1;
        counted.bytes += units * UNIT_BYTES;
        Eviction::One
    }

    /// Evicts until `units` more fit within the capacity when all that sinks is free.
    pub(super) fn evict_towards(&mut self, units: u64) -> Eviction {
        let lacks = |objects: &Objects| {
            objects.spaces().staying_units() + units > objects.spaces().capacity_units()
        };
        while lacks(self.objects) {
            match self.evict(EvictReason::Space) {
                Eviction::One => {}
                other => return other,
            }
        }
        Eviction::Wait
    }

    /// Makes room for `fresh` new index entries, and for `record_bytes` in a checkpoint. Returns false if the caller
    /// has to wait.
    pub(crate) fn find_entries(
        &mut self,
        (fresh, record_bytes): (&dyn Fn(&Index) -> usize, u64),
    ) -> Result<bool, Failure> {
        let (mut needs, mut is_counted) = (fresh(self.objects.index()), true);
        loop {
            if self.room.fits(self.objects, needs, record_bytes) {
                if is_counted {
                    return Ok(true);
                }
                // The victim may have had the key of a put, which then needs a new entry.
                (needs, is_counted) = (fresh(self.objects.index()), true);
                continue;
            }
            match self.evict(EvictReason::Records) {
                Eviction::One => is_counted = false,
                Eviction::Wait | Eviction::NotYet => return Ok(false),
                Eviction::Nothing => return Err(Failure::Full),
            }
        }
    }

    /// Evicts down to the low watermark once the high one is exceeded.
    pub(super) fn keep_below_watermark(&mut self) {
        self.room.is_draining |= self.objects.spaces().live_units() > self.room.live_units_max;
        if !self.room.is_draining {
            return;
        }
        let low = self.room.low_units(self.objects);
        self.room.is_draining = loop {
            if self.objects.spaces().live_units() <= low {
                break false;
            }
            match self.evict(EvictReason::Space) {
                Eviction::One => {}
                // The next turn continues.
                Eviction::NotYet => break true,
                Eviction::Wait | Eviction::Nothing => break false,
            }
        };
    }
}

impl Room {
    /// Decides, with nothing to evict, whether to wait. Never waits for a lease or a writer, which may not end.
    pub(crate) fn what_else(&self, objects: &Objects) -> Eviction {
        let spaces = objects.spaces();
        let is_something_under_way = self.coming > 0
            || spaces.discarding_units() > 0
            || spaces.sinking_units() > 0
            || spaces.is_held_by_reads();
        if is_something_under_way { Eviction::Wait } else { Eviction::Nothing }
    }
}
