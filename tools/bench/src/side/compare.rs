//! `adit bench compare`: finds figures that got worse.
//!
//! Matches the figures of two reports by job, target, sweep and way. With several rounds on both sides, a
//! change counts only if the ratio's interval excludes 1. With one round, the threshold decides, and
//! percentiles with too few I/Os beyond them are not judged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use adit_load::Estimate;
use clap::Args;
use serde_json::{Value, json};

use super::figures::{LatencyKind, Metric, ReportEntry};
use super::file;
use super::summary::{self, Point};
use super::table::{self, Table};
use crate::failure::{Failure, Result};
use crate::options::fraction;
use crate::output::Output;
use crate::way::Way;

/// A percentile of a single run is judged only if at least this many I/Os were slower.
const SLOWER_MIN: f64 = 100.0;

/// Compares two reports in JSON, ours or fio's, and fails if anything got worse
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  adit bench jobs.fio --output-format=json --rounds 6 --output old.json
  adit bench compare old.json new.json --threshold 3%

Exit codes: 0 nothing got worse, 1 something did, 2 the command line or a file is at fault.")]
pub(crate) struct CompareArgs {
    /// The report to compare with
    old: PathBuf,
    /// The report to judge
    new: PathBuf,
    /// The greatest tolerated change for the worse
    #[arg(long, default_value = "5%", value_parser = percent, value_name = "PERCENT")]
    threshold: f64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Parses a percentage as a fraction.
fn percent(text: &str) -> std::result::Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    fraction(number, 0.0, 1000.0).map(|percent| percent / 100.0)
}

/// Runs the command.
///
/// # Errors
/// A usage error if a file is no report or the reports have nothing in common; a failure if a figure got worse.
pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    let (reports, kind) = file::alike(&[&args.old, &args.new])?;
    let both = format!("{} and {}", args.old.display(), args.new.display());
    let Some(kind) = kind else {
        return Err(Failure::usage(format!(
            "{both}: one report has only total latencies (lat), the other only those of completion (clat), which cannot \
             be compared; make both with lat_percentiles=1"
        )));
    };
    let changes = Changes::between(&reports[0].entries, &reports[1].entries, kind, args.threshold);
    if changes.rows.is_empty() {
        return Err(Failure::usage(format!(
            "{both} have no job in common: jobs match by name, target and sweep"
        )));
    }
    let text = if args.json { format!("{:#}\n", changes.json()) } else { changes.text() };
    Output::open(None)?.write(&text)?;
    match changes.count(Verdict::Worse) {
        0 => Ok(()),
        worse => Err(Failure::failed(format!(
            "{worse} of {} figures got worse by more than {:.1} %",
            changes.rows.len(),
            args.threshold * 100.0
        ))),
    }
}

/// The judgement of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Worse beyond the threshold, and significant.
    Worse,
    /// Better beyond the threshold, and significant.
    Better,
    /// Within the threshold.
    Same,
    /// Beyond the threshold, but not significant.
    Noise,
    /// Too few I/Os to judge.
    Few,
}

impl Verdict {
    fn name(self) -> &'static str {
        ["worse", "better", "same", "within noise", "too few I/Os"][self as usize]
    }
}

/// One metric of both reports.
#[derive(Debug)]
struct ChangeRow {
    job: String,
    target: String,
    way: Way,
    metric: Metric,
    old: Estimate,
    new: Estimate,
    /// New to old.
    ratio: Estimate,
    verdict: Verdict,
}

/// The metrics common to both reports, and those only one has.
#[derive(Debug)]
struct Changes {
    rows: Vec<ChangeRow>,
    only_old: Vec<String>,
    only_new: Vec<String>,
    /// The kind of all latencies.
    kind: LatencyKind,
    rounds: (usize, usize),
}

