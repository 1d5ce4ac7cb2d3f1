//! How a run is told: fio's formats, as fio 3.33 writes them.
//!
//! | module | noun |
//! |---|---|
//! | `normal` | the report for people, line by line as fio's |
//! | `terse` | one line of semicolons for each job |
//! | `json` | fio's JSON, and `json+` with all bins |
//! | `ours` | what fio does not tell: what the driver did, rates over time, how latencies are distributed |
//! | `layout` | how JSON is laid out on lines |
//! | `figures` | what all of them compute |
//!
//! Every format is a function of the outcome alone: the same outcome gives the same text, at the end of a run and
//! in its middle (`--status-interval`).

mod date;
mod figures;
mod head;
mod json;
mod layout;
mod normal;
mod ours;
mod terse;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::options::{OutputFormat, Request};
use super::outcome::{JobOutcome, RunOutcome};

pub(crate) use date::utc;
pub use json::moments;

/// The version that stands where fio gives its own.
const VERSION: &str = concat!("adit-", env!("CARGO_PKG_VERSION"));

/// What the normal format says before the jobs run: fio's lines.
pub(crate) fn head(request: &Request) -> String {
    head::lines(request)
}

/// What `--debug=random` tells: each thread's seed, on lines as fio's.
pub(crate) fn seeds(seeds: &[u64]) -> String {
    let line = |text: String| format!("random   {:<5} {text}\n", std::process::id());
    let told =
        seeds.iter().enumerate().map(|(index, seed)| line(format!("rand_seeds[{index}]={seed}")));
    line(format!("FIO_RAND_NR_OFFS={}", seeds.len())) + &told.collect::<String>()
}

/// A job's entry in the JSON.
pub(crate) fn job_json(outcome: &RunOutcome, job: &JobOutcome) -> Value {
    json::job(outcome, job, false)
}

/// The whole report in one format. With `normal`, what [`head`] gives goes before it.
pub(crate) fn render(format: OutputFormat, outcome: &RunOutcome) -> String {
    match format {
        OutputFormat::Normal => normal::report(outcome),
        OutputFormat::Terse => terse::report(outcome),
        OutputFormat::Json => json::report(outcome, false),
        OutputFormat::JsonPlus => json::report(outcome, true),
    }
}
