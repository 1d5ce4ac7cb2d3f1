//! Creates a job's generator from its options, and refuses options that do not fit together.

use adit_load::{Distribution, Draw, RandomMap, RandomOrder};

use super::generator::{Generator, JobRegion, Streams};
use super::latest::Latest;
use super::places::{Blocks, Drawn, Left, Places};
use super::sizes::{Sizes, gcd};
use super::ways::Ways;
use crate::options::JobOptions;
use crate::way::{PerWay, Way};

impl Generator {
    /// Starts the first pass of `job` over `region` of a device with blocks of `lba_bytes`.
    ///
    /// # Errors
    /// The job's options are impossible there; says what to do.
    pub(crate) fn new(
        job: &JobOptions,
        region: JobRegion,
        lba_bytes: u32,
        seed: u64,
    ) -> Result<Generator, String> {
        let plan = Plan::new(job, region, u64::from(lba_bytes))?;
        let places = plan.places(seed)?;
        let run = if job.rw.random { job.rw.step.max(1) as u64 } else { 1 };
        let overlaps = match &places {
            Places::InOrder { step, .. } => *step != 0,
            Places::Once { .. } => run > 1 || !plan.is_all_random(),
            Places::Drawn { .. } => true,
        };
        let changes = job.rw.writes || job.rw.trims;
        let latest = plan.latest(overlaps && job.rw.writes && job.verify.is_some())?;
        let per_place = if plan.ways == Ways::TrimThenWrite { 2 } else { 1 };
        let pass_bytes = region.bytes / plan.unit * plan.unit;
        let mut generator = Generator {
            start: region.start,
            pass_bytes,
            pass_steps: pass_bytes.div_ceil(plan.min) * per_place,
            seed,
            ways: plan.ways,
            random_percent: if job.rw.random {
                job.random.percentage_random
            } else {
                PerWay::all(0)
            },
            run,
            may_overlap: changes && (overlaps || plan.ways == Ways::TrimThenWrite),
            sizes: plan.sizes,
            places,
            latest,
            pass: 0,
            position: 0,
            streams: Streams::new(seed, 0),
            moved: 0,
            run_left: 0,
            ends: PerWay::all(0),
            trimmed: None,
        };
        generator.start_pass(0);
        Ok(generator)
    }
}

/// Returns the greatest common divisor of the lengths of `job`'s I/Os, in bytes.
pub(crate) fn unit_bytes(job: &JobOptions) -> u64 {
    let used = Ways::new(&job.rw, job.rwmixread).all();
    used.into_iter().fold(0, |unit, way| gcd(unit, Sizes::new(&job.bs[way]).unit()))
}

/// Values derived from a job before its places are chosen.
struct Plan<'a> {
    job: &'a JobOptions,
    region: JobRegion,
    ways: Ways,
    used: Vec<Way>,
    sizes: PerWay<Sizes>,
    /// The smallest block of all ways, in bytes.
    min: u64,
    /// The greatest common divisor of all blocks of all ways, in bytes.
    unit: u64,
}

