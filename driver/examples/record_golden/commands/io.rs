//! I/O commands with PRPs, and those without data.

use adit_driver::spec::{CopyRange, DataPointer, DsmRange, Iova, Lba, Nsid, RangeCount, Sqe};
use zerocopy::IntoBytes;

use super::{Arena, Case, DATA, LISTS, PAGE, lbas, pattern, qwords};

/// Namespace with 512-byte LBAs.
pub(super) const SMALL: Nsid = Nsid(1);
/// Namespace with 4096-byte LBAs.
const LARGE: Nsid = Nsid(2);
/// An LBA beyond every namespace.
const FAR: Lba = Lba(1 << 40);

fn write(arena: Arena, name: &'static str, lba: u64, seed: u8, bytes: usize) -> Case {
    let sqe = Sqe::write(SMALL, Lba(lba), lbas(bytes as u32 / 512));
    Case::io(name, sqe).data(arena, bytes).holding(DATA, pattern(seed, bytes))
}

fn read(arena: Arena, name: &'static str, lba: u64, bytes: usize) -> Case {
    let sqe = Sqe::read(SMALL, Lba(lba), lbas(bytes as u32 / 512));
    Case::io(name, sqe).data(arena, bytes).showing(bytes)
}

/// Writes and reads of data.
pub(super) fn transfers(arena: Arena) -> Vec<Case> {
    let mut fua = write(arena, "write lba 64 with fua", 64, 0x21, 512);
    fua.sqe = fua.sqe.with_fua(true);
    let fua = fua.bent(|dwords| dwords[12] |= 1 << 31);
    let compare = Sqe::compare(SMALL, Lba(16), lbas(8));
    let compare = |name| Case::io(name, compare).data(arena, PAGE);
    let large = |name, sqe: Sqe| Case::io(name, sqe).data(arena, PAGE);
    vec![
        write(arena, "write lbas 16 to 23", 16, 0xa0, PAGE),
        read(arena, "read lbas 16 to 23", 16, PAGE),
        read(arena, "read lba 18", 18, 512),
        fua,
        read(arena, "read lba 64", 64, 512),
        write(arena, "write 64 KiB with a prp list", 128, 0x37, 16 * PAGE),
        read(arena, "read 8 KiB with prp1 and prp2", 128, 2 * PAGE),
        read(arena, "read 12 KiB with a prp list", 240, 3 * PAGE),
        compare("compare with the same").holding(DATA, pattern(0xa0, PAGE)),
        compare("compare with others").holding(DATA, pattern(0xa1, PAGE)),
        large("write lba 5 of namespace 2", Sqe::write(LARGE, Lba(5), lbas(1)))
            .holding(DATA, pattern(0x55, PAGE)),
        large("read lba 5 of namespace 2", Sqe::read(LARGE, Lba(5), lbas(1))).showing(PAGE),
        large("read far of namespace 2", Sqe::read(LARGE, FAR, lbas(1))),
    ]
}

/// Edge cases of PRPs. They expect the data that `transfers` wrote from LBA 128.
pub(super) fn prps(arena: Arena) -> Vec<Case> {
    let at = |case: Case, prp1, prp2| case.at(DataPointer::Prp { prp1, prp2 });
    let four_pages = |name| {
        let sqe = Sqe::read(SMALL, Lba(128), lbas(32));
        at(Case::io(name, sqe), arena.at(DATA), arena.at(LISTS))
    };
    let pages =
        |first: usize, count: usize| (first..first + count).map(|page| arena.at(page * PAGE).0);
    // Two entries before the end of the page: one of data, one that leads to the next list.
    let late = LISTS + PAGE - 16;
    let chain = [arena.at(PAGE).0, arena.at(LISTS + 2 * PAGE).0];
    let two_pages = |name| read(arena, name, 128, 2 * PAGE).showing(0);
    vec![
        at(read(arena, "read with an offset in prp1", 128, PAGE), arena.at(1024), arena.at(PAGE))
            .showing(PAGE + 1024),
        at(two_pages("read with prp2 not page aligned"), arena.at(DATA), arena.at(PAGE + 512)),
        four_pages("read with a prp list from mid-page")
            .at(DataPointer::Prp { prp1: arena.at(DATA), prp2: arena.at(LISTS + 64) })
            .holding(LISTS + 64, qwords(pages(1, 3)))
            .showing(4 * PAGE),
        four_pages("read with chained prp lists")
            .at(DataPointer::Prp { prp1: arena.at(DATA), prp2: arena.at(late) })
            .holding(late, qwords(chain.into_iter()))
            .holding(LISTS + 2 * PAGE, qwords(pages(2, 2)))
            .showing(4 * PAGE),
        four_pages("read with a prp list entry not page aligned")
            .holding(LISTS, qwords(pages(1, 3).map(|entry| entry + 512))),
        four_pages("read with a prp list not qword aligned")
            .at(DataPointer::Prp { prp1: arena.at(DATA), prp2: arena.at(LISTS + 4) })
            .holding(LISTS + 4, qwords(pages(1, 3))),
    ]
}

