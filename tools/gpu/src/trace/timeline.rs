//! Records steps with the time at which each ended, and formats them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Result};

/// Steps in the order they happened.
#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    steps: Vec<TraceStep>,
}

#[derive(Debug)]
struct TraceStep {
    /// Time since the start.
    at: Duration,
    what: &'static str,
    detail: String,
}

impl Timeline {
    /// Starts a timeline.
    pub(super) fn begin() -> Timeline {
        Timeline { begun: Instant::now(), steps: Vec::new() }
    }

    /// Records the end of a step.
    pub(super) fn step(&mut self, what: &'static str, detail: impl Into<String>) {
        self.steps.push(TraceStep { at: self.begun.elapsed(), what, detail: detail.into() });
    }

    /// # Errors
    /// When a wait that began with the last step has taken longer than `at_most`.
    pub(super) fn check(&self, at_most: Duration) -> Result<()> {
        let since = self.steps.last().map_or(Duration::ZERO, |step| step.at);
        if self.begun.elapsed() - since < at_most {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "waited {} ms for the layer's data; 'adit gpu selftest' looks whether the rings work",
            at_most.as_millis()
        )))
    }

    /// Formats a line for each step, with its time if that means anything.
    pub(super) fn lines(&self, has_times: bool) -> String {
        let line = |step: &TraceStep| {
            let at_us = step.at.as_nanos() as f64 / 1e3;
            let at = if has_times { format!("{at_us:>10.1} us  ") } else { String::new() };
            format!("  {at}{:<10}  {}\n", step.what, step.detail)
        };
        self.steps.iter().map(line).collect()
    }

    /// Formats the steps for programs; times that mean nothing are null.
    pub(super) fn json(&self, has_times: bool) -> Value {
        let at_ns = |step: &TraceStep| has_times.then_some(step.at.as_nanos() as u64);
        let one = |step: &TraceStep| json!({ "at_ns": at_ns(step), "step": step.what, "detail": step.detail });
        self.steps.iter().map(one).collect()
    }
}
