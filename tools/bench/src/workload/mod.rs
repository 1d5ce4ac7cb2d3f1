//! Which I/O is next: where, how long, and which way.
//!
//! Everything follows from the seed, the pass and the position in it, so that a pass can be listed again without having
//! been recorded. `places` says which places there are; a pass ends when all of them have come, or where places may
//! come again, when as many bytes were moved as the region has.

pub(crate) mod distribution;
mod latest;
mod lfsr;
mod map;
mod order;
pub(crate) mod permutation;
mod places;
mod plan;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod sample;
mod sizes;
mod steps;
#[cfg(test)]
mod tests;
mod ways;

pub(crate) use plan::unit_bytes;
pub(crate) use sizes::gcd;
pub(crate) use steps::Steps;

use latest::Latest;
use places::{Places, Span, Wish};
use random::{Stream, happens};
use sizes::Sizes;
use ways::Ways;

use super::options::JobOptions;
use super::way::{PerWay, Way};

/// A run of the device that a job works on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// From the start of the device.
    pub(crate) start: u64,
    /// How long it is.
    pub(crate) bytes: u64,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What is done.
    pub(crate) way: Way,
    /// Which of the job's files it is on, from 0.
    pub(crate) file: u32,
    /// Where, from the start of the file or device in bytes.
    pub(crate) offset: u64,
    /// How long.
    pub(crate) bytes: u64,
    /// Grows from step to step, passes included, from 0: tells writes of the same place apart. Follows from pass and
    /// position; where sizes vary, some numbers are left out between passes.
    pub(crate) number: u64,
}

/// The steps of one pass after another on one file; all follow from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    start: u64,
    /// How many bytes a pass moves, not counting the writes of what was trimmed.
    pass_bytes: u64,
    /// No pass has more steps.
    pass_steps: u64,
    seed: u64,
    ways: Ways,
    sizes: PerWay<Sizes>,
    /// Share of random places, in percent.
    random_percent: PerWay<u8>,
    /// How many I/Os there are for each random place.
    run: u64,
    /// Whether they are all at that place.
    is_identical: bool,
    may_overlap: bool,
    places: Places,
    /// Where steps overlap and what they write is verified.
    latest: Option<Latest>,

    pass: u64,
    position: u64,
    streams: Streams,
    /// Bytes of this pass so far.
    moved: u64,
    /// How many I/Os are left of the run at the last random place.
    run_left: u64,
    /// Where the last I/O of each way ended, from the start of the region.
    ends: PerWay<u64>,
    /// The place of the run, for each way, where I/Os are identical.
    repeated: PerWay<Option<Span>>,
    /// What was trimmed and is written next.
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
}

impl Generator {
    /// The first pass of `job` over `region` of a device with blocks of `lba_bytes`.
    ///
    /// # Errors
    /// What the job asks for cannot be done there; says what to do.
    pub(crate) fn new(
        job: &JobOptions,
        region: Region,
        lba_bytes: u32,
        seed: u64,
    ) -> Result<Generator, String> {
        plan::generator(job, region, u64::from(lba_bytes), seed)
    }

    /// The next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.step_of(None)
    }

    /// The same, of a mixed workload perhaps with a way that the caller chose. Its writes cannot be listed again then.
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
        if !goes_on || self.repeated[way].is_none() {
            self.repeated[way] = self.new_place(way, false);
        }
        self.repeated[way]
    }

    #[inline]
    fn new_place(&mut self, way: Way, goes_on: bool) -> Option<Span> {
        let wish = Wish {
            way,
            sizes: &self.sizes[way],
            position: self.position,
            place: self.streams.place,
            size: self.streams.size,
        };
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

    /// The number of this pass, from zero.
    pub(crate) fn pass(&self) -> u64 {
        self.pass
    }

    /// How many steps of this pass were taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Whether two writes or trims of one pass may touch the same bytes.
    pub(crate) fn may_overlap(&self) -> bool {
        self.may_overlap
    }

    /// Whether no step that was taken since changes any of what this one wrote.
    pub(crate) fn is_intact(&self, step: &Step) -> bool {
        self.latest.as_ref().is_none_or(|latest| {
            latest.is_intact(step.offset - self.start, step.bytes, step.number)
        })
    }

    /// What this pass wrote so far, in the order of the writes: none of which any part was overwritten or trimmed
    /// since, not even while this is read.
    fn written(&self) -> Written {
        let mut again = Generator { latest: None, ..self.clone() };
        again.start_pass(self.pass);
        Written { again, until: self.position, latest: self.latest.clone() }
    }
}

/// The writes of a pass, as [`Generator::written`] lists them.
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
