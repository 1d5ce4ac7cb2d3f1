//! Plans for another executor: what they read, what is known about the bytes, and what they hold.

use adit_driver::memory::AnyBuffer;
use adit_driver::spec::Status;
use adit_driver::{CommandError, Protection, Time};

use super::device::memory;
use super::{Rig, STORED, item, options};
use crate::media::checksum;
use crate::model::object::piece_bytes;
use crate::model::options::Durability;
use crate::model::place::{UNIT_BYTES, units};
use crate::model::plan::Plan;
use crate::shard::{Action, Part, PutItem};
use crate::shard::{Certainty, Check, Planned, PlannedItem, Verification, Verifier};

/// An object of three pieces, of which the last is not whole units.
const BYTES: u64 = 2 * piece_bytes(1) + 5000;

/// Returns different bytes for each of its units.
fn contents() -> Vec<u8> {
    (0..BYTES).map(|at| (at / UNIT_BYTES) as u8).collect()
}

/// Opens a shard with that object.
fn rig() -> Rig {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let mut data = memory(BYTES as usize);
    data[..BYTES as usize].copy_from_slice(&contents());
    let put = PutItem { bytes: BYTES, data: AnyBuffer::One(data), ..item(1, 1) };
    assert_eq!(rig.wait(Action::Put(put)), STORED);
    rig
}

fn plan_of(rig: &mut Rig, asked: &[(u64, Part)]) -> Planned {
    let asked: Vec<_> = asked.iter().map(|(key, part)| ((*key).into(), part.clone())).collect();
    rig.shard.plan(rig.now, &asked, Time::NEVER).expect("each has that part")
}

/// Reads an item's memory, as an executor does.
fn read(rig: &Rig, plan: &Plan, number: u32, item: &PlannedItem) -> Vec<u8> {
    let mut memory = vec![0; item.padded_bytes() as usize];
    let medium = rig.devices[0].medium();
    for run in plan.runs() {
        let mut from = (run.place.unit * UNIT_BYTES) as usize;
        for slice in &plan.slices()[run.slices()] {
            let (to, len) = (slice.offset as usize, slice.bytes as usize);
            assert_eq!(slice.region, number, "only this item is read");
            memory[to..to + len].copy_from_slice(&medium.bytes[from..from + len]);
            from += len;
        }
    }
    memory
}

#[test]
fn a_planned_part_is_intact_if_each_of_its_pieces_is() {
    let piece = piece_bytes(BYTES);
    for start in [0, piece] {
        let mut rig = rig();
        let part = Part::Bytes(start..BYTES);
        let planned = plan_of(&mut rig, &[(2, Part::All), (1, part)]);
        assert!(planned.items[0].is_none(), "a miss");
        let item = planned.items[1].as_ref().expect("it is there");
        assert_eq!(item.bytes(), BYTES - start);
        assert_eq!(item.padded_bytes(), units(BYTES - start) * UNIT_BYTES);
        let mut memory = read(&rig, &planned.plan, 1, item);
        assert_eq!(memory[..item.bytes() as usize], contents()[start as usize..]);
        assert!(item.is_intact(&memory));
        assert!(item.is_intact(&memory[..item.bytes() as usize]), "what pads it is not needed");
        assert!(!item.is_intact(&memory[..item.bytes() as usize - 1]), "it is cut");
        for at in (0..item.bytes()).step_by(piece as usize) {
            memory[at as usize] ^= 1;
            assert!(!item.is_intact(&memory), "a bit at {at} is another");
            memory[at as usize] ^= 1;
        }
    }
}

#[test]
fn bytes_are_verified_by_a_device_that_protects_them_and_corrupt_by_its_status() {
    let protected = Verification::Device(Protection::Type1);
    for (protection, verification) in
        [(None, Verification::Unverified), (Some(Protection::Type1), protected)]
    {
        let mut rig = rig();
        rig.shard.parts.lanes[0].info.protection = protection;
        let planned = plan_of(&mut rig, &[(1, Part::All)]);
        let item = planned.items[0].as_ref().expect("it is there");
        assert_eq!(item.verification(), verification);
        let arrived = match protection {
            Some(kind) => Certainty::Verified(Verifier::Device(kind)),
            None => Certainty::Unverified,
        };
        assert_eq!(verification.certainty(&Ok(0)), arrived);
        let status = |status| verification.certainty(&Err(CommandError::Status(status)));
        assert_eq!(status(Status::UNRECOVERED_READ_ERROR), Certainty::Corrupt);
        assert_eq!(status(Status::GUARD_CHECK_ERROR), Certainty::Corrupt);
        assert_eq!(status(Status::INTERNAL_ERROR), Certainty::Failed);
        let reset = CommandError::Reset { may_have_written: false };
        assert_eq!(verification.certainty(&Err(reset)), Certainty::Failed);
    }
}

#[test]
fn a_plan_says_which_sums_its_bytes_have() {
    let piece = piece_bytes(BYTES);
    for start in [0, piece] {
        let mut rig = rig();
        let planned = plan_of(&mut rig, &[(1, Part::Bytes(start..BYTES))]);
        let item = planned.items[0].as_ref().expect("it is there");
        let put = &contents()[start as usize..];
        let ends = (piece..item.bytes()).step_by(piece as usize).chain([item.bytes()]);
        let mut from = 0;
        let expected: Vec<Check> = ends
            .map(|end| {
                let range = std::mem::replace(&mut from, end)..end;
                let crc32c = checksum::of(&put[range.start as usize..range.end as usize]);
                Check { range, crc32c }
            })
            .collect();
        assert!(expected.len() > 1, "several pieces");
        assert_eq!(item.checks().len(), expected.len());
        assert_eq!(item.checks().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn checks_by_the_reader_end_in_verified_bytes_or_a_miss() {
    let device = Certainty::Verified(Verifier::Device(Protection::Type1));
    let checksums = Certainty::Verified(Verifier::Checksums);
    for arrived in [Certainty::Unverified, device, checksums] {
        assert_eq!(arrived.checked(true), checksums);
        assert_eq!(arrived.checked(false), Certainty::Corrupt);
    }
    for ended in [Certainty::Corrupt, Certainty::Failed] {
        assert_eq!([ended.checked(true), ended.checked(false)], [ended, ended]);
    }
}
