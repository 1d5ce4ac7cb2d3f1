//! Turns the figures of all rounds into a table for each phase: medians of rounds, each engine's ratio to the raw loop,
//! which is the disk's own bound, and the ratio of the store with as much memory to each engine.
//!
//! A ratio is the median of the rounds' ratios, each of two figures of one round.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::engine::Kind;
use crate::measured::Measured;
use crate::message::Ended;
use crate::options::{Options, Phase};

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
    /// Memory in which engines with a tier keep objects.
    cache_bytes: u64,
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
const PROCESSOR: Figure = |measured| measured.processor_seconds_per_gb;

/// Returns the middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) =
        (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Formats a figure; `-` if there is none.
fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl Report {
    pub(crate) fn new(options: &Options, machine: Machine, turns: Vec<Turn>) -> Report {
        let load = &options.load;
        Report {
            data_bytes: load.data.0,
            memory_bytes: load.memory.0,
            cache_bytes: load.cache_bytes(),
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
        format!(
            "{} MiB of data in objects of {} KiB, memory {} MiB ({bound}), {} in flight, {} s a phase, \
             medians of {} rounds, taken in turns. `raw` is the disk's own bound in the same round. Load average {} before, {} after.\n",
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
            "| engine | cache MiB | MB/s (min to max) | of raw | p50 us | p99 us | CPU s per GB | hits in memory \
             | misses | the store to it: MB/s | p99 | CPU |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for &engine in &self.engines {
            let figure = |figure, digits| cell(self.median(engine, phase, figure), digits);
            let hits = self.of(engine, phase).filter_map(Measured::hit_ratio).collect();
            let store = if engine.has_cache() { Kind::AditTier } else { Kind::Adit };
            let beside = |figure| match engine {
                Kind::Raw | Kind::Raw4k | Kind::Adit | Kind::AditTier => String::new(),
                _ => cell(self.ratio(store, engine, phase, figure), 2),
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                engine.name(),
                if engine.has_cache() { self.cache_bytes >> 20 } else { 0 },
                self.rates(engine, phase),
                cell(self.ratio(engine, Kind::Raw, phase, MB), 2),
                figure(P50, 0),
                figure(P99, 0),
                figure(PROCESSOR, 3),
                cell(median(hits), 2),
                self.of(engine, phase).map(|measured| measured.misses).sum::<u64>(),
                beside(MB),
                beside(P99),
                beside(PROCESSOR),
            );
        }
        out
    }

    /// Formats the throughputs of all rounds.
    fn rates(&self, engine: Kind, phase: Phase) -> String {
        let rates = || self.of(engine, phase).map(MB);
        let Some(median) = median(rates().collect()) else { return cell(None, 0) };
        let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        format!("{median:.0} ({least:.0} to {most:.0})")
    }

    fn about(&self) -> String {
        let mut out = String::from(
            "| engine | set up as | promises | resident, most MiB | with page cache, most MiB \
             | open files with O_DIRECT |\n\
             |---|---|---|---|---|---|\n",
        );
        for &engine in &self.engines {
            let turns = || self.turns.iter().filter(|turn| turn.engine == engine);
            let Some(any) = turns().next() else { continue };
            let resident =
                turns().map(|turn| turn.ended.resident_bytes_max).max().unwrap_or_default();
            let peak = turns().filter_map(|turn| turn.peak_bytes).max();
            let peak = peak.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string());
            let Ended { setup, promise, open_files, .. } = &any.ended;
            let _ = writeln!(
                out,
                "| {} | {setup} | {promise} | {} | {peak} | {} of {} |",
                engine.name(),
                resident >> 20,
                open_files.direct,
                open_files.all
            );
        }
        out
    }
}

#[cfg(test)]
mod tests;
