//! Chooses where the next I/O goes: in order, each place once, or anywhere.
//!
//! | rw | options | places |
//! |---|---|---|
//! | sequential | | `InOrder`: each way continues where its last I/O ended |
//! | random | blocks of one size | `Once`: a permutation of the blocks, without a map |
//! | random | several sizes, runs, some I/Os sequential | `Mapped`: units in random order, and a map of the free ones |
//! | random | `norandommap`, another `blockalign` or `random_distribution` | `Drawn`: any place at any time |
//!
//! With a map, a step takes the free units from its place on, up to its size; a sequential step takes the next
//! free unit. So each unit comes once per pass, and late in a pass steps may be shorter than any `bs`, as in
//! fio.

use super::distribution::Draw;
use super::map::Map;
use super::order::Order;
use super::random::Stream;
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
    /// Blocks of one size.
    Once { order: Order, bytes: u64 },
    /// Units that are still free.
    Mapped { order: Order, map: Map, unit: u64 },
    /// Any place at any time.
    Drawn { draws: Box<PerWay<Drawn>>, room: u64 },
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
            Places::Once { order, .. } => order.restart(seed, pass),
            Places::Mapped { order, map, .. } => {
                order.restart(seed, pass);
                map.clear();
            }
        }
    }

    /// Returns a random place; `None` after the last.
    #[inline]
    pub(super) fn random(&mut self, wish: Wish<'_>) -> Option<Span> {
        match self {
            Places::InOrder { room, .. } => wish.within(0, *room),
            Places::Once { order, bytes } => {
                let bytes = *bytes;
                order.next().map(|block| Span { offset: block * bytes, bytes })
            }
            Places::Mapped { order, map, unit } => {
                let place =
                    std::iter::from_fn(|| order.next()).find(|place| map.is_free(*place))?;
                Some(taken(map, *unit, place, wish))
            }
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
            Places::Once { .. } => self.random(wish),
            Places::Mapped { map, unit, .. } => {
                let place = map.next_free(end / *unit)?;
                Some(taken(map, *unit, place, wish))
            }
            Places::Drawn { room, .. } => wish.within(end, *room).or_else(|| wish.within(0, *room)),
        }
    }
}

fn taken(map: &mut Map, unit: u64, place: u64, wish: Wish<'_>) -> Span {
    let units = map.take(place, wish.sizes.draw(|| wish.size.at(wish.position)) / unit);
    Span { offset: place * unit, bytes: units * unit }
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
