//! The report of the lab, written anew before and after each step.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::child::Ended;
use super::steps::Step;
use crate::failure::{Failure, Result};
use crate::human;
use crate::output::word;
use adit_tools_common::whole_file::WholeFile;

/// Files that say what machine this is.
const FACTS: [(&str, &str); 4] = [
    ("kernel", "/proc/sys/kernel/osrelease"),
    ("system", "/etc/os-release"),
    ("nvidia_module", "/proc/driver/nvidia/version"),
    ("load", "/proc/loadavg"),
];

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepState {
    /// Not begun, because there was no time left, or the lab was cut off.
    #[serde(rename = "not begun")]
    NotBegun,
    Running,
    Done,
    /// The machine lacks what it needs.
    Lacks,
    Failed,
    /// It was ended at its limit.
    Late,
}

/// A figure beside the value expected.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    what: &'static str,
    expected: String,
    source: &'static str,
    measured: Option<f64>,
    is_met: Option<bool>,
}

/// A step in the report; the names of its fields are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StepReport {
    name: &'static str,
    tells: &'static str,
    pub(super) state: StepState,
    expected: Vec<Measured>,
    took_s: f64,
    exit_code: Option<i32>,
    commands: Vec<String>,
    pub(super) said: String,
    /// Null if there is none.
    pub(super) report: Value,
}

impl StepReport {
    fn of(step: &Step, report: &Value) -> StepReport {
        let figures = step.expected.iter().map(|one| {
            let measured = (one.figure)(report);
            Measured {
                what: one.what,
                expected: one.goal.text(),
                source: one.source,
                measured,
                is_met: measured.map(|measured| one.goal.is_met(measured)),
            }
        });
        StepReport {
            name: step.name,
            tells: step.tells,
            state: StepState::NotBegun,
            expected: figures.collect(),
            took_s: 0.0,
            exit_code: None,
            commands: step.commands(),
            said: String::new(),
            report: report.clone(),
        }
    }

    /// Returns whether an option of the lab was refused.
    pub(super) fn is_usage(&self) -> bool {
        self.exit_code == Some(2)
    }

    /// Describes it for people: a line, and one for each figure.
    pub(super) fn line(&self) -> String {
        let why = self.said.lines().last().filter(|_| self.state != StepState::Done).unwrap_or("");
        let (state, seconds) = (word(&self.state), self.took_s);
        let line = format!("{state:<10}{} ({seconds:.1} s) {}", self.name, human::printable(why));
        let figure = |one: &Measured| {
            let measured = one.measured.map_or("not measured".to_owned(), number);
            let is_met = one.is_met.map_or("-", |is_met| if is_met { "met" } else { "MISSED" });
            format!("  {is_met:<8}{}: {measured} (expected: {})\n", one.what, one.expected)
        };
        format!("{}\n{}", line.trim_end(), self.expected.iter().map(figure).collect::<String>())
    }

    /// Returns the step's faults: its failure, and each figure that is not as expected.
    fn faults(&self) -> Vec<String> {
        let why = self.said.lines().last().unwrap_or("it says nothing");
        let mut faults = match self.state {
            StepState::Failed => vec![format!("{}: failed: {why}", self.name)],
            StepState::Late => vec![format!("{}: {why}", self.name)],
            _ => Vec::new(),
        };
        let missed = self.expected.iter().filter(|one| one.is_met == Some(false));
        faults.extend(missed.map(|one| {
            let measured = number(one.measured.unwrap_or_default());
            format!("{}: {}: {measured}, expected: {}", self.name, one.what, one.expected)
        }));
        faults
    }
}

/// Formats a figure with as many places as it needs, four at most.
fn number(figure: f64) -> String {
    let text = format!("{figure:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The report, and its file.
pub(super) struct Report {
    out: PathBuf,
    is_quick: bool,
    whole: Duration,
    pub(super) is_emulated: bool,
    is_complete: bool,
    steps: Vec<StepReport>,
}

impl Report {
    pub(super) fn new(out: &Path, is_quick: bool, whole: Duration) -> Report {
        let (is_emulated, is_complete) = (false, false);
        Report { out: out.to_owned(), is_quick, whole, is_emulated, is_complete, steps: Vec::new() }
    }

    /// Adds steps that are still to run.
    pub(super) fn add_all<'a>(&mut self, steps: impl IntoIterator<Item = &'a Step>) {
        self.steps.extend(steps.into_iter().map(|step| StepReport::of(step, &Value::Null)));
    }

    pub(super) fn entry(&self, index: usize) -> &StepReport {
        &self.steps[index]
    }

    /// Marks a step as running.
    ///
    /// # Errors
    /// As [`Report::save`].
    pub(super) fn begin(&mut self, index: usize) -> Result<()> {
        self.steps[index].state = StepState::Running;
        self.save()
    }

    /// Sets how a step ended.
    ///
    /// # Errors
    /// As [`Report::save`].
    pub(super) fn set(
        &mut self,
        index: usize,
        step: &Step,
        (ended, report): (Ended, Value),
    ) -> Result<()> {
        let state = match ended.code {
            Some(0) => StepState::Done,
            Some(3) => StepState::Lacks,
            _ if ended.is_late => StepState::Late,
            _ => StepState::Failed,
        };
        let Ended { code: exit_code, took, said, .. } = ended;
        let took_s = took.as_secs_f64();
        self.steps[index] =
            StepReport { state, exit_code, took_s, said, ..StepReport::of(step, &report) };
        self.save()
    }

    /// Marks it as complete.
    ///
    /// # Errors
    /// As [`Report::save`].
    pub(super) fn end(&mut self) -> Result<()> {
        self.is_complete = true;
        self.save()
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn save(&self) -> Result<()> {
        let text = format!("{:#}\n", self.json());
        let written = WholeFile::create(&self.out)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.finish()));
        written.map_err(|why| {
            Failure::failed(format!("{}: {why}; name another file by --out", self.out.display()))
        })
    }

    fn json(&self) -> Value {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fact = |(name, file): (&str, &str)| {
            let text = fs::read_to_string(file).unwrap_or_default();
            (name.to_owned(), Value::from(text.trim()))
        };
        json!({
            "lab": env!("CARGO_PKG_VERSION"),
            "unix_time_s": since.as_secs(),
            "measured_against": "software controllers, no PCIe to a drive",
            "is_emulated": self.is_emulated,
            "is_quick": self.is_quick,
            "limit_s": self.whole.as_secs(),
            "is_complete": self.is_complete,
            "faults": self.faults(),
            "machine": FACTS.map(fact).into_iter().collect::<serde_json::Map<_, _>>(),
            "steps": self.steps,
        })
    }

    /// Returns what failed, and each figure that is not as expected.
    pub(super) fn faults(&self) -> Vec<String> {
        self.steps.iter().flat_map(StepReport::faults).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_places_that_they_need() {
        let all = [0.0, 180.0, 31.59931, 0.02, 61_500_000.0].map(number);
        assert_eq!(all, ["0", "180", "31.5993", "0.02", "61500000"]);
    }
}
