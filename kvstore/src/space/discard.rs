//! Discards: free runs to deallocate on their devices, longest first.
//!
//! A run is handed out only after it has been free for a while: a full store soon overwrites freed space, and
//! discarding that would cost the device as much as a write, in vain.
//!
//! Invariants: waiting runs are free space; they are disjoint, those of one age never touch, and there are at most
//! `runs_max` of each of three ages. Discards are advice: with too many runs, the shortest are dropped.
//!
//! A device may carry out a discard after a write sent later. The shard must therefore take a run out of the free
//! extents until the device has answered ([`crate::space::extent::Extents::take`]), and then free it there without
//! reporting it here again. It must also send a discard only when the record that its objects are gone would survive.

use std::mem;
use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;

use crate::model::place::Place;
use crate::space::runs::Runs;

/// Free runs not yet deallocated on their devices.
#[derive(Clone, Debug)]
pub(crate) struct Discards {
    /// Runs of places as 48 bits, so that one order holds for all devices. By age: freed since the last change of
    /// ages, freed before it, and free long enough.
    ages: [Runs; 3],
    runs_max: usize,
    wait: Duration,
    /// When the ages next change.
    changes_at: Time,
}

impl Discards {
    /// Keeps at most `runs_max` runs of each age, and hands out runs that have been free for between one and two
    /// times `wait`.
    ///
    /// # Panics
    /// If `runs_max` is 0.
    pub(crate) fn new(runs_max: usize, wait: Duration) -> Discards {
        assert!(runs_max > 0, "a run can be kept");
        Discards { ages: Default::default(), runs_max, wait, changes_at: Time::ZERO }
    }

    pub(crate) fn freed(&mut self, device: u8, units: Range<u64>) {
        self.taken(device, units.clone());
        self.insert(0, packed(device, units));
    }

    /// Records that these units of a device are in use again, so that they are not deallocated.
    pub(crate) fn taken(&mut self, device: u8, units: Range<u64>) {
        let packed = packed(device, units);
        for runs in &mut self.ages {
            while let Some(run) = runs.overlapping(&packed) {
                let shared = run.start.max(packed.start)..run.end.min(packed.end);
                assert!(runs.remove(shared), "the run holds what it shares");
            }
        }
    }

    /// Advances the ages, if it is time.
    pub(crate) fn pass(&mut self, now: Time) {
        if now < self.changes_at {
            return;
        }
        self.changes_at = now + self.wait;
        let young = mem::take(&mut self.ages[0]);
        for run in mem::replace(&mut self.ages[1], young).iter() {
            self.insert(2, run);
        }
    }

    /// Returns when [`Discards::pass`] is next needed, if nothing is taken before.
    pub(crate) fn next_change(&self) -> Option<Time> {
        let waits = self.ages[..2].iter().any(|runs| runs.count() > 0);
        waits.then_some(self.changes_at)
    }

    /// Hands out the longest run that has waited, if it has at least `units_min`.
    pub(crate) fn next(&mut self, units_min: u64) -> Option<(u8, Range<u64>)> {
        let run = self.ages[2].longest().filter(|run| run.end - run.start >= units_min)?;
        self.ages[2].remove(run.clone());
        let first = Place::unpack(run.start);
        Some((first.device, first.unit..first.unit + (run.end - run.start)))
    }

    /// Puts back the rest of a run that was handed out; it need not wait again.
    pub(crate) fn put_back(&mut self, device: u8, units: Range<u64>) {
        self.insert(2, packed(device, units));
    }

    fn insert(&mut self, age: usize, packed: Range<u64>) {
        let runs = &mut self.ages[age];
        runs.insert(packed);
        while runs.count() > self.runs_max {
            let shortest = runs.shortest().expect("there are runs");
            runs.remove(shortest);
        }
    }
}

/// Converts units of a device to 48-bit places. Leaves out the last addressable unit, so that no run touches one of
/// the next device.
fn packed(device: u8, units: Range<u64>) -> Range<u64> {
    let pack = |unit: u64| Place { device, unit: unit.min(Place::UNITS_MAX - 1) }.pack();
    pack(units.start)..pack(units.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SECOND: Duration = Duration::from_secs(1);

    fn waiting(discards: &Discards) -> u64 {
        discards.ages.iter().map(Runs::units).sum()
    }

    /// Advances time until everything freed has waited.
    fn aged(discards: &mut Discards) {
        let now = discards.changes_at;
        discards.pass(now);
        discards.pass(now + SECOND);
    }

    #[test]
    fn what_is_overwritten_soon_is_never_handed_out() {
        let mut discards = Discards::new(10, SECOND);
        discards.pass(Time::ZERO);
        assert_eq!(discards.next_change(), None);
        let mut now = Time::ZERO;
        for _ in 0..10 {
            discards.freed(0, 0..8);
            now = now + SECOND / 2;
            discards.pass(now);
            assert!(discards.next(0).is_none() && discards.next_change().is_some());
            discards.taken(0, 0..8);
        }
        discards.freed(0, 8..16);
        let freed_at = now;
        while discards.next(0).is_none() {
            now = discards.next_change().expect("the run waits");
            discards.pass(now);
        }
        assert!(now.since(freed_at) >= SECOND && now.since(freed_at) <= 2 * SECOND);
    }

    #[test]
    fn the_longest_run_goes_first_and_short_ones_wait() {
        let mut discards = Discards::new(10, SECOND);
        discards.freed(0, 0..4);
        discards.freed(1, 4..10);
        discards.freed(0, 4..6);
        discards.freed(0, 20..29);
        aged(&mut discards);
        assert_eq!(discards.next(5), Some((0, 20..29)));
        assert_eq!(discards.next(5), Some((1, 4..10)));
        assert_eq!(discards.next(5), Some((0, 0..6)), "joined");
        discards.freed(0, 7..11);
        aged(&mut discards);
        assert_eq!((discards.next(5), discards.next(4)), (None, Some((0, 7..11))));
    }

    #[test]
    fn the_shortest_runs_are_dropped_when_there_are_too_many() {
        let mut discards = Discards::new(2, SECOND);
        discards.freed(0, 0..5);
        discards.freed(0, 10..12);
        discards.freed(3, 0..9);
        assert_eq!(waiting(&discards), 14, "the shortest is gone");
    }

    #[test]
    fn runs_of_two_devices_never_touch() {
        let mut discards = Discards::new(10, SECOND);
        discards.freed(0, Place::UNITS_MAX - 3..Place::UNITS_MAX);
        discards.freed(1, 0..1);
        aged(&mut discards);
        assert_eq!(discards.next(0), Some((0, Place::UNITS_MAX - 3..Place::UNITS_MAX - 1)));
        assert_eq!(discards.next(0), Some((1, 0..1)));
    }

    proptest! {
        #[test]
        fn what_waits_is_what_was_freed_and_not_taken(
            steps in prop::collection::vec((0..5u8, 0..2u8, 0..60u64, 0..20u64), 0..60)
        ) {
            let mut discards = Discards::new(1000, SECOND);
            let mut model = BTreeSet::new();
            let mut now = Time::ZERO;
            for (step, device, start, units) in steps {
                let places = (start..start + units).map(|unit| (device, unit));
                match step {
                    0 => {
                        now = now + SECOND;
                        discards.pass(now);
                    }
                    1 | 2 => {
                        discards.freed(device, start..start + units);
                        model.extend(places);
                    }
                    _ => {
                        discards.taken(device, start..start + units);
                        places.for_each(|place| { model.remove(&place); });
                    }
                }
                prop_assert_eq!(waiting(&discards), model.len() as u64);
            }
            aged(&mut discards);
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