/// Commands out of bounds, and invalid fields.
pub(super) fn bounds(arena: Arena) -> Vec<Case> {
    let one = |name, nsid, lba| Case::io(name, Sqe::read(nsid, lba, lbas(1))).data(arena, 512);
    let too_long = |name, sqe: Sqe| Case::io(name, sqe).data(arena, 129 * PAGE);
    let psdt = |name, psdt: u32| one(name, SMALL, Lba(0)).bent(|dwords| dwords[0] |= psdt << 14);
    let fused = |name, fuse: u32| one(name, SMALL, Lba(0)).bent(|dwords| dwords[0] |= fuse << 8);
    let checked =
        |name, prinfo: u32| one(name, SMALL, Lba(0)).bent(|dwords| dwords[12] |= prinfo << 26);
    vec![
        too_long("read beyond mdts", Sqe::read(SMALL, Lba(0), lbas(1032))),
        too_long("write beyond mdts", Sqe::write(SMALL, Lba(0), lbas(1032))),
        too_long("compare beyond mdts", Sqe::compare(SMALL, Lba(0), lbas(1032))),
        one("read far", SMALL, FAR),
        one("read the last of all lbas", SMALL, Lba(u64::MAX)),
        Case::io("write far", Sqe::write(SMALL, FAR, lbas(1))).data(arena, 512),
        Case::io("compare far", Sqe::compare(SMALL, FAR, lbas(1))).data(arena, 512),
        one("read namespace 7, inactive", Nsid(7), Lba(0)),
        one("read namespace 0", Nsid::NONE, Lba(0)),
        one("read namespace 300, beyond NN", Nsid(300), Lba(0)),
        one("read all namespaces", Nsid::ALL, Lba(0)),
        Case::io("io opcode 7E", Sqe::new(0x7e, SMALL)).data(arena, 512),
        psdt("read with psdt 11", 3),
        fused("read, first of two fused", 1),
        fused("read, fused 11", 3),
        checked("read with pract", 8),
        checked("read with prchk", 7),
    ]
}

pub(super) fn without_data(arena: Arena) -> Vec<Case> {
    let zeroes = Sqe::write_zeroes(SMALL, Lba(18), lbas(2));
    vec![
        Case::io("flush", Sqe::flush(SMALL)),
        Case::io("flush all namespaces", Sqe::flush(Nsid::ALL)),
        Case::io("flush namespace 0", Sqe::flush(Nsid::NONE)),
        Case::io("flush namespace 7, inactive", Sqe::flush(Nsid(7))),
        Case::io("write zeroes to lbas 18 and 19", zeroes),
        read(arena, "read lbas 16 to 23 after write zeroes", 16, PAGE),
        Case::io("write zeroes and deallocate", zeroes.with_deac(true)),
        Case::io("write zeroes far", Sqe::write_zeroes(SMALL, FAR, lbas(2))),
        Case::io("verify", Sqe::verify(SMALL, Lba(16), lbas(8))),
        Case::io("verify far", Sqe::verify(SMALL, FAR, lbas(8))),
        Case::io("write uncorrectable", Sqe::write_uncorrectable(SMALL, Lba(20), lbas(1))),
    ]
}

fn dsm(arena: Arena, name: &'static str, ranges: &[DsmRange], deallocate: bool) -> Case {
    let count = RangeCount::new(ranges.len() as u32).expect("1 to 256");
    Case::io(name, Sqe::dataset_management(SMALL, count, deallocate))
        .data(arena, PAGE)
        .holding(DATA, ranges.as_bytes().to_vec())
}

fn copy(arena: Arena, name: &'static str, to: Lba, sources: &[CopyRange]) -> Case {
    let count = RangeCount::new(sources.len() as u32).expect("1 to 256");
    let bytes = sources.as_bytes().to_vec();
    Case::io(name, Sqe::copy(SMALL, to, count)).data(arena, bytes.len()).holding(DATA, bytes)
}

/// Dataset Management and Copy.
pub(super) fn ranges(arena: Arena) -> Vec<Case> {
    let near = [DsmRange::new(Lba(20), 1), DsmRange::new(Lba(22), 2)];
    let far = [DsmRange::new(Lba(16), 1), DsmRange::new(FAR, 1)];
    let from = |lba, count| CopyRange::new(Lba(lba), lbas(count));
    let many = vec![from(16, 1); 256];
    let elsewhere = Lba(4096);
    let odd_format = copy(arena, "copy with descriptor format 15", elsewhere, &[from(16, 1)]);
    vec![
        dsm(arena, "deallocate lbas 20, 22 and 23", &near, true),
        read(arena, "read lbas 16 to 23 after deallocate", 16, PAGE),
        dsm(arena, "dataset management without deallocate", &near, false),
        dsm(arena, "deallocate far", &far, true),
        copy(arena, "copy lbas 17 and 130 to 131", elsewhere, &[from(17, 1), from(130, 2)]),
        read(arena, "read what was copied", 4096, 3 * 512),
        copy(arena, "copy of 256 ranges", elsewhere, &many),
        copy(arena, "copy of a range of 8192 lbas", elsewhere, &[from(0, 8192)]),
        copy(arena, "copy from far", elsewhere, &[from(FAR.0, 1)]),
        copy(arena, "copy to far", FAR, &[from(16, 1)]),
        odd_format.bent(|dwords| dwords[12] |= 0xf << 8),
        Case::io("copy without ranges at hand", Sqe::copy(SMALL, elsewhere, RangeCount::ONE))
            .at(DataPointer::Prp { prp1: arena.at(DATA), prp2: Iova(0) })
            .holding(DATA, vec![0; 32]),
    ]
}
