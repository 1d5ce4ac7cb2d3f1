//! Creates a job's generator from its options, and refuses options that do not fit together.

use super::distribution::Draw;
use super::latest::Latest;
use super::map::Map;
use super::order::Order;
use super::places::{Drawn, Places};
use super::sizes::{Sizes, gcd};
use super::ways::Ways;
use super::{Generator, Region, Streams};
use crate::options::{Distribution, JobOptions, Sequencer};
use crate::way::{PerWay, Way};

/// Implements [`Generator::new`].
pub(super) fn generator(
    job: &JobOptions,
    region: Region,
    lba_bytes: u64,
    seed: u64,
) -> Result<Generator, String> {
    let plan = Plan::new(job, region, lba_bytes)?;
    let places = plan.places(seed)?;
    let run = if job.rw.random { job.rw.step.max(1) as u64 } else { 1 };
    let is_identical = job.rw_sequencer == Sequencer::Identical;
    let overlaps = match &places {
        Places::InOrder { step, .. } => *step != 0,
        Places::Once { .. } | Places::Mapped { .. } => run > 1 && is_identical,
        Places::Drawn { .. } => true,
    };
    let changes = job.rw.writes || job.rw.trims;
    let latest = plan.latest(overlaps && job.rw.writes && job.verify.is_some())?;
    let shortest = if matches!(places, Places::Mapped { .. }) { plan.unit } else { plan.min };
    let per_place = if plan.ways == Ways::TrimThenWrite { 2 } else { 1 };
    let pass_bytes = region.bytes / plan.unit * plan.unit;
    let mut generator = Generator {
        start: region.start,
        pass_bytes,
        pass_steps: pass_bytes.div_ceil(shortest) * per_place,
        seed,
        ways: plan.ways,
        random_percent: if job.rw.random { job.random.percentage_random } else { PerWay::all(0) },
        run,
        is_identical,
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
        repeated: PerWay::all(None),
        trimmed: None,
    };
    generator.start_pass(0);
    Ok(generator)
}

/// Returns the greatest common divisor of the lengths of `job`'s I/Os, in bytes; with a map, random I/Os may be
/// this short.
///
/// # Errors
/// There is none; says what to do.
pub(crate) fn unit_bytes(job: &JobOptions) -> Result<u64, String> {
    let used = Ways::new(&job.rw, job.rwmixread)?.all();
    used.into_iter().try_fold(0, |unit, way| Ok(gcd(unit, Sizes::new(&job.bs[way])?.unit())))
}

/// Values derived from a job before its places are chosen.
struct Plan<'a> {
    job: &'a JobOptions,
    region: Region,
    ways: Ways,
    used: Vec<Way>,
    sizes: PerWay<Sizes>,
    /// The smallest block of all ways, in bytes.
    min: u64,
    /// The greatest common divisor of all blocks of all ways, in bytes.
    unit: u64,
}

impl<'a> Plan<'a> {
    fn new(job: &'a JobOptions, region: Region, lba_bytes: u64) -> Result<Plan<'a>, String> {
        let ways = Ways::new(&job.rw, job.rwmixread)?;
        let used = ways.all();
        // An unused way may have invalid sizes.
        let of = |way| if used.contains(&way) { &job.bs[way] } else { &job.bs[used[0]] };
        let [read, write, trim] = Way::ALL.map(|way| Sizes::new(of(way)));
        let sizes = PerWay([read?, write?, trim?]);
        let min = used.iter().map(|way| sizes[*way].min()).min().unwrap_or(0);
        let unit = unit_bytes(job)?;
        let plan = Plan { job, region, ways, used, sizes, min, unit };
        plan.check_fit(lba_bytes)?;
        Ok(plan)
    }

    fn check_fit(&self, lba_bytes: u64) -> Result<(), String> {
        let (job, region) = (self.job, self.region);
        multiple_of(lba_bytes, region.start, "offset")?;
        multiple_of(
            lba_bytes,
            job.rw.step.unsigned_abs() * u64::from(!job.rw.random),
            "the step after rw's colon",
        )?;
        for way in &self.used {
            let name = way.name();
            for bytes in job.bs[*way].listed() {
                multiple_of(lba_bytes, bytes, &format!("bs of {name}s"))?;
            }
            match job.random.blockalign[*way] {
                Some(0) => return Err(format!("blockalign is 0: use a multiple of {lba_bytes}")),
                Some(align) => multiple_of(lba_bytes, align, "blockalign")?,
                None => {}
            }
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
        let units = room / self.unit;
        let order = Order::new(units, seed);
        if self.has_one_size() && self.has_no_sequences() {
            return Ok(Places::Once { order, bytes: self.unit });
        }
        let map = Map::new(units).map_err(|_| {
            format!("there is no memory for a map of {units} blocks: use norandommap, a larger bs or a smaller size")
        })?;
        Ok(Places::Mapped { order, map, unit: self.unit })
    }

    /// Returns whether each place comes once. fio calls this a random map; it excludes other distributions and
    /// alignments.
    fn has_map(&self) -> bool {
        let job = self.job;
        let is_plain = |way: &Way| {
            let align = job.random.blockalign[*way];
            job.random.random_distribution[*way] == Distribution::Uniform
                && align.is_none_or(|align| align == self.sizes[*way].min())
        };
        let is_wanted = !job.random.norandommap || job.random.is_lfsr;
        is_wanted && self.used.iter().all(is_plain)
    }

    fn has_one_size(&self) -> bool {
        self.used.iter().all(|way| self.sizes[*way].only() == Some(self.unit))
    }

    fn has_no_sequences(&self) -> bool {
        let has_runs = self.job.rw.step > 1 && self.job.rw_sequencer == Sequencer::Sequential;
        !has_runs && self.used.iter().all(|way| self.job.random.percentage_random[*way] == 100)
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
