//! Generates the I/Os of consecutive passes on one file.

use std::iter;

use adit_load::{Stream, happens};

use super::latest::Latest;
use super::places::{Places, Span, Wish};
use super::sizes::Sizes;
use super::ways::Ways;
use crate::way::{PerWay, Way};

/// A byte range of the device that a job works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobRegion {
    /// Byte offset on the device.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Read, write or trim.
    pub(crate) way: Way,
    /// The index of the job's file.
    pub(crate) file: u32,
    /// Byte offset in the file or device.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Increases with every step of all passes, from 0, to tell writes to the same place apart. Follows from
    /// pass and position; if sizes vary, numbers may be skipped between passes.
    pub(crate) number: u64,
}

/// Generates the steps of consecutive passes on one file; all follow from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    pub(super) start: u64,
    /// Bytes moved per pass, not counting writes of trimmed places.
    pub(super) pass_bytes: u64,
    /// Upper bound of the steps of a pass.
    pub(super) pass_steps: u64,
    pub(super) seed: u64,
    pub(super) ways: Ways,
    pub(super) sizes: PerWay<Sizes>,
    /// Percentage of random places.
    pub(super) random_percent: PerWay<u8>,
    /// I/Os per random place.
    pub(super) run: u64,
    pub(super) may_overlap: bool,
    pub(super) places: Places,
    /// Present if steps overlap and writes are verified.
    pub(super) latest: Option<Latest>,

    pub(super) pass: u64,
    pub(super) position: u64,
    pub(super) streams: Streams,
    /// Bytes moved in this pass.
    pub(super) moved: u64,
    /// I/Os left in the run at the last random place.
    pub(super) run_left: u64,
    /// The end of each way's last I/O, from the start of the region.
    pub(super) ends: PerWay<u64>,
    /// The trimmed place to write next.
    pub(super) trimmed: Option<Span>,
}

/// The random numbers of one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    way: Stream,
    turn: Stream,
    place: Stream,
    size: Stream,
}

impl Streams {
    pub(super) fn new(seed: u64, pass: u64) -> Streams {
        let stream = |purpose| Stream::new(seed, pass, purpose);
        Streams { way: stream(1), turn: stream(2), place: stream(3), size: stream(4) }
    }

    /// Returns what constrains a way's step at this position.
    #[inline]
    fn wish(self, way: Way, sizes: &PerWay<Sizes>, position: u64) -> Wish<'_> {
        Wish { way, sizes: &sizes[way], position, place: self.place, size: self.size }
    }
}

impl Generator {
    /// Returns the next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.step_of(None)
    }

    /// Returns the next step; in a mixed workload, the caller may choose the way. Such a pass cannot be
    /// replayed.
    #[inline]
    pub(super) fn step_of(&mut self, way: Option<Way>) -> Option<Step> {
        debug_assert!(way.is_none() || matches!(self.ways, Ways::Mixed(_)));
        let (way, span) = match self.trimmed.take() {
            Some(span) => (Way::Write, span),
            None => self.next_place(way)?,
        };
        let number = self.pass * self.pass_steps + self.position;
        self.position += 1;
        if let Some(latest) = self.latest.as_ref().filter(|_| way != Way::Read) {
            latest.record(span.offset, span.bytes, number);
        }
        let offset = self.start + span.offset;
        Some(Step { way, file: 0, offset, bytes: span.bytes, number })
    }

    #[inline]
    fn next_place(&mut self, way: Option<Way>) -> Option<(Way, Span)> {
        if self.moved >= self.pass_bytes {
            return None;
        }
        let way = way.unwrap_or_else(|| self.ways.pick(self.streams.way, self.position));
        let span = self.place_for(way)?;
        self.moved += span.bytes;
        self.ends[way] = span.end();
        if self.ways == Ways::TrimThenWrite {
            self.trimmed = Some(span);
        }
        Some((way, span))
    }

    #[inline]
    fn place_for(&mut self, way: Way) -> Option<Span> {
        let goes_on = self.run > 1 && self.run_goes_on();
        let wish = self.streams.wish(way, &self.sizes, self.position);
        match self.random_percent[way] {
            100 if !goes_on => self.places.random(wish),
            percent if !goes_on && happens(self.streams.turn.at(self.position), percent) => {
                self.places.random(wish)
            }
            _ => self.places.after(self.ends[way], wish),
        }
    }

    fn run_goes_on(&mut self) -> bool {
        let goes_on = self.run_left > 0;
        self.run_left = if goes_on { self.run_left - 1 } else { self.run - 1 };
        goes_on
    }

    /// Starts the next pass, in another order.
    pub(crate) fn next_pass(&mut self) {
        self.start_pass(self.pass + 1);
    }

    pub(super) fn start_pass(&mut self, pass: u64) {
        self.pass = pass;
        self.position = 0;
        self.streams = Streams::new(self.seed, pass);
        self.moved = 0;
        self.run_left = 0;
        self.ends = PerWay::all(self.places.first_end());
        self.trimmed = None;
        self.places.restart(self.seed, pass);
    }

    /// Returns whether no later step has changed what this one wrote.
    pub(crate) fn is_intact(&self, step: &Step) -> bool {
        self.latest.as_ref().is_none_or(|latest| {
            latest.is_intact(step.offset - self.start, step.bytes, step.number)
        })
    }

    /// Lists this pass's writes so far, in order, except those partly overwritten or trimmed since, even while
    /// the list is read.
    pub(super) fn written(&self) -> impl Iterator<Item = Step> + Send + use<> {
        let (start, until, latest) = (self.start, self.position, self.latest.clone());
        let mut again = Generator { latest: None, ..self.clone() };
        again.start_pass(self.pass);
        let steps = iter::from_fn(move || (again.position < until).then(|| again.next_step())?);
        let is_there = move |step: &Step| {
            let (offset, bytes) = (step.offset - start, step.bytes);
            let is_intact = |latest: &Latest| latest.is_intact(offset, bytes, step.number);
            step.way == Way::Write && latest.as_ref().is_none_or(is_intact)
        };
        steps.filter(is_there)
    }
}
