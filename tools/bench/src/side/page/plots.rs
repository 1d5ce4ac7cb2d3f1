//! Plots as inline SVG.
//!
//! Axes are mapped here to positions that are linear for the plotting crate, which makes scales such as nines
//! simple. Colours suit a light page; on a dark one, the page's style replaces them by name.

use std::fmt::Display;

use plotters::coord::ranged1d::{
    KeyPointHint, KeyPointWeight, NoDefaultFormatting, ValueFormatter,
};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::figures::Metric;

/// Maximum marks on an axis.
const TICKS_MAX: usize = 20;
/// Twice the displayed size: coordinates are integers, and this makes lines smoother.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 700;
const FONT: &str = "system-ui, sans-serif";
const FONT_SIZE: u32 = 33;
/// Colour of text.
pub(super) const INK: RGBColor = RGBColor(0x4A, 0x54, 0x60);
/// Colour of grid lines.
pub(super) const GRID: RGBColor = RGBColor(0xE1, 0xE5, 0xEA);
/// Colour of the reference line.
pub(super) const RULE: RGBColor = RGBColor(0x8A, 0x94, 0xA0);

pub(super) const COLOURS: usize = 8;
/// Okabe and Ito's palette, which most people can tell apart.
pub(super) const PALETTE: [RGBColor; COLOURS] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x7A, 0x51, 0x95),
    RGBColor(0x5F, 0x5F, 0x5F),
];

/// Maps values to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Unchanged.
    Linear,
    /// By powers of ten.
    Log,
    /// Shares below 1 by their number of nines: 0.9 is one, 0.99 two.
    Nines,
}

impl Scale {
    pub(super) fn position(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1e-12).log10(),
            Scale::Nines => -(1.0 - value).max(1e-12).log10(),
        }
    }
}

/// An axis with its ends and marks.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) scale: Scale,
    /// Its ends, as positions.
    pub(super) ends: (f64, f64),
    /// Positions and their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis from zero to the greatest of `values`.
    pub(super) fn from_zero(
        title: &str,
        values: impl Iterator<Item = f64>,
        show: &dyn Fn(f64) -> String,
    ) -> Axis {
        let greatest = values.fold(0.0, f64::max);
        Axis::linear(title, 0.0, if greatest > 0.0 { greatest * 1.05 } else { 1.0 }, show)
    }

    /// Creates an axis from `low` to `high`, with marks at round numbers.
    pub(super) fn linear(title: &str, low: f64, high: f64, show: &dyn Fn(f64) -> String) -> Axis {
        let step = round_step((high - low) / 6.0);
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        let at = |index: i64| index as f64 * step;
        // A report may hold numbers too large to resolve the steps.
        let ticks =
            (first..=last).take(TICKS_MAX).map(|index| (at(index), show(at(index)))).collect();
        Axis { title: title.to_owned(), scale: Scale::Linear, ends: (low, high), ticks }
    }

    /// Creates an axis over the powers of ten that hold all `values`, or, if they are close, from the least to
    /// the greatest.
    pub(super) fn log(
        title: &str,
        values: impl Iterator<Item = f64>,
        show: &dyn Fn(f64) -> String,
    ) -> Axis {
        let positive = values.filter(|value| *value > 0.0 && value.is_finite());
        let (low, high) = positive
            .fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let ends = ((low * 0.9).log10(), (high * 1.1).log10());
        // Few decades leave room for marks in between.
        let decades = ends.1 - ends.0;
        let steps: &[f64] = if decades < 1.0 {
            &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]
        } else if decades < 3.0 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let powers = (ends.0.floor() as i32)..=(ends.1.ceil() as i32);
        let marks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        let inside = marks.filter(|mark| (ends.0..=ends.1).contains(&mark.log10()));
        let ticks = inside.take(TICKS_MAX).map(|mark| (mark.log10(), show(mark))).collect();
        Axis { title: title.to_owned(), scale: Scale::Log, ends, ticks }
    }

    /// Creates an axis of shares from 0 to 99.999 %.
    pub(super) fn nines(title: &str) -> Axis {
        let shares = [
            (0.0, "0"),
            (0.5, "50"),
            (0.9, "90"),
            (0.99, "99"),
            (0.999, "99.9"),
            (0.9999, "99.99"),
            (0.99999, "99.999"),
        ];
        let ticks =
            shares.map(|(share, label)| (Scale::Nines.position(share), label.to_owned())).to_vec();
        Axis { title: title.to_owned(), scale: Scale::Nines, ends: (0.0, 5.05), ticks }
    }

    /// Creates an axis with a place for each of `labels`, at 0, 1, 2, ...
    pub(super) fn places(title: &str, labels: impl Iterator<Item = String>) -> Axis {
        let ticks: Vec<(f64, String)> =
            labels.enumerate().map(|(place, label)| (place as f64, label)).collect();
        let last = ticks.len() as f64 - 0.5;
        Axis { title: title.to_owned(), scale: Scale::Linear, ends: (-0.5, last), ticks }
    }

    fn label(&self, position: f64) -> String {
        let near = self.ticks.iter().find(|(at, _)| (at - position).abs() < 1e-9);
        near.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// Returns 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    if !(least > 0.0 && least.is_finite()) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= least);
    step.unwrap_or(10.0) * power
}

