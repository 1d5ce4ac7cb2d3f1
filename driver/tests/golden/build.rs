//! Our entries against those that were sent to QEMU, and against QEMU's trace of them.

use adit_driver::spec::{AdminOpcode, Cid, CopyRange, DsmRange, IoOpcode, Sqe, Status, View};
use zerocopy::{FromBytes, IntoBytes};

use crate::commands::{self, Case, Queue};
use crate::recording::{Recording, bytes, field, number, status};
use crate::trace::{self, Traced};

#[test]
fn builders_make_the_recorded_entries() {
    let recording = Recording::of_qemu();
    for case in commands::all(recording.arena()) {
        let item = recording.item(case.name);
        let recorded = Sqe::view(bytes(item, "sqe")).unwrap();
        assert_eq!(recorded.to_dwords(), case.sqe.to_dwords(), "{}", case.name);
        assert_eq!(recorded.as_bytes(), bytes(item, "sqe"), "{}", case.name);
        assert_eq!(Sqe::from_dwords(recorded.to_dwords()), *recorded, "{}", case.name);
    }
}

#[test]
fn every_command_was_recorded() {
    let recording = Recording::of_qemu();
    let recorded = recording.items().iter().filter(|item| field(item, "sqe").is_some());
    let recorded: Vec<&str> = recorded.map(|item| item.name.as_str()).collect();
    let cases = commands::all(recording.arena());
    let cases: Vec<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(recorded, cases, "record anew: see examples/record_golden");
}

/// Calls `check` with each command, its recording and QEMU's trace of it.
fn for_each(mut check: impl FnMut(&Case, &Recording, &Traced)) {
    let recording = Recording::of_qemu();
    let cases = commands::all(recording.arena());
    let traced = trace::of_qemu();
    assert!(traced.len() >= cases.len());
    cases.iter().zip(&traced).for_each(|(case, traced)| check(case, &recording, traced));
}

#[test]
fn qemu_saw_queue_opcode_namespace_and_identifier() {
    for_each(|case, recording, traced| {
        assert_eq!(traced.queue(), case.queue, "{}", case.name);
        assert_eq!(traced.head("opc"), Some(case.sqe.opcode().into()), "{}", case.name);
        if case.queue == Queue::Io {
            let cid = Cid(number(recording.item(case.name), "cid") as u16);
            assert_eq!(case.sqe.with_cid(cid).cid(), cid);
            assert_eq!(traced.head("cid"), Some(cid.0.into()), "{}", case.name);
            assert_eq!(traced.head("nsid"), Some(case.sqe.nsid().0.into()), "{}", case.name);
        }
    });
}

#[test]
fn qemu_completed_with_the_status_we_parsed() {
    for_each(|case, recording, traced| {
        let item = recording.item(case.name);
        let traced_status = traced.get("enqueue_req_completion", "status").unwrap();
        assert_eq!(Status::from_bits(traced_status as u16), status(item), "{}", case.name);
        if status(item).is_success() {
            let dw0 = traced.get("enqueue_req_completion", "dw0");
            assert_eq!(dw0, Some(number(item, "dw0")), "{}", case.name);
        }
    });
}

/// Returns a command's meaning as QEMU's trace would print it: an event and its values.
fn meaning(case: &Case) -> Option<(&'static str, Vec<(&'static str, u64)>)> {
    match case.queue {
        Queue::Admin => admin_meaning(&case.sqe),
        Queue::Io => io_meaning(&case.sqe),
    }
}

