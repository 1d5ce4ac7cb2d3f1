//! Tests of the planner's single figures; `tests/planner.rs` tests whole plans.

use super::*;
use crate::spec::{Lba, SglDescriptor};

const LIMITS: Limits = Limits {
    lba_shift: 9,
    max_bytes: 4 << 20,
    boundary_lbas: 0,
    sgl: SglSupport::None,
    list_pages: 1,
    bounce_bytes: 4096,
};

fn segment(iova: u64, len: u64) -> Segment {
    Segment { iova: Iova(iova), len }
}

fn pieces(limits: &Limits, segments: &[Segment]) -> Vec<(u64, Form)> {
    let plan = Plan::new(limits, Lba(7), segments).expect("whole LBAs");
    plan.map(|piece| (piece.bytes, piece.form)).collect()
}

#[test]
fn lists_hold_one_entry_less_in_each_page_but_the_last() {
    let limits = |list_pages| Limits { list_pages, ..LIMITS };
    let prps = [0, 1, 8].map(|pages| limits(pages).max_prp_entries());
    let descriptors = [0, 1, 3].map(|pages| limits(pages).max_sgl_descriptors());
    assert_eq!((prps, descriptors), ([1, 512, 4089], [1, 256, 766]));
}

#[test]
fn limits_that_contradict_themselves_are_a_bug() {
    LIMITS.assert_sound();
    let unsound = [
        Limits { lba_shift: 8, ..LIMITS },
        Limits { max_bytes: 256, ..LIMITS },
        Limits { max_bytes: 1000, ..LIMITS },
        Limits { bounce_bytes: 256, ..LIMITS },
    ];
    for limits in unsound {
        assert!(std::panic::catch_unwind(|| limits.assert_sound()).is_err(), "{limits:?}");
    }
}

#[test]
fn runs_join_neighbours_skip_the_empty_and_end_with_the_segments() {
    let segments = [
        segment(0x1000, 0x1000),
        segment(0x2000, 0x800),
        segment(0x9000, 0),
        segment(0x5000, 0x1000),
    ];
    let runs: Vec<Segment> = Runs::new(&segments[..], Position::default(), 1 << 20).collect();
    assert_eq!(runs, [segment(0x1000, 0x1800), segment(0x5000, 0x1000)]);
}

#[test]
fn data_of_one_command_is_counted_in_the_pages_it_touches() {
    let whole = |segments: &[Segment], bytes| whole_as_prp(segments, bytes);
    assert_eq!(whole(&[segment(0x1ff8, 16)], 16), Some(2), "across a page's end");
    assert_eq!(whole(&[segment(0x1c00, 0x400), segment(0x5000, 8)], 0x408), Some(2));
    assert_eq!(whole(&[segment(0x1002, 16)], 16), None, "no dword's address");
    assert_eq!(whole(&[segment(0x1000, 16), segment(0x5000, 16)], 32), None, "a gap in a page");
    assert_eq!(whole(&[segment(0x1000, 16)], 32), None, "less than there is to move");
}

#[test]
fn a_piece_fills_its_prp_list_from_any_offset() {
    let all = 520 << 12;
    let most = (513 << 12) - 0x800;
    let found = pieces(&LIMITS, &[segment(0x10_0800, all)]);
    let rest = Form::Prp { entries: (all - most).div_ceil(PAGE_BYTES) };
    assert_eq!(found, [(most, Form::Prp { entries: 513 }), (all - most, rest)]);
}

#[test]
fn dword_sgls_want_addresses_and_lengths_of_dwords() {
    let limits = Limits { sgl: SglSupport::Dword, ..LIMITS };
    let aligned = [segment(0x1000, 508), segment(0x3004, 4)];
    assert_eq!(pieces(&limits, &aligned), [(512, Form::Sgl { descriptors: 2 })]);
    let odd_length = [segment(0x1000, 510), segment(0x3004, 2)];
    assert_eq!(pieces(&limits, &odd_length), [(512, Form::Bounce)]);
}

#[test]
fn neighbours_that_must_be_bounced_go_together() {
    let parts: Vec<Segment> = (0..6).map(|at| segment(0x1001 + (at << 16), 256)).collect();
    assert_eq!(pieces(&LIMITS, &parts), [(1536, Form::Bounce)]);
}

#[test]
fn a_plan_ends_where_its_last_lba_does() {
    let segments = [segment(0x1000, 1536)];
    let mut plan = Plan::new(&LIMITS, Lba(7), &segments[..]).expect("whole LBAs");
    assert_eq!(plan.end_lba(), 10);
    assert!(plan.next().is_some());
    assert_eq!((plan.end_lba(), plan.next()), (10, None));
}

/// List pages far apart, stored as words.
#[derive(Default)]
struct Pages(std::collections::BTreeMap<(usize, usize), u64>);

impl ListMemory for Pages {
    fn page_iova(&self, page: usize) -> Iova {
        Iova(0x100_0000 * (page as u64 + 1))
    }

    fn write(&mut self, page: usize, index: usize, value: u64) {
        let before = self.0.insert((page, index), value);
        assert_eq!(before, None, "each word once");
    }
}

impl Pages {
    fn has(&self, page: usize, index: usize, descriptor: SglDescriptor) {
        let [low, high] = descriptor.to_words().map(|word| Some(word.get()));
        let words = [2 * index, 2 * index + 1].map(|word| self.0.get(&(page, word)).copied());
        assert_eq!(words, [low, high], "descriptor {index} of page {page}");
    }
}

/// Builds the SGL of `count` pages that do not adjoin.
fn sgl_of(count: u64) -> (SglDescriptor, Pages) {
    let segments: Vec<Segment> = (0..count).map(|at| segment(at << 13, PAGE_BYTES)).collect();
    let (mut pages, start) = (Pages::default(), Position::default());
    let first = sgl::build(&segments[..], start, count << 12, count, &mut pages);
    (first, pages)
}

fn block(at: usize) -> SglDescriptor {
    SglDescriptor::data_block(Iova((at as u64) << 13), PAGE_BYTES as u32)
}

#[test]
fn a_page_of_descriptors_is_the_last_segment() {
    let (first, pages) = sgl_of(256);
    assert!(first == SglDescriptor::last_segment(pages.page_iova(0), 4096));
    (0..256).for_each(|at| pages.has(0, at, block(at)));
    assert_eq!(pages.0.len(), 512);
}

#[test]
fn longer_lists_chain_their_pages_by_the_last_descriptor_of_each() {
    let (first, pages) = sgl_of(600);
    assert!(first == SglDescriptor::segment(pages.page_iova(0), 4096));
    for at in 0..600 {
        pages.has(at / 255, at % 255, block(at));
    }
    pages.has(0, 255, SglDescriptor::segment(pages.page_iova(1), 4096));
    pages.has(1, 255, SglDescriptor::last_segment(pages.page_iova(2), 90 * 16));
    assert_eq!(pages.0.len(), 1204);
}
