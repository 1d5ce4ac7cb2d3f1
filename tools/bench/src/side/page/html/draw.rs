//! Turns reports' figures into plots.

use std::collections::BTreeSet;

use super::data::{Data, Panel};
use super::plot::{Axis, ColouredLine, Plot, Scale};
use crate::human::printable;
use crate::side::figures::{Metric, WayFigures};
use crate::side::summary::Point;
use crate::way::Way;

/// A plot with its captions.
#[derive(Debug)]
pub(super) struct Drawn {
    /// Its heading.
    pub(super) title: String,
    /// A textual description, for screen readers.
    pub(super) description: String,
    /// Names and colours of the lines.
    pub(super) legend: Vec<(String, usize)>,
    pub(super) plot: Plot,
}

impl Drawn {
    fn new(title: String, what: &str, legend: Vec<(String, usize)>, plot: Plot) -> Drawn {
        let names = legend.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
        Drawn { description: format!("{what} of {title}, for {names}"), title, legend, plot }
    }
}

/// Returns all coordinates of some lines, horizontal (`false`) or vertical (`true`).
fn values(lines: &[ColouredLine], vertical: bool) -> impl Iterator<Item = f64> {
    let points = lines.iter().flat_map(|(_, points)| points);
    points.map(move |(x, y)| if vertical { *y } else { *x })
}

/// Plots the share of I/Os by latency.
pub(super) fn distribution(panel: &Panel<'_>) -> Option<Drawn> {
    let (mut lines, mut legend) = (Vec::new(), Vec::new());
    for line in &panel.lines {
        let points = curve(&line.rounds);
        if points.len() > 1 {
            lines.push((line.colour, points));
            legend.push((line.label.clone(), line.colour));
        }
    }
    let x = Axis::new("latency", Scale::Log, values(&lines, false), &|ns| tick(Metric::P99, ns));
    let y = "percent of I/Os that took no longer";
    let y = Axis::new(y, Scale::Nines, std::iter::empty(), &|share| short(share * 100.0));
    let plot = Plot { x, y, lines };
    (!legend.is_empty())
        .then(|| Drawn::new(panel.title.clone(), "Distribution of latencies", legend, plot))
}

/// Formats a round value for an axis: `200 us`, `1.5M`.
fn tick(metric: Metric, value: f64) -> String {
    metric.show(value).replacen(".0", "", 1)
}

/// Formats a number without trailing zeroes: `99.9`.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns latencies with the share of I/Os that were not slower, over all rounds.
fn curve(rounds: &[&WayFigures]) -> Vec<(f64, f64)> {
    const LAST: f64 = 0.99999;
    let Some((first, others)) = rounds.split_first() else { return Vec::new() };
    let mut all = (*first).clone();
    others.iter().for_each(|other| all.merge(other));
    let Some((_, total)) = all.cdf.last().filter(|(_, total)| *total > 0) else {
        return all.percentiles.iter().map(|(percent, ns)| (*ns, percent / 100.0)).collect();
    };
    // The slowest I/O is no percentile; it is placed with half an I/O beyond it.
    let last = LAST.min(1.0 - 0.5 / *total as f64);
    let share = |count: u64| (count as f64 / *total as f64).min(last);
    let shown = all.cdf.iter().map(|(ns, count)| (*ns as f64, share(*count)));
    let start = all.cdf.first().map(|(ns, _)| (*ns as f64, 0.0));
    let mut points: Vec<(f64, f64)> = start.into_iter().chain(shown).collect();
    points.dedup_by(|next, before| next.1 == last && before.1 == last);
    points
}

/// Plots rates over time, each round as a line.
pub(super) fn over_time(panel: &Panel<'_>, metric: Metric) -> Option<Drawn> {
    let column = if metric == Metric::Bandwidth { 1 } else { 2 };
    let of_round = |round: &&WayFigures| {
        round.series.iter().map(|point| (point[0] / 1000.0, point[column])).collect::<Vec<_>>()
    };
    let rounds = |colour, rounds: &[&WayFigures]| {
        rounds.iter().map(of_round).map(|points| (colour, points)).collect::<Vec<_>>()
    };
    let lines = panel.lines.iter().flat_map(|line| rounds(line.colour, &line.rounds));
    let lines: Vec<ColouredLine> = lines.filter(|(_, points)| points.len() > 1).collect();
    if lines.is_empty() {
        return None;
    }
    let legend = panel.lines.iter().map(|line| (line.label.clone(), line.colour)).collect();
    let x = Axis::new("seconds", Scale::Linear, values(&lines, false), &short);
    let show = |value| tick(metric, value);
    let y = Axis::new(metric.name(), Scale::Linear, values(&lines, true), &show);
    let what = format!("{} over time", metric.name());
    Some(Drawn::new(panel.title.clone(), &what, legend, Plot { x, y, lines }))
}