impl Changes {
    /// Compares the entries of two reports, whose latencies are of one `kind`.
    fn between(
        old: &[ReportEntry],
        new: &[ReportEntry],
        kind: LatencyKind,
        threshold: f64,
    ) -> Changes {
        let (old_points, new_points) = (&summary::points(old, None), &summary::points(new, None));
        let ignore_targets = targets_are_renamed(old_points, new_points);
        let is_peer =
            |a: &Point, b: &Point| a.is_peer_of(b) && (ignore_targets || a.target == b.target);
        let mut rows = Vec::new();
        for new_point in new_points {
            let Some(old_point) = old_points.iter().find(|point| is_peer(point, new_point)) else {
                continue;
            };
            let ios = least_ios(new, new_point).min(least_ios(old, old_point));
            let row = |metric| ChangeRow::of(old_point, new_point, metric, ios, threshold);
            rows.extend(Metric::ALL.into_iter().filter_map(row));
        }
        let lonely = |points: &[Point], others: &[Point]| {
            let is_alone = |point: &&Point| !others.iter().any(|other| is_peer(point, other));
            let alone = points.iter().filter(is_alone);
            alone.map(label).collect::<Vec<_>>()
        };
        Changes {
            rows,
            only_old: lonely(old_points, new_points),
            only_new: lonely(new_points, old_points),
            kind,
            rounds: (rounds(old_points), rounds(new_points)),
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    fn text(&self) -> String {
        let heading = ["job", "target", "way", "", "old", "new", "ratio", "verdict"];
        let mut table = Table::new(&heading, 4);
        for row in &self.rows {
            table.push(row.cells(self.kind));
        }
        let mut text = table.render();
        for (names, which) in [(&self.only_old, "old"), (&self.only_new, "new")] {
            for name in names {
                text.push_str(&format!(
                    "only in the {which} report: {}\n",
                    crate::human::printable(name)
                ));
            }
        }
        text + &self.remark()
    }

    fn remark(&self) -> String {
        let (old, new) = self.rounds;
        match self.rows.iter().all(|row| row.ratio.confident) {
            _ if old.min(new) < 2 => {
                "one round does not show the noise: only the threshold decides\n".to_owned()
            }
            true => format!("rounds: {old} and {new}; in parentheses 95 % intervals\n"),
            false => format!(
                "rounds: {old} and {new}; in parentheses least and greatest of all pairs (95 % needs 4 and 4)\n"
            ),
        }
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| row.json(self.kind)).collect();
        json!({
            "rows": rows,
            "only_in_old": self.only_old,
            "only_in_new": self.only_new,
            "worse": self.count(Verdict::Worse),
        })
    }
}

impl ChangeRow {
    fn of(old: &Point, new: &Point, metric: Metric, ios: u64, threshold: f64) -> Option<ChangeRow> {
        let (old_figure, new_figure) = (old.figure(metric)?, new.figure(metric)?);
        let samples = |of: &BTreeMap<u64, f64>| of.values().copied().collect::<Vec<f64>>();
        let ratio =
            Estimate::of_ratio(&samples(&old_figure.samples), &samples(&new_figure.samples))?;
        Some(ChangeRow {
            job: [new.job.clone(), new.sweep_text()].join(" ").trim_end().to_owned(),
            target: match old.target == new.target {
                true => new.target.clone(),
                false => format!("{} -> {}", old.target, new.target),
            },
            way: new.way,
            metric,
            old: old_figure.estimate,
            new: new_figure.estimate,
            ratio,
            verdict: judge(metric, ratio, ios, threshold),
        })
    }

    fn cells(&self, kind: LatencyKind) -> Vec<String> {
        vec![
            self.job.clone(),
            self.target.clone(),
            self.way.name().to_owned(),
            match kind {
                LatencyKind::Completion if self.metric.is_latency() => {
                    format!("{} (clat)", self.metric.name())
                }
                _ => self.metric.name().to_owned(),
            },
            self.metric.show(self.old.median),
            self.metric.show(self.new.median),
            table::ratio(self.ratio),
            self.verdict.name().to_owned(),
        ]
    }

