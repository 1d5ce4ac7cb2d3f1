//! I/O commands.

use super::*;

#[test]
fn what_was_written_reads_back_on_every_storage() {
    let path = std::env::temp_dir().join(format!("adit-soft-{}.img", std::process::id()));
    for tail in [
        "mem=4M".to_owned(),
        "mem=4M,lba=4096".to_owned(),
        "mem=4M,vwc=on".to_owned(),
        "mem=4M,lba=4096,vwc=16k".to_owned(),
        format!("file={},size=4M", path.display()),
        format!("file={},size=4M,vwc=16k", path.display()),
    ] {
        let mut rig = Rig::new(&tail);
        let lba = if tail.contains("4096") { 4096 } else { 512 };
        let len = 8192;
        let count = (len / lba) as u32;
        rig.poke(DATA, &pattern(len, 9));
        rig.ok(write(5, count).with(12, (count - 1) | 1 << 30));
        rig.poke(DATA, &vec![0; len]);
        rig.ok(read(5, count));
        assert_eq!(rig.peek(DATA, len), pattern(len, 9));
        rig.ok(Cmd::new(5).nsid(1).lbas(5, count).prp(DATA, DATA + 4096));
        rig.poke(DATA + 4100, &[0xee]);
        let compare = Cmd::new(5).nsid(1).lbas(5, count).prp(DATA, DATA + 4096);
        assert_eq!(rig.io(compare), Status::COMPARE_FAILURE);
        rig.ok(Cmd::new(0).nsid(1));
        rig.ok(Cmd::new(0x0c).nsid(1).lbas(5, count));
    }
    std::fs::remove_file(path).expect("the file was made");
}

#[test]
fn a_file_keeps_its_data_and_needs_a_size_once() {
    let path = std::env::temp_dir().join(format!("adit-soft-keep-{}.img", std::process::id()));
    let missing = format!("file={}", path.display()).parse::<Options>().expect("parses");
    assert!(Controller::new(missing).is_err());
    let mut rig = Rig::new(&format!("file={},size=1M", path.display()));
    rig.poke(DATA, &pattern(512, 3));
    rig.ok(write(0, 1));
    drop(rig);
    let mut rig = Rig::new(&format!("file={}", path.display()));
    rig.ok(read(0, 1));
    assert_eq!(rig.peek(DATA, 512), pattern(512, 3));
    std::fs::remove_file(path).expect("the file was made");
}

#[test]
fn null_completes_and_moves_nothing() {
    let mut rig = Rig::new("null");
    rig.poke(DATA, &pattern(512, 1));
    rig.ok(write(0, 1));
    rig.ok(read(0, 1));
    assert_eq!(rig.peek(DATA, 512), pattern(512, 1));
}

#[test]
fn writes_go_through_the_reclaim_unit_handle_that_they_name() {
    let handles = |nsid: u32| Cmd::new(0x12).nsid(nsid).with(10, 1).with(11, 1023).prp(DATA, 0);
    let placed =
        |handle: u32, kind: u32| write(0, 4).with(12, 3 | kind << 20).with(13, handle << 16);
    let mut rig = Rig::new("mem=1M,fdp=3");
    rig.ok(write(0, 2));
    rig.ok(placed(2, 2));
    rig.ok(placed(2, 2));
    rig.ok(placed(1, 2));
    // Handles that are not there, and other directives.
    assert_eq!(rig.io(placed(3, 2)), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.io(placed(0, 1)), Status::INVALID_FIELD_IN_COMMAND);
    rig.ok(handles(1));
    let told = rig.peek(DATA, 4096);
    let number = |at: usize| u16::from_le_bytes([told[at], told[at + 1]]);
    assert_eq!(number(14), 3);
    let left = |handle: usize| 32_768 - u32::from(number(16 + handle * 32 + 8));
    assert_eq!([0, 1, 2].map(|handle| number(16 + handle * 32)), [0, 1, 2]);
    assert_eq!([0, 1, 2].map(left), [2, 4, 8]);
    // Any other part of I/O management.
    assert_eq!(rig.io(handles(1).with(10, 2)), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.io(handles(9)), Status::INVALID_FIELD_IN_COMMAND);
    rig.admin(identify(1, 0));
    assert_eq!(rig.peek_u32(DATA + 96) >> 19, 1, "CTRATT.FDPS");
    assert_eq!(Rig::new("mem=1M").io(handles(1)), Status::INVALID_COMMAND_OPCODE);
    assert!("mem=1M,fdp=128".parse::<Options>().is_err());
}

