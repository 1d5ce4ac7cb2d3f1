//! Which I/O is next: where, how long, and which way.

pub(crate) mod permutation;

use permutation::{Permutation, mix};

use super::options::{BlockSizes, JobOptions};
use super::way::Way;

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
    /// Where, from the start of the device in bytes.
    pub(crate) offset: u64,
    /// How long.
    pub(crate) bytes: u64,
    /// Grows from step to step, passes included, from 0: tells writes of the same place apart.
    pub(crate) number: u64,
}

/// The steps of one pass after another; all follow from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    region: Region,
    bytes: u64,
    random: bool,
    reads: u64,
    seed: u64,
    pass: u64,
    order: Permutation,
    position: u64,
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
        let BlockSizes::Fixed(bytes) = job.bs[Way::Read] else {
            return Err("blocks of several sizes are not there yet: use one bs".to_owned());
        };
        if bytes == 0 || !bytes.is_multiple_of(u64::from(lba_bytes)) || bytes > region.bytes {
            return Err(format!(
                "bs={bytes} does not fit: use a multiple of {lba_bytes} up to {}",
                region.bytes
            ));
        }
        let reads = match (job.rw.reads, job.rw.writes) {
            (true, true) => u64::from(job.rwmixread),
            (reads, _) => 100 * u64::from(reads),
        };
        let order = order_of(region.bytes / bytes, seed, 0);
        Ok(Generator {
            region,
            bytes,
            random: job.rw.random,
            reads,
            seed,
            pass: 0,
            order,
            position: 0,
        })
    }

    /// The next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        if self.position == self.steps() {
            return None;
        }
        let position = self.position;
        self.position += 1;
        let block = if self.random { self.order.apply(position) } else { position };
        let is_read = mix(self.seed ^ mix(self.pass) ^ position) % 100 < self.reads;
        Some(Step {
            way: if is_read { Way::Read } else { Way::Write },
            offset: self.region.start + block * self.bytes,
            bytes: self.bytes,
            number: self.pass * self.steps() + position,
        })
    }

    fn steps(&self) -> u64 {
        self.region.bytes / self.bytes
    }

    /// Starts the next pass, in another order.
    pub(crate) fn next_pass(&mut self) {
        self.skip_to(self.pass + 1, 0);
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
        false
    }

    /// Goes to where it would be after `position` steps of `pass`.
    pub(crate) fn skip_to(&mut self, pass: u64, position: u64) {
        (self.pass, self.position) = (pass, position);
        self.order = order_of(self.steps(), self.seed, self.pass);
    }

    /// What this pass wrote so far and did not overwrite since, in the same order.
    pub(crate) fn written(&self) -> Written {
        let mut again = self.clone();
        again.skip_to(self.pass, 0);
        Written { again, until: self.position }
    }
}

fn order_of(blocks: u64, seed: u64, pass: u64) -> Permutation {
    Permutation::new(blocks, seed.wrapping_add(mix(pass)))
}

/// The writes of a pass, as [`Generator::written`] lists them.
#[derive(Debug)]
pub(crate) struct Written {
    again: Generator,
    until: u64,
}

impl Iterator for Written {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while self.again.position() < self.until {
            let step = self.again.next_step()?;
            if step.way == Way::Write {
                return Some(step);
            }
        }
        None
    }
}
