//! Chooses where the next I/O goes: in order, each place once, or anywhere.
//!
//! | rw | options | places |
//! |---|---|---|
//! | sequential | | `InOrder`: each way continues where its last I/O ended |
//! | random | | `Once`: each block of a way's smallest size comes once per pass |
//! | random | `norandommap`, another `blockalign` or `random_distribution`, `lfsr` with several sizes | `Drawn`: any place at any time |
//!
//! Ways with the same smallest size share their blocks; ways with different ones each cover the region by themselves, so
//! that one never breaks up the blocks of the other. Blocks of a single size come in the order of a permutation. With
//! several sizes there is a map of the free ones: a step takes the free blocks from a random place on, or from the head
//! of the next free run if that place is taken, up to its size. So a step is cut where a free run ends, as in fio, but
//! never below the way's smallest size. The sequential I/Os of a random job go on where the last one ended, at their
//! full size; as in fio, they do not count as taken.

use adit_load::{Draw, RandomMap, RandomOrder, Stream, below};

use super::sizes::Sizes;
use crate::way::{PerWay, Way};

/// A byte range, from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Span {
    pub(super) fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// How places are chosen.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Each way continues `step` bytes after its last I/O.
    InOrder { step: i64, room: u64 },
    /// Each block of a set once, and which set is whose.
    Once { sets: Vec<Blocks>, of: PerWay<usize>, room: u64 },
    /// Any place at any time.
    Drawn { draws: Box<PerWay<Drawn>>, room: u64 },
}

/// The blocks that ways with the same smallest size share.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Their length.
    pub(super) bytes: u64,
    pub(super) left: Left,
}

/// The blocks that a pass has not taken yet.
#[derive(Clone, Debug)]
pub(super) enum Left {
    /// All steps take one block each, in this order.
    Ordered(RandomOrder),
    /// Steps take several.
    Mapped(RandomMap),
}

impl Blocks {
    fn restart(&mut self, seed: u64, pass: u64) {
        match &mut self.left {
            Left::Ordered(order) => order.restart(seed, pass),
            Left::Mapped(map) => map.clear(),
        }
    }

    #[inline]
    fn random(&mut self, wish: Wish<'_>) -> Option<Span> {
        match &mut self.left {
            Left::Ordered(order) => {
                order.next().map(|block| Span { offset: block * self.bytes, bytes: self.bytes })
            }
            Left::Mapped(map) => {
                let from = below(wish.place.at(wish.position), map.blocks());
                let block = map.next_free(from)?;
                let bytes = wish.sizes.draw(|| wish.size.at(wish.position));
                let blocks = map.take(block, bytes.div_ceil(self.bytes));
                Some(Span { offset: block * self.bytes, bytes: bytes.min(blocks * self.bytes) })
            }
        }
    }
}

/// Draws multiples of `align`.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) draw: Draw,
    pub(super) align: u64,
}

/// The constraints of a step: its way, its sizes, and random numbers, which are drawn only if there is a
/// choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) way: Way,
    pub(super) sizes: &'a Sizes,
    pub(super) position: u64,
    pub(super) place: Stream,
    pub(super) size: Stream,
}

impl Wish<'_> {
    /// Returns the span from `offset`, ending at `end` at the latest; `None` if not even the shortest size
    /// fits.
    #[inline]
    fn within(&self, offset: u64, end: u64) -> Option<Span> {
        let room = end.checked_sub(offset)?;
        let bytes = self.sizes.draw_within(|| self.size.at(self.position), room)?;
        Some(Span { offset, bytes })
    }
}

impl Places {
    pub(super) fn restart(&mut self, seed: u64, pass: u64) {
        match self {
            Places::InOrder { .. } | Places::Drawn { .. } => {}
            Places::Once { sets, .. } => sets.iter_mut().for_each(|set| set.restart(seed, pass)),
        }
    }

    /// Returns a random place; `None` after the last.
    #[inline]
    pub(super) fn random(&mut self, wish: Wish<'_>) -> Option<Span> {
        match self {
            Places::InOrder { room, .. } => wish.within(0, *room),
            Places::Once { sets, of, .. } => sets[of[wish.way]].random(wish),
            Places::Drawn { draws, room } => {
                let drawn = &draws[wish.way];
                wish.within(drawn.draw.place(wish.place.at(wish.position)) * drawn.align, *room)
            }
        }
    }

    /// Returns the assumed end of a way's I/O before its first.
    pub(super) fn first_end(&self) -> u64 {
        match self {
            Places::InOrder { step, .. } => 0u64.wrapping_add_signed(step.wrapping_neg()),
            _ => 0,
        }
    }

    /// Returns the place after `end`, where the way's last I/O ended; `None` after the last.
    #[inline]
    pub(super) fn after(&mut self, end: u64, wish: Wish<'_>) -> Option<Span> {
        match self {
            Places::InOrder { step, room } => in_order(*step, *room, end, wish),
            Places::Once { room, .. } | Places::Drawn { room, .. } => {
                wish.within(end, *room).or_else(|| self.random(wish))
            }
        }
    }
}

/// Steps like fio: wraps at the region's end to its start, and backwards at its start to its end.
#[inline]
fn in_order(step: i64, room: u64, end: u64, wish: Wish<'_>) -> Option<Span> {
    // The first I/O starts at zero; see `first_end`. Regions are below 2^63 bytes, so larger values are
    // negative.
    let next = end.wrapping_add_signed(step);
    let here = wish.within(next, room);
    if here.is_some() || step == 0 {
        return here;
    }
    let again = if next > i64::MAX as u64 { room.saturating_add_signed(step) } else { 0 };
    wish.within(again, room).or_else(|| wish.within(0, room))
}
