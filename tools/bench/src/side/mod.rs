//! Jobs side by side: on several paths, with several values of an option, and against earlier results.
//!
//! | file | noun |
//! |---|---|
//! | `comparison`, `schedule` | runs on several targets, interleaved |
//! | `ceiling` | what a device gives at most |
//! | `file`, `figures` | what a job came to, read from JSON |
//! | `statistics`, `summary` | medians, ratios and how far they can be trusted |
//! | `table` | the same for a terminal |
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

/// What the rest of bench does for this.
pub(crate) struct Bench<'a> {
    /// Runs a request, which has no targets, sweeps and rounds.
    pub(crate) run_one: &'a mut dyn FnMut(&Request) -> Result<RunOutcome>,
    /// A job's entry in the report's JSON, with all that belongs under `adit`.
    pub(crate) job_json: &'a dyn Fn(&RunOutcome, &JobOutcome) -> Value,
    /// Sets a job's option by its name as a job file would; why not, where it cannot be.
    pub(crate) set: &'a dyn Fn(&mut Section, &str, &str) -> std::result::Result<(), String>,
    /// Tells what is being measured.
    pub(crate) progress: &'a mut dyn FnMut(&str),
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bench")
    }
}
