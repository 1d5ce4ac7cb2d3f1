//! Valid and invalid PRP lists and SGLs.

use super::*;

/// Data pages, far apart and out of order, and the lists that name them.
const LIST: u64 = DATA + 0x40_0000;

fn page_at(index: usize) -> u64 {
    DATA + 0x10_0000 + ((index * 7) % 512) as u64 * 4096
}

fn descriptor(address: u64, len: u32, kind: u8) -> [u8; 16] {
    (u128::from(address) | u128::from(len) << 64 | u128::from(kind) << 124).to_le_bytes()
}

impl Rig {
    fn poke_entries(&self, at: u64, entries: &[u64]) {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        self.poke(at, &bytes);
    }

    /// Fills LBAs from 0 on with a pattern, through one plain buffer.
    fn fill(&mut self, len: usize) -> Vec<u8> {
        let data = pattern(len, 0x5a);
        for (index, chunk) in data.chunks(4096).enumerate() {
            self.poke(DATA, chunk);
            self.ok(write(index as u64 * 8, 8));
        }
        data
    }
}

#[test]
fn prp_data_begins_anywhere_and_ends_in_the_second_page() {
    let mut rig = Rig::new("mem=4M");
    let data = rig.fill(8192);
    for offset in [0, 4, 512, 4092] {
        rig.poke(DATA, &[0; 12288]);
        rig.ok(read(0, 8).prp(DATA + offset, DATA + 0x2000));
        let first = (4096 - offset) as usize;
        assert_eq!(rig.peek(DATA + offset, first), data[..first]);
        assert_eq!(rig.peek(DATA + 0x2000, offset as usize), data[first..4096]);
    }
}

#[test]
fn prp_offsets_that_are_wrong_are_refused() {
    let mut rig = Rig::new("mem=4M");
    let refused = Status::PRP_OFFSET_INVALID;
    assert_eq!(rig.io(read(0, 8).prp(DATA + 2, 0)), refused);
    assert_eq!(rig.io(read(0, 16).prp(DATA, DATA + 4096 + 8)), refused);
    assert_eq!(rig.io(read(0, 24).prp(DATA, LIST + 4)), refused);
    rig.poke_entries(LIST, &[DATA + 4096, DATA + 8192 + 512]);
    assert_eq!(rig.io(read(0, 24).prp(DATA, LIST)), refused);
}

#[test]
fn prp_lists_chain_over_many_pages_from_any_offset() {
    let mut rig = Rig::new("mem=8M,mdts=10");
    let pages = 600;
    let data = rig.fill(pages * 4096);
    for (first_offset, list_offset) in [(0, 0), (0, 4080), (1024, 8), (0, 4088)] {
        // Entries start at `list_offset`; each full page of the list leads to the next.
        let count = if first_offset == 0 { pages - 1 } else { pages };
        let mut page = LIST;
        let mut slot = list_offset / 8;
        for index in 0..count {
            if slot == 511 && index + 1 < count {
                rig.poke_entries(page + 511 * 8, &[page + 0x2000]);
                page += 0x2000;
                slot = 0;
            }
            rig.poke_entries(page + slot * 8, &[page_at(index % 512)]);
            slot += 1;
        }
        let first = 4096 - first_offset as usize;
        // 600 entries share 512 pages, so compare only the last ones written to each.
        rig.ok(read(0, pages as u32 * 8).prp(DATA + first_offset, LIST + list_offset));
        assert_eq!(rig.peek(DATA + first_offset, first), data[..first]);
        for index in count.saturating_sub(512)..count - 1 {
            let from = first + index * 4096;
            assert_eq!(rig.peek(page_at(index % 512), 4096), data[from..from + 4096], "{index}");
        }
    }
}

#[test]
fn mdts_and_unmapped_memory_are_refused() {
    let mut rig = Rig::new("mem=4M,mdts=1");
    assert_eq!(rig.io(read(0, 17)), Status::INVALID_FIELD_IN_COMMAND);
    rig.ok(read(0, 16));
    assert_eq!(rig.io(read(0, 8).prp(0x1000, 0)), Status::DATA_TRANSFER_ERROR);
    assert_eq!(rig.io(write(0, 8).prp(!0xfff, 0)), Status::DATA_TRANSFER_ERROR);
    let mut rig = Rig::new("mem=4M,mdts=0");
    assert_eq!(rig.io(read(0, 2048).prp(DATA, 0x1000)), Status::DATA_TRANSFER_ERROR);
    assert_eq!(rig.csts(), 1);
}

