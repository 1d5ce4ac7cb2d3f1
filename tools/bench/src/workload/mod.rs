//! Generates I/Os: place, length and way.
//!
//! Everything follows from the seed, the pass and the position, so a pass can be replayed without a record.
//! `places` decides which places are used. A pass ends after all of them, or, if places may repeat, after as
//! many bytes as the region has. Does no I/O.

mod latest;
mod places;
mod plan;
mod sizes;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod ways;

pub(crate) use plan::unit_bytes;
pub(crate) use sizes::gcd;
pub(crate) use steps::Steps;

use adit_load::{Stream, happens};
use latest::Latest;
use places::{Places, Span, Wish};
use sizes::Sizes;
use ways::Ways;

use super::options::JobOptions;
use super::way::{PerWay, Way};

/// A byte range of the device that a job works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
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
    start: u64,
    /// Bytes moved per pass, not counting writes of trimmed places.
    pass_bytes: u64,
    /// Upper bound of the steps of a pass.
    pass_steps: u64,
    seed: u64,
    ways: Ways,
    sizes: PerWay<Sizes>,
    /// Percentage of random places.
    random_percent: PerWay<u8>,
    /// I/Os per random place.
    run: u64,
    /// Whether they all repeat that place.
    is_identical: bool,
    may_overlap: bool,
    places: Places,
    /// Present if steps overlap and writes are verified.
    latest: Option<Latest>,

    pass: u64,
    position: u64,
    streams: Streams,
    /// Bytes moved in this pass.
    moved: u64,
    /// I/Os left in the run at the last random place.
    run_left: u64,
    /// The end of each way's last I/O, from the start of the region.
    ends: PerWay<u64>,
    /// Each way's offset in the current run, if I/Os are identical.
    repeated: PerWay<Option<u64>>,
    /// The trimmed place to write next.
    trimmed: Option<Span>,
}

/// The random numbers of one pass.
#[derive(Clone, Copy, Debug)]
struct Streams {
    way: Stream,
    turn: Stream,
    place: Stream,
    size: Stream,
}

impl Streams {
    fn new(seed: u64, pass: u64) -> Streams {
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
    /// Starts the first pass of `job` over `region` of a device with blocks of `lba_bytes`.
    ///
    /// # Errors
    /// The job's options are impossible there; says what to do.
    pub(crate) fn new(
        job: &JobOptions,
        region: Region,
        lba_bytes: u32,
        seed: u64,
    ) -> Result<Generator, String> {
        plan::generator(job, region, u64::from(lba_bytes), seed)
    }

    /// Returns the next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.step_of(None)
    }

    /// Returns the next step; in a mixed workload, the caller may choose the way. Such a pass cannot be
    /// replayed.
    #[inline]
    fn step_of(&mut self, way: Option<Way>) -> Option<Step> {
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
        if self.run == 1 {
            return self.new_place(way, false);
        }
        let goes_on = self.run_goes_on();
        if !self.is_identical {
            return self.new_place(way, goes_on);
        }
        if let Some(offset) = self.repeated[way].filter(|_| goes_on) {
            return self.places.again(offset, self.streams.wish(way, &self.sizes, self.position));
        }
        let span = self.new_place(way, false);
        self.repeated[way] = span.map(|span| span.offset);
        span
    }

    #[inline]
    fn new_place(&mut self, way: Way, goes_on: bool) -> Option<Span> {
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

    fn start_pass(&mut self, pass: u64) {
        self.pass = pass;
        self.position = 0;
        self.streams = Streams::new(self.seed, pass);
        self.moved = 0;
        self.run_left = 0;
        self.ends = PerWay::all(self.places.first_end());
        self.repeated = PerWay::all(None);
        self.trimmed = None;
        self.places.restart(self.seed, pass);
    }

    /// Returns the number of this pass, from zero.
    pub(crate) fn pass(&self) -> u64 {
        self.pass
    }

    /// Returns how many steps of this pass were taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether two writes or trims of one pass may overlap.
    pub(crate) fn may_overlap(&self) -> bool {
        self.may_overlap
    }

    /// Returns whether no later step has changed what this one wrote.
    pub(crate) fn is_intact(&self, step: &Step) -> bool {
        self.latest.as_ref().is_none_or(|latest| {
            latest.is_intact(step.offset - self.start, step.bytes, step.number)
        })
    }

    /// Lists this pass's writes so far, in order, except those partly overwritten or trimmed since, even while
    /// the list is read.
    fn written(&self) -> Written {
        let mut again = Generator { latest: None, ..self.clone() };
        again.start_pass(self.pass);
        Written { again, until: self.position, latest: self.latest.clone() }
    }
}

/// The writes of a pass listed by [`Generator::written`].
#[derive(Debug)]
struct Written {
    again: Generator,
    until: u64,
    latest: Option<Latest>,
}

impl Written {
    fn is_there(&self, step: &Step) -> bool {
        let is_intact = |latest: &Latest| {
            latest.is_intact(step.offset - self.again.start, step.bytes, step.number)
        };
        step.way == Way::Write && self.latest.as_ref().is_none_or(is_intact)
    }
}

impl Iterator for Written {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while self.again.position() < self.until {
            let step = self.again.next_step()?;
            if self.is_there(&step) {
                return Some(step);
            }
        }
        None
    }
}
