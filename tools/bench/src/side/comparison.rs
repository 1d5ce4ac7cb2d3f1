//! Runs jobs on several targets and with several option values, over several rounds.

use serde_json::{Value, json};

use super::Bench;
use super::ceiling::{self, Ceiling};
use super::figures::{self, ReportEntry};
use super::schedule::{Slot, combinations, schedule};
use super::summary::{self, Point, sweep_text};
use crate::failure::{Failure, Result};
use crate::options::Request;
use crate::outcome::RunOutcome;
use crate::output::Warning;
use crate::report::{job_json, object, utc};

/// All measurements and their summary.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Each run's jobs in the order they ran, as entries of a report's JSON, with round, target and sweep.
    pub(crate) jobs: Vec<Value>,
    /// The targets as given; empty if each job ran on its own.
    pub(crate) targets: Vec<String>,
    /// The requested number of rounds.
    pub(crate) rounds: u32,
    /// Medians, and ratios to the first target.
    pub(crate) points: Vec<Point>,
    /// Each target's ceiling.
    pub(crate) ceilings: Vec<Ceiling>,
    /// Warnings about the figures, each once with its target.
    pub(crate) warnings: Vec<(String, Warning)>,
    /// Whether the user interrupted it.
    pub(crate) interrupted: bool,
    /// The failure that ended it; earlier measurements are kept.
    pub(crate) failure: Option<Failure>,
    global: Vec<(String, String)>,
    unix_ms: u64,
}

/// Runs the request on each target and with each value of each sweep, `rounds` times, interleaved.
///
/// A failing run ends the comparison, which keeps the earlier measurements and the failure.
///
/// # Errors
/// When a sweep names an unknown option or an invalid value, and when the first run fails.
pub(crate) fn run(request: &Request, bench: &mut Bench<'_>) -> Result<Comparison> {
    let variants = variants(request);
    let requests = variants
        .iter()
        .map(|sweep| with_values(request, sweep))
        .collect::<Result<Vec<Request>>>()?;
    let targets = request.run.side.targets.len().max(1);
    let slots = schedule(request.run.side.rounds.max(1) as usize, variants.len(), targets);
    let mut comparison = Comparison::new(request);
    for (done, slot) in slots.iter().enumerate() {
        let sweep = &variants[slot.variant];
        (bench.progress)(&comparison.line(slot, sweep, done, slots.len()));
        let one = on_target(&requests[slot.variant], slot.target)?;
        match (bench.run_one)(&one) {
            Ok(outcome) => comparison.add(slot, sweep, &outcome),
            Err(failure) if done == 0 => return Err(failure),
            Err(failure) => comparison.failure = Some(failure),
        }
        if comparison.interrupted || comparison.failure.is_some() {
            break;
        }
    }
    let first = comparison.targets.first().map(String::as_str);
    comparison.points = summary::points(&comparison.entries()?, first);
    if request.run.side.ceiling && !comparison.interrupted && comparison.failure.is_none() {
        comparison.measure_ceilings(request, bench)?;
    }
    Ok(comparison)
}

impl Comparison {
    fn new(request: &Request) -> Comparison {
        let side = &request.run.side;
        Comparison {
            targets: side.targets.iter().map(ToString::to_string).collect(),
            rounds: side.rounds.max(1),
            global: request.global.clone(),
            ..Comparison::default()
        }
    }

    fn target_name(&self, target: usize) -> &str {
        self.targets.get(target).map_or("", String::as_str)
    }

    /// Formats `3/12: round 1 of 3, uring:/dev/nvme0n1, iodepth=4`.
    fn line(&self, slot: &Slot, sweep: &[(String, String)], done: usize, all: usize) -> String {
        let mut line = format!("{}/{all}: round {} of {}", done + 1, slot.round + 1, self.rounds);
        for part in [self.target_name(slot.target).to_owned(), sweep_text(sweep)] {
            if !part.is_empty() {
                line = line + ", " + &part;
            }
        }
        line
    }

    /// Keeps a run's results.
    fn add(&mut self, slot: &Slot, sweep: &[(String, String)], outcome: &RunOutcome) {
        self.interrupted = outcome.interrupted;
        self.unix_ms = outcome.unix_ms;
        let target = self.target_name(slot.target).to_owned();
        for warning in &outcome.warnings {
            // The same warning about the same job recurs in each round with other numbers.
            let about = |warning: &Warning| warning.text.split(':').next().map(str::to_owned);
            let is_known = self.warnings.iter().any(|(on, known)| {
                *on == target && known.code == warning.code && about(known) == about(warning)
            });
            if !is_known {
                self.warnings.push((target.clone(), warning.clone()));
            }
        }
        for job in &outcome.jobs {
            let round = slot.round + 1;
            let mut entry = job_json(outcome, job);
            let on = if target.is_empty() { &job.target } else { &target };
            entry["adit"]["round"] = round.into();
            entry["adit"]["target"] = on.as_str().into();
            entry["adit"]["sweep"] = object(sweep);
            self.jobs.push(entry);
            if let (Some(failure), None) = (&job.failure, &self.failure) {
                let name = &job.section.job.name;
                let first = &failure.first;
                let message = format!("{name} on {} in round {round}: {first}", job.target);
                self.failure = Some(Failure::failed(message));
            }
        }
    }

