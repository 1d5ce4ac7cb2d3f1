//! Identify, features and logs.

use super::*;

#[test]
fn identify_controller_has_its_fields_in_their_places() {
    let mut rig = Rig::admin_only("mem=1M,mdts=5,serial=SN42,vwc=on");
    assert_eq!(rig.admin(identify(1, 0)).status, Status::SUCCESS);
    let page = rig.peek(DATA, 4096);
    assert_eq!(page[..4], [0x17, 0xad, 0x17, 0xad]);
    assert_eq!(&page[4..24], b"SN42                ");
    assert_eq!(&page[24..48], b"Adit Software Controller");
    assert_eq!(page[77], 5);
    assert_eq!(page[80..84], [0, 0, 2, 0]);
    assert_eq!((page[111], page[258], page[259]), (1, 3, 3));
    assert_eq!(page[512..514], [0x66, 0x44]);
    assert_eq!(rig.peek_u32(DATA + 516), 256);
    assert_eq!(page[525] & 1, 1);
    assert!(page[768..].starts_with(b"nqn."));
}

#[test]
fn identify_namespace_has_its_fields_in_their_places() {
    let mut rig = Rig::admin_only("mem=2M,lba=512+4096,noiob=256");
    for (nsid, lbas, flbas) in [(1, 2048, 0), (2, 256, 1)] {
        rig.admin(identify(0, nsid));
        let page = rig.peek(DATA, 4096);
        assert_eq!((rig.peek_u32(DATA), rig.peek_u32(DATA + 8)), (lbas, lbas));
        assert_eq!((page[25], page[26]), (1, flbas));
        assert_eq!(page[46..48], [0, 1]);
        assert_eq!(page[74..81], [0, 16, 0, 64, 0, 0, 15]);
        assert_eq!((page[130], page[134]), (9, 12));
    }
    rig.admin(identify(0, 3));
    assert_eq!(rig.peek(DATA, 4096), [0; 4096]);
    assert_eq!(rig.admin(identify(0, 0)).status, Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(rig.admin(identify(0, 9999)).status, Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(rig.admin(identify(0, u32::MAX)).status, Status::SUCCESS);
}

#[test]
fn lists_start_after_the_identifier_given() {
    let mut rig = Rig::admin_only("mem=1M,namespaces=3");
    for cns in [2, 7, 0x10] {
        rig.admin(identify(cns, 1));
        assert_eq!([0, 4, 8].map(|at| rig.peek_u32(DATA + at)), [2, 3, 0]);
        let beyond = rig.admin(identify(cns, u32::MAX));
        assert_eq!(beyond.status, Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    rig.admin(identify(0x13, 0));
    assert_eq!(rig.peek_u32(DATA), 1);
    rig.admin(identify(0x12, 1));
    assert_eq!(rig.peek_u32(DATA), 1);
    rig.admin(identify(0x12 | 1 << 16, 1));
    assert_eq!(rig.peek_u32(DATA), 0);
}

#[test]
fn the_other_structures_answer() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.admin(identify(3, 1));
    let page = rig.peek(DATA, 32);
    assert_eq!((&page[..2], &page[20..22], page[24]), (&[2, 16][..], &[4, 1][..], 0));
    for cns in [5, 6, 8, 0x11, 0x1c] {
        assert_eq!(rig.admin(identify(cns, 1)).status, Status::SUCCESS, "CNS {cns:#x}");
    }
    let zoned = identify(5, 1).with(11, 2 << 24);
    assert_eq!(rig.admin(zoned).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(identify(0x77, 1)).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(identify(3, 2)).status, Status::INVALID_FIELD_IN_COMMAND);
}

#[test]
fn features_round_trip_and_have_defaults() {
    let mut rig = Rig::admin_only("mem=1M,vwc=on");
    for (fid, value) in
        [(1, 0x0403_0207), (4, 350), (5, 9), (6, 0), (8, 0x0102), (10, 1), (11, 0x1ff)]
    {
        let default = rig.admin(feature(0xa, fid | 1 << 8, 0)).dw0;
        assert_eq!(rig.admin(feature(0xa, fid, 0)).dw0, default);
        assert_eq!(rig.admin(feature(9, fid, value)).status, Status::SUCCESS, "{fid}");
        assert_eq!(rig.admin(feature(0xa, fid, 0)).dw0, value);
        assert_eq!(rig.admin(feature(0xa, fid | 2 << 8, 0)).dw0, default);
        assert_eq!(rig.admin(feature(0xa, fid | 3 << 8, 0)).dw0, 4);
    }
    rig.admin(feature(9, 9, 1 << 16 | 1));
    assert_eq!(rig.admin(feature(0xa, 9, 1)).dw0, 1 << 16 | 1);
    assert_eq!(rig.admin(feature(9, 9, 999)).status, Status::INVALID_FIELD_IN_COMMAND);
}

#[test]
fn features_refuse_what_they_cannot_be() {
    let mut rig = Rig::admin_only("mem=1M");
    let status = |rig: &mut Rig, command| rig.admin(command).status;
    let invalid = Status::INVALID_FIELD_IN_COMMAND;
    assert_eq!(status(&mut rig, feature(9, 0x7e, 0)), invalid);
    assert_eq!(status(&mut rig, feature(0xa, 0x7e, 0)), invalid);
    assert_eq!(status(&mut rig, feature(0xa, 1 | 4 << 8, 0)), invalid);
    assert_eq!(status(&mut rig, feature(9, 6, 2)), invalid);
    let saved = feature(9, 6 | 1 << 31, 1);
    assert_eq!(status(&mut rig, saved), Status::FEATURE_IDENTIFIER_NOT_SAVEABLE);
    let of_namespace = feature(9, 6, 1).nsid(1);
    assert_eq!(status(&mut rig, of_namespace), Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
}

#[test]
fn queue_counts_are_settled_before_queues_exist() {
    let mut rig = Rig::admin_only("mem=1M,ioqueues=3");
    assert_eq!(rig.admin(feature(9, 7, 0)).dw0, 0x0002_0002);
    assert_eq!(rig.admin(feature(9, 7, 0xffff)).status, Status::INVALID_FIELD_IN_COMMAND);
    rig.add_queue(1, IO_SQ, IO_CQ, 64);
    assert_eq!(rig.admin(feature(9, 7, 0)).status, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rig.admin(feature(0xa, 7, 0)).dw0, 0x0002_0002);
}

#[test]
fn the_timestamp_counts_on() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.admin(feature(0xa, 14, 0));
    assert_eq!(rig.peek(DATA + 6, 1), [0]);
    rig.poke(DATA, &1_700_000_000_000u64.to_le_bytes());
    rig.admin(feature(9, 14, 0));
    for _ in 0..9 {
        rig.step();
    }
    rig.admin(feature(0xa, 14, 0));
    assert_eq!(rig.peek(DATA + 6, 1), [2]);
    rig.poke(DATA + 6, &[0, 0]);
    let bytes = rig.peek(DATA, 8).try_into().expect("eight bytes");
    assert_eq!(u64::from_le_bytes(bytes), 1_700_000_000_010);
}

fn log(id: u32, bytes: u32, offset: u32) -> Cmd {
    Cmd::new(2).with(10, id | (bytes / 4 - 1) << 16).with(12, offset).prp(DATA, DATA + 4096)
}

#[test]
fn logs_have_lengths_offsets_and_names() {
    let mut rig = Rig::new("mem=1M");
    rig.admin(log(0, 32, 0));
    assert_eq!(rig.peek(DATA, 28).iter().map(|b| u32::from(*b)).sum::<u32>(), 6);
    rig.admin(log(3, 512, 0));
    assert_eq!(rig.peek(DATA, 12), b"\x01\0\0\0\0\0\0\x001.0 ");
    rig.admin(log(5, 4096, 0));
    let supported = [0, 6 * 4, 1024 + 4, 1024 + 8].map(|at| rig.peek_u32(DATA + at));
    assert_eq!(supported, [1, 1, 3, 1]);
    rig.admin(log(5, 8, 1024 + 4));
    assert_eq!(rig.peek_u32(DATA), 3);
    // Past the end of the log there are zeros; an offset beyond it is refused.
    rig.poke(DATA, &[0xff; 8192]);
    assert_eq!(rig.admin(log(2, 8192, 0)).status, Status::SUCCESS);
    assert_eq!(rig.peek(DATA + 4096, 4096), [0; 4096]);
    assert_eq!(rig.admin(log(2, 4, 512)).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(log(2, 4, 2)).status, Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.admin(log(0x70, 4, 0)).status, Status::INVALID_LOG_PAGE);
}

#[test]
fn smart_counts_and_errors_are_listed_newest_first() {
    let mut rig = Rig::new("mem=1M");
    rig.ok(write(0, 8));
    rig.ok(read(0, 8));
    rig.ok(read(0, 8));
    rig.io(read(1 << 40, 1));
    rig.io(Cmd::new(0x7f).nsid(1));
    rig.admin(log(2, 512, 0));
    assert_eq!([32, 48, 64, 80, 176].map(|at| rig.peek_u32(DATA + at)), [1, 1, 2, 1, 2]);
    rig.admin(log(1, 128, 0));
    let page = rig.peek(DATA, 128);
    assert_eq!((page[0], page[8], page[64]), (2, 1, 1));
    let status = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]) >> 1;
    assert!(Status::from_bits(status(12)).is(Status::INVALID_COMMAND_OPCODE));
    assert!(Status::from_bits(status(64 + 12)).is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(page[64 + 16..64 + 24], (1u64 << 40).to_le_bytes());
}
