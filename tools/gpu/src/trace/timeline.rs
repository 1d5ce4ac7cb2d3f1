//! Records steps with the time at which each ended, and formats them.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Steps in the order they happened.
#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    /// When the last step ended.
    last: Instant,
    /// Whether times mean anything.
    has_times: bool,
    pub(super) steps: Vec<TraceStep>,
}

/// A step; the names of its fields are those of the JSON.
#[derive(Debug, Serialize)]
pub(super) struct TraceStep {
    /// Time since the start, if that means anything.
    at_ns: Option<u64>,
    step: &'static str,
    detail: String,
}

impl Timeline {
    /// Starts a timeline.
    pub(super) fn begin(has_times: bool) -> Timeline {
        let begun = Instant::now();
        Timeline { begun, last: begun, has_times, steps: Vec::new() }
    }

    /// Records the end of a step.
    pub(super) fn step(&mut self, step: &'static str, detail: impl Into<String>) {
        self.last = Instant::now();
        let at_ns = self.has_times.then(|| (self.last - self.begun).as_nanos() as u64);
        self.steps.push(TraceStep { at_ns, step, detail: detail.into() });
    }

    /// # Errors
    /// When a wait that began with the last step has taken longer than `at_most`.
    pub(super) fn check(&self, at_most: Duration) -> Result<()> {
        if self.last.elapsed() < at_most {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "waited {} ms for the layer's data; 'adit gpu selftest' looks whether the rings work",
            at_most.as_millis()
        )))
    }

    /// Formats a line for each step.
    pub(super) fn lines(&self) -> String {
        let line = |TraceStep { at_ns, step, detail }: &TraceStep| {
            let at = at_ns.map(|ns| format!("{:>10.1} us  ", ns as f64 / 1e3)).unwrap_or_default();
            format!("  {at}{step:<10}  {detail}\n")
        };
        self.steps.iter().map(line).collect()
    }
}
