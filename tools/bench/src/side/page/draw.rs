//! Chooses the plots of a page and their contents.

use std::collections::BTreeSet;

use super::super::figures::{Metric, WayFigures};
use super::super::statistics::{Estimate, median};
use super::super::summary::Point;
use super::data::{Data, Line, Panel, job_text};
use super::plots::{Axis, Mark, Plot, Scale, short, tick};
use crate::human::printable;
use crate::way::Way;

/// Maximum points of a line, about one per pixel.
const POINTS_MAX: usize = 600;
/// Maximum rows of the comparison of paths.
const ROWS_MAX: usize = 40;
/// Maximum characters of a row's name.
const NAME_MAX: usize = 44;

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

fn legend(lines: &[Line<'_>]) -> Vec<(String, usize)> {
    lines.iter().map(|line| (line.label.clone(), line.colour)).collect()
}

fn drawn(panel: &Panel<'_>, lines: Vec<(String, usize)>, what: &str, plot: Plot) -> Drawn {
    let title = format!("{}: {}", panel.title, panel.way.name());
    let names = lines.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    let description = format!("{what} of {title}, for {names}");
    // The title already names a single line of a single job.
    let is_told = lines.len() == 1 && lines[0].0 == panel.title;
    Drawn { description, title, legend: if is_told { Vec::new() } else { lines }, plot }
}

/// Plots the share of I/Os by latency.
pub(super) fn distribution(panel: &Panel<'_>) -> Option<Drawn> {
    let curves = panel.lines.iter().map(|line| (line, curve(&line.rounds)));
    let curves: Vec<_> = curves.filter(|(_, points)| points.len() > 1).collect();
    if curves.is_empty() {
        return None;
    }
    let latencies = curves.iter().flat_map(|(_, points)| points.iter().map(|(ns, _)| *ns));
    let x = Axis::log("latency", latencies, &|ns| tick(Metric::P99, ns));
    let legend = curves.iter().map(|(line, _)| (line.label.clone(), line.colour)).collect();
    let lines = curves.into_iter().map(|(line, points)| Mark::Line {
        colour: line.colour,
        points,
        // Dots mark the few points of a report with percentiles only.
        dots: line.rounds.iter().any(|way| way.cdf.is_empty()),
        strength: 1.0,
    });
    let plot = Plot {
        x,
        y: Axis::nines("percent of I/Os that took no longer"),
        marks: lines.collect(),
        rows: None,
    };
    Some(drawn(panel, legend, "Distribution of latencies", plot))
}

/// Returns latencies with the share of I/Os that were not slower, over all rounds.
fn curve(rounds: &[&WayFigures]) -> Vec<(f64, f64)> {
    const LAST: f64 = 0.99999;
    let Some(all) = together(rounds) else { return Vec::new() };
    let Some((_, total)) = all.cdf.last().filter(|(_, total)| *total > 0) else {
        return all.percentiles.iter().map(|(percent, ns)| (*ns, percent / 100.0)).collect();
    };
    // The slowest I/O is no percentile; it is placed with half an I/O beyond it.
    let last = LAST.min(1.0 - 0.5 / *total as f64);
    let share = |count: u64| count as f64 / *total as f64;
    let shown = all.cdf.iter().map(|(ns, count)| (*ns as f64, share(*count)));
    let end = shown.clone().find(|(_, share)| *share >= last).map(|(ns, _)| (ns, last));
    let below: Vec<(f64, f64)> = shown.take_while(|(_, share)| *share < last).collect();
    let start = all.cdf.first().map(|(ns, _)| (*ns as f64, 0.0));
    let points: Vec<(f64, f64)> = start.into_iter().chain(below).chain(end).collect();
    thinned(points)
}

/// Keeps a line's ends and as many points as can be told apart.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let step = Scale::Nines.position(0.99999) / POINTS_MAX as f64;
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let last = points.len().saturating_sub(1);
    let (mut x, mut y) = (f64::MIN, f64::MIN);
    for (index, point) in points.into_iter().enumerate() {
        let at = (Scale::Log.position(point.0), Scale::Nines.position(point.1));
        if index == last || at.0 - x >= step || at.1 - y >= step {
            (x, y) = at;
            kept.push(point);
        }
    }
    kept
}

fn together(rounds: &[&WayFigures]) -> Option<WayFigures> {
    let (first, others) = rounds.split_first()?;
    let mut all = WayFigures { series: Vec::new(), ..(*first).clone() };
    for other in others {
        all.merge(&WayFigures { series: Vec::new(), ..(*other).clone() });
    }
    Some(all)
}

/// Returns seconds and rates of a round.
fn rates(round: &WayFigures, column: usize) -> Vec<(f64, f64)> {
    round.series.iter().map(|point| (point[0] / 1000.0, point[column])).collect()
}

