//! Slabs against a map of units.

use std::slice::from_ref;

use super::*;
use proptest::prelude::*;

const A: (LayoutId, SlabShape) = (LayoutId(1), SlabShape { runs: 3, run_units: 2, slots: 8 });
const B: (LayoutId, SlabShape) = (LayoutId(2), SlabShape { runs: 2, run_units: 5, slots: 4 });

fn slot_units(unit: u64, shape: SlabShape) -> impl Iterator<Item = u64> {
    let run = move |run: u32| unit + u64::from(run) * shape.stride_units();
    (0..shape.runs).flat_map(move |r| run(r)..run(r) + u64::from(shape.run_units))
}

#[test]
fn the_same_layer_of_neighbours_is_contiguous() {
    let (layout, shape) = A;
    let (mut extents, mut slabs) = (Extents::new(10..100), Slabs::new());
    let first = slabs.allocate(&mut extents, layout, shape, None, 1);
    let second = slabs.allocate(&mut extents, layout, shape, first, 1);
    let third = slabs.allocate(&mut extents, layout, shape, second, 1);
    assert_eq!((first, second, third), (Some(10), Some(12), Some(14)));
    assert_eq!(slabs.base_of(14), 10);
    assert_eq!(slot_units(12, shape).collect::<Vec<_>>(), [12, 13, 28, 29, 44, 45]);
    assert_eq!(slabs.slots(layout), Slots { used: 3, free: 5, sinking: 0 });
    assert_eq!(slabs.slots(B.0), Slots::default());
}

#[test]
fn a_sequence_starts_where_there_is_room_for_what_follows() {
    let (layout, shape) = A;
    let (mut extents, mut slabs) = (Extents::new(0..200), Slabs::new());
    let mut put = |near, ahead| slabs.allocate(&mut extents, layout, shape, near, ahead);
    assert_eq!((put(None, 5), put(Some(0), 4)), (Some(0), Some(2)));
    assert_eq!(put(None, 6), Some(4), "six are enough, and a new slab is not needed");
    assert_eq!(put(None, 8), Some(6), "too many are free for a new slab");
    let last = [(6, 4), (8, 3), (10, 2)].map(|(near, ahead)| put(Some(near), ahead));
    assert_eq!(last, [Some(8), Some(10), Some(12)]);
    assert_eq!(put(None, 2), Some(48), "one is not enough, and few are free");
    assert_eq!(put(Some(12), 1), Some(14), "it is still the next");
}

#[test]
fn an_empty_slab_goes_back_to_the_extents() {
    let (layout, shape) = A;
    let (mut extents, mut slabs) = (Extents::new(0..50), Slabs::new());
    let first = slabs.allocate(&mut extents, layout, shape, None, 1).expect("room");
    let second = slabs.allocate(&mut extents, layout, shape, Some(first), 1).expect("room");
    assert_eq!((extents.free_units(), slabs.ranges().next()), (2, Some(0..48)));
    slabs.free(&mut extents, first);
    assert_eq!((extents.free_units(), slabs.slots(layout).used), (2, 1));
    slabs.free(&mut extents, second);
    assert_eq!((extents.free_units(), slabs.slots(layout)), (50, Slots::default()));
    assert_eq!((slabs.ranges().next(), extents.run_count()), (None, 1));
}

#[test]
fn without_room_for_a_slab_every_slot_is_used_before_it_is_full() {
    let (layout, shape) = A;
    let (mut extents, mut slabs) = (Extents::new(0..60), Slabs::new());
    let put = |_| slabs.allocate(&mut extents, layout, shape, None, 1);
    let found: Vec<_> = (0..9).map(put).collect();
    assert!(found[..8].iter().all(Option::is_some) && found[8].is_none(), "{found:?}");
}

#[test]
fn what_comes_back_from_a_device_is_checked() {
    let (layout, shape) = A;
    let mut slabs = Slabs::new();
    assert!(slabs.restore(100, layout, shape, 3) && slabs.restore(100, layout, shape, 0));
    assert!(!slabs.restore(100, layout, shape, 3), "taken");
    assert!(!slabs.restore(100, layout, shape, 8), "no such slot");
    assert!(!slabs.restore(100, B.0, B.1, 1), "another layout");
    assert!(!slabs.restore(147, layout, shape, 1), "overlaps its end");
    assert!(!slabs.restore(60, layout, shape, 1), "overlaps its start");
    assert!(!slabs.restore(u64::MAX - 3, layout, shape, 1), "past the end");
    assert!(!slabs.restore(900, layout, SlabShape { runs: 0, ..shape }, 1), "of nothing");
    assert!(slabs.restore(148, B.0, B.1, 1));
    assert_eq!(slabs.ranges().collect::<Vec<_>>(), [100..148, 148..188]);
    assert_eq!((slabs.slots(layout).used, slabs.base_of(153)), (2, 148));
}

#[test]
#[should_panic(expected = "a slot starts at the unit")]
fn a_unit_inside_a_run_is_no_slot() {
    let (mut extents, mut slabs) = (Extents::new(0..100), Slabs::new());
    slabs.allocate(&mut extents, A.0, A.1, None, 1);
    slabs.free(&mut extents, 1);
}