#[test]
fn larger_pages_shift_the_rules() {
    let mut rig = Rig::new("mem=4M");
    rig.controller.write_register(0x14, 4, 0);
    rig.step();
    rig.controller.write_register(0x14, 4, 0x0046_0081);
    rig.step();
    rig.poke(ASQ, &[0; 0x4000]);
    rig.rings.clear();
    rig.track(0, ASQ, ACQ, QUEUE_ENTRIES);
    rig.add_queue(1, IO_SQ, RAM + 0x4000, QUEUE_ENTRIES);
    rig.ok(read(0, 16).prp(DATA, 0));
    rig.ok(read(0, 32).prp(DATA, DATA + 8192));
    assert_eq!(rig.io(read(0, 32).prp(DATA, DATA + 4096)), Status::PRP_OFFSET_INVALID);
}

#[test]
fn sgl_data_blocks_and_segment_chains_work() {
    let mut rig = Rig::new("mem=4M");
    let data = rig.fill(8192);
    rig.ok(read(0, 8).sgl(descriptor(DATA + 3, 4096, 0)));
    assert_eq!(rig.peek(DATA + 3, 4096), data[..4096]);
    // Segment -> segment -> last segment; a block may be empty.
    let segments: [&[[u8; 16]]; 3] = [
        &[
            descriptor(DATA + 0x8001, 1000, 0),
            descriptor(0, 0, 0),
            descriptor(LIST + 0x1000, 32, 2),
        ],
        &[descriptor(DATA + 0x9000, 3096, 0), descriptor(LIST + 0x2000, 16, 3)],
        &[descriptor(DATA + 0xb000, 4096, 0)],
    ];
    for (index, segment) in segments.iter().enumerate() {
        rig.poke(LIST + index as u64 * 0x1000, &segment.concat());
    }
    rig.ok(read(0, 16).sgl(descriptor(LIST, 48, 2)));
    assert_eq!(rig.peek(DATA + 0x8001, 1000), data[..1000]);
    assert_eq!(rig.peek(DATA + 0x9000, 3096), data[1000..4096]);
    assert_eq!(rig.peek(DATA + 0xb000, 4096), data[4096..]);
}

#[test]
fn a_long_last_segment_works() {
    let mut rig = Rig::new("mem=4M");
    let data = rig.fill(100 * 512);
    let list: Vec<u8> =
        (0..100).flat_map(|index| descriptor(DATA + 0x8000 + index * 1000, 512, 0)).collect();
    rig.poke(LIST, &list);
    rig.ok(read(0, 100).sgl(descriptor(LIST, 1600, 3)));
    for index in 0..100 {
        let at = DATA + 0x8000 + index * 1000;
        assert_eq!(rig.peek(at, 512), data[index as usize * 512..][..512]);
    }
}

#[test]
fn each_wrong_sgl_gets_its_status() {
    let mut rig = Rig::new("mem=4M");
    let block = descriptor(DATA, 512, 0);
    let mut wrong = |list: &[[u8; 16]], first: [u8; 16]| {
        rig.poke(LIST, &list.concat());
        rig.io(read(0, 1).sgl(first))
    };
    let last = |len| descriptor(LIST, len, 3);
    let segment = |len| descriptor(LIST, len, 2);
    assert_eq!(wrong(&[], descriptor(DATA, 511, 0)), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(wrong(&[], descriptor(DATA, 513, 0)), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(wrong(&[block, block], last(32)), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(wrong(&[], descriptor(DATA, 512, 1)), Status::SGL_DESCRIPTOR_TYPE_INVALID);
    assert_eq!(wrong(&[], descriptor(DATA, 512, 4)), Status::SGL_DESCRIPTOR_TYPE_INVALID);
    assert_eq!(wrong(&[], descriptor(DATA, 512, 0xf)), Status::SGL_DESCRIPTOR_TYPE_INVALID);
    assert_eq!(wrong(&[block], last(0)), Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    assert_eq!(wrong(&[block], last(17)), Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    assert_eq!(wrong(&[block], segment(16)), Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    assert_eq!(wrong(&[last(16)], last(16)), Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    assert_eq!(wrong(&[last(16), block], segment(32)), Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS);
    // A segment that leads to itself.
    assert_eq!(wrong(&[segment(16)], segment(16)), Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS);
    assert_eq!(wrong(&[], descriptor(0x1000, 16, 3)), Status::DATA_TRANSFER_ERROR);
    assert_eq!(wrong(&[], descriptor(0x1000, 512, 0)), Status::DATA_TRANSFER_ERROR);
}

#[test]
fn sgl_support_is_what_was_asked_for() {
    let mut rig = Rig::new("mem=1M,sgl=off");
    let unaligned = read(0, 1).sgl(descriptor(DATA + 2, 512, 0));
    assert_eq!(rig.io(unaligned), Status::INVALID_FIELD_IN_COMMAND);
    rig.admin(identify(1, 0));
    assert_eq!(rig.peek_u32(DATA + 536) & 3, 0);
    let mut rig = Rig::new("mem=1M,sgl=dword");
    assert_eq!(rig.io(unaligned), Status::SGL_DATA_BLOCK_GRANULARITY_INVALID);
    rig.ok(read(0, 1).sgl(descriptor(DATA + 4, 512, 0)));
}
