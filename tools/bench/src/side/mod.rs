//! Compares jobs on several targets, with several option values, and with earlier results.
//!
//! | file | noun |
//! |---|---|
//! | `comparison`, `schedule` | runs on several targets, interleaved |
//! | `ceiling` | a device's maximum |
//! | `file`, `figures` | a job's figures, read from JSON |
//! | `statistics`, `summary` | medians, ratios and their confidence intervals |
//! | `table` | the summary for a terminal |
//! | `compare` | `adit bench compare` |
//! | `page` | `adit bench report` |

mod ceiling;
mod compare;
mod comparison;
mod figures;
mod file;
mod page;
mod schedule;
mod statistics;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::options::{Request, Section};
use super::outcome::{JobOutcome, RunOutcome};
use crate::failure::Result;

pub(crate) use compare::{CompareArgs, compare};
pub(crate) use comparison::{json, run};
pub(crate) use page::{ReportArgs, report};
pub(crate) use table::table;

/// What this module needs from the rest of bench.
pub(crate) struct Bench<'a> {
    /// Runs a request without targets, sweeps and rounds.
    pub(crate) run_one: &'a mut dyn FnMut(&Request) -> Result<RunOutcome>,
    /// Returns a job's entry in the report's JSON, with everything under `adit`.
    pub(crate) job_json: &'a dyn Fn(&RunOutcome, &JobOutcome) -> Value,
    /// Sets a job's option by name as a job file would, or returns why it cannot.
    pub(crate) set: &'a dyn Fn(&mut Section, &str, &str) -> std::result::Result<(), String>,
    /// Reports what is being measured.
    pub(crate) progress: &'a mut dyn FnMut(&str),
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bench")
    }
}
