//! Buffers of every shape, with guards between their pieces.
//!
//! Pieces are split off a region at chosen offsets. Some of the gaps hold a pattern that must survive the command,
//! which exposes transfers that miss their buffer.

use adit_driver::{Buffer, Controller, IoBuffer};

use crate::random::Random;

/// The larger size needs prebuilt PRP lists of several pages.
const REGION_BYTES: [usize; 2] = [1 << 20, 4 << 20];
const GUARD: u8 = 0xa5;
const PAGE: u64 = 4096;

/// What a queue's commands own, apart from the tag.
pub(crate) trait Carrier: IoBuffer {
    /// Whether it may hold more than one piece.
    const SCATTERS: bool;
    fn wrap(pieces: Vec<Buffer>) -> Self;
    fn unwrap(self) -> Vec<Buffer>;
}

impl Carrier for Vec<Buffer> {
    const SCATTERS: bool = true;

    fn wrap(pieces: Vec<Buffer>) -> Self {
        pieces
    }

    fn unwrap(self) -> Vec<Buffer> {
        self
    }
}

impl Carrier for Option<Buffer> {
    const SCATTERS: bool = false;

    fn wrap(pieces: Vec<Buffer>) -> Self {
        assert!(pieces.len() <= 1, "a single buffer is asked for");
        pieces.into_iter().next()
    }

    fn unwrap(self) -> Vec<Buffer> {
        self.into_iter().collect()
    }
}

/// Layout of a buffer in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One piece from a page's start.
    Page,
    /// One piece from a multiple of 4.
    Dword,
    /// One piece from an odd address.
    Odd,
    /// Pieces whose inner edges are page edges.
    Pages,
    /// Pieces whose addresses and lengths are multiples of 4.
    DwordPieces,
    /// Pieces cut anywhere.
    OddPieces,
}

impl Shape {
    const SINGLE: [Shape; 3] = [Shape::Page, Shape::Dword, Shape::Odd];
    const ALL: [Shape; 6] =
        [Shape::Page, Shape::Dword, Shape::Odd, Shape::Pages, Shape::DwordPieces, Shape::OddPieces];

    pub(crate) fn pick(random: &mut Random, scattered: bool) -> Shape {
        random.pick(if scattered { &Shape::ALL } else { &Shape::SINGLE })
    }

    /// Whether PRPs express it for every LBA size, so that it is never bounced.
    pub(crate) fn suits_prp(self) -> bool {
        matches!(self, Shape::Page | Shape::Dword | Shape::Pages)
    }

    fn step(self) -> u64 {
        match self {
            Shape::Page | Shape::Pages => PAGE,
            Shape::Dword | Shape::DwordPieces => 4,
            Shape::Odd | Shape::OddPieces => 1,
        }
    }

    /// Returns the first byte's offset in its page, and the lengths of the pieces.
    fn cut(self, random: &mut Random, bytes: u64) -> (u64, Vec<u64>) {
        match self {
            Shape::Page => (0, vec![bytes]),
            Shape::Dword => (random.below(1024) * 4, vec![bytes]),
            Shape::Odd => (random.below(2048) * 2 + 1, vec![bytes]),
            Shape::Pages => {
                let offset = random.below(1024) * 4;
                let first = (PAGE - offset + random.below(3) * PAGE).min(bytes);
                let mut lens = vec![first];
                lens.extend(pieces(random, bytes - first, PAGE, 24));
                (offset, lens)
            }
            Shape::DwordPieces => (random.below(1024) * 4, pieces(random, bytes, 4, 9)),
            Shape::OddPieces => (random.below(PAGE), pieces(random, bytes, 1, 9)),
        }
    }
}

/// Cuts `bytes` into at most `most` lengths, all but the last multiples of `step`.
fn pieces(random: &mut Random, bytes: u64, step: u64, most: u64) -> Vec<u64> {
    let (mut lens, mut left) = (Vec::new(), bytes);
    let typical = (2 * bytes / most / step).max(1);
    while left > 0 && (lens.len() as u64) < most - 1 {
        let len = (random.between(1, typical) * step).min(left);
        lens.push(len);
        left -= len;
    }
    lens.extend((left > 0).then_some(left));
    lens
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) pieces: Vec<Buffer>,
    pub(crate) guards: Vec<Buffer>,
    pub(crate) shape: Shape,
}

#[derive(Debug)]
pub(crate) struct Arena {
    controller: Controller,
    region_bytes: usize,
    rest: Buffer,
}

impl Arena {
    pub(crate) fn new(random: &mut Random, controller: &Controller) -> Arena {
        let region_bytes = random.pick(&REGION_BYTES);
        let rest = controller.allocate(region_bytes).expect("memory");
        Arena { controller: controller.clone(), region_bytes, rest }
    }

    /// Returns memory of `bytes` bytes in `shape`.
    pub(crate) fn take(&mut self, random: &mut Random, shape: Shape, bytes: u64) -> Memory {
        let (offset, lens) = shape.cut(random, bytes);
        let mut order: Vec<usize> = (0..lens.len()).collect();
        if random.chance(60) {
            random.shuffle(&mut order);
        }
        let mut pieces: Vec<Option<Buffer>> = lens.iter().map(|_| None).collect();
        let mut guards = Vec::new();
        for index in order {
            let offset = match index {
                0 => offset,
                _ => random.below(PAGE / shape.step()) * shape.step(),
            };
            self.reserve(lens[index]);
            let at = self.rest.iova().0;
            let follows = index > 0 && at.is_multiple_of(shape.step()) && random.chance(30);
            let lead = if follows { 0 } else { (offset + PAGE - at % PAGE) % PAGE };
            pieces[index] = Some(self.cut(lead, lens[index], &mut guards));
        }
        let mut pieces: Vec<Buffer> = pieces.into_iter().flatten().collect();
        if shape == Shape::OddPieces && random.chance(20) {
            let at = random.below(pieces.len() as u64 + 1) as usize;
            pieces.insert(at, self.rest.split_off(self.rest.len()));
        }
        Memory { pieces, guards, shape }
    }

    /// Ensures room for `len` bytes at any offset in a page.
    fn reserve(&mut self, len: u64) {
        let need = len as usize + PAGE as usize;
        if self.rest.len() < need {
            let bytes = need.next_multiple_of(PAGE as usize).max(self.region_bytes);
            self.rest = self.controller.allocate(bytes).expect("memory");
        }
    }

    /// Splits off `len` bytes after a gap of `lead`, which becomes a guard.
    fn cut(&mut self, lead: u64, len: u64, guards: &mut Vec<Buffer>) -> Buffer {
        let mut piece = self.rest.split_off(lead as usize);
        let rest = piece.split_off(len as usize);
        let mut gap = std::mem::replace(&mut self.rest, rest);
        if !gap.is_empty() {
            gap.fill(GUARD);
            guards.push(gap);
        }
        piece
    }
}

/// Whether the memory between the pieces is untouched.
pub(crate) fn guards_hold(guards: &[Buffer]) -> bool {
    const INTACT: [u8; PAGE as usize] = [GUARD; PAGE as usize];
    guards.iter().all(|guard| guard.chunks(INTACT.len()).all(|part| part == &INTACT[..part.len()]))
}

pub(crate) fn scatter(pieces: &mut [Buffer], mut bytes: &[u8]) {
    for piece in pieces {
        let (now, later) = bytes.split_at(piece.len());
        piece.copy_from_slice(now);
        bytes = later;
    }
    assert!(bytes.is_empty(), "the pieces hold all of it");
}

pub(crate) fn gather(pieces: &[Buffer]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}