/// A drawn element, in values rather than positions.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// A line through points.
    Line {
        /// Index of its colour.
        colour: usize,
        points: Vec<(f64, f64)>,
        /// Whether the points are measurements and get dots.
        dots: bool,
        /// Opacity, up to 1.
        strength: f64,
    },
    /// A dot with a horizontal interval.
    Whisker {
        /// Index of its colour.
        colour: usize,
        /// The dot.
        at: (f64, f64),
        /// The ends of the interval.
        within: (f64, f64),
    },
    /// A vertical line.
    Rule(f64),
}

#[derive(Clone, Debug)]
pub(super) struct Plot {
    /// The horizontal axis.
    pub(super) x: Axis,
    /// The vertical axis.
    pub(super) y: Axis,
    /// In drawing order.
    pub(super) marks: Vec<Mark>,
    /// With labels on the left, the number of rows, which determines the height.
    pub(super) rows: Option<usize>,
}

impl Plot {
    /// Renders it as SVG.
    ///
    /// # Errors
    /// The plotting crate's error, which is a defect of this program.
    pub(super) fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, self.size())).map_err(|why| why.to_string())?;
        Ok(svg)
    }

    fn size(&self) -> (u32, u32) {
        let rows = |rows: usize| 130 + 52 * rows as u32;
        (WIDTH, self.rows.map_or(HEIGHT, rows))
    }

    fn draw<B: DrawingBackend>(&self, backend: B) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        let root = backend.into_drawing_area();
        let (x, y) = (&self.x, &self.y);
        let widest =
            y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0) as u32;
        // A character is a little wider than half its height.
        let left = if self.rows.is_some() { widest * 17 + 24 } else { 170 };
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .margin_right(40)
            .x_label_area_size(96)
            .y_label_area_size(left.min(WIDTH * 3 / 5))
            .build_cartesian_2d(x.clone(), y.clone())?;
        let label = TextStyle::from((FONT, FONT_SIZE).into_font()).color(&INK);
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(GRID.stroke_width(2))
            .label_style(label.clone())
            .axis_desc_style(label.pos(Pos::new(HPos::Center, VPos::Top)))
            .x_desc(&x.title)
            .y_desc(&y.title)
            .draw()?;
        for mark in &self.marks {
            for element in self.elements(mark) {
                chart.plotting_area().draw(&element)?;
            }
        }
        root.present()?;
        Ok(())
    }

    /// Returns the elements of a mark, at their positions.
    fn elements<B: DrawingBackend>(&self, mark: &Mark) -> Vec<DynElement<'static, B, (f64, f64)>>
    where
        B::ErrorType: 'static,
    {
        let at = |(x, y): (f64, f64)| (self.x.scale.position(x), self.y.scale.position(y));
        let bottom = self.y.ends.0;
        match mark {
            Mark::Line { colour, points, dots, strength } => {
                let colour = PALETTE[colour % COLOURS].mix(*strength);
                let points: Vec<(f64, f64)> = points.iter().copied().map(at).collect();
                let dot = |at: &(f64, f64)| Circle::new(*at, 7, colour.filled()).into_dyn();
                let dots: Vec<_> = points.iter().filter(|_| *dots).map(dot).collect();
                let line = PathElement::new(points, colour.stroke_width(4)).into_dyn();
                std::iter::once(line).chain(dots).collect()
            }
            Mark::Whisker { colour, at: (x, y), within } => {
                let colour = PALETTE[colour % COLOURS];
                let line = vec![at((within.0, *y)), at((within.1, *y))];
                vec![
                    PathElement::new(line, colour.stroke_width(5)).into_dyn(),
                    Circle::new(at((*x, *y)), 10, colour.filled()).into_dyn(),
                ]
            }
            Mark::Rule(x) => {
                let x = self.x.scale.position(*x);
                let line = vec![(x, bottom), (x, self.y.ends.1)];
                vec![PathElement::new(line, RULE.stroke_width(3)).into_dyn()]
            }
        }
    }
}