/// Returns the median of several rounds at each common time; `None` for one round.
fn middle(rounds: &[Vec<(f64, f64)>]) -> Option<Vec<(f64, f64)>> {
    let shortest = rounds.iter().map(Vec::len).min().filter(|_| rounds.len() > 1)?;
    let of_all = |index: usize, which: fn(&(f64, f64)) -> f64| {
        median(&rounds.iter().map(|points| which(&points[index])).collect::<Vec<_>>())
    };
    (0..shortest).map(|index| Some((of_all(index, |p| p.0)?, of_all(index, |p| p.1)?))).collect()
}

/// Plots rates over time: each round, and their median if there are several.
pub(super) fn over_time(panel: &Panel<'_>, metric: Metric) -> Option<Drawn> {
    let column = if metric == Metric::Bandwidth { 1 } else { 2 };
    let (mut faint, mut strong) = (Vec::new(), Vec::new());
    for line in &panel.lines {
        let rounds: Vec<Vec<(f64, f64)>> =
            line.rounds.iter().map(|round| rates(round, column)).collect();
        let rounds: Vec<_> = rounds.into_iter().filter(|points| points.len() > 1).collect();
        let middle = middle(&rounds);
        let strength = if rounds.len() > 1 { 0.22 } else { 1.0 };
        let colour = line.colour;
        let of_round = |points| Mark::Line { colour, points, dots: false, strength };
        faint.extend(rounds.into_iter().map(of_round));
        strong.extend(middle.map(|points| Mark::Line {
            colour,
            points,
            dots: false,
            strength: 1.0,
        }));
    }
    let marks: Vec<Mark> = faint.into_iter().chain(strong).collect();
    if marks.is_empty() {
        return None;
    }
    let points = || {
        marks.iter().flat_map(|mark| match mark {
            Mark::Line { points, .. } => points.as_slice(),
            _ => &[],
        })
    };
    let x = Axis::from_zero("seconds", points().map(|point| point.0), &short);
    let y =
        Axis::from_zero(metric.name(), points().map(|point| point.1), &|value| tick(metric, value));
    let name = if metric == Metric::Iops { "IOPS over time" } else { "Bandwidth over time" };
    Some(drawn(panel, legend(&panel.lines), name, Plot { x, y, marks, rows: None }))
}

/// A line over an option: its distinguishing parts and its points.
struct Over<'a> {
    parts: Vec<String>,
    path: &'a str,
    points: Vec<(f64, f64)>,
}