#[test]
fn ranges_and_namespaces_are_checked() {
    let mut rig = Rig::new("mem=1M,namespaces=2");
    let lbas = 1024;
    rig.ok(read(lbas - 1, 1));
    assert_eq!(rig.io(read(lbas, 1)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(rig.io(read(lbas - 1, 2)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(rig.io(read(u64::MAX, 2)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(rig.io(read(0, 1).nsid(0)), Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(rig.io(read(0, 1).nsid(u32::MAX)), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.io(read(0, 1).nsid(3)), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.io(Cmd::new(0).nsid(u32::MAX)), Status::SUCCESS);
    assert_eq!(rig.io(Cmd::new(0).nsid(3)), Status::INVALID_FIELD_IN_COMMAND);
}

#[test]
fn what_is_not_supported_is_refused() {
    let mut rig = Rig::new("mem=1M");
    assert_eq!(rig.io(Cmd::new(0x7f).nsid(1)), Status::INVALID_COMMAND_OPCODE);
    assert_eq!(rig.io(read(0, 1).with(0, 0x0102)), Status::INVALID_FIELD_IN_COMMAND);
    assert_eq!(rig.io(read(0, 1).with(0, 0xc002)), Status::INVALID_FIELD_IN_COMMAND);
    let protected = read(0, 1).with(12, 1 << 29);
    assert_eq!(rig.io(protected), Status::INVALID_PROTECTION_INFORMATION);
    assert_eq!(rig.admin(Cmd::new(0x7f)).status, Status::INVALID_COMMAND_OPCODE);
    let with_sgl = identify(1, 0).with(0, 0x4006);
    assert_eq!(rig.admin(with_sgl).status, Status::INVALID_FIELD_IN_COMMAND);
}

#[test]
fn write_zeroes_and_deallocate_read_as_zeros() {
    let mut rig = Rig::new("mem=1M");
    for deac in [0, 1 << 25] {
        rig.poke(DATA, &pattern(4096, 5));
        rig.ok(write(0, 8));
        rig.ok(Cmd::new(8).nsid(1).lbas(2, 3).with(12, 2 | deac));
        rig.ok(read(0, 8));
        let mut expected = pattern(4096, 5);
        expected[1024..2560].fill(0);
        assert_eq!(rig.peek(DATA, 4096), expected);
    }
}

fn dataset(ranges: &[(u32, u64)]) -> Vec<u8> {
    let range = |(count, first): &(u32, u64)| {
        (u128::from(*first) << 64 | u128::from(*count) << 32).to_le_bytes()
    };
    ranges.iter().flat_map(range).collect()
}

#[test]
fn deallocate_takes_many_ranges_and_checks_all_first() {
    let mut rig = Rig::new("mem=1M");
    let full = pattern(4096, 5);
    rig.poke(DATA, &full);
    rig.ok(write(0, 8));
    let list = DATA + 0x4000;
    rig.poke(list, &dataset(&[(1, 0), (2, 4), (1, 9999)]));
    let deallocate = |count: u32| Cmd::new(9).nsid(1).prp(list, 0).with(10, count - 1).with(11, 4);
    assert_eq!(rig.io(deallocate(3)), Status::LBA_OUT_OF_RANGE);
    rig.ok(read(0, 8));
    assert_eq!(rig.peek(DATA, 4096), full);
    rig.ok(deallocate(2).with(11, 0));
    rig.ok(deallocate(2));
    rig.ok(read(0, 8));
    let mut expected = full;
    expected[..512].fill(0);
    expected[2048..3072].fill(0);
    assert_eq!(rig.peek(DATA, 4096), expected);
    rig.poke(list, &dataset(&[(1, 3); 256]));
    rig.ok(deallocate(256));
}

#[test]
fn what_is_longer_than_a_stated_limit_is_refused() {
    let mut rig = Rig::new("mem=1M,wzsl=1,vsl=2,dmrl=2,dmrsl=8,dmsl=12");
    let over = |opcode: u8, count: u32| Cmd::new(opcode).nsid(1).lbas(0, count);
    for (opcode, most) in [(0x08, 16), (0x0c, 32)] {
        rig.ok(over(opcode, most));
        assert_eq!(rig.io(over(opcode, most + 1)), Status::INVALID_FIELD_IN_COMMAND, "{opcode:#x}");
    }
    let mut deallocate = |ranges: &[(u32, u64)]| {
        rig.poke(DATA, &dataset(ranges));
        let count = ranges.len() as u32;
        rig.io(Cmd::new(9).nsid(1).prp(DATA, 0).with(10, count - 1).with(11, 4))
    };
    assert!(deallocate(&[(8, 0), (4, 0)]).is_success());
    for ranges in [&[(1, 0); 3][..], &[(9, 0)], &[(8, 0), (5, 0)]] {
        assert_eq!(deallocate(ranges), Status::COMMAND_SIZE_LIMIT_EXCEEDED, "{ranges:?}");
    }
}

fn copy_sources(ranges: &[(u64, u16)]) -> Vec<u8> {
    let mut bytes = vec![0; ranges.len() * 32];
    for (slot, (first, count)) in bytes.chunks_exact_mut(32).zip(ranges) {
        slot[8..16].copy_from_slice(&first.to_le_bytes());
        slot[16..18].copy_from_slice(&(count - 1).to_le_bytes());
    }
    bytes
}

#[test]
fn copy_gathers_ranges_within_its_limits() {
    let mut rig = Rig::new("mem=16M");
    rig.poke(DATA, &pattern(4096, 5));
    rig.ok(write(0, 8));
    let list = DATA + 0x4000;
    let copy = |to: u64, count: u32| Cmd::new(0x19).nsid(1).prp(list, 0).lbas(to, count);
    rig.poke(list, &copy_sources(&[(6, 2), (0, 1)]));
    rig.ok(copy(100, 2));
    rig.ok(read(100, 3));
    let source = pattern(4096, 5);
    assert_eq!(rig.peek(DATA, 1536), [&source[3072..], &source[..512]].concat());
    assert_eq!(rig.io(copy(32767, 2)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(rig.io(copy(0, 17)), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    assert_eq!(rig.io(copy(0, 2).with(12, 1 | 1 << 8)), Status::INVALID_FIELD_IN_COMMAND);
    rig.poke(list, &copy_sources(&[(0, 4097)]));
    assert_eq!(rig.io(copy(9000, 1)), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    rig.poke(list, &copy_sources(&[(0, 4096); 5]));
    assert_eq!(rig.io(copy(9000, 5)), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    rig.poke(list, &copy_sources(&[(40000, 1)]));
    assert_eq!(rig.io(copy(0, 1)), Status::LBA_OUT_OF_RANGE);
}