#[test]
#[should_panic(expected = "a slot starts at the unit")]
fn a_second_run_is_no_slot() {
    let (mut extents, mut slabs) = (Extents::new(0..100), Slabs::new());
    slabs.allocate(&mut extents, A.0, A.1, None, 1);
    slabs.base_of(A.1.stride_units());
}

#[test]
#[should_panic(expected = "is free already")]
fn a_slot_freed_twice_is_a_bug() {
    let (mut extents, mut slabs) = (Extents::new(0..100), Slabs::new());
    let first = slabs.allocate(&mut extents, A.0, A.1, None, 1);
    slabs.allocate(&mut extents, A.0, A.1, first, 1);
    slabs.free(&mut extents, 0);
    slabs.free(&mut extents, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Put { b: bool, near: Option<prop::sample::Index>, ahead: u32 },
    Extent(u64),
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let near = prop::option::of(any::<prop::sample::Index>());
    let step = prop_oneof![
        4 => (any::<bool>(), near, 1..9u32)
            .prop_map(|(b, near, ahead)| Step::Put { b, near, ahead }),
        1 => (1..30u64).prop_map(Step::Extent),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
    ];
    prop::collection::vec(step, 0..150)
}

/// Space in use: a slot of a layout, or an extent's unit and length.
#[derive(Clone, Copy)]
enum Used {
    Slot(u64, (LayoutId, SlabShape)),
    Extent(u64, u64),
}

impl Used {
    fn units(self) -> Vec<u64> {
        match self {
            Used::Slot(unit, (_, shape)) => slot_units(unit, shape).collect(),
            Used::Extent(unit, units) => (unit..unit + units).collect(),
        }
    }

    fn unit(self) -> u64 {
        match self {
            Used::Slot(unit, _) | Used::Extent(unit, _) => unit,
        }
    }
}

fn step(step: Step, extents: &mut Extents, slabs: &mut Slabs, used: &mut Vec<Used>) {
    match step {
        Step::Put { b, near, ahead } => {
            let kind = if b { B } else { A };
            let near = near.filter(|_| !used.is_empty()).map(|at| used[at.index(used.len())]);
            let unit = slabs.allocate(extents, kind.0, kind.1, near.map(Used::unit), ahead);
            used.extend(unit.map(|unit| Used::Slot(unit, kind)));
        }
        Step::Extent(units) => {
            let unit = extents.allocate(units, None, 1);
            used.extend(unit.map(|unit| Used::Extent(unit, units)));
        }
        Step::Free(at) if !used.is_empty() => match used.swap_remove(at.index(used.len())) {
            Used::Slot(unit, _) => drop(slabs.free(extents, unit)),
            Used::Extent(unit, units) => extents.free(unit..unit + units),
        },
        Step::Free(_) => {}
    }
}

/// Checks that no unit is used twice, no used unit is free, and no slab is empty.
fn check(extents: &Extents, slabs: &Slabs, used: &[Used]) {
    let units: BTreeSet<u64> = used.iter().flat_map(|used| used.units()).collect();
    assert_eq!(units.len(), used.iter().map(|used| used.units().len()).sum::<usize>());
    assert!(units.iter().all(|unit| !extents.is_free(*unit)));
    let extent_units = |used: &Used| if let Used::Extent(_, units) = used { *units } else { 0 };
    let plain: u64 = used.iter().map(extent_units).sum();
    let in_slabs: u64 = slabs.ranges().map(|slab| slab.end - slab.start).sum();
    assert_eq!(extents.free_units() + plain + in_slabs, 300);
    for slab in slabs.ranges() {
        assert!(used.iter().any(|used| slab.contains(&used.unit())), "{slab:?} is empty");
    }
    for (layout, shape) in [A, B] {
        let slots = slabs.slots(layout);
        let is_slot = |used: &&Used| matches!(used, Used::Slot(_, kind) if kind.0 == layout);
        assert_eq!(slots.used, used.iter().filter(is_slot).count() as u64);
        assert!((slots.used + slots.free).is_multiple_of(u64::from(shape.slots)));
    }
}

fn rebuild(slabs: &Slabs, used: &[Used]) -> Slabs {
    let mut rebuilt = Slabs::new();
    for used in used {
        if let Used::Slot(unit, (layout, shape)) = *used {
            let base = slabs.base_of(unit);
            let slot = (unit - base) / u64::from(shape.run_units);
            assert!(rebuilt.restore(base, layout, shape, slot as u32));
        }
    }
    rebuilt
}

proptest! {
    #[test]
    fn no_unit_is_given_twice_and_a_restart_finds_the_same(steps in steps()) {
        let (mut extents, mut slabs) = (Extents::new(0..300), Slabs::new());
        let mut used = Vec::new();
        for next in steps {
            step(next, &mut extents, &mut slabs, &mut used);
            check(&extents, &slabs, &used);
        }
        let rebuilt = rebuild(&slabs, &used);
        let plain = used.iter().filter_map(|used| match *used {
            Used::Extent(unit, units) => Some(unit..unit + units),
            Used::Slot(..) => None,
        });
        let (found, refused) = Extents::from_used(from_ref(&(0..300)), rebuilt.ranges().chain(plain));
        prop_assert!(refused.is_empty());
        prop_assert!(found.runs().eq(extents.runs()));
        check(&found, &rebuilt, &used);
    }
}
