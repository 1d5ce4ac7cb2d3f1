//! Where the next I/O goes: in order, each place once, or wherever.
//!
//! | rw | options | places |
//! |---|---|---|
//! | sequential | | `InOrder`: each way goes on where its last one ended |
//! | random | blocks of one size | `Once`: a permutation of the blocks, without a map |
//! | random | several sizes, runs, some I/Os sequential | `Mapped`: units in random order, and a map of the free |
//! | random | `norandommap`, another `blockalign` or `random_distribution` | `Drawn`: all places at all times |
//!
//! With a map, a step takes the free units from its place on, at most as many as its size has, and those that go on
//! from the last one go to the next free unit. So each unit comes once in a pass, and late in the pass steps may be
//! shorter than any `bs`, as in fio.

use super::distribution::Draw;
use super::map::Map;
use super::order::Order;
use super::random::Stream;
use super::sizes::Sizes;
use crate::way::{PerWay, Way};

/// Some bytes, from the start of the region.
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

/// Where I/Os go.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Each where its way's last one ended and `step` further.
    InOrder { step: i64, room: u64 },
    /// Blocks of one size.
    Once { order: Order, bytes: u64 },
    /// Units that are still free.
    Mapped { order: Order, map: Map, unit: u64 },
    /// All places at all times.
    Drawn { draws: Box<PerWay<Drawn>>, room: u64 },
}

/// Multiples of `align` as `draw` says.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) draw: Draw,
    pub(super) align: u64,
}

/// What a step asks for: its way, how long that may be, and its random numbers, drawn only where there is a choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) way: Way,
    pub(super) sizes: &'a Sizes,
    pub(super) position: u64,
    pub(super) place: Stream,
    pub(super) size: Stream,
}

impl Wish<'_> {
    /// The bytes from `offset` on, no more than up to `end`; none where not even the shortest fits.
    #[inline]
    fn within(&self, offset: u64, end: u64) -> Option<Span> {
        let room = end.checked_sub(offset)?;
        let bytes = self.sizes.draw_within(|| self.size.at(self.position), room)?;
        Some(Span { offset, bytes })
    }
}

impl Places {
    /// Goes to the start of a pass.
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

    /// A random place; none where all have come.
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

    /// Where the last I/O of a way that did not begin yet would have ended.
    pub(super) fn first_end(&self) -> u64 {
        match self {
            Places::InOrder { step, .. } => 0u64.wrapping_add_signed(step.wrapping_neg()),
            _ => 0,
        }
    }

    /// The place after `end`, where the last one of the way ended; none where all have come.
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

/// As fio steps: after the region's end from its start again, before its start from its end.
#[inline]
fn in_order(step: i64, room: u64, end: u64, wish: Wish<'_>) -> Option<Span> {
    // The first of all starts at zero; see `first_end`. No region has 2^63 bytes: what is as great is negative.
    let next = end.wrapping_add_signed(step);
    let here = wish.within(next, room);
    if here.is_some() || step == 0 {
        return here;
    }
    let again = if next > i64::MAX as u64 { room.saturating_add_signed(step) } else { 0 };
    wish.within(again, room).or_else(|| wish.within(0, room))
}
