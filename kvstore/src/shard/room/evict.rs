//! Evicting objects: for space, for index entries and records, and down to the low watermark.

use adit_driver::Time;

use super::{EvictReason, Eviction, Room};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::model::object::ObjectId;
use crate::model::place::UNIT_BYTES;
use crate::shard::log::Log;
use crate::shard::objects::Objects;
use crate::shard::stats::Evictions;

impl Room {
    /// Evicts the next victim.
    fn evict(
        &mut self,
        objects: &mut Objects,
        log: &mut Log,
        now: Time,
        why: EvictReason,
    ) -> Eviction {
        match objects.victim() {
            Some(victim) => self.evict_object(objects, log, now, victim, why),
            None => self.what_else(objects),
        }
    }

    /// Evicts an object that is not leased, unless the turn or the journal does not allow it.
    pub(super) fn evict_object(
        &mut self,
        objects: &mut Objects,
        log: &mut Log,
        now: Time,
        id: ObjectId,
        why: EvictReason,
    ) -> Eviction {
        if self.evictions_left == 0 || !log.asks_small() {
            return Eviction::NotYet;
        }
        self.evictions_left -= 1;
        let units = objects.evict(log, now, id);
        let Evictions { space, records, fragmentation, .. } = &mut self.stats.evictions;
        let counted = match why {
            EvictReason::Space => space,
            EvictReason::Records => {
                let objects_max = self.objects_max;
                self.unlogged[0].note(now, self.is_as_formatted, || {
                    format!(
                        "this shard is formatted for {objects_max} objects, fewer if keys or objects are long, and \
                          has as many. Format the store with a larger objects_max (adit kv format --objects N)"
                    )
                });
                records
            }
            EvictReason::Fragmentation => {
                self.unlogged[1].note(now, false, || {
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

    /// Decides, with nothing to evict, whether to wait. Never waits for a lease or a writer, which may not end.
    pub(crate) fn what_else(&self, objects: &Objects) -> Eviction {
        let spaces = objects.spaces();
        let is_something_under_way = self.coming > 0
            || spaces.discarding_units() > 0
            || spaces.sinking_units() > 0
            || spaces.is_held_by_reads();
        if is_something_under_way { Eviction::Wait } else { Eviction::Nothing }
    }

    /// Evicts until `units` more fit within the capacity when all that sinks is free.
    pub(super) fn evict_towards(
        &mut self,
        objects: &mut Objects,
        log: &mut Log,
        now: Time,
        units: u64,
    ) -> Eviction {
        while objects.spaces().staying_units() + units > objects.spaces().capacity_units() {
            match self.evict(objects, log, now, EvictReason::Space) {
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
        objects: &mut Objects,
        log: &mut Log,
        now: Time,
        (fresh, record_bytes): (&dyn Fn(&Index) -> usize, u64),
    ) -> Result<bool, Failure> {
        let (mut needs, mut is_counted) = (fresh(objects.index()), true);
        loop {
            if self.fits(objects, needs, record_bytes) {
                if is_counted {
                    return Ok(true);
                }
                // The victim may have had the key of a put, which then needs a new entry.
                (needs, is_counted) = (fresh(objects.index()), true);
                continue;
            }
            match self.evict(objects, log, now, EvictReason::Records) {
                Eviction::One => is_counted = false,
                Eviction::Wait | Eviction::NotYet => return Ok(false),
                Eviction::Nothing => return Err(Failure::Full),
            }
        }
    }

    /// Evicts down to the low watermark once the high one is exceeded.
    pub(crate) fn keep_below_watermark(&mut self, objects: &mut Objects, log: &mut Log, now: Time) {
        self.is_draining |= objects.spaces().live_units() > self.live_units_max;
        if !self.is_draining {
            return;
        }
        let low = self.low_units(objects);
        self.is_draining = loop {
            if objects.spaces().live_units() <= low {
                break false;
            }
            match self.evict(objects, log, now, EvictReason::Space) {
                Eviction::One => {}
                // The next turn continues.
                Eviction::NotYet => break true,
                Eviction::Wait | Eviction::Nothing => break false,
            }
        };
    }
}