fn admin_meaning(sqe: &Sqe) -> Option<(&'static str, Vec<(&'static str, u64)>)> {
    let dwords = sqe.to_dwords().map(u64::from);
    let low = |at: usize| dwords[at] & 0xffff;
    let high = |at: usize| dwords[at] >> 16;
    let bit = |at: usize, bit: u32| dwords[at] >> bit & 1;
    Some(match sqe.admin_opcode() {
        AdminOpcode::IDENTIFY => {
            ("identify", vec![("cns", sqe.cns().0.into()), ("csi", dwords[11] >> 24)])
        }
        AdminOpcode::GET_LOG_PAGE => {
            let bytes = ((high(10) | low(11) << 16) + 1) * 4;
            let (lid, offset) = (sqe.lid().0.into(), dwords[12] | dwords[13] << 32);
            ("get_log", vec![("lid", lid), ("len", bytes), ("off", offset), ("rae", bit(10, 15))])
        }
        AdminOpcode::GET_FEATURES => ("getfeat", vec![("fid", sqe.fid().0.into()), ("cdw11", 0)]),
        AdminOpcode::SET_FEATURES => {
            let fid = sqe.fid().0.into();
            ("setfeat", vec![("fid", fid), ("save", bit(10, 31)), ("cdw11", dwords[11])])
        }
        AdminOpcode::CREATE_IO_CQ => (
            "create_cq",
            vec![
                ("addr", sqe.prp1().0),
                ("cqid", low(10)),
                ("qsize", high(10)),
                ("ien", bit(11, 1)),
            ],
        ),
        AdminOpcode::CREATE_IO_SQ => (
            "create_sq",
            vec![
                ("addr", sqe.prp1().0),
                ("sqid", low(10)),
                ("cqid", high(11)),
                ("qsize", high(10)),
            ],
        ),
        AdminOpcode::DELETE_IO_SQ => ("del_sq", vec![("sqid", low(10))]),
        AdminOpcode::DELETE_IO_CQ => ("del_cq", vec![("cqid", low(10))]),
        _ => return None,
    })
}

fn io_meaning(sqe: &Sqe) -> Option<(&'static str, Vec<(&'static str, u64)>)> {
    let (nlb, lba) = (u64::from(sqe.nlb().get()), sqe.slba().0);
    let dwords = sqe.to_dwords().map(u64::from);
    Some(match sqe.io_opcode() {
        IoOpcode::READ => ("read", vec![("nlb", nlb), ("lba", lba)]),
        IoOpcode::WRITE | IoOpcode::WRITE_ZEROES => ("write", vec![("nlb", nlb), ("lba", lba)]),
        IoOpcode::COMPARE => ("compare", vec![("nlb", nlb), ("slba", lba)]),
        IoOpcode::VERIFY => ("verify", vec![("nlb", nlb), ("slba", lba)]),
        IoOpcode::COPY => {
            let (ranges, format) = ((dwords[12] & 0xff) + 1, dwords[12] >> 8 & 0xf);
            ("copy", vec![("nr", ranges), ("format", format)])
        }
        IoOpcode::DATASET_MANAGEMENT => {
            ("dsm", vec![("nr", (dwords[10] & 0xff) + 1), ("attr", dwords[11] & 4)])
        }
        _ => return None,
    })
}

#[test]
fn qemu_read_the_fields_as_we_meant_them() {
    let mut checked = 0;
    for_each(|case, _, traced| {
        let Some((event, values)) = meaning(case) else { return };
        // Commands refused before their fields are read have no such event.
        if !traced.has(event) {
            return;
        }
        for (key, value) in values {
            assert_eq!(traced.get(event, key), Some(value), "{}: {event} {key}", case.name);
            checked += 1;
        }
    });
    assert!(checked > 250, "only {checked} values");
}

#[test]
fn qemu_read_the_ranges_as_we_meant_them() {
    for_each(|case, _, traced| {
        let (event, ranges) = match (case.queue, case.sqe.io_opcode()) {
            (Queue::Io, IoOpcode::COPY) => ("copy_source_range", copy_ranges(case)),
            (Queue::Io, IoOpcode::DATASET_MANAGEMENT) => ("dsm_deallocate", dsm_ranges(case)),
            _ => return,
        };
        let seen = traced.all(event, "slba").into_iter().zip(traced.all(event, "nlb"));
        for (seen, meant) in seen.zip(ranges) {
            assert_eq!(seen, meant, "{}", case.name);
        }
    });
}

fn copy_ranges(case: &Case) -> Vec<(u64, u64)> {
    let ranges = <[CopyRange]>::ref_from_bytes(&case.memory.last().unwrap().1).unwrap();
    ranges.iter().map(|range| (range.slba().0, range.nlb().get().into())).collect()
}

fn dsm_ranges(case: &Case) -> Vec<(u64, u64)> {
    let ranges = <[DsmRange]>::ref_from_bytes(&case.memory.last().unwrap().1).unwrap();
    ranges.iter().map(|range| (range.slba().0, range.lbas().into())).collect()
}