    fn entries(&self) -> Result<Vec<ReportEntry>> {
        figures::entries(&self.report_json(Value::Null), None).map_err(Failure::failed)
    }

    fn measure_ceilings(&mut self, request: &Request, bench: &mut Bench<'_>) -> Result<()> {
        let entries = self.entries()?;
        for target in 0..self.targets.len().max(1) {
            let name = self.target_name(target).to_owned();
            let one = on_target(request, target)?;
            let mut ceiling = match ceiling::measure(&one, bench) {
                Ok(ceiling) => ceiling,
                Err(failure) => {
                    self.failure = Some(failure);
                    return Ok(());
                }
            };
            if ceiling.interrupted {
                // An incomplete search yields no ceiling.
                self.interrupted = true;
                return Ok(());
            }
            let of_job = |entry: &&ReportEntry| {
                entry.job == ceiling.job && (name.is_empty() || entry.target == name)
            };
            // With a sweep, the job reached the best of its values.
            let best = self.points.iter().filter(|point| point.job == ceiling.job);
            let best = best.filter(|point| name.is_empty() || point.target == name);
            let sweeps: Vec<_> = best.map(|point| point.sweep.clone()).collect();
            let reached = sweeps.iter().filter_map(|sweep| {
                let rounds = entries.iter().filter(of_job).filter(|entry| entry.sweep == *sweep);
                adit_load::median(&rounds.map(ReportEntry::iops).collect::<Vec<_>>())
            });
            ceiling.reached_iops = reached.reduce(f64::max);
            self.ceilings.push(ceiling);
        }
        Ok(())
    }

    /// Returns a report of all runs in fio's format, with `ours` under `adit`.
    fn report_json(&self, ours: Value) -> Value {
        let mut report = json!({
            "fio version": concat!("adit-", env!("CARGO_PKG_VERSION")),
            "timestamp": self.unix_ms / 1000,
            "timestamp_ms": self.unix_ms,
            "time": utc(self.unix_ms / 1000),
            "global options": object(&self.global),
            "jobs": self.jobs,
            "disk_util": [],
        });
        if !ours.is_null() {
            report["adit"] = ours;
        }
        report
    }
}

/// Returns everything as one JSON value: fio's keys, all runs' jobs in `jobs`, and the summary in
/// `adit.comparison`.
pub(crate) fn json(comparison: &Comparison) -> Value {
    let warning = |(target, warning): &(String, Warning)| {
        let Warning { code, text } = warning;
        json!({ "target": target, "code": code, "text": text })
    };
    comparison.report_json(json!({
        "comparison": {
            "targets": comparison.targets,
            "rounds": comparison.rounds,
            "confidence": adit_load::CONFIDENCE,
            "points": comparison.points.iter().map(Point::json).collect::<Vec<_>>(),
        },
        "ceilings": comparison.ceilings.iter().map(Ceiling::json).collect::<Vec<_>>(),
        "warnings": comparison.warnings.iter().map(warning).collect::<Vec<_>>(),
        "interrupted": comparison.interrupted,
        "failure": comparison.failure.as_ref().map(ToString::to_string),
    }))
}

fn variants(request: &Request) -> Vec<Vec<(String, String)>> {
    let values = request.run.side.sweep.iter().map(|sweep| {
        sweep.values.iter().map(|value| (sweep.option.clone(), value.clone())).collect()
    });
    combinations(&values.collect::<Vec<Vec<_>>>())
}

/// Sets a sweep's values in all jobs of the request.
fn with_values(request: &Request, sweep: &[(String, String)]) -> Result<Request> {
    let mut request = request.clone();
    for section in &mut request.sections {
        for (name, value) in sweep {
            *section = section.with(name, value).map_err(|why| {
                Failure::usage(format!("--sweep {name}: '{value}' cannot be set: {why}"))
            })?;
        }
    }
    Ok(request)
}

/// Returns the request for one of its targets, as a single run.
fn on_target(request: &Request, target: usize) -> Result<Request> {
    let mut one = request.single();
    let Some(target) = request.run.side.targets.get(target) else { return Ok(one) };
    // An unescaped colon would separate file names.
    let filename = target.to_string().replace(':', "\\:");
    for section in &mut one.sections {
        section.job.files.directory = None;
        *section = section.with("filename", &filename).map_err(Failure::usage)?;
    }
    Ok(one)
}
