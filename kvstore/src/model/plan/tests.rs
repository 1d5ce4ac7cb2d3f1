//! Plans against a map of units, and commands counted by hand.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn place(device: u8, unit: u64) -> Place {
    Place { device, unit }
}

fn part(unit: u64, units: u64, item: u32, offset: u64) -> Part {
    Part { place: place(0, unit), item, offset, bytes: units * UNIT_BYTES }
}

fn limits(units: u64, boundary_units: u64, slices_max: u32) -> Limits {
    let command_bytes_max = units * UNIT_BYTES;
    Limits { command_bytes_max, boundary_bytes: boundary_units * UNIT_BYTES, slices_max }
}

/// Each unit of a device with its item and offset.
type Moved = Vec<(Place, u32, u64)>;

fn moved_by_parts(parts: &[Part]) -> Moved {
    let units = |part: &Part| {
        let part = *part;
        (0..part.bytes / UNIT_BYTES)
            .map(move |unit| (part.place.plus(unit), part.item, part.offset + unit * UNIT_BYTES))
    };
    let mut moved: Moved = parts.iter().flat_map(units).collect();
    moved.sort_unstable();
    moved
}

fn moved_by_plan(plan: &Plan) -> Moved {
    let mut moved = Moved::new();
    for run in plan.runs() {
        let mut unit = 0;
        for slice in &plan.slices()[run.slices()] {
            for at in (0..slice.bytes).step_by(UNIT_BYTES as usize) {
                moved.push((run.place.plus(unit), slice.region, slice.offset + at));
                unit += 1;
            }
        }
        assert_eq!(unit * UNIT_BYTES, run.bytes, "its slices are its bytes");
    }
    moved.sort_unstable();
    moved
}

fn check_limits(plan: &Plan, limits: &Limits) {
    for run in plan.runs() {
        assert!((1..=limits.command_bytes_max).contains(&run.bytes));
        assert!((1..=limits.slices_max).contains(&run.slice_count));
        if limits.boundary_bytes > 0 {
            let boundary = limits.boundary_bytes / UNIT_BYTES;
            assert_eq!(run.place.unit / boundary, (run.end_unit() - 1) / boundary);
        }
    }
    let counted: u32 = plan.runs().iter().map(|run| run.slice_count).sum();
    assert_eq!(counted as usize, plan.slices().len());
}

/// Returns the fewest commands that can move these units.
fn fewest(moved: &Moved, limits: &Limits) -> usize {
    let units: BTreeSet<Place> = moved.iter().map(|(place, ..)| *place).collect();
    let (mut commands, mut end, mut left) = (0, None, 0);
    for place in units {
        let boundary = limits.boundary_bytes / UNIT_BYTES;
        let crossed = boundary > 0 && place.unit.is_multiple_of(boundary);
        if end != Some(place) || left == 0 || crossed {
            commands += 1;
            left = limits.command_bytes_max / UNIT_BYTES;
        }
        left -= 1;
        end = Some(place.plus(1));
    }
    commands
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (1..20u64, prop_oneof![Just(0), 1..40u64], 1..6u32).prop_map(|(a, b, c)| limits(a, b, c))
}

fn any_part() -> impl Strategy<Value = Part> {
    (0..2u8, 0..150u64, 0..5u32, 0..20u64, 1..30u64).prop_map(
        |(device, unit, item, offset, units)| Part {
            place: place(device, unit),
            item,
            offset: offset * UNIT_BYTES,
            bytes: units * UNIT_BYTES,
        },
    )
}

/// Generates parts that share no unit: alternating runs and gaps, with items in any order.
fn apart() -> impl Strategy<Value = Vec<Part>> {
    let step = (prop_oneof![3 => Just(0), 1 => 1..9u64], 1..30u64, 0..3u32, 0..9u64);
    prop::collection::vec(step, 0..30).prop_map(|steps| {
        let mut unit = 0;
        let next = |(gap, units, item, offset): (u64, u64, u32, u64)| {
            unit += gap + units;
            part(unit - units, units, item, offset * UNIT_BYTES)
        };
        steps.into_iter().map(next).collect()
    })
}

