//! A walker of PRPs and SGLs written from the specification (Base 2.0 sections 4.1.1 and 4.1.2). It shares no code with
//! the planner that it checks.
//!
//! Used by the planner's property tests and its fuzz target.

use std::collections::HashMap;

use adit_driver::spec::{Iova, Lba, SglDescriptor};
use adit_driver::transfer::{Form, Limits, ListMemory, Piece, Plan, Position, Segment, prp, sgl};

/// List pages scattered over device memory, as a queue's pool would hand them out.
#[derive(Default)]
pub(crate) struct Lists {
    words: HashMap<u64, u64>,
    pages: usize,
}

impl ListMemory for Lists {
    fn page_iova(&self, page: usize) -> Iova {
        Iova(0xf000_0000_0000 - 0x3000 * page as u64)
    }

    fn write(&mut self, page: usize, index: usize, value: u64) {
        assert!(index < 512, "a list page has 512 words");
        self.pages = self.pages.max(page + 1);
        let fresh = self.words.insert(self.page_iova(page).0 + index as u64 * 8, value);
        assert!(fresh.is_none(), "a word is written once");
    }
}

impl Lists {
    fn word(&self, at: u64) -> u64 {
        *self.words.get(&at).unwrap_or_else(|| {
            panic!("the controller would read list memory that was never written, {at:#x}")
        })
    }
}

/// Returns the device addresses of a PRP transfer, as byte runs in order.
pub(crate) fn walk_prp(prp1: u64, prp2: u64, bytes: u64, lists: &Lists) -> Vec<(u64, u64)> {
    assert_eq!(prp1 % 4, 0, "PRP1 is dword aligned");
    let first = (4096 - prp1 % 4096).min(bytes);
    let mut runs = vec![(prp1, first)];
    let mut left = bytes - first;
    if left == 0 {
        return runs;
    }
    if left <= 4096 {
        assert_eq!(prp2 % 4096, 0, "a second page has no offset");
        runs.push((prp2, left));
        return runs;
    }
    let mut at = prp2;
    assert_eq!(at % 8, 0, "a list pointer is qword aligned");
    while left > 0 {
        let last_slot = at % 4096 == 4096 - 8;
        if last_slot && left > 4096 {
            at = lists.word(at);
            assert_eq!(at % 4096, 0, "a chained list starts its page");
            continue;
        }
        let page = lists.word(at);
        assert_eq!(page % 4096, 0, "a listed page has no offset");
        let len = left.min(4096);
        runs.push((page, len));
        left -= len;
        at += 8;
    }
    runs
}

/// Splits the sixteen bytes of a descriptor: type, address, length.
fn fields(low: u64, high: u64) -> (u8, u64, u64) {
    ((high >> 60) as u8, low, high & 0xffff_ffff)
}

/// Returns the device addresses of an SGL transfer, as byte runs in order.
fn walk_sgl(first: SglDescriptor, lists: &Lists) -> Vec<(u64, u64)> {
    const DATA: u8 = 0;
    const SEGMENT: u8 = 2;
    const LAST: u8 = 3;
    let [low, high] = first.to_words();
    let (mut kind, mut at, mut len) = fields(low.get(), high.get());
    if kind == DATA {
        return vec![(at, len)];
    }
    let mut runs = Vec::new();
    loop {
        assert!(kind == SEGMENT || kind == LAST, "a segment is pointed at as one");
        assert!(
            len > 0 && len.is_multiple_of(16) && len <= 4096,
            "a segment's length is whole descriptors"
        );
        let count = len / 16;
        let mut next = None;
        for index in 0..count {
            let entry = at + index * 16;
            let (entry_kind, address, length) = fields(lists.word(entry), lists.word(entry + 8));
            if entry_kind == DATA {
                runs.push((address, length));
            } else {
                assert_eq!(index, count - 1, "only the last descriptor points on");
                next = Some((entry_kind, address, length));
            }
        }
        match next {
            None => {
                assert_eq!(kind, LAST, "a pointer to the final segment says so");
                return runs;
            }
            Some((next_kind, address, length)) => {
                assert_eq!(kind, SEGMENT, "a last segment does not point on");
                (kind, at, len) = (next_kind, address, length);
            }
        }
    }
}

/// Returns the request's own byte runs from byte `skip` on, for comparison.
pub(crate) fn expected(segments: &[Segment], skip: u64, bytes: u64) -> Vec<(u64, u64)> {
    let (mut skip, mut left, mut runs) = (skip, bytes, Vec::new());
    for segment in segments {
        let cut = skip.min(segment.len);
        skip -= cut;
        let len = (segment.len - cut).min(left);
        left -= len;
        runs.push((segment.iova.0 + cut, len));
    }
    assert_eq!(left, 0, "a piece does not go beyond the request");
    runs
}

/// Merges adjacent runs and drops empty ones, so that equal bytes compare equal however they are cut.
pub(crate) fn merged(runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (at, len) in runs.into_iter().filter(|run| run.1 > 0) {
        match out.last_mut() {
            Some(last) if last.0 + last.1 == at => last.1 += len,
            _ => out.push((at, len)),
        }
    }
    out
}

fn offset_of(segments: &[Segment], position: Position) -> u64 {
    segments[..position.segment].iter().map(|segment| segment.len).sum::<u64>() + position.offset
}

fn check_piece(piece: &Piece, segments: &[Segment], limits: &Limits) {
    let mut lists = Lists::default();
    let want = merged(expected(segments, offset_of(segments, piece.start), piece.bytes));
    let got = match piece.form {
        Form::Bounce => {
            assert!(piece.bytes <= limits.bounce_bytes, "a bounce fits its page");
            return;
        }
        Form::Prp { .. } => {
            let (prp1, prp2) = prp::build(segments, piece.start, piece.bytes, &mut lists);
            walk_prp(prp1.0, prp2.0, piece.bytes, &lists)
        }
        Form::Sgl { descriptors } => {
            let first = sgl::build(segments, piece.start, piece.bytes, descriptors, &mut lists);
            walk_sgl(first, &lists)
        }
    };
    assert_eq!(merged(got), want, "{piece:?}");
    assert_eq!(lists.pages, piece.list_pages(), "{piece:?} says how many list pages it takes");
    assert!(lists.pages <= limits.list_pages, "{piece:?} keeps to the queue's list pages");
}

/// Plans a request and checks every law of a plan. Returns the bytes bounced.
pub(crate) fn check_plan(limits: &Limits, lba: u64, segments: &[Segment]) -> u64 {
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    let (mut at, mut done, mut bounced) = (lba, 0, 0);
    for piece in Plan::new(limits, Lba(lba), segments).expect("a valid request") {
        assert_eq!(piece.lba.0, at, "pieces follow each other on the medium");
        assert_eq!(offset_of(segments, piece.start), done, "and in memory");
        assert!(piece.bytes > 0 && piece.bytes <= limits.max_bytes, "within MDTS");
        assert_eq!(piece.bytes % limits.lba_bytes(), 0, "whole LBAs");
        let lbas = piece.bytes >> limits.lba_shift;
        if limits.boundary_lbas > 0 {
            let boundary = u64::from(limits.boundary_lbas);
            assert_eq!(at / boundary, (at + lbas - 1) / boundary, "inside one boundary interval");
        }
        check_piece(&piece, segments, limits);
        bounced += if piece.form == Form::Bounce { piece.bytes } else { 0 };
        at += lbas;
        done += piece.bytes;
    }
    assert_eq!(done, total, "the whole request and nothing else");
    bounced
}