    fn json(&self, kind: LatencyKind) -> Value {
        json!({
            "job": self.job,
            "target": self.target,
            "way": self.way.name(),
            "metric": self.metric.key(),
            "latency": self.metric.is_latency().then(|| kind.name()),
            "old": self.old,
            "new": self.new,
            "ratio": self.ratio,
            "verdict": self.verdict.name(),
        })
    }
}

fn judge(metric: Metric, ratio: Estimate, ios: u64, threshold: f64) -> Verdict {
    let slower = metric.percentile().map(|percent| ios as f64 * (100.0 - percent) / 100.0);
    // Of 1,000,000 I/Os, 100 are above the 99.99th percentile; the division above is inexact.
    let is_few = slower.is_some_and(|slower| slower < SLOWER_MIN - 1e-3);
    if ratio.samples < 2 && is_few {
        return Verdict::Few;
    }
    let more = ratio.median - 1.0;
    let worse = if metric.more_is_better() { -more } else { more };
    // The tolerance makes a change of exactly the threshold pass.
    if worse.abs() <= threshold + 1e-5 {
        Verdict::Same
    } else if ratio.samples > 1 && !ratio.differs() {
        Verdict::Noise
    } else if worse > 0.0 {
        Verdict::Worse
    } else {
        Verdict::Better
    }
}

/// Returns whether both reports have only one target, so that a file on another machine still matches.
fn targets_are_renamed(old: &[Point], new: &[Point]) -> bool {
    let single = |points: &[Point]| {
        let of_same = |a: &Point, b: &Point| a.is_peer_of(b) && a.target != b.target;
        !points.iter().any(|a| points.iter().any(|b| of_same(a, b)))
    };
    single(old) && single(new)
}

fn label(point: &Point) -> String {
    let parts = [&point.job, &point.sweep_text(), &point.target, point.way.name()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns the fewest I/Os of any round.
fn least_ios(entries: &[ReportEntry], point: &Point) -> u64 {
    let same = entries.iter().filter(|entry| point.covers(entry));
    same.filter_map(|entry| entry.ways[point.way].as_ref()).map(|way| way.ios).min().unwrap_or(0)
}

fn rounds(points: &[Point]) -> usize {
    points
        .iter()
        .flat_map(|point| &point.figures)
        .map(|figure| figure.estimate.samples)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::figures;
    use crate::side::summary::tests::report;

    const COMPLETION: LatencyKind = LatencyKind::Completion;

    fn changes(old: &[f64], new: &[f64], threshold: f64) -> Changes {
        let (old, new) = (entries(&report(old, 1.0)), entries(&report(new, 1.0)));
        Changes::between(&old, &new, COMPLETION, threshold)
    }

    fn entries(report: &Value) -> Vec<ReportEntry> {
        figures::entries(report, Some(COMPLETION)).expect("entries")
    }

    fn verdict(changes: &Changes, metric: Metric) -> Verdict {
        changes.rows.iter().find(|row| row.metric == metric).expect("the metric").verdict
    }

    #[test]
    fn a_change_beyond_the_threshold_is_judged_by_its_direction() {
        let slower = changes(&[1000.0], &[900.0], 0.05);
        assert_eq!(verdict(&slower, Metric::Iops), Verdict::Worse);
        assert_eq!(verdict(&slower, Metric::Mean), Verdict::Worse);
        assert_eq!(verdict(&slower, Metric::Cpu), Verdict::Same);
        let faster = changes(&[1000.0], &[1100.0], 0.05);
        assert_eq!(verdict(&faster, Metric::Iops), Verdict::Better);
        assert_eq!(verdict(&faster, Metric::Mean), Verdict::Better);
        assert_eq!(faster.count(Verdict::Worse), 0);
    }

    #[test]
    fn the_threshold_itself_is_not_beyond_it() {
        assert_eq!(verdict(&changes(&[1000.0], &[950.0], 0.05), Metric::Iops), Verdict::Same);
        assert_eq!(verdict(&changes(&[1000.0], &[949.0], 0.05), Metric::Iops), Verdict::Worse);
    }

    #[test]
    fn rounds_that_overlap_are_noise_and_those_that_do_not_are_none() {
        let noisy = changes(&[1000.0, 800.0, 1200.0, 900.0], &[900.0, 1000.0, 700.0, 850.0], 0.05);
        assert_eq!(verdict(&noisy, Metric::Iops), Verdict::Noise);
        let clear = changes(&[1000.0, 990.0, 1010.0, 1005.0], &[900.0, 910.0, 890.0, 905.0], 0.05);
        assert_eq!(verdict(&clear, Metric::Iops), Verdict::Worse);
    }

    #[test]
    fn tails_of_few_ios_are_not_judged() {
        let ratio = Estimate::of_ratio(&[1.0], &[2.0]).expect("a ratio");
        assert_eq!(judge(Metric::P9999, ratio, 990_000, 0.05), Verdict::Few);
        assert_eq!(judge(Metric::P9999, ratio, 1_000_000, 0.05), Verdict::Worse);
        assert_eq!(judge(Metric::P99, ratio, 9_900, 0.05), Verdict::Few);
        assert_eq!(judge(Metric::Mean, ratio, 1, 0.05), Verdict::Worse);
    }

    #[test]
    fn what_only_one_has_is_listed() {
        let old = entries(&report(&[1000.0], 1.0));
        let mut new = old.clone();
        new[1].job = "<other>".into();
        let changes = Changes::between(&old, &new, COMPLETION, 0.05);
        assert_eq!(changes.only_old, ["j b read"]);
        assert_eq!(changes.only_new, ["<other> b read"]);
        assert!(changes.text().contains("only in the new report: <other> b read"));
        assert!(changes.text().contains("p99 (clat)"));
    }

    #[test]
    fn thresholds_are_shares_in_percent() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("0.5"), Ok(0.005));
        for text in ["", "%", "-1%", "x", "nan", "1001"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
