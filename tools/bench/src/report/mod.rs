//! Formats a run's report in fio 3.33's formats.
//!
//! | module | noun |
//! |---|---|
//! | `normal` | the report for people, line by line like fio's |
//! | `terse` | one line of semicolons for each job |
//! | `json` | fio's JSON, and `json+` with all bins |
//! | `ours` | additions to fio's JSON: the driver's counts, rates over time, latency distributions |
//! | `layout` | how JSON is laid out on lines |
//! | `figures` | computations shared by the formats |
//!
//! Every format is a function of the outcome alone: the same outcome gives the same text, at the end of a run
//! or during it (`--status-interval`).

mod date;
mod figures;
mod head;
mod json;
mod layout;
mod normal;
mod ours;
mod terse;

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::options::OutputFormat;
use super::outcome::{JobOutcome, RunOutcome};

pub(crate) use date::utc;
pub(crate) use head::head;
pub(crate) use json::object;

/// Formats the output of `--debug=random`: each thread's seed, in lines like fio's.
pub(crate) fn seeds(seeds: &[u64]) -> String {
    let line = |text: String| format!("random   {:<5} {text}\n", std::process::id());
    let told =
        seeds.iter().enumerate().map(|(index, seed)| line(format!("rand_seeds[{index}]={seed}")));
    line(format!("FIO_RAND_NR_OFFS={}", seeds.len())) + &told.collect::<String>()
}

/// Returns a job's entry in the JSON.
pub(crate) fn job_json(outcome: &RunOutcome, job: &JobOutcome) -> Value {
    json::job(outcome, job, false)
}

/// Formats the whole report. For `normal`, the output of [`head`] comes before it.
pub(crate) fn render(format: OutputFormat, outcome: &RunOutcome) -> String {
    match format {
        OutputFormat::Normal => normal::report(outcome),
        OutputFormat::Terse => terse::report(outcome),
        OutputFormat::Json => json::report(outcome, false),
        OutputFormat::JsonPlus => json::report(outcome, true),
    }
}
