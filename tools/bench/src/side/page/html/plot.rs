//! Plots of lines as inline SVG.
//!
//! Axes are mapped here to positions that are linear for the plotting crate, so that a scale may count nines.
//! Colours suit a light page; on a dark one, the page's style replaces them by name.

use plotters::coord::ranged1d::{
    KeyPointHint, KeyPointWeight, NoDefaultFormatting, ValueFormatter,
};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Maximum marks on an axis.
const TICKS_MAX: usize = 20;
/// Values above it, which a report may hold, are outside of each axis.
const VALUE_MAX: f64 = 1e30;
/// Points of a line that get dots, as single measurements.
const DOTS_MAX: usize = 24;
/// Twice the displayed size: coordinates are integers, and this makes lines smoother.
const SIZE: (u32, u32) = (1280, 700);
const FONT: (&str, u32) = ("system-ui, sans-serif", 33);
/// Colour of text.
const INK: RGBColor = RGBColor(0x4A, 0x54, 0x60);
/// Colour of grid lines.
const GRID: RGBColor = RGBColor(0xE1, 0xE5, 0xEA);

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
    /// From zero, unchanged.
    Linear,
    /// By powers of ten.
    Log,
    /// Shares below 1 by their number of nines: 0.9 is one, 0.99 two.
    Nines,
}

impl Scale {
    fn position(self, value: f64) -> f64 {
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
    title: String,
    scale: Scale,
    /// Its ends, as positions.
    ends: (f64, f64),
    /// Positions and their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis that holds all `values`, with marks at round numbers, which `show` formats.
    pub(super) fn new(
        title: &str,
        scale: Scale,
        values: impl Iterator<Item = f64>,
        show: &dyn Fn(f64) -> String,
    ) -> Axis {
        let (ends, marks) = match scale {
            Scale::Linear => linear(values),
            Scale::Log => logarithmic(values),
            Scale::Nines => ((0.0, 5.05), vec![0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]),
        };
        let places = marks.into_iter().map(|mark| (scale.position(mark), mark));
        let inside = places.filter(|(at, _)| (ends.0..=ends.1).contains(at)).take(TICKS_MAX);
        let ticks = inside.map(|(at, mark)| (at, show(mark))).collect();
        Axis { title: title.to_owned(), scale, ends, ticks }
    }

    /// Puts marks at these values instead.
    pub(super) fn with_ticks(mut self, ticks: impl Iterator<Item = (f64, String)>) -> Axis {
        self.ticks = ticks.map(|(value, label)| (self.scale.position(value), label)).collect();
        self
    }
}

/// Returns an axis' ends from zero to the greatest value, and round values.
fn linear(values: impl Iterator<Item = f64>) -> ((f64, f64), Vec<f64>) {
    let greatest = values.filter(|value| *value < VALUE_MAX).fold(0.0, f64::max);
    let high = if greatest > 0.0 { greatest * 1.05 } else { 1.0 };
    let step = round_step(high / 6.0);
    ((0.0, high), (0..TICKS_MAX).map(|index| index as f64 * step).collect())
}

/// Returns an axis' ends around the values, and round values; few decades leave room for values in between.
fn logarithmic(values: impl Iterator<Item = f64>) -> ((f64, f64), Vec<f64>) {
    let positive = values.filter(|value| *value > 0.0 && *value < VALUE_MAX);
    let (low, high) =
        positive.fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
    let ends = ((low * 0.9).log10(), (high * 1.1).log10());
    let steps: &[f64] = match ends.1 - ends.0 {
        ..1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        1.0..3.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let powers = (ends.0.floor() as i32)..=(ends.1.ceil() as i32);
    let marks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    (ends, marks.collect())
}

/// Returns 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= least);
    step.unwrap_or(10.0) * power
}

/// A line through points, with the index of its colour.
pub(super) type ColouredLine = (usize, Vec<(f64, f64)>);

#[derive(Clone, Debug)]
pub(super) struct Plot {
    /// The horizontal axis.
    pub(super) x: Axis,
    /// The vertical axis.
    pub(super) y: Axis,
    /// In drawing order.
    pub(super) lines: Vec<ColouredLine>,
}

impl Plot {
    /// Renders it as SVG.
    ///
    /// # Errors
    /// The plotting crate's error, which is a defect of this program.
    pub(super) fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE)).map_err(|why| why.to_string())?;
        Ok(svg)
    }

    fn draw(&self, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let root = backend.into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .margin_right(40)
            .x_label_area_size(96)
            .y_label_area_size(170)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let label = TextStyle::from(FONT.into_font()).color(&INK);
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(GRID.stroke_width(2))
            .label_style(label.clone())
            .axis_desc_style(label.pos(Pos::new(HPos::Center, VPos::Top)))
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .draw()?;
        for (colour, points) in &self.lines {
            let colour = PALETTE[colour % COLOURS];
            let at = |(x, y): &(f64, f64)| (self.x.scale.position(*x), self.y.scale.position(*y));
            let size = if points.len() > DOTS_MAX { 0 } else { 7 };
            let line = LineSeries::new(points.iter().map(at), colour.filled().stroke_width(4));
            chart.draw_series(line.point_size(size))?;
        }
        root.present()?;
        Ok(())
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
        let near = self.ticks.iter().find(|(at, _)| (at - position).abs() < 1e-9);
        near.map_or_else(String::new, |(_, label)| label.clone())
    }
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
        let labels = |scale, values: &[f64]| {
            let axis = Axis::new("", scale, values.iter().copied(), &|value| format!("{value}"));
            axis.ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(Scale::Linear, &[9_500.0]), ["0", "2000", "4000", "6000", "8000"]);
        assert_eq!(labels(Scale::Log, &[150.0, 9e5]), ["1000", "10000", "100000"]);
    }

    #[test]
    fn axes_of_nothing_and_of_one_value_still_have_a_length() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![f64::MAX]] {
            for scale in [Scale::Linear, Scale::Log] {
                let axis = Axis::new("", scale, values.iter().copied(), &|_| String::new());
                assert!(axis.ends.0 < axis.ends.1, "{values:?}");
                assert!(axis.ticks.len() <= TICKS_MAX, "{values:?}");
            }
        }
    }

    #[test]
    fn what_is_written_in_a_plot_is_escaped() {
        let axis = |title: &str| {
            Axis::new(title, Scale::Linear, [1.0].into_iter(), &|_| "<script>".to_owned())
        };
        let plot = Plot { x: axis("a & b"), y: axis("\""), lines: vec![] };
        let svg = plot.svg().expect("a plot");
        assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"), "{svg}");
        assert!(svg.contains("a &amp; b"));
    }
}
