//! The planner against an independent walker.
//!
//! Random segments, limits and LBAs go through the planner; the walker of `support/walker.rs`, which shares no code
//! with it, reads the result back. Together, the commands must move every byte of the request exactly once and in
//! order.

#[path = "support/walker.rs"]
mod walker;

use adit_driver::spec::{Iova, Lba};
use adit_driver::transfer::{Form, Limits, Piece, Plan, Segment, SglSupport, Unplannable, prp};
use proptest::prelude::*;
use walker::{Lists, check_plan, expected, merged, walk_prp};

/// A controller of 512-byte LBAs without SGLs.
const PRPS_ONLY: Limits = Limits {
    lba_shift: 9,
    max_bytes: 1 << 20,
    boundary_lbas: 0,
    sgl: SglSupport::None,
    list_pages: 8,
    bounce_bytes: 4096,
};

fn limits() -> impl Strategy<Value = Limits> {
    let shift = prop_oneof![Just(9u32), Just(12)];
    let sgl = prop_oneof![Just(SglSupport::None), Just(SglSupport::Byte), Just(SglSupport::Dword)];
    let boundary = prop_oneof![2 => Just(0u32), 1 => 1u32..300];
    (shift, 0u32..12, boundary, sgl, 1usize..9).prop_map(
        |(lba_shift, mdts, boundary_lbas, sgl, list_pages)| Limits {
            lba_shift,
            max_bytes: 4096 << mdts,
            boundary_lbas,
            sgl,
            list_pages,
            bounce_bytes: 4096,
        },
    )
}

/// Generates disjoint segments: each in its own address range, or right after the previous one.
fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let offset =
        prop_oneof![3 => Just(0u64), 2 => (0u64..1024).prop_map(|o| o * 4), 1 => 0u64..4096];
    let len = prop_oneof![
        3 => (1u64..64).prop_map(|pages| pages * 4096),
        2 => (1u64..64).prop_map(|lbas| lbas * 512),
        1 => 1u64..20_000,
        1 => (1u64..1200).prop_map(|pages| pages * 4096),
    ];
    prop::collection::vec((offset, len, any::<bool>()), 1..40).prop_map(|parts| {
        let mut at = 0x1_0000_0000u64;
        let mut out = Vec::new();
        for (offset, len, behind) in parts {
            let iova = if behind { at } else { at.next_multiple_of(1 << 30) + offset };
            out.push(Segment { iova: Iova(iova), len });
            at = iova + len;
        }
        out
    })
}

/// Grows the last segment until the total is whole LBAs.
fn whole(mut segments: Vec<Segment>, lba_bytes: u64) -> Vec<Segment> {
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    if let Some(last) = segments.last_mut() {
        last.len += total.next_multiple_of(lba_bytes) - total;
    }
    segments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_moves_once_and_in_order(limits in limits(), lba in 0u64..1 << 40, parts in segments()) {
        let segments = whole(parts, limits.lba_bytes());
        check_plan(&limits, lba, &segments);
    }

    #[test]
    fn page_aligned_memory_is_never_bounced(limits in limits(), lba in 0u64..1 << 40, pages in prop::collection::vec(1u64..200, 1..30)) {
        let segments: Vec<Segment> = pages
            .iter()
            .enumerate()
            .map(|(i, &pages)| Segment { iova: Iova((i as u64 + 1) << 32), len: pages * 4096 })
            .collect();
        prop_assert_eq!(check_plan(&limits, lba, &segments), 0);
    }

    #[test]
    fn byte_sgls_never_bounce_whole_lbas(mut limits in limits(), lba in 0u64..1 << 40, parts in segments()) {
        limits.sgl = SglSupport::Byte;
        let lba_bytes = limits.lba_bytes();
        let segments: Vec<Segment> =
            parts.iter().map(|part| Segment { len: part.len.next_multiple_of(lba_bytes), ..*part }).collect();
        prop_assert_eq!(check_plan(&limits, lba, &segments), 0);
    }

    #[test]
    fn partial_lbas_are_refused(limits in limits(), len in 1u64..100_000) {
        prop_assume!(!len.is_multiple_of(limits.lba_bytes()));
        let segments = [Segment { iova: Iova(4096), len }];
        let refused = Plan::new(&limits, Lba(0), segments.as_slice()).err();
        prop_assert_eq!(refused, Some(Unplannable::PartialLba { bytes: len, lba_bytes: limits.lba_bytes() }));
    }
}

#[test]
fn only_the_awkward_lba_is_bounced() {
    // 700 bytes, then the rest elsewhere: the second LBA straddles the break.
    let segments = [
        Segment { iova: Iova(0x10_0000), len: 700 },
        Segment { iova: Iova(0x20_0000), len: 8192 - 700 },
    ];
    let pieces: Vec<Piece> =
        Plan::new(&PRPS_ONLY, Lba(0), segments.as_slice()).expect("valid").collect();
    let forms: Vec<(u64, bool)> =
        pieces.iter().map(|p| (p.bytes, p.form == Form::Bounce)).collect();
    assert_eq!(forms, [(512, false), (512, true), (7168, false)]);
}

#[test]
fn the_walker_can_fail() {
    let segments = [Segment { iova: Iova(0x10_0000), len: 64 << 10 }];
    let mut piece = Plan::new(&PRPS_ONLY, Lba(0), segments.as_slice())
        .expect("valid")
        .next()
        .expect("one piece");
    // A canary: a piece with a wrong start must not pass.
    piece.start.offset = 4096;
    piece.bytes -= 4096;
    let wrong = [Segment { iova: Iova(0x20_0000), len: 64 << 10 }];
    let caught = std::panic::catch_unwind(|| {
        let mut lists = Lists::default();
        let (prp1, prp2) = prp::build(segments.as_slice(), piece.start, piece.bytes, &mut lists);
        let got = merged(walk_prp(prp1.0, prp2.0, piece.bytes, &lists));
        assert_eq!(got, merged(expected(&wrong, 4096, piece.bytes)));
    });
    assert!(caught.is_err(), "a wrong transfer must be told from a right one");
}
