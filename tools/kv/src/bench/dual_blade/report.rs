//! The report: each run for programs, medians for people.

use std::fmt::Write;

use adit_load::median;
use adit_tensors::Shape;
use serde_json::{Value, json};

use super::configuration::Configuration;
use super::options::{Plan, Task, TensorArgs};
use super::outcome::{Moves, Outcome};
use crate::human;

/// A run that ended.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) configuration: Configuration,
    pub(super) limit: Option<u64>,
    pub(super) round: u32,
    pub(super) outcome: Outcome,
}

/// All runs of a command.
#[derive(Debug)]
pub(super) struct Report {
    task: Task,
    shape: Shape,
    /// Of the model; a GPU has its own.
    h2d: Option<u64>,
    gpu: Option<u32>,
    halve_after: Option<u32>,
    pub(super) runs: Vec<Run>,
}

/// The runs of one configuration at one limit, as medians.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) configuration: Configuration,
    pub(super) limit: Option<u64>,
    pub(super) median: Outcome,
}

impl Report {
    pub(super) fn new(task: Task, plan: &Plan, args: &TensorArgs) -> Report {
        let (shape, gpu, halve_after) = (plan.shape, args.gpu, args.halve_after);
        let h2d = gpu.is_none().then_some(args.h2d);
        Report { task, shape, h2d, gpu, halve_after, runs: Vec::new() }
    }

    /// Bytes of all tensors.
    pub(super) fn set_bytes(&self) -> u64 {
        self.shape.set_bytes()
    }

    /// Returns the medians, in the order in which limits and configurations first ran.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for run in &self.runs {
            let (configuration, limit) = (run.configuration, run.limit);
            let is_it = |row: &Row| row.configuration == configuration && row.limit == limit;
            if !rows.iter().any(is_it) {
                let same =
                    |other: &&Run| other.configuration == configuration && other.limit == limit;
                let outcomes: Vec<&Outcome> =
                    self.runs.iter().filter(same).map(|run| &run.outcome).collect();
                rows.push(Row { configuration, limit, median: median_of(&outcomes) });
            }
        }
        rows
    }

    /// Formats the report for programs.
    pub(super) fn json(&self) -> String {
        let runs: Vec<Value> = self.runs.iter().map(Run::json).collect();
        let report = json!({
            "workload": self.task.name,
            "model": self.shape.model.name,
            "batch": self.shape.batch,
            "prompt_tokens": self.shape.prompt_tokens,
            "generated_tokens": self.shape.generated_tokens,
            "set_bytes": self.set_bytes(),
            "h2d_bytes_per_s": self.h2d,
            "gpu": self.gpu,
            "halved_after_iteration": self.halve_after,
            "runs": runs,
        });
        format!("{report:#}\n")
    }

    /// Formats the report for people.
    pub(super) fn table(&self) -> String {
        let shape = &self.shape;
        let mut text = format!(
            "{}, {}: batch {}, {} tokens and {} generated, {} in {} tensors; medians of each configuration\n\n\
             {:>9}  {:<8} {:>8} {:>8} {:>6} {:>8} {:>6}  {:>5} {:>20} {:>20} {:>20}\n",
            self.task.name,
            shape.model.name,
            shape.batch,
            shape.prompt_tokens,
            shape.generated_tokens,
            human::bytes(self.set_bytes() as f64),
            2 * shape.model.layers,
            "limit",
            "config",
            "prefill",
            "decode",
            "hits",
            "refaults",
            "seq.",
            "busy",
            "prefill write, p99",
            "decode read, p99",
            "decode write, p99",
        );
        for row in self.rows() {
            row.write(&mut text);
        }
        text
    }
}

impl Run {
    fn json(&self) -> Value {
        let mut run = json!({
            "config": self.configuration.name(),
            "memory_limit_bytes": self.limit,
            "round": self.round,
        });
        let outcome = serde_json::to_value(&self.outcome).expect("numbers are JSON");
        if let (Value::Object(run), Value::Object(outcome)) = (&mut run, outcome) {
            run.extend(outcome);
        }
        run
    }
}

impl Row {
    fn write(&self, text: &mut String) {
        let Outcome { prefill_s, decode_s, .. } = self.median;
        let limit = self.limit.map_or("none".to_owned(), |limit| human::bytes(limit as f64));
        let percent = |share: Option<f64>| {
            share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0))
        };
        let pair = |moves: &Moves| {
            let ns = |seconds: f64| human::latency((seconds * 1e9) as u64);
            format!("{}, {}", ns(moves.average_s), ns(moves.p99_s))
        };
        let median = &self.median;
        writeln!(
            text,
            "{limit:>9}  {:<8} {prefill_s:>7.2}s {decode_s:>7.2}s {:>6} {:>8} {:>6}  {:>5} {:>20} {:>20} {:>20}",
            self.configuration.name(),
            percent(median.hit_ratio),
            percent(median.refault_ratio),
            percent(median.sequentiality),
            percent(median.decode_read.busy_share),
            pair(&median.prefill_write),
            pair(&median.decode_read),
            pair(&median.decode_write),
        )
        .expect("a string takes all");
    }
}

/// Returns the median of each figure by itself.
fn median_of(outcomes: &[&Outcome]) -> Outcome {
    assert!(!outcomes.is_empty(), "a row has a run");
    let number = |of: &dyn Fn(&Outcome) -> f64| {
        median(&outcomes.iter().map(|outcome| of(outcome)).collect::<Vec<_>>())
            .expect("a row has a run")
    };
    let share = |of: &dyn Fn(&Outcome) -> Option<f64>| {
        median(&outcomes.iter().filter_map(|outcome| of(outcome)).collect::<Vec<_>>())
    };
    let moves = |of: fn(&Outcome) -> Moves| Moves {
        tensors: of(outcomes[0]).tensors,
        average_s: number(&|outcome| of(outcome).average_s),
        p99_s: number(&|outcome| of(outcome).p99_s),
        busy_share: share(&|outcome| of(outcome).busy_share),
    };
    Outcome {
        prefill_s: number(&|outcome| outcome.prefill_s),
        decode_s: number(&|outcome| outcome.decode_s),
        hit_ratio: share(&|outcome| outcome.hit_ratio),
        refault_ratio: share(&|outcome| outcome.refault_ratio),
        sequentiality: share(&|outcome| outcome.sequentiality),
        prefill_write: moves(|outcome| outcome.prefill_write),
        decode_read: moves(|outcome| outcome.decode_read),
        decode_write: moves(|outcome| outcome.decode_write),
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_numbers_there_are() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        let of = |prefill_s, hit_ratio| Outcome { prefill_s, hit_ratio, ..Outcome::default() };
        let all = [of(1.0, None), of(9.0, Some(0.5)), of(2.0, Some(0.7))];
        let median = median_of(&all.iter().collect::<Vec<_>>());
        assert_eq!((median.prefill_s, median.hit_ratio), (2.0, Some(0.6)));
    }
}
