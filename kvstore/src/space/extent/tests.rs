//! Free space against a map of units, and the figures by which the fit was chosen.

use std::slice::from_ref;

use super::*;
use proptest::prelude::*;

const RANGE: Range<u64> = 100..400;

#[derive(Clone, Debug)]
enum Step {
    Allocate { units: u64, near: Option<u64>, ahead: u32 },
    Take { start: u64, units: u64 },
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let unit = RANGE.start - 5..RANGE.end + 5;
    let step = prop_oneof![
        3 => (1..40u64, prop::option::of(unit.clone()), 1..5u32)
            .prop_map(|(units, near, ahead)| Step::Allocate { units, near, ahead }),
        1 => (unit, 0..40u64).prop_map(|(start, units)| Step::Take { start, units }),
        3 => any::<prop::sample::Index>().prop_map(Step::Free),
    ];
    prop::collection::vec(step, 0..200)
}

/// The free state of every unit.
struct Model {
    free: Vec<bool>,
    used: Vec<Range<u64>>,
}

impl Model {
    fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for unit in RANGE.filter(|&unit| self.free[(unit - RANGE.start) as usize]) {
            match runs.last_mut() {
                Some(run) if run.end == unit => run.end += 1,
                _ => runs.push(unit..unit + 1),
            }
        }
        runs
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        self.runs().iter().any(|run| run.start <= range.start && range.end <= run.end)
            && !range.is_empty()
    }

    fn set(&mut self, range: Range<u64>, free: bool) {
        for unit in range {
            self.free[(unit - RANGE.start) as usize] = free;
        }
    }

    fn take(&mut self, range: Range<u64>) {
        self.set(range.clone(), false);
        self.used.push(range);
    }

    fn step(&mut self, extents: &mut Extents, step: Step) {
        match step {
            Step::Allocate { units, near, ahead } => {
                let expected = near
                    .filter(|&unit| self.is_free(&(unit..unit + units)))
                    .or_else(|| self.fit(units, ahead));
                assert_eq!(extents.allocate(units, near, ahead), expected);
                expected.into_iter().for_each(|unit| self.take(unit..unit + units));
            }
            Step::Take { start, units } => {
                let free = self.is_free(&(start..start + units));
                assert_eq!(extents.take(start..start + units), free);
                if free {
                    self.take(start..start + units);
                }
            }
            Step::Free(index) if !self.used.is_empty() => {
                let extent = self.used.swap_remove(index.index(self.used.len()));
                extents.free(extent.clone());
                self.set(extent, true);
            }
            Step::Free(_) => {}
        }
    }

    fn fit(&self, units: u64, ahead: u32) -> Option<u64> {
        let longest = self.runs().into_iter().max_by_key(|run| (run.end - run.start, run.start));
        let fits = longest.filter(|run| run.end - run.start >= units).map(|run| run.start);
        self.best_fit(units * u64::from(ahead)).or(fits)
    }

    fn best_fit(&self, units: u64) -> Option<u64> {
        let mut runs = self.runs();
        runs.retain(|run| run.end - run.start >= units);
        runs.iter().min_by_key(|run| (run.end - run.start, run.start)).map(|run| run.start)
    }
}

fn check(extents: &Extents, model: &Model) {
    let runs = model.runs();
    let longest = runs.iter().map(|run| run.end - run.start).max().unwrap_or(0);
    assert_eq!(extents.runs().collect::<Vec<_>>(), runs);
    assert_eq!((extents.run_count(), extents.largest()), (runs.len(), longest));
    assert_eq!(extents.free_units(), runs.iter().map(|run| run.end - run.start).sum::<u64>());
}

