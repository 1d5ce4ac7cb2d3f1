//! Turns the figures of all rounds into tables: medians of rounds, the store's ratio to each engine, the goals.
//!
//! A ratio is the median of the rounds' ratios, each of two figures of one round. The goals are those of docs/perf.md:
//! twice an engine's throughput, or as much as the disk allows, which is what the raw loop reaches in the same round; at
//! most half of its p99 and half of its CPU time per GB.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::engine::Kind;
use crate::measured::Measured;
use crate::message::Ended;
use crate::options::{Options, Phase};

/// Throughput to aim at, as a ratio to another engine's.
const TWICE: f64 = 2.0;
/// Share of the raw loop's throughput that counts as what the disk allows.
const ALLOWED: f64 = 0.95;
const HALF: f64 = 0.5;

/// One engine in one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Turn {
    pub(crate) round: u32,
    pub(crate) engine: Kind,
    pub(crate) phases: Vec<Measured>,
    pub(crate) ended: Ended,
    /// Peak memory of its group, page cache included; `None` without a group.
    pub(crate) peak_bytes: Option<u64>,
}

/// The machine's other load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) memory_is_limited: bool,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    data_bytes: u64,
    memory_bytes: u64,
    /// Memory for objects, if all engines were given the same.
    cache_bytes: Option<u64>,
    object_bytes: u64,
    depth: u32,
    seconds: u64,
    rounds: u32,
    machine: Machine,
    #[serde(skip)]
    engines: Vec<Kind>,
    #[serde(skip)]
    phases: Vec<Phase>,
    turns: Vec<Turn>,
}

/// A figure of an engine in a phase.
type Figure = fn(&Measured) -> f64;

const MB: Figure = |measured| measured.mb_per_second;
const P50: Figure = |measured| measured.p50_us;
const P99: Figure = |measured| measured.p99_us;
const P99_9: Figure = |measured| measured.p99_9_us;
const PROCESSOR: Figure = |measured| measured.processor_seconds_per_gb;

