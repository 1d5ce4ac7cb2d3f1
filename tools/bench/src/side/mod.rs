//! Compares jobs on several targets, with several option values, and with earlier results.
//!
//! | file | noun |
//! |---|---|
//! | `comparison`, `schedule` | runs on several targets, interleaved |
//! | `ceiling` | a device's maximum |
//! | `file`, `figures` | a job's figures, read from JSON |
//! | `summary` | medians and ratios over rounds |
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
mod summary;
mod table;
#[cfg(test)]
mod tests;

use super::options::Request;
use super::outcome::RunOutcome;
use crate::failure::Result;

pub(crate) use compare::{CompareArgs, compare};
pub(crate) use comparison::{json, run};
pub(crate) use page::{ReportArgs, report};
pub(crate) use table::table;

/// What this module needs from the rest of bench.
pub(crate) struct Bench<'a> {
    /// Runs a request without targets, sweeps and rounds.
    pub(crate) run_one: &'a mut dyn FnMut(&Request) -> Result<RunOutcome>,
    /// Reports what is being measured.
    pub(crate) progress: &'a mut dyn FnMut(&str),
}
