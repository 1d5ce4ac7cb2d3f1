//! Measures a device's maximum, to show how far a job is from it.
//!
//! Runs the job's own I/Os without pauses, rates and verification, at depths that double until two in a row
//! exceed the best before by less than 5 %. A job that only reads is measured with reads only.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Bench;
use crate::failure::{Failure, Result};
use crate::options::{Eta, FlushOptions, JobOptions, Request, Section};
use crate::outcome::RunOutcome;
use crate::way::Way;

/// The greatest depth tried.
const DEPTH_MAX: u32 = 256;
/// The factor by which a depth must exceed the best before to count as growth.
const GROWTH: f64 = 1.05;
/// Depths without growth that end the search; one alone may be an accident.
const FLAT_MAX: u32 = 2;
/// Measurement time per depth.
const RUNTIME: Duration = Duration::from_secs(1);
/// Time before it that is not counted.
const RAMP: Duration = Duration::from_millis(200);

/// A device's maximum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ceiling {
    /// The job whose I/Os were used.
    pub(crate) job: String,
    pub(crate) target: String,
    /// The highest I/Os per second.
    pub(crate) iops: f64,
    /// Bytes per second at the same depth.
    pub(crate) bytes_per_second: f64,
    /// The depth that reached it.
    #[serde(rename = "iodepth")]
    pub(crate) depth: u32,
    /// Each depth tried.
    steps: Vec<CeilingStep>,
    /// I/Os per second of the job itself, if it has run.
    pub(crate) reached_iops: Option<f64>,
    /// Whether the user interrupted the search.
    #[serde(skip)]
    pub(crate) interrupted: bool,
}

/// A depth, and its I/Os per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CeilingStep {
    iodepth: u32,
    iops: f64,
}

impl Ceiling {
    /// Formats it for people: `this job reached 87.3 % of the device's ceiling (512k IOPS at depth 128)`.
    pub(crate) fn sentence(&self) -> String {
        let most = format!("{} IOPS at depth {}", crate::human::si(self.iops, 4), self.depth);
        let (job, target) = (&self.job, &self.target);
        match self.reached_iops {
            Some(reached) if self.iops > 0.0 => {
                let percent = reached * 100.0 / self.iops;
                format!("{job} reached {percent:.1} % of the ceiling of {target} ({most})")
            }
            _ => format!("the ceiling of {target} for {job} is {most}"),
        }
    }

    /// Formats it for programs.
    pub(crate) fn json(&self) -> Value {
        let mut value = json!(self);
        let percent = self.reached_iops.map(|reached| reached * 100.0 / self.iops);
        value["reached_percent"] = percent.into();
        value
    }
}

/// Measures the ceiling for the first job of `request`, on that job's own target.
///
/// # Errors
/// As the runs.
pub(crate) fn measure(request: &Request, bench: &mut Bench<'_>) -> Result<Ceiling> {
    let section = request.sections.first().ok_or_else(|| Failure::usage("there is no job"))?;
    let mut ceiling = Ceiling {
        job: section.job.name.clone(),
        target: section.job.files.filename.join(":"),
        ..Ceiling::default()
    };
    let mut flat = 0;
    let depths = std::iter::successors(Some(1u32), |depth| depth.checked_mul(2));
    for depth in depths.take_while(|depth| *depth <= DEPTH_MAX) {
        (bench.progress)(&format!("ceiling: {} at depth {depth}", ceiling.job));
        let outcome = (bench.run_one)(&at_depth(request, section, depth))?;
        flat = if ceiling.take(depth, &outcome)? { 0 } else { flat + 1 };
        ceiling.interrupted = outcome.interrupted;
        if flat == FLAT_MAX || outcome.interrupted {
            break;
        }
    }
    Ok(ceiling)
}

impl Ceiling {
    /// Records a depth's result; returns whether it grew.
    fn take(&mut self, depth: u32, outcome: &RunOutcome) -> Result<bool> {
        if let Some(failure) = outcome.jobs.iter().find_map(|job| job.failure.as_ref()) {
            let (target, first) = (&self.target, &failure.first);
            return Err(Failure::failed(format!("{target}: ceiling at depth {depth}: {first}")));
        }
        let ways =
            || outcome.jobs.iter().flat_map(|job| Way::ALL.into_iter().map(|way| &job.ways[way]));
        let iops: f64 = ways().map(|way| way.iops()).sum();
        let bytes_per_second = ways().map(|way| way.bytes_per_second()).sum();
        let grew = iops > self.iops * GROWTH;
        if let Some(job) = outcome.jobs.first() {
            self.target.clone_from(&job.target);
        }
        self.steps.push(CeilingStep { iodepth: depth, iops });
        if iops > self.iops {
            (self.iops, self.bytes_per_second, self.depth) = (iops, bytes_per_second, depth);
        }
        Ok(grew)
    }
}

/// Returns a request that runs only `section`'s I/Os, as fast as possible.
fn at_depth(request: &Request, section: &Section, depth: u32) -> Request {
    let mut request = request.single();
    let mut section = section.clone();
    unlimited(&mut section, depth);
    request.sections = vec![section];
    request.run.status_interval = None;
    request.run.eta = Eta::Never;
    request
}

fn unlimited(section: &mut Section, depth: u32) {
    let (job, usual) = (&mut section.job, JobOptions::usual());
    job.iodepth = depth;
    job.batch = usual.batch;
    job.order.group_reporting = true;
    job.order.startdelay = usual.order.startdelay;
    (job.time.runtime, job.time.ramp_time, job.time.time_based) = (Some(RUNTIME), RAMP, true);
    (job.amount.io_size, job.amount.number_ios) = (None, None);
    job.time.thinktime = usual.time.thinktime;
    job.rates = usual.rates;
    (job.time.max_latency, job.time.latency_target, job.time.steadystate) = (None, None, None);
    job.verify = None;
    job.flushes = FlushOptions { sync: job.flushes.sync, ..usual.flushes };
    job.logs = usual.logs;
}
