//! What a run of one configuration measured, as the child process reports it.

use std::time::Duration;

use adit_tensors::{Figures, GroupStats, RunStats};
use serde::{Deserialize, Serialize};

/// A line of the child's.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// An iteration ended; the first, number 0, is prefill.
    Iteration(u32),
    /// The run ended.
    Ended(Box<Outcome>),
    /// The run failed, and why.
    Failed(String),
}

/// What a run measured. Times are in seconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) prefill_s: f64,
    pub(super) decode_s: f64,
    /// Each decode iteration.
    pub(super) iterations_s: Vec<f64>,
    /// Cached layers after each decode iteration.
    pub(super) cached_layers: Vec<u32>,
    /// The share of the bytes read in decode that came from memory, if the kernel said so.
    pub(super) hit_ratio: Option<f64>,
    /// The share of the bytes read of cached layers that had been in memory and were evicted.
    pub(super) refault_ratio: Option<f64>,
    /// The share of direct commands that start where the last one of their stream ended.
    pub(super) sequentiality: Option<f64>,
    pub(super) moved_bytes: u64,
    pub(super) prefill_write: Moves,
    pub(super) decode_read: Moves,
    pub(super) decode_write: Moves,
}

/// One kind of operation on tensors: both groups together.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Moves {
    pub(super) tensors: u64,
    pub(super) average_s: f64,
    /// Of the slower group.
    pub(super) p99_s: f64,
    /// The share of the time of direct transfers in which the device had a command; absent without any.
    pub(super) busy_share: Option<f64>,
}

impl Outcome {
    /// Gathers the figures of a run. Without `is_direct`, no command of it went past the page cache.
    pub(super) fn of(
        stats: &RunStats,
        is_direct: bool,
        prefill: Duration,
        iterations: &[(Duration, u32)],
    ) -> Outcome {
        let moves = |which: fn(&GroupStats) -> &Figures| {
            Moves::of([&stats.cached, &stats.direct].map(which), is_direct)
        };
        let seconds: Vec<f64> = iterations.iter().map(|(took, _)| took.as_secs_f64()).collect();
        Outcome {
            prefill_s: prefill.as_secs_f64(),
            decode_s: seconds.iter().sum(),
            iterations_s: seconds,
            cached_layers: iterations.iter().map(|(_, cached)| *cached).collect(),
            hit_ratio: stats.hit_ratio(),
            refault_ratio: stats.refault_ratio(),
            sequentiality: sequentiality(&stats.direct).filter(|_| is_direct),
            moved_bytes: stats.moved_bytes,
            prefill_write: moves(|group| &group.prefill_write),
            decode_read: moves(|group| &group.decode_read),
            decode_write: moves(|group| &group.decode_write),
        }
    }
}

/// Returns the sequential share of the commands that moved whole tensors.
fn sequentiality(group: &GroupStats) -> Option<f64> {
    let figures = [&group.prefill_write, &group.decode_read];
    let commands: u64 = figures.iter().map(|figures| figures.cost.commands).sum();
    let sequential: u64 = figures.iter().map(|figures| figures.cost.sequential).sum();
    (commands > 0).then(|| sequential as f64 / commands as f64)
}

impl Moves {
    fn of(groups: [&Figures; 2], is_direct: bool) -> Moves {
        let tensors: u64 = groups.iter().map(|figures| figures.latency.count()).sum();
        let total: f64 = groups
            .iter()
            .map(|figures| figures.latency.average().as_secs_f64() * figures.latency.count() as f64)
            .sum();
        let p99 = groups.iter().map(|figures| figures.latency.quantile(0.99)).max();
        Moves {
            tensors,
            average_s: if tensors == 0 { 0.0 } else { total / tensors as f64 },
            p99_s: p99.unwrap_or_default().as_secs_f64(),
            busy_share: busy_share(groups).filter(|_| is_direct),
        }
    }
}

/// Returns the share of the time of direct transfers, of both groups, in which the device had a command.
fn busy_share(groups: [&Figures; 2]) -> Option<f64> {
    let seconds = |of: fn(&Figures) -> Duration| -> f64 {
        groups.iter().map(|figures| of(figures).as_secs_f64()).sum()
    };
    let direct = seconds(|figures| figures.cost.active);
    (direct > 0.0).then(|| seconds(|figures| figures.cost.busy) / direct)
}