proptest! {
    #[test]
    fn every_byte_is_planned_exactly_once(
        mut parts in prop::collection::vec(any_part(), 0..20), limits in any_limits()
    ) {
        let plan = Plan::of(&mut parts, &limits);
        check_limits(&plan, &limits);
        prop_assert_eq!(moved_by_plan(&plan), moved_by_parts(&parts));
        prop_assert_eq!(plan.bytes(), parts.iter().map(|part| part.bytes).sum::<u64>());
    }

    #[test]
    fn what_lies_apart_is_never_planned_twice_and_needs_no_more_commands_than_it_must(
        parts in apart().prop_shuffle(), limits in any_limits()
    ) {
        let mut parts = parts;
        let plan = Plan::of(&mut parts, &limits);
        check_limits(&plan, &limits);
        let ends = plan.runs().windows(2).all(|two| two[0].end_unit() <= two[1].place.unit);
        prop_assert!(ends, "in order, and nothing overlaps");
        let roomy = Limits { slices_max: u32::MAX, ..limits };
        let commands = Plan::of(&mut parts, &roomy).runs().len();
        prop_assert_eq!(commands, fewest(&moved_by_parts(&parts), &limits));
    }
}

#[test]
fn neighbours_are_one_command_that_scatters() {
    let mut parts = [part(9, 2, 7, 0), part(5, 4, 1, 8192)];
    let plan = Plan::of(&mut parts, &limits(256, 0, 16));
    assert_eq!(plan.runs().len(), 1);
    let slices = plan.slices();
    assert_eq!(slices[0], Slice { region: 1, offset: 8192, bytes: 4 * UNIT_BYTES });
    assert_eq!(slices[1], Slice { region: 7, offset: 0, bytes: 2 * UNIT_BYTES });
}

#[test]
fn transfers_name_devices_in_their_own_lbas_and_items_as_numbered() {
    let mut parts = [part(2, 1, 0, 0), Part { place: place(1, 3), ..part(0, 2, 1, 8192) }];
    let mut plan = Plan::of(&mut parts, &limits(256, 0, 9));
    plan.renumber(&[40, 50]);
    let transfers: Vec<_> = plan.transfers(Direction::Read, &[512, 4096]).collect();
    let place = |transfer: &Transfer<&[Slice]>| (transfer.device, transfer.lba.0);
    assert_eq!(transfers.iter().map(place).collect::<Vec<_>>(), [(0, 16), (1, 3)]);
    assert_eq!(transfers[0].slices, [Slice { region: 40, offset: 0, bytes: UNIT_BYTES }]);
    assert_eq!(transfers[1].slices, [Slice { region: 50, offset: 8192, bytes: 2 * UNIT_BYTES }]);
    assert_eq!(transfers[1].bytes(), Some(2 * UNIT_BYTES));
}

#[test]
fn what_is_one_in_memory_is_one_slice() {
    let mut parts = [part(0, 4, 0, 0), part(4, 4, 0, 4 * UNIT_BYTES)];
    let plan = Plan::of(&mut parts, &limits(256, 0, 1));
    assert_eq!(plan.slices(), [Slice { region: 0, offset: 0, bytes: 8 * UNIT_BYTES }]);
}

#[test]
fn a_command_ends_at_its_limits() {
    let lengths = |limits: &Limits| -> Vec<u64> {
        let mut parts = [part(6, 10, 0, 0), part(16, 3, 1, 0), part(19, 1, 2, 0)];
        let plan = Plan::of(&mut parts, limits);
        plan.runs().iter().map(|run| run.bytes / UNIT_BYTES).collect()
    };
    assert_eq!(lengths(&limits(256, 0, 9)), [14], "none");
    assert_eq!(lengths(&limits(8, 0, 9)), [8, 6], "its bytes");
    assert_eq!(lengths(&limits(256, 8, 9)), [2, 8, 4], "the device's boundary");
    assert_eq!(lengths(&limits(256, 0, 2)), [13, 1], "its slices");
}

#[test]
fn devices_have_commands_of_their_own() {
    let mut parts = [part(0, 1, 0, 0), Part { place: place(1, 1), ..part(0, 1, 1, 0) }];
    let plan = Plan::of(&mut parts, &limits(256, 0, 9));
    assert_eq!(plan.runs().iter().map(|t| t.place.device).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn an_object_that_is_asked_for_twice_is_read_twice() {
    let mut parts = [part(3, 2, 0, 0), part(3, 2, 1, 0)];
    let plan = Plan::of(&mut parts, &limits(256, 0, 9));
    assert_eq!(plan.runs().iter().map(|t| t.bytes).collect::<Vec<_>>(), [8192, 8192]);
}

#[test]
fn a_plan_made_again_forgets_the_last() {
    let mut plan = Plan::of(&mut [part(0, 300, 0, 0)], &limits(MIB / UNIT_BYTES, 0, 9));
    assert_eq!(plan.runs().len(), 2);
    plan.remake(&mut [], &limits(1, 0, 1));
    assert_eq!(plan, Plan::default());
}

#[test]
#[should_panic(expected = "a part is whole units")]
fn half_a_unit_is_a_bug() {
    Plan::of(&mut [Part { bytes: 2048, ..part(0, 1, 0, 0) }], &limits(1, 0, 1));
}