proptest! {
    #[test]
    fn free_space_is_what_a_map_of_units_says(steps in steps()) {
        let mut extents = Extents::new(RANGE);
        let mut model = Model { free: vec![true; 300], used: Vec::new() };
        for step in steps {
            model.step(&mut extents, step);
            check(&extents, &model);
        }
        let (rebuilt, refused) = Extents::from_used(&[RANGE], model.used.iter().cloned());
        check(&rebuilt, &model);
        for unit in RANGE.start - 1..=RANGE.end {
            prop_assert_eq!(extents.is_free(unit), model.is_free(&(unit..unit + 1)), "unit {}", unit);
        }
        prop_assert!(refused.is_empty());
    }

    #[test]
    fn what_overlaps_or_leaves_the_range_is_refused_and_the_rest_is_taken(
        used in prop::collection::vec((90..410u64, 0..200u64), 0..40)
    ) {
        let used: Vec<_> = used.into_iter().map(|(start, units)| start..start + units).collect();
        let mut model = Model { free: vec![true; 300], used: Vec::new() };
        let mut expected = Vec::new();
        for (position, extent) in used.iter().enumerate() {
            match model.is_free(extent) {
                true => model.take(extent.clone()),
                false => expected.push(position),
            }
        }
        let (extents, refused) = Extents::from_used(&[RANGE], used.into_iter());
        prop_assert_eq!(refused, expected);
        check(&extents, &model);
    }
}

#[test]
fn a_freed_extent_joins_its_neighbours() {
    let mut extents = Extents::new(0..30);
    let starts: Vec<_> = (0..3).map(|_| extents.allocate(10, None, 1)).collect();
    assert_eq!(starts, [Some(0), Some(10), Some(20)]);
    assert_eq!(extents.allocate(1, None, 1), None);
    extents.free(0..10);
    extents.free(20..30);
    assert_eq!((extents.run_count(), extents.largest()), (2, 10));
    extents.free(10..20);
    assert_eq!(extents.largest_run(), Some(0..30));
}

#[test]
fn an_extent_goes_behind_its_neighbour_while_there_is_room() {
    let mut extents = Extents::new(0..100);
    assert_eq!(extents.allocate(10, Some(50), 1), Some(50));
    assert_eq!(extents.allocate(10, Some(60), 1), Some(60));
    assert_eq!(extents.allocate(10, Some(55), 1), Some(70), "the shortest run that holds it");
    assert_eq!(extents.allocate(10, Some(u64::MAX), 1), Some(80));
}

#[test]
fn a_sequence_starts_where_there_is_room_for_what_follows() {
    let mut extents = Extents::new(0..100);
    assert!(extents.take(20..25) && extents.take(60..65));
    assert_eq!(extents.allocate(10, None, 3), Some(25), "35 units are enough, and the fewest");
    assert_eq!(extents.allocate(10, None, 4), Some(65), "none is enough, and this is the longest");
    assert_eq!(extents.allocate(26, None, 1), None);
}

#[test]
#[should_panic(expected = "is free already")]
fn a_double_free_is_a_bug() {
    let mut extents = Extents::new(0..10);
    extents.allocate(4, None, 1);
    extents.free(2..6);
}

#[test]
#[should_panic(expected = "is not in")]
fn an_extent_of_another_range_is_a_bug() {
    Extents::new(5..10).free(4..5);
}

#[test]
fn a_range_of_nothing_has_nothing_free() {
    let mut extents = Extents::new(7..7);
    assert_eq!(
        (extents.allocate(1, None, 1), extents.free_units(), extents.largest()),
        (None, 0, 0)
    );
    assert_eq!(Extents::from_used(from_ref(&(7..7)), std::iter::once(7..8)).1, [0]);
}

#[test]
fn a_range_that_ends_before_it_starts_is_refused() {
    let backwards = Range { start: 10, end: 5 };
    assert_eq!(Extents::from_used(from_ref(&(7..20)), std::iter::once(backwards)).1, [0]);
}

#[test]
fn several_ranges_are_apart_and_nothing_lies_between_them() {
    let ranges = [10..20, 30..50, 60..61];
    let (mut extents, refused) =
        Extents::from_used(&ranges, [12..15, 19..31, 48..50, 25..26, 60..61].into_iter());
    assert_eq!(refused, [1, 3], "they are not in one range");
    assert_eq!(extents.runs().collect::<Vec<_>>(), [10..12, 15..20, 30..48]);
    assert_eq!((extents.longest_range(), extents.free_units()), (20, 25));
    assert_eq!(extents.allocate(6, Some(15), 1), Some(30), "no extent reaches into a gap");
    assert!(!extents.take(20..21) && !extents.is_free(20));
    extents.free(60..61);
    extents.free(48..50);
    assert_eq!(extents.allocate(1, None, 1), Some(60), "the shortest run");
}

#[test]
#[should_panic(expected = "is not in")]
fn what_lies_in_a_gap_is_not_freed() {
    Extents::over(&[10..20, 30..50]).free(20..21);
}