/// A line over an option: its distinguishing parts and its points.
struct OptionLine {
    parts: Vec<String>,
    points: Vec<(f64, f64)>,
}

/// Plots a metric over an option that was swept, or that differs between jobs.
pub(super) fn over_option(data: &Data, option: &str, way: Way, metric: Metric) -> Option<Drawn> {
    let mut all: Vec<OptionLine> = Vec::new();
    for point in data.of_way(way) {
        let Some(x) = value_of(data, point, option) else { continue };
        let Some(figure) = point.figure(metric) else { continue };
        let (parts, at) = (parts_without(data, point, option), (x, figure.estimate.median));
        match all.iter_mut().find(|line| line.parts == parts) {
            Some(line) => line.points.push(at),
            None => all.push(OptionLine { parts, points: vec![at] }),
        }
    }
    all.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    // Two points with equal values are jobs that differ in something else, not a line.
    all.retain(|OptionLine { points, .. }| {
        points.len() > 2 && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
    });
    if all.is_empty() {
        return None;
    }
    let is_common = |part: &String| all.iter().all(|line| line.parts.contains(part));
    let name = |line: &OptionLine| {
        let own: Vec<&str> =
            line.parts.iter().filter(|part| !is_common(part)).map(String::as_str).collect();
        printable(&if own.is_empty() { line.parts.join(" ") } else { own.join(" ") })
    };
    let legend = all.iter().map(name).enumerate().map(|(index, name)| (name, index)).collect();
    let lines: Vec<ColouredLine> =
        all.into_iter().enumerate().map(|(index, line)| (index, line.points)).collect();
    let ticks: BTreeSet<u64> = values(&lines, false).map(|value| value as u64).collect();
    let label =
        |value: u64| if option == "bs" { crate::human::capacity(value) } else { value.to_string() };
    let x = Axis::new(option, Scale::Log, values(&lines, false), &|_| String::new());
    let x = x.with_ticks(ticks.into_iter().map(|value| (value as f64, label(value))));
    let scale = if metric.more_is_better() { Scale::Linear } else { Scale::Log };
    let y = Axis::new(metric.name(), scale, values(&lines, true), &|value| tick(metric, value));
    let title = format!("{} over {option}: {}", metric.name(), way.name());
    Some(Drawn::new(title, "Medians", legend, Plot { x, y, lines }))
}

/// Returns a job's value of an option, if it is a positive number.
fn value_of(data: &Data, point: &Point, option: &str) -> Option<f64> {
    let swept = point.sweep.iter().find(|(name, _)| name == option).map(|(_, value)| value);
    let text = swept.or_else(|| data.options(point)?.get(option))?;
    crate::units::bytes(text).ok().filter(|value| *value > 0).map(|value| value as f64)
}

/// Returns what else identifies a point: its workload and block size, the other sweep values and its path. The job is
/// included only if the option was swept, since otherwise the jobs form the line.
fn parts_without(data: &Data, point: &Point, option: &str) -> Vec<String> {
    let is_swept = point.sweep.iter().any(|(name, _)| name == option);
    let others = || point.sweep.iter().filter(|(name, _)| name != option);
    let mut parts = Vec::from_iter(is_swept.then(|| point.job.clone()));
    for name in ["rw", "bs", "numjobs"].into_iter().filter(|name| *name != option) {
        let of_job = data.options(point).and_then(|options| options.get(name));
        if let (Some(value), false) = (of_job, others().any(|(other, _)| other == name)) {
            parts.push(format!("{name}={value}"));
        }
    }
    parts.extend(others().map(|(name, value)| format!("{name}={value}")));
    parts.extend((data.path_count() > 1).then(|| point.target.clone()));
    parts
}
