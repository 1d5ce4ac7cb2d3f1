//! Summarizes rounds: medians of each job on each path, and ratios to the first path.

use std::collections::BTreeMap;

use adit_load::Estimate;
use serde_json::{Map, Value, json};

use super::figures::{Metric, ReportEntry};
use crate::report::object;
use crate::way::Way;

/// One way of a job on one target with one value per sweep, over all rounds.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// The job's name.
    pub(crate) job: String,
    /// The values of the sweep.
    pub(crate) sweep: Vec<(String, String)>,
    pub(crate) target: String,
    pub(crate) way: Way,
    /// The measured metrics.
    pub(crate) figures: Vec<Figure>,
}

/// One metric of a point.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) metric: Metric,
    /// Its value by round.
    pub(crate) samples: BTreeMap<u64, f64>,
    /// Its median.
    pub(crate) estimate: Estimate,
    /// The median of its ratios to the first target, round by round; `None` for the first itself.
    pub(crate) ratio: Option<Estimate>,
}

impl Point {
    pub(crate) fn figure(&self, metric: Metric) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.metric == metric)
    }

    /// Returns whether both are the same job, way and sweep values.
    pub(super) fn is_peer_of(&self, other: &Point) -> bool {
        (&self.job, &self.sweep, self.way) == (&other.job, &other.sweep, other.way)
    }

    /// Returns whether it summarizes the entry, in its way.
    pub(super) fn covers(&self, entry: &ReportEntry) -> bool {
        (&self.job, &self.sweep, &self.target) == (&entry.job, &entry.sweep, &entry.target)
    }

    /// Formats `iodepth=4 bs=8k`.
    pub(super) fn sweep_text(&self) -> String {
        sweep_text(&self.sweep)
    }

    /// Formats it as JSON.
    pub(super) fn json(&self) -> Value {
        let figures: Map<String, Value> = self
            .figures
            .iter()
            .map(|figure| (figure.metric.key().to_owned(), figure.json()))
            .collect();
        json!({
            "job": self.job,
            "target": self.target,
            "sweep": object(&self.sweep),
            "way": self.way.name(),
            "figures": figures,
        })
    }
}

impl Figure {
    fn json(&self) -> Value {
        json!({ "value": self.estimate, "ratio": self.ratio })
    }
}

/// Formats `iodepth=4 bs=8k`.
pub(super) fn sweep_text(sweep: &[(String, String)]) -> String {
    sweep.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Summarizes `entries` in the order of their first appearance; ratios compare with `first` if it is present,
/// else with the first target.
pub(super) fn points(entries: &[ReportEntry], first: Option<&str>) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for entry in entries {
        for (way, _) in entry.done() {
            if !points.iter().any(|point| point.covers(entry) && point.way == way) {
                points.push(Point::of(entry, way, entries));
            }
        }
    }
    sort_by_job(&mut points, entries);
    compare_with_first(&mut points, first);
    points
}

impl Point {
    fn of(like: &ReportEntry, way: Way, entries: &[ReportEntry]) -> Point {
        let same = entries.iter().filter(|entry| {
            (&entry.job, &entry.sweep, &entry.target) == (&like.job, &like.sweep, &like.target)
        });
        let figure = |metric: Metric| {
            let sample = |entry: &ReportEntry| Some((entry.round, entry.metric(way, metric)?));
            let samples: BTreeMap<u64, f64> = same.clone().filter_map(sample).collect();
            let values: Vec<f64> = samples.values().copied().collect();
            Some(Figure { metric, estimate: Estimate::of(&values)?, samples, ratio: None })
        };
        Point {
            job: like.job.clone(),
            sweep: like.sweep.clone(),
            target: like.target.clone(),
            way,
            figures: Metric::ALL.into_iter().filter_map(figure).collect(),
        }
    }
}