impl<'a> Plan<'a> {
    fn new(job: &'a JobOptions, region: JobRegion, lba_bytes: u64) -> Result<Plan<'a>, String> {
        let ways = Ways::new(&job.rw, job.rwmixread);
        let used = ways.all();
        let sizes = PerWay(Way::ALL.map(|way| Sizes::new(&job.bs[way])));
        let min = used.iter().map(|way| sizes[*way].min()).min().unwrap_or(0);
        let unit = unit_bytes(job);
        let plan = Plan { job, region, ways, used, sizes, min, unit };
        plan.check_fit(lba_bytes)?;
        Ok(plan)
    }

    fn check_fit(&self, lba_bytes: u64) -> Result<(), String> {
        let (job, region) = (self.job, self.region);
        let step = if job.rw.random { 0 } else { job.rw.step.unsigned_abs() };
        multiple_of(lba_bytes, step, "the step after rw's colon")?;
        for way in &self.used {
            let name = way.name();
            multiple_of(lba_bytes, job.random.blockalign[*way].unwrap_or(0), "blockalign")?;
            let min = self.sizes[*way].min();
            if min > region.bytes {
                return Err(format!(
                    "{name}s of {min} bytes do not fit into a region of {}: use a smaller bs or a larger size",
                    region.bytes
                ));
            }
        }
        Ok(())
    }

    fn places(&self, seed: u64) -> Result<Places, String> {
        let (job, room) = (self.job, self.region.bytes);
        if !job.rw.random {
            return Ok(Places::InOrder { step: job.rw.step, room });
        }
        if !self.has_map() {
            return Ok(Places::Drawn { draws: Box::new(self.draws(seed)?), room });
        }
        let mut sets: Vec<Blocks> = Vec::new();
        let mut of = PerWay::all(0);
        for way in &self.used {
            let bytes = self.sizes[*way].min();
            of[*way] = match sets.iter().position(|set| set.bytes == bytes) {
                Some(set) => set,
                None => {
                    sets.push(Blocks { bytes, left: self.blocks(bytes, seed)? });
                    sets.len() - 1
                }
            };
        }
        Ok(Places::Once { sets, of, room })
    }

    /// Returns all blocks of `bytes`, the smallest size of some ways.
    fn blocks(&self, bytes: u64, seed: u64) -> Result<Left, String> {
        let count = self.region.bytes / bytes;
        let has_one_size = self.used.iter().all(|way| {
            let sizes = &self.sizes[*way];
            sizes.min() != bytes || sizes.only().is_some()
        });
        if has_one_size {
            return Ok(Left::Ordered(RandomOrder::new(count, seed)));
        }
        RandomMap::new(count).map(Left::Mapped).map_err(|_| {
            format!("there is no memory for a map of {count} blocks: use norandommap, a larger bs or a smaller size")
        })
    }

    /// Returns whether each place comes once. fio calls this a random map; it excludes other distributions and
    /// alignments, and fio's lfsr has none, which matters where sizes differ.
    fn has_map(&self) -> bool {
        let job = self.job;
        let is_plain = |way: &Way| {
            let align = job.random.blockalign[*way];
            job.random.random_distribution[*way] == Distribution::Uniform
                && align.is_none_or(|align| align == self.sizes[*way].min())
        };
        let random = &job.random;
        let has_one_size = |way: &Way| self.sizes[*way].only().is_some();
        let is_wanted = match random.is_lfsr {
            true => self.used.iter().all(has_one_size),
            false => !random.norandommap,
        };
        is_wanted && self.used.iter().all(is_plain)
    }

    fn is_all_random(&self) -> bool {
        self.used.iter().all(|way| self.job.random.percentage_random[*way] == 100)
    }

    fn align(&self, way: Way) -> u64 {
        self.job.random.blockalign[way].unwrap_or(self.sizes[way].min())
    }

    fn draws(&self, seed: u64) -> Result<PerWay<Drawn>, String> {
        let drawn = |way| {
            let way = if self.used.contains(&way) { way } else { self.used[0] };
            let align = self.align(way);
            let count = (self.region.bytes - self.sizes[way].min()) / align + 1;
            let draw = Draw::new(&self.job.random.random_distribution[way], count, align, seed)?;
            Ok::<Drawn, String>(Drawn { draw, align })
        };
        let [read, write, trim] = Way::ALL.map(drawn);
        Ok(PerWay([read?, write?, trim?]))
    }

    fn latest(&self, is_needed: bool) -> Result<Option<Latest>, String> {
        if !is_needed {
            return Ok(None);
        }
        let aligned = self.used.iter().fold(self.unit, |unit, way| gcd(unit, self.align(*way)));
        let unit = if self.job.rw.random {
            aligned
        } else {
            gcd(self.unit, self.job.rw.step.unsigned_abs())
        };
        let units = self.region.bytes / unit;
        Latest::new(units, unit).map(Some).map_err(|_| {
            format!(
                "there is no memory to keep track of {units} blocks that may be overwritten before they are verified: \
                 leave out norandommap, or use a larger bs or a smaller size"
            )
        })
    }
}

fn multiple_of(lba_bytes: u64, bytes: u64, what: &str) -> Result<(), String> {
    if bytes.is_multiple_of(lba_bytes) {
        return Ok(());
    }
    let nearest = bytes.next_multiple_of(lba_bytes);
    Err(format!(
        "{what} is {bytes}, which is no multiple of the device's blocks of {lba_bytes}: use {nearest}"
    ))
}
