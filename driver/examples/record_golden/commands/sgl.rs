//! Reads with SGLs. They expect the data written from LBA 128.

use adit_driver::spec::{DataPointer, Lba, SglDescriptor, Sqe};
use zerocopy::IntoBytes;

use super::io::SMALL;
use super::{Arena, Case, DATA, LISTS, PAGE, lbas};

const LEN: u32 = 4096;

fn read(name: &'static str, descriptor: SglDescriptor) -> Case {
    let sqe = Sqe::read(SMALL, Lba(128), lbas(8));
    Case::io(name, sqe).at(DataPointer::Sgl(descriptor))
}

fn segment(case: Case, offset: usize, descriptors: &[SglDescriptor]) -> Case {
    case.holding(offset, descriptors.as_bytes().to_vec())
}

fn of_type(descriptor: SglDescriptor, identifier: u8) -> SglDescriptor {
    SglDescriptor { identifier, ..descriptor }
}

pub(super) fn good(arena: Arena) -> Vec<Case> {
    let block = |offset: usize, len| SglDescriptor::data_block(arena.at(DATA + offset), len);
    let last = |descriptors: u32| SglDescriptor::last_segment(arena.at(LISTS), descriptors * 16);
    let next = SglDescriptor::last_segment(arena.at(LISTS + PAGE), 32);
    let scattered = [block(1, 1000), block(3000, 3), block(5000, LEN - 1003)];
    let chained = [block(0, 512), block(1024, 512), next];
    let chain = segment(
        read("read with chained sgl segments", SglDescriptor::segment(arena.at(LISTS), 48)),
        LISTS,
        &chained,
    );
    let write = Sqe::write(SMALL, Lba(512), lbas(8)).with_dptr(DataPointer::Sgl(block(77, LEN)));
    vec![
        read("read with an sgl data block", block(0, LEN)).showing(PAGE),
        read("read with an sgl data block at an odd address", block(3, LEN)).showing(PAGE + 4),
        segment(read("read with an sgl of three blocks", last(3)), LISTS, &scattered)
            .showing(8192 + 1),
        segment(chain, LISTS + PAGE, &[block(2048, 1024), block(4096, 2048)]).showing(2 * PAGE),
        segment(
            read("read with an empty sgl data block between", last(3)),
            LISTS,
            &[block(0, 512), block(99, 0), block(512, LEN - 512)],
        )
        .showing(PAGE),
        Case::io("write with an sgl data block", write).holding(77, super::pattern(0x66, PAGE)),
        Case::io("read what was written with an sgl", Sqe::read(SMALL, Lba(512), lbas(8)))
            .data(arena, PAGE)
            .showing(PAGE),
    ]
}

pub(super) fn bad(arena: Arena) -> Vec<Case> {
    let block = |offset: usize, len| SglDescriptor::data_block(arena.at(DATA + offset), len);
    let last = |bytes: u32| SglDescriptor::last_segment(arena.at(LISTS), bytes);
    let first = |bytes: u32| SglDescriptor::segment(arena.at(LISTS), bytes);
    let whole = [block(0, LEN)];
    vec![
        read("read with an sgl that is too short", block(0, LEN - 512)),
        read("read with an sgl block that is too long", block(0, LEN + 512)),
        segment(
            read("read with an sgl block too many", last(32)),
            LISTS,
            &[block(0, LEN), block(PAGE, 512)],
        ),
        read("read into a bit bucket", of_type(block(0, LEN), 0x10)),
        read("read with sgl type 8", of_type(block(0, LEN), 0x80)),
        segment(
            read("read into a bit bucket between data blocks", last(48)),
            LISTS,
            &[block(0, 512), of_type(block(512, 512), 0x10), block(1024, LEN - 1024)],
        ),
        segment(
            read("read with sgl type 8 between data blocks", last(48)),
            LISTS,
            &[block(0, 512), of_type(block(512, 512), 0x80), block(1024, LEN - 1024)],
        ),
        read("read with sgl sub type 1", of_type(block(0, LEN), 0x01)),
        segment(read("read with an empty sgl segment", last(0)), LISTS, &whole),
        segment(read("read with an sgl segment of 24 bytes", last(24)), LISTS, &whole),
        segment(read("read with an sgl segment that ends in data", first(16)), LISTS, &whole),
        segment(
            read("read with an sgl last segment that leads on", last(32)),
            LISTS,
            &[block(0, 512), SglDescriptor::last_segment(arena.at(LISTS + PAGE), 16)],
        ),
        segment(
            read("read with an sgl segment that leads on too early", first(48)),
            LISTS,
            &[
                block(0, 512),
                SglDescriptor::last_segment(arena.at(LISTS + PAGE), 16),
                block(512, 512),
            ],
        ),
        read("read with psdt 10", block(0, LEN)).bent(|dwords| dwords[0] ^= 3 << 14),
    ]
}