/// Sorts points into a fixed order, because rounds run in changing order.
fn sort_by_job(points: &mut [Point], entries: &[ReportEntry]) {
    let first_round = entries.iter().map(|entry| entry.round).min();
    let in_first = || entries.iter().filter(|entry| Some(entry.round) == first_round);
    let job_of = |point: &Point| in_first().position(|entry| entry.job == point.job);
    let sweep_of = |point: &Point| in_first().position(|entry| entry.sweep == point.sweep);
    // The first target overall comes first in each job.
    let target_of = |point: &Point| entries.iter().position(|entry| entry.target == point.target);
    points.sort_by_key(|point| (job_of(point), sweep_of(point), point.way, target_of(point)));
}

fn compare_with_first(points: &mut [Point], first: Option<&str>) {
    let all = points.to_vec();
    for point in points {
        let mut peers = all.iter().filter(|other| other.is_peer_of(point));
        let Some(found) = peers.clone().find(|peer| Some(&*peer.target) == first).or(peers.next())
        else {
            continue;
        };
        if found.target == point.target {
            continue;
        }
        for figure in &mut point.figures {
            figure.ratio = found.figure(figure.metric).and_then(|base| ratio(figure, base));
        }
    }
}

/// Compares with the points of a report made separately, so that their rounds do not correspond: with those on `target`
/// if there are any.
#[cfg(feature = "report")]
pub(super) fn compare_apart(point: &mut Point, known: &[Point], target: &str) {
    let mut peers = known.iter().filter(|other| other.is_peer_of(point));
    let base = peers.clone().find(|other| other.target == target).or(peers.next());
    for figure in &mut point.figures {
        let values = |samples: &BTreeMap<u64, f64>| samples.values().copied().collect::<Vec<_>>();
        let base = base.and_then(|base| base.figure(figure.metric));
        figure.ratio = base
            .and_then(|base| Estimate::of_ratio(&values(&base.samples), &values(&figure.samples)));
    }
}

/// Computes the ratio round by round, which cancels effects common to a round.
fn ratio(figure: &Figure, base: &Figure) -> Option<Estimate> {
    let of_round = |(round, value): (&u64, &f64)| {
        base.samples.get(round).filter(|base| **base > 0.0).map(|base| value / base)
    };
    Estimate::of(&figure.samples.iter().filter_map(of_round).collect::<Vec<f64>>())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::side::figures::entries;

    /// Returns a report of a reading job on two targets, with one round per rate; the second target is `factor`
    /// times as fast.
    pub(in crate::side) fn report(rates: &[f64], factor: f64) -> Value {
        let job = |round: usize, target: &str, iops: f64| {
            let percentiles = json!({ "50.000000": 5e8 / iops, "99.000000": 2e9 / iops });
            json!({
                "jobname": "j",
                "read": {
                    "total_ios": 1_000_000, "iops": iops, "bw_bytes": iops * 4096.0,
                    "clat_ns": { "mean": 1e9 / iops, "percentile": percentiles },
                },
                "adit": { "round": round, "target": target, "cpu_ns_per_io": 300.0 },
            })
        };
        let jobs = rates.iter().enumerate().flat_map(|(round, rate)| {
            [job(round + 1, "a", *rate), job(round + 1, "b", rate * factor)]
        });
        json!({ "jobs": jobs.collect::<Vec<_>>() })
    }

    #[test]
    fn what_drifts_alike_is_not_in_the_ratio() {
        let entries =
            entries(&report(&[1e3, 2e3, 4e3, 3e3, 5e3, 9e3], 1.5), None).expect("entries");
        let points = points(&entries, None);
        assert_eq!(points.len(), 2);
        let iops = points[1].figure(Metric::Iops).expect("IOPS");
        let ratio = iops.ratio.expect("a ratio");
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.confident), (1.5, 1.5, 1.5, true));
        assert_eq!((iops.estimate.median, iops.samples.len()), (5250.0, 6));
        assert!(points[0].figure(Metric::Iops).expect("IOPS").ratio.is_none());
    }

    #[test]
    fn the_target_to_compare_with_can_be_named() {
        let entries = entries(&report(&[1e3, 2e3], 2.0), None).expect("entries");
        let points = points(&entries, Some("b"));
        let ratio = points[0].figure(Metric::Mean).and_then(|mean| mean.ratio).expect("a ratio");
        assert_eq!(ratio.median, 2.0);
        assert!(!ratio.confident, "two rounds are too few");
    }
}
