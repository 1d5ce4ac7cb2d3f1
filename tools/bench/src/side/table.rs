//! Formats comparisons for a terminal: aligned, at most 120 columns wide.

use std::fmt::Write;

use adit_load::{Estimate, ROUNDS_MIN};

use super::comparison::Comparison;
use super::figures::Metric;
use super::summary::Point;

/// Maximum line width.
pub(super) const WIDTH: usize = 120;
/// Minimum characters of a shortened column.
const CELL_MIN: usize = 12;

/// Rows of cells, the first being the heading. Text is left-aligned, numbers are right-aligned.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Number of leading text columns.
    texts: usize,
}

impl Table {
    pub(super) fn new(heading: &[&str], texts: usize) -> Table {
        Table { rows: vec![heading.iter().map(ToString::to_string).collect()], texts }
    }

    /// Adds a row, with control characters made harmless.
    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row.iter().map(|cell| crate::human::printable(cell)).collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// Returns the rows without empty columns, each cell with whether it is text.
    #[cfg(feature = "report")]
    pub(super) fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = (&str, bool)>> {
        let widths = self.widths(usize::MAX);
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(widths.clone()).enumerate();
            let cells = cells.filter(|(_, (_, width))| *width > 0);
            cells.map(|(column, (cell, _))| (&**cell, column < self.texts))
        })
    }

    /// Formats the table. Omits empty columns, and shortens text that does not fit in the middle.
    pub(super) fn render(&self) -> String {
        self.render_within(WIDTH)
    }

    fn render_within(&self, width: usize) -> String {
        let widths = self.widths(width);
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0);
            let cells = cells.map(|(column, (cell, width))| {
                let cell = cut(cell, *width);
                if column < self.texts {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn widths(&self, most: usize) -> Vec<usize> {
        let width = |column: usize| {
            let cells = || self.rows.iter().map(move |row| row[column].chars().count());
            if cells().skip(1).all(|width| width == 0) { 0 } else { cells().max().unwrap_or(0) }
        };
        let mut widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let gaps = 2 * widths.iter().filter(|width| **width > 0).count().saturating_sub(1);
        let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(most);
        while over > 0 {
            let widest = widths[..self.texts].iter_mut().max().filter(|width| **width > CELL_MIN);
            let Some(widest) = widest else { break };
            *widest -= 1;
            over -= 1;
        }
        widths
    }
}

/// Shortens `text` to `width` characters in the middle, because names differ at their ends.
fn cut(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width || width < 5 {
        return text.to_owned();
    }
    let tail = (width - 2) / 2;
    let head = width - 2 - tail;
    letters[..head]
        .iter()
        .chain(['.', '.'].iter())
        .chain(&letters[letters.len() - tail..])
        .collect()
}

/// Formats everything: each job's figures on each target, then the ratios to the first.
pub(crate) fn table(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut jobs: Vec<&str> = comparison.points.iter().map(|point| &*point.job).collect();
    jobs.dedup();
    for job in jobs {
        let points: Vec<&Point> =
            comparison.points.iter().filter(|point| point.job == job).collect();
        let rounds = comparison.rounds;
        let medians =
            if rounds > 1 { format!(": medians of {rounds} rounds") } else { String::new() };
        writeln!(text, "{}{medians}", crate::human::printable(job))
            .expect("a string takes everything");
        text.push_str(&indented(&figures(&points, "sweep", Point::sweep_text)));
        let ratios = ratios(&points, "sweep", Point::sweep_text);
        if !ratios.is_empty() {
            text.push_str(&format!("  {}\n", against(&points)));
            text.push_str(&indented(&ratios));
        }
        text.push('\n');
    }
    text.push_str(&remarks(comparison));
    text
}

/// Indents a table by two columns within the line width.
fn indented(table: &Table) -> String {
    table.render_within(WIDTH - 2).lines().map(|line| format!("  {line}\n")).collect()
}

/// Formats the medians of all points; `name` distinguishes them in the first column.
pub(super) fn figures(points: &[&Point], first: &str, name: fn(&Point) -> String) -> Table {
    let mut heading = vec![first, "target", "way"];
    heading.extend(Metric::ALL.map(Metric::name));
    let mut table = Table::new(&heading, 3);
    for point in points {
        let mut row = vec![name(point), point.target.clone(), point.way.name().to_owned()];
        row.extend(Metric::ALL.map(|metric| {
            let figure = point.figure(metric);
            figure.map_or_else(String::new, |figure| metric.show(figure.estimate.median))
        }));
        table.push(row);
    }
    table
}

/// Formats the ratios to the first target, as [`figures`].
pub(super) fn ratios(points: &[&Point], first: &str, name: fn(&Point) -> String) -> Table {
    const TOLD: [Metric; 5] = [Metric::Iops, Metric::Mean, Metric::P99, Metric::P9999, Metric::Cpu];
    let mut heading = vec![first, "target", "way"];
    heading.extend(TOLD.map(Metric::name));
    let mut table = Table::new(&heading, 3);
    for point in points {
        let of = |metric| point.figure(metric).and_then(|figure| figure.ratio);
        if TOLD.into_iter().all(|metric| of(metric).is_none()) {
            continue;
        }
        let mut row = vec![name(point), point.target.clone(), point.way.name().to_owned()];
        row.extend(TOLD.map(|metric| of(metric).map_or_else(String::new, ratio)));
        table.push(row);
    }
    table
}

/// Formats `1.05 (1.03-1.07)`, without the interval for a single round.
pub(super) fn ratio(ratio: Estimate) -> String {
    let Estimate { median, low, high, samples, .. } = ratio;
    let median = places(median, 3);
    if samples < 2 {
        return median;
    }
    format!("{median} ({}-{})", places(low, 2), places(high, 2))
}

/// Formats a ratio with a similar number of digits at any size; with `decimals` if it is about 1.
fn places(ratio: f64, decimals: usize) -> String {
    let decimals = match ratio {
        100.0.. => 0,
        10.0..100.0 => 1,
        0.1..10.0 => decimals,
        _ => 4,
    };
    format!("{ratio:.decimals$}")
}

/// Explains what the ratios compare with, and the parentheses.
pub(super) fn against(points: &[&Point]) -> String {
    let first =
        points.iter().find(|point| point.figures.iter().all(|figure| figure.ratio.is_none()));
    let first = cut(first.map_or("the first", |point| &point.target), 60);
    let ratios = points.iter().flat_map(|point| &point.figures).filter_map(|figure| figure.ratio);
    let fewest = ratios.min_by_key(|ratio| ratio.samples);
    let what = match fewest {
        Some(ratio) if ratio.confident => {
            ", round by round; in parentheses 95 % intervals".to_owned()
        }
        Some(ratio) if ratio.samples > 1 => {
            format!(
                ", round by round; in parentheses least-greatest (95 % needs {ROUNDS_MIN} rounds)"
            )
        }
        _ => "; one round does not show the noise".to_owned(),
    };
    format!("ratios to {first}{what}")
}

fn remarks(comparison: &Comparison) -> String {
    let mut lines: Vec<String> =
        comparison.ceilings.iter().map(|ceiling| ceiling.sentence()).collect();
    for (target, warning) in &comparison.warnings {
        let on = if target.is_empty() { String::new() } else { format!(" ({})", cut(target, 60)) };
        lines.push(format!("warning{on}: {}", warning.text));
    }
    if comparison.interrupted {
        lines.push("interrupted: these are the runs so far".to_owned());
    }
    if comparison.failure.is_some() {
        lines.push("a run failed: these are the runs until then".to_owned());
    }
    lines.iter().map(|line| wrapped(&crate::human::printable(line))).collect()
}

/// Wraps words to the line width, indenting continuation lines by two. A longer word gets a line of its own.
fn wrapped(text: &str) -> String {
    let (mut wrapped, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let letters = word.chars().count();
        if width > 0 && width + 1 + letters > WIDTH {
            wrapped.push_str("\n  ");
            width = 2;
        } else if width > 0 {
            wrapped.push(' ');
            width += 1;
        }
        wrapped.push_str(word);
        width += letters;
    }
    wrapped + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(&["name", "empty", "n"], 2);
        table.push(vec!["a".into(), String::new(), "1".into()]);
        table.push(vec!["longer".into(), String::new(), "100".into()]);
        assert_eq!(table.render(), "name      n\na         1\nlonger  100\n");
    }

    #[test]
    fn wide_text_is_cut_in_its_middle_and_numbers_never() {
        let mut table = Table::new(&["target", "n"], 1);
        table.push(vec!["x".repeat(200) + "end", "123456789".into()]);
        let rendered = table.render();
        assert!(rendered.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(rendered.contains("x..x") && rendered.contains("end  123456789"), "{rendered}");
    }

    #[test]
    fn long_remarks_go_on_in_the_next_line() {
        let text = ["word"; 50].join(" ");
        let lines = wrapped(&text);
        assert!(lines.lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(lines.split_whitespace().collect::<Vec<_>>().join(" "), text);
        assert!(lines.lines().skip(1).all(|line| line.starts_with("  word")), "{lines}");
    }

    #[test]
    fn names_do_nothing_to_the_terminal() {
        let mut table = Table::new(&["name"], 1);
        table.push(vec!["\u{1b}[2J".into()]);
        assert_eq!(table.render(), "name\n?[2J\n");
    }

    #[test]
    fn ratios_say_what_they_lie_within() {
        let estimate =
            Estimate { median: 1.05, low: 1.031, high: 1.07, samples: 6, confident: true };
        assert_eq!(ratio(estimate), "1.050 (1.03-1.07)");
        assert_eq!(ratio(Estimate { samples: 1, ..estimate }), "1.050");
        let wide = Estimate { median: 4620.03, low: 0.0064, high: 56.86, ..estimate };
        assert_eq!(ratio(wide), "4620 (0.0064-56.9)", "large and small ones are short, too");
    }
}
