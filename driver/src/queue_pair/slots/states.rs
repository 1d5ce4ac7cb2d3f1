//! Checks lookups and counts in each state of a slot.

use super::*;

/// Returns slots of which 0 is idle for the second time, 1 plain, 2 special, 3 waiting and 4 idle.
fn one_of_each() -> (Slots<u32>, [Cid; 4]) {
    let mut slots = Slots::new(5);
    let cids = [0u8, 1, 2, 3].map(|at| {
        let (index, cid) = slots.occupy(Some(at.into()), Time::ZERO, 0x40 + at, at == 2);
        assert_eq!(index, usize::from(at));
        cid
    });
    assert_eq!(slots.end_plain(cids[0]), Some(0));
    slots.mark_special(3);
    slots.mark_waiting(3);
    (slots, cids)
}

#[test]
fn commands_in_flight_are_found_by_their_identifier_in_any_state_and_no_others() {
    let (mut slots, cids) = one_of_each();
    let found = cids.map(|cid| slots.find(cid));
    assert_eq!(found, [None, Some(1), Some(2), Some(3)]);
    let next = slots.get(0).cid();
    assert_eq!((slots.find(next), slots.find(Cid(4)), slots.find(Cid(7))), (None, None, None));
    let (index, cid) = slots.occupy(None, Time::ZERO, 0, false);
    assert_eq!((index, cid), (0, next));
    assert_eq!((slots.find(cid), slots.find(cids[0])), (Some(0), None), "of a later generation");
    assert_eq!(slots.occupied().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn commands_are_counted_from_post_to_end() {
    let (mut slots, cids) = one_of_each();
    assert_eq!((slots.taken(), slots.returned()), (4, 1));
    assert_eq!((slots.in_flight(), slots.free(), slots.is_full()), (3, 2, false));
    assert_eq!(slots.occupied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(format!("{slots:?}"), "Slots(3 of 5 in flight)");
    assert_eq!((slots.vacate(2), slots.end_plain(cids[1])), (Some(2), Some(1)));
    assert_eq!((slots.taken(), slots.returned(), slots.in_flight()), (4, 3, 1));
}

#[test]
fn special_and_waiting_commands_have_more_attached_and_plain_ones_do_not() {
    let (slots, cids) = one_of_each();
    assert_eq!([1, 2, 3].map(|index| slots.is_special(index)), [false, true, true]);
    assert_eq!(cids.map(|cid| slots.find_special(cid)), [None, None, Some(2), None]);
    assert_eq!(slots.get(3).deadline, Time::NEVER, "none applies to one that waits");
}

#[test]
fn a_slot_knows_its_commands_identifier_and_opcode() {
    let (slots, cids) = one_of_each();
    for (index, opcode) in [(1, 0x41), (2, 0x42), (3, 0x43)] {
        let slot = slots.get(index);
        assert_eq!((slot.cid(), slot.opcode()), (cids[index], opcode));
    }
}