/// Plots a metric over an option that was swept, or that differs between jobs.
pub(super) fn over_option(data: &Data, option: &str, way: Way, metric: Metric) -> Option<Drawn> {
    let mut lines: Vec<Over<'_>> = Vec::new();
    for point in data.points.iter().filter(|point| point.way == way) {
        let Some(x) = value_of(data, point, option) else { continue };
        let Some(figure) = point.figure(metric) else { continue };
        let (parts, path) = (parts_without(data, point, option), &*point.target);
        let at = (x, figure.estimate.median);
        match lines.iter_mut().find(|line| line.parts == parts && line.path == path) {
            Some(line) => line.points.push(at),
            None => lines.push(Over { parts, path, points: vec![at] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    // Two points with equal values are jobs that differ in something else, not a line.
    lines.retain(|Over { points, .. }| {
        points.len() > 2 && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
    });
    if lines.is_empty() {
        return None;
    }
    let legend = legend_over(data, &lines);
    let colours: Vec<usize> = legend.iter().map(|(_, colour)| *colour).collect();
    let points = lines.into_iter().map(|line| line.points).zip(colours).collect();
    let plot = plot_over(option, metric, points);
    let names = legend.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    let title = format!("{} over {option}: {}", heading(metric), way.name());
    Some(Drawn { description: format!("{title}, for {names}"), title, legend, plot })
}

/// Names the lines by what differs between them. Lines that are paths keep the paths' colours.
fn legend_over(data: &Data, lines: &[Over<'_>]) -> Vec<(String, usize)> {
    let is_common = |part: &String| lines.iter().all(|line| line.parts.contains(part));
    let are_paths = lines.iter().all(|line| line.parts.iter().all(is_common));
    let names = lines.iter().enumerate().map(|(index, line)| {
        let mut parts: Vec<&str> = line.parts.iter().map(String::as_str).collect();
        if lines.len() > 1 {
            parts.retain(|part| !is_common(&(*part).to_owned()));
        }
        if data.paths.len() > 1 || parts.is_empty() {
            parts.push(line.path);
        }
        (
            printable(&parts.join(" ")),
            if are_paths { data.colour_of_path(line.path) } else { index },
        )
    });
    names.collect()
}

fn plot_over(option: &str, metric: Metric, lines: Vec<(Vec<(f64, f64)>, usize)>) -> Plot {
    let values: BTreeSet<u64> =
        lines.iter().flat_map(|(points, _)| points.iter().map(|point| point.0 as u64)).collect();
    let mut x = Axis::log(option, values.iter().map(|value| *value as f64), &short);
    x.ends = (x.ends.0 - 0.05, x.ends.1 + 0.05);
    let show =
        |value: u64| if option == "bs" { crate::human::capacity(value) } else { value.to_string() };
    x.ticks = values.iter().map(|value| ((*value as f64).log10(), show(*value))).collect();
    let ys = lines.iter().flat_map(|(points, _)| points.iter().map(|point| point.1));
    let y = match metric.more_is_better() {
        true => Axis::from_zero(metric.name(), ys, &|value| tick(metric, value)),
        false => Axis::log(metric.name(), ys, &|value| tick(metric, value)),
    };
    let marks = lines.into_iter().map(|(points, colour)| Mark::Line {
        colour,
        points,
        dots: true,
        strength: 1.0,
    });
    Plot { x, y, marks: marks.collect(), rows: None }
}

/// Returns a job's value of an option, if it is a positive number.
fn value_of(data: &Data, point: &Point, option: &str) -> Option<f64> {
    let swept = point.sweep.iter().find(|(name, _)| name == option).map(|(_, value)| value);
    let text = swept.or_else(|| data.options(point)?.get(option))?;
    crate::units::bytes(text).ok().filter(|value| *value > 0).map(|value| value as f64)
}

/// Returns what else identifies a point: its block size and the other sweep values. The job is included only if
/// the option was swept, since otherwise the jobs form the line.
fn parts_without(data: &Data, point: &Point, option: &str) -> Vec<String> {
    let is_swept = point.sweep.iter().any(|(name, _)| name == option);
    let mut parts = Vec::new();
    if is_swept {
        parts.push(point.job.clone());
    }
    let others = point.sweep.iter().filter(|(name, _)| name != option);
    let others: Vec<(String, String)> = others.cloned().collect();
    for name in ["rw", "bs", "numjobs"].into_iter().filter(|name| *name != option) {
        let of_job = data.options(point).and_then(|options| options.get(name));
        if let (Some(value), false) = (of_job, others.iter().any(|(other, _)| other == name)) {
            parts.push(format!("{name}={value}"));
        }
    }
    parts.extend(others.iter().map(|(name, value)| format!("{name}={value}")));
    parts
}

/// Plots the ratios of paths to the first, job by job.
pub(super) fn paths(data: &Data, metric: Metric) -> Option<Drawn> {
    let ratio = |point: &Point| point.figure(metric).and_then(|figure| figure.ratio);
    let rows: Vec<(&Point, Estimate)> = data
        .points
        .iter()
        .filter_map(|point| Some((point, ratio(point)?)))
        .filter(|(_, ratio)| ratio.low > 0.0)
        .take(ROWS_MAX)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let count = rows.len();
    let marks = rows.iter().enumerate().map(|(row, (point, ratio))| Mark::Whisker {
        colour: data.colour_of_path(&point.target),
        // The first row is on top.
        at: (ratio.median, (count - 1 - row) as f64),
        within: (ratio.low, ratio.high),
    });
    let marks = std::iter::once(Mark::Rule(1.0)).chain(marks).collect();
    let names = rows.iter().rev().map(|(point, _)| row_name(point));
    let better = if metric.more_is_better() { "more is better" } else { "less is better" };
    let x = ratio_axis(&format!("ratio; {better}"), rows.iter().map(|(_, ratio)| *ratio));
    let plot = Plot { x, y: Axis::places("", names), marks, rows: Some(count) };
    let mut legend: Vec<(String, usize)> = Vec::new();
    for (point, _) in &rows {
        let of_path = (printable(&point.target), data.colour_of_path(&point.target));
        if !legend.contains(&of_path) {
            legend.push(of_path);
        }
    }
    let told = rows
        .iter()
        .map(|(point, ratio)| format!("{} {}: {:.3}", job_text(point), point.target, ratio.median));
    let told = told.collect::<Vec<_>>().join("; ");
    let description = format!("{} as a ratio to {}: {told}", heading(metric), data.paths[0]);
    Some(Drawn { title: heading(metric).to_owned(), description, legend, plot })
}

/// Returns a metric's name for a plot's heading.
fn heading(metric: Metric) -> &'static str {
    match metric {
        Metric::Iops => "IOPS",
        Metric::Bandwidth => "Bandwidth",
        Metric::Mean => "Mean latency",
        Metric::P50 => "Median latency",
        Metric::P99 => "99th percentile of latency",
        Metric::P9999 => "99.99th percentile of latency",
        Metric::Cpu => "Processor time for each I/O",
    }
}

fn row_name(point: &Point) -> String {
    let name = format!("{} · {}", job_text(point), point.way.name());
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= NAME_MAX {
        return name;
    }
    let tail = NAME_MAX / 2 - 1;
    letters[..tail].iter().chain(['…'].iter()).chain(&letters[letters.len() - tail..]).collect()
}

fn ratio_axis(title: &str, ratios: impl Iterator<Item = Estimate>) -> Axis {
    let (low, high) = ratios
        .fold((1.0f64, 1.0f64), |(low, high), ratio| (low.min(ratio.low), high.max(ratio.high)));
    let show = |value: f64| format!("{}×", short(value));
    if high / low > 4.0 {
        return Axis::log(title, [low, high].into_iter(), &show);
    }
    let around = ((high - low) * 0.08).max(0.02);
    Axis::linear(title, (low - around).max(0.0), high + around, &show)
}
