//! Discards: what a device is yet to be told that it may forget, the longest runs first.
//!
//! Invariants: what waits is free space, in runs that are disjoint and never touch, and at most `runs_max` of them.
//! Discards are advice: when there are more, the shortest are dropped.
//!
//! A device may carry a discard out after a write that was sent behind it. So a run that was handed out must be taken
//! from the free extents until the device has answered ([`crate::extent::Extents::take`]), and then freed there
//! without being reported here again. And a discard must not pass the record that its objects are gone: it is sent
//! when that record would survive. Both are the shard's affair.

use std::ops::Range;

use crate::place::Place;
use crate::runs::Runs;

/// Free runs that devices are not told of yet.
#[derive(Clone, Debug)]
pub struct Discards {
    /// Runs of places as 48 bits, so that one order holds for all devices.
    runs: Runs,
    runs_max: usize,
    dropped_units: u64,
}

impl Discards {
    /// Keeps at most `runs_max` runs in memory.
    ///
    /// # Panics
    /// If that is 0.
    pub fn new(runs_max: usize) -> Discards {
        assert!(runs_max > 0, "a run can be kept");
        Discards { runs: Runs::default(), runs_max, dropped_units: 0 }
    }

    /// These units of the device are free now.
    pub fn freed(&mut self, device: u8, units: Range<u64>) {
        let packed = packed(device, units);
        self.forget(packed.clone());
        self.runs.insert(packed);
        while self.runs.count() > self.runs_max {
            let shortest = self.runs.shortest().expect("there are runs");
            self.dropped_units += shortest.end - shortest.start;
            self.runs.remove(shortest);
        }
    }

    /// These units of the device are in use again: it must not be told to forget them.
    pub fn taken(&mut self, device: u8, units: Range<u64>) {
        self.forget(packed(device, units));
    }

    /// Hands out the longest run, if it has at least `units_min`.
    pub fn next(&mut self, units_min: u64) -> Option<(u8, Range<u64>)> {
        let run = self.runs.longest().filter(|run| run.end - run.start >= units_min)?;
        self.runs.remove(run.clone());
        let first = Place::unpack(run.start);
        Some((first.device, first.unit..first.unit + (run.end - run.start)))
    }

    /// Units that devices are yet to be told of.
    pub fn units(&self) -> u64 {
        self.runs.units()
    }

    /// How many runs they are in.
    pub fn run_count(&self) -> usize {
        self.runs.count()
    }

    /// Units of which no device will be told, since they were in runs too short to keep.
    pub fn dropped_units(&self) -> u64 {
        self.dropped_units
    }

    /// Takes all of the range that waits out of the runs.
    fn forget(&mut self, packed: Range<u64>) {
        while let Some(run) = self.runs.overlapping(&packed) {
            let shared = run.start.max(packed.start)..run.end.min(packed.end);
            assert!(self.runs.remove(shared), "the run holds what it shares");
        }
    }
}

/// Units of a device as places of 48 bits. The last unit that could be addressed is left out, so that no run touches
/// one of the next device.
fn packed(device: u8, units: Range<u64>) -> Range<u64> {
    let pack = |unit: u64| Place { device, unit: unit.min(Place::UNITS_MAX - 1) }.pack();
    pack(units.start)..pack(units.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_longest_run_goes_first_and_short_ones_wait() {
        let mut discards = Discards::new(10);
        discards.freed(0, 0..4);
        discards.freed(1, 4..10);
        discards.freed(0, 4..6);
        discards.freed(0, 20..29);
        assert_eq!(discards.next(5), Some((0, 20..29)));
        assert_eq!(discards.next(5), Some((1, 4..10)));
        assert_eq!(discards.next(5), Some((0, 0..6)), "joined");
        discards.freed(0, 7..11);
        assert_eq!((discards.next(5), discards.next(4)), (None, Some((0, 7..11))));
    }

    #[test]
    fn the_shortest_runs_are_dropped_when_there_are_too_many() {
        let mut discards = Discards::new(2);
        discards.freed(0, 0..5);
        discards.freed(0, 10..12);
        discards.freed(3, 0..9);
        assert_eq!((discards.units(), discards.run_count(), discards.dropped_units()), (14, 2, 2));
    }

    #[test]
    fn runs_of_two_devices_never_touch() {
        let mut discards = Discards::new(10);
        discards.freed(0, Place::UNITS_MAX - 3..Place::UNITS_MAX);
        discards.freed(1, 0..1);
        assert_eq!(discards.next(0), Some((0, Place::UNITS_MAX - 3..Place::UNITS_MAX - 1)));
        assert_eq!(discards.next(0), Some((1, 0..1)));
    }

    proptest! {
        #[test]
        fn what_waits_is_what_was_freed_and_not_taken(
            steps in prop::collection::vec((any::<bool>(), 0..2u8, 0..60u64, 0..20u64), 0..60)
        ) {
            let mut discards = Discards::new(1000);
            let mut model = BTreeSet::new();
            for (free, device, start, units) in steps {
                let places = (start..start + units).map(|unit| (device, unit));
                if free {
                    discards.freed(device, start..start + units);
                    model.extend(places);
                } else {
                    discards.taken(device, start..start + units);
                    places.for_each(|place| { model.remove(&place); });
                }
                prop_assert_eq!(discards.units(), model.len() as u64);
            }
            let mut longest = u64::MAX;
            while let Some((device, run)) = discards.next(0) {
                prop_assert!(run.end - run.start <= longest);
                longest = run.end - run.start;
                run.for_each(|unit| assert!(model.remove(&(device, unit))));
            }
            prop_assert!(model.is_empty());
        }
    }
}
