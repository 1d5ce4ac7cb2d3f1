//! The counters of a shard.

use std::ops::{AddAssign, Sub};

use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

/// Objects evicted for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Evicted {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes, padding included.
    pub bytes: u64,
}

/// Objects evicted, by reason. Expired objects are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Evictions {
    /// There was too little space, or less than the watermarks leave free.
    pub space: Evicted,
    /// There were as many objects as the store was formatted for, or as many records as fit in a checkpoint.
    pub records: Evicted,
    /// There was enough free space, but not in one run.
    pub fragmentation: Evicted,
    /// Their tenant had more than its quota.
    pub quota: Evicted,
}

impl Evictions {
    /// Returns the objects evicted for any reason.
    pub fn objects(&self) -> u64 {
        let Evictions { space, records, fragmentation, quota } = self;
        space.objects + records.objects + fragmentation.objects + quota.objects
    }
}

impl Sub for Evictions {
    type Output = Evictions;

    /// Returns what was counted since `before`.
    fn sub(self, before: Evictions) -> Evictions {
        let since = |now: Evicted, before: Evicted| Evicted {
            objects: now.objects - before.objects,
            bytes: now.bytes - before.bytes,
        };
        Evictions {
            space: since(self.space, before.space),
            records: since(self.records, before.records),
            fragmentation: since(self.fragmentation, before.fragmentation),
            quota: since(self.quota, before.quota),
        }
    }
}

/// Counters and sizes of a shard, or their sums over several. Counters only grow while a store is open; the fields
/// from `objects` on are current sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Stats {
    /// Items of gets, hits and misses.
    pub gets: u64,
    /// Gets that found their object.
    pub hits: u64,
    /// Gets that did not, for any reason.
    pub misses: u64,
    /// Misses of objects whose bytes on the device were not those that were put.
    pub misses_corrupt: u64,
    /// Items of puts, and objects sealed.
    pub puts: u64,
    /// Puts rejected by admission or the write budget.
    pub declined: u64,
    /// Objects removed on request.
    pub deletes: u64,
    /// Objects evicted, by reason.
    pub evictions: Evictions,
    /// Objects removed because they expired.
    pub expirations: u64,
    /// Bytes delivered by hits.
    pub bytes_read: u64,
    /// Bytes of objects that were stored, without padding.
    pub bytes_written: u64,
    /// Bytes written to the devices for any purpose.
    pub bytes_to_device: u64,
    /// Of these, journal blocks.
    pub journal_bytes: u64,
    /// Of these, checkpoints.
    pub checkpoint_bytes: u64,
    /// Flushes sent.
    pub flushes: u64,
    /// Bytes deallocated on devices.
    pub discards_bytes: u64,
    /// Read commands sent.
    pub commands_read: u64,
    /// Write commands sent.
    pub commands_write: u64,
    /// Bytes copied between callers' slices and registered memory.
    pub copied_bytes: u64,
    /// Requests of a handle that were given memory beyond its pools, because callers held all of those.
    pub spills: u64,
    /// Bytes of that memory.
    pub spilled_bytes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Devices that failed.
    pub device_failures: u64,
    /// The longest time, in nanoseconds, from an acknowledgement before its record was durable until the record was
    /// sent to the journal's device. A kill of the process in between loses the change.
    pub journal_delay_max_ns: u64,
    /// Flushed blocks of journals that the opening could not read.
    pub journal_lost_blocks: u64,
    /// Objects that these blocks may have replaced or deleted, which the opening dropped or, if it was told so, kept.
    pub journal_outdated_objects: u64,
    /// Hits, of those above, that the memory tier answered.
    pub tier_hits: u64,
    /// Bytes that these delivered.
    pub tier_hit_bytes: u64,
    /// Objects that came into the memory tier.
    pub tier_admissions: u64,
    /// Objects that left it for others, or because it was made smaller.
    pub tier_evictions: u64,
    /// Objects that left it because they were replaced or removed.
    pub tier_invalidations: u64,
    /// Number of objects.
    pub objects: u64,
    /// Units of 4 KiB in use.
    pub used_units: u64,
    /// Units of 4 KiB that objects may take.
    pub capacity_units: u64,
    /// Runs of free units.
    pub free_runs: u64,
    /// Units of the largest of them.
    pub largest_free_units: u64,
    /// Objects that are leased.
    pub leased: u64,
    /// Bytes of memory used by tables.
    pub memory_bytes: u64,
    /// Objects in the memory tier.
    pub tier_objects: u64,
    /// Their bytes, padding included.
    pub tier_object_bytes: u64,
    /// Bytes of memory that the memory tier has.
    pub tier_bytes: u64,
    /// Bytes of the regions of its memory in which callers hold values, those that it gave up included.
    pub tier_pinned_bytes: u64,
    /// Bytes of regions that it gave up and values still keep.
    pub tier_given_up_bytes: u64,
}

impl Stats {
    /// The number of counters and sizes.
    pub const FIELDS: usize = size_of::<Stats>() / size_of::<u64>();

    /// Returns all counters and sizes in the order of their declaration, to hand them to another process of this
    /// version.
    pub fn fields(self) -> [u64; Stats::FIELDS] {
        transmute!(self)
    }

    /// Undoes [`Stats::fields`].
    pub fn of_fields(fields: [u64; Stats::FIELDS]) -> Stats {
        transmute!(fields)
    }
}

impl AddAssign for Stats {
    /// Adds the fields, but keeps the larger of maxima.
    fn add_assign(&mut self, other: Stats) {
        let largest = self.largest_free_units.max(other.largest_free_units);
        let delay = self.journal_delay_max_ns.max(other.journal_delay_max_ns);
        let mut sums = self.fields();
        sums.iter_mut().zip(other.fields()).for_each(|(mine, theirs)| *mine += theirs);
        *self = Stats::of_fields(sums);
        self.largest_free_units = largest;
        self.journal_delay_max_ns = delay;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_are_counted_over_all_reasons_and_since_an_earlier_count() {
        let evicted = |objects| Evicted { objects, bytes: 100 * objects };
        let evictions = |numbers: [u64; 4]| {
            let [space, records, fragmentation, quota] = numbers.map(evicted);
            Evictions { space, records, fragmentation, quota }
        };
        let (before, now) = (evictions([1, 2, 3, 5]), evictions([8, 18, 35, 69]));
        assert_eq!((before.objects(), now.objects()), (11, 130));
        assert_eq!(now - before, evictions([7, 16, 32, 64]));
    }

    #[test]
    fn sums_take_every_field_once_and_maxima_are_no_sums() {
        let ones = Stats::of_fields([1; Stats::FIELDS]);
        let mut sum = ones;
        sum += ones;
        assert_eq!((sum.largest_free_units, sum.journal_delay_max_ns), (1, 1));
        (sum.largest_free_units, sum.journal_delay_max_ns) = (2, 2);
        assert_eq!(sum.fields(), [2; Stats::FIELDS]);
        let numbers = std::array::from_fn(|index| index as u64);
        assert_eq!(Stats::of_fields(numbers).fields(), numbers);
    }
}