/// The plotting crate's values are positions; ticks supply the labels.
impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, limit: (i32, i32)) -> i32 {
        let share = (position - self.ends.0) / (self.ends.1 - self.ends.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.ticks.iter().map(|(at, _)| *at).collect(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.ends.0..self.ends.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, position: &f64) -> String {
        self.label(*position)
    }
}

/// Formats a number with few digits and no trailing zeros: `0.5`, `20`.
pub(super) fn short(number: f64) -> String {
    let decimals = if number.abs() >= 0.1 { 2 } else { 5 };
    let text = format!("{number:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a round value of `metric` for an axis: `200 µs`, `1.5 M`.
pub(super) fn tick(metric: Metric, value: f64) -> String {
    let (number, unit) = prefixed(metric, value);
    spaced(short(number), unit)
}

/// Formats a value of `metric` with three digits: `204 µs`, `1.53 M`.
pub(super) fn value(metric: Metric, value: f64) -> String {
    let (number, unit) = prefixed(metric, value);
    let is_whole = unit.is_empty() || unit == "ns" || unit == "B/s";
    let decimals = if is_whole || number >= 99.95 {
        0
    } else if number >= 9.995 {
        1
    } else {
        2
    };
    spaced(format!("{number:.decimals$}"), unit)
}

fn prefixed(metric: Metric, value: f64) -> (f64, &'static str) {
    let units = match metric {
        Metric::Iops => ["", "k", "M", "G"],
        Metric::Bandwidth => ["B/s", "kB/s", "MB/s", "GB/s"],
        _ => ["ns", "µs", "ms", "s"],
    };
    let power = (0..3).find(|power| value < 1000f64.powi(power + 1)).unwrap_or(3);
    (value / 1000f64.powi(power), units[power as usize])
}

fn spaced(number: String, unit: impl Display) -> String {
    format!("{number} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_is_as_long_as_the_other() {
        let at = |share| Scale::Nines.position(share);
        assert!((at(0.99) - 2.0 * at(0.9)).abs() < 1e-9);
        assert!((at(0.99999) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn marks_are_at_round_numbers_within_the_axis() {
        let axis = Axis::from_zero("", [9_500.0].into_iter(), &|value| tick(Metric::Iops, value));
        let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| &**label).collect();
        assert_eq!(labels, ["0", "2 k", "4 k", "6 k", "8 k"]);
        let axis = Axis::log("", [150.0, 9e5].into_iter(), &|ns| tick(Metric::P99, ns));
        let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| &**label).collect();
        assert_eq!(labels, ["1 µs", "10 µs", "100 µs"]);
    }

    #[test]
    fn values_have_three_digits_and_a_unit() {
        let shown =
            [0.0, 850.0, 1_234.0, 98_760.0, 123_456_789.0].map(|ns| value(Metric::Mean, ns));
        assert_eq!(shown, ["0 ns", "850 ns", "1.23 µs", "98.8 µs", "123 ms"]);
        assert_eq!(
            (value(Metric::Iops, 512_300.0), value(Metric::Iops, 7.0)),
            ("512 k".into(), "7".into())
        );
    }

    #[test]
    fn axes_of_nothing_and_of_one_value_still_have_a_length() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![f64::MAX]] {
            let log = Axis::log("", values.iter().copied(), &short);
            let linear = Axis::from_zero("", values.iter().copied(), &short);
            assert!(log.ends.0 < log.ends.1 && linear.ends.0 < linear.ends.1, "{values:?}");
            assert!(log.ticks.len() <= TICKS_MAX && linear.ticks.len() <= TICKS_MAX, "{values:?}");
        }
    }

    #[test]
    fn what_is_written_in_a_plot_is_escaped() {
        let axis = |title: &str| Axis::places(title, ["<script>".to_owned()].into_iter());
        let plot = Plot { x: axis("a & b"), y: axis("\""), marks: vec![], rows: Some(1) };
        let svg = plot.svg().expect("a plot");
        assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"), "{svg}");
        assert!(svg.contains("a &amp; b"));
    }
}