/// Returns the middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) =
        (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Formats a ratio compared with its goal: bold if reached.
fn beside_goal(ratio: Option<f64>, is_reached: impl FnOnce(f64) -> bool) -> String {
    match ratio {
        Some(ratio) if is_reached(ratio) => format!("**{ratio:.2}**"),
        Some(ratio) => format!("{ratio:.2}, missed"),
        None => "-".to_owned(),
    }
}

impl Report {
    pub(crate) fn new(options: &Options, machine: Machine, turns: Vec<Turn>) -> Report {
        let load = &options.load;
        Report {
            data_bytes: load.data.0,
            memory_bytes: load.memory.0,
            cache_bytes: load.cache.map(|cache| cache.0),
            object_bytes: load.object_bytes.0,
            depth: load.depth,
            seconds: load.seconds,
            rounds: options.rounds,
            machine,
            engines: options.engines.clone(),
            phases: [Phase::Fill].into_iter().chain(load.phases.iter().copied()).collect(),
            turns,
        }
    }

    fn of(&self, engine: Kind, phase: Phase) -> impl Iterator<Item = &Measured> {
        let turns = self.turns.iter().filter(move |turn| turn.engine == engine);
        turns.flat_map(|turn| &turn.phases).filter(move |measured| measured.phase == phase)
    }

    fn median(&self, engine: Kind, phase: Phase, figure: Figure) -> Option<f64> {
        median(self.of(engine, phase).map(figure).collect())
    }

    /// Returns the median, over the rounds that have both, of a figure's ratio of `of` to `to`.
    fn ratio(&self, of: Kind, to: Kind, phase: Phase, figure: Figure) -> Option<f64> {
        let in_round = |engine, round| {
            let turns = self.turns.iter().filter(move |turn| turn.round == round);
            let mut phases =
                turns.filter(move |turn| turn.engine == engine).flat_map(|t| &t.phases);
            phases.find(|measured| measured.phase == phase).map(figure)
        };
        let ratio = |round| Some(in_round(of, round)? / in_round(to, round)?);
        median((1..=self.rounds).filter_map(ratio).filter(|ratio| ratio.is_finite()).collect())
    }

    /// Returns the throughput to aim at as a ratio to `other`'s, no more than the disk allows if that was measured.
    fn throughput_goal(&self, other: Kind, phase: Phase) -> f64 {
        let allowed = self.ratio(Kind::Raw, other, phase, MB);
        allowed.map_or(TWICE, |allowed| TWICE.min(ALLOWED * allowed))
    }

    /// # Errors
    /// If an engine returned wrong bytes, which invalidates its other figures.
    pub(crate) fn check(&self) -> Result<()> {
        for turn in &self.turns {
            if let Some(measured) = turn.phases.iter().find(|measured| measured.wrong > 0) {
                bail!(
                    "{} returned wrong bytes in round {}: {} gets of {} in '{}'",
                    turn.engine.name(),
                    turn.round,
                    measured.wrong,
                    measured.gets,
                    measured.phase.title()
                );
            }
        }
        Ok(())
    }

    /// Formats tables for a page of documentation.
    pub(crate) fn markdown(&self) -> String {
        let mut out = self.head();
        for &phase in &self.phases {
            let _ = write!(out, "\n## {}\n\n{}", phase.title(), self.figures(phase));
            if self.engines.contains(&Kind::Adit) {
                let _ = write!(out, "\n{}", self.goals(phase));
            }
        }
        let _ = write!(out, "\n## Engines\n\n{}", self.about());
        out
    }

    fn head(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let bound = match self.machine.memory_is_limited {
            true => "in a memory group, page cache included",
            false => {
                "**not bounded**, as no memory group can be made here: the page cache is emptied between phases only"
            }
        };
        let cache = self.cache_bytes.map_or(String::new(), |bytes| {
            format!(", of which each keeps objects in {} MiB", mib(bytes))
        });
        format!(
            "{} MiB of data in objects of {} KiB, memory {} MiB ({bound}){cache}, {} in flight, {} s a phase, median of {} rounds, taken in \
             turns. Load average {} before, {} after.\n",
            mib(self.data_bytes),
            self.object_bytes >> 10,
            mib(self.memory_bytes),
            self.depth,
            self.seconds,
            self.rounds,
            self.machine.load_before,
            self.machine.load_after,
        )
    }

    fn figures(&self, phase: Phase) -> String {
        let mut out = String::from(
            "| engine | MB/s (min to max) | p50 us | p99 us | p99.9 us | CPU s per GB | misses | wrong |\n|---|---|---|---|---|---|---|---|\n",
        );
        for &engine in &self.engines {
            let rates = || self.of(engine, phase).map(MB);
            let (least, most) =
                (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
            let figure = |figure, digits: usize| {
                self.median(engine, phase, figure)
                    .map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let _ = writeln!(
                out,
                "| {} | {} ({least:.0} to {most:.0}) | {} | {} | {} | {} | {} | {} |",
                engine.name(),
                figure(MB, 0),
                figure(P50, 0),
                figure(P99, 0),
                figure(P99_9, 0),
                figure(PROCESSOR, 3),
                self.of(engine, phase).map(|measured| measured.misses).sum::<u64>(),
                self.of(engine, phase).map(|measured| measured.wrong).sum::<u64>(),
            );
        }
        out
    }

    fn goals(&self, phase: Phase) -> String {
        let mut out = String::from(
            "| adit to | throughput | goal | the disk allows | p99 (goal 0.5 or less) | CPU s per GB (goal 0.5 or less) |\n|---|---|---|---|---|---|\n",
        );
        let plain =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        for &other in self.engines.iter().filter(|engine| **engine != Kind::Adit) {
            let to = |figure| self.ratio(Kind::Adit, other, phase, figure);
            let cells = match other {
                // Not a rival, so there is no goal.
                Kind::Raw => {
                    [plain(to(MB)), "".into(), "1.00".into(), plain(to(P99)), plain(to(PROCESSOR))]
                }
                _ => {
                    let goal = self.throughput_goal(other, phase);
                    [
                        beside_goal(to(MB), |ratio| ratio >= goal),
                        format!("{goal:.2}"),
                        plain(self.ratio(Kind::Raw, other, phase, MB)),
                        beside_goal(to(P99), |ratio| ratio <= HALF),
                        beside_goal(to(PROCESSOR), |ratio| ratio <= HALF),
                    ]
                }
            };
            let _ = writeln!(out, "| {} | {} |", other.name(), cells.join(" | "));
        }
        out
    }

    fn about(&self) -> String {
        let mut out = String::from(
            "| engine | set up as | promises | resident, most MiB | with page cache, most MiB |\n|---|---|---|---|---|\n",
        );
        for &engine in &self.engines {
            let turns = || self.turns.iter().filter(|turn| turn.engine == engine);
            let Some(any) = turns().next() else { continue };
            let resident =
                turns().map(|turn| turn.ended.resident_bytes_max).max().unwrap_or_default();
            let peak = turns().filter_map(|turn| turn.peak_bytes).max();
            let peak = peak.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string());
            let Ended { setup, promise, .. } = &any.ended;
            let _ = writeln!(
                out,
                "| {} | {setup} | {promise} | {} | {peak} |",
                engine.name(),
                resident >> 20
            );
        }
        out
    }
}

#[cfg(test)]
mod tests;
