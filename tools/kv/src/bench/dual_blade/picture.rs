//! The picture: prefill, decode and hit ratio over the memory limit, a line for each configuration.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::configuration::Configuration;
use super::outcome::Outcome;
use super::report::{Report, Row};

const SIZE: (u32, u32) = (1280, 420);
const COLOURS: [RGBColor; 4] = [
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0x00, 0x72, 0xB2),
];

/// What a plot shows of a median; `None` leaves the point out.
type Figure = fn(&Outcome) -> Option<f64>;

const PLOTS: [(&str, Figure); 3] = [
    ("prefill, seconds", |median| Some(median.prefill_s)),
    ("decode, seconds", |median| Some(median.decode_s)),
    ("hit ratio", |median| median.hit_ratio),
];

/// Draws the report as SVG.
pub(super) fn svg(report: &Report) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let plots = area.split_evenly((1, PLOTS.len()));
        let (rows, set) = (report.rows(), report.set_bytes());
        for (area, (title, figure)) in plots.iter().zip(PLOTS) {
            // Writing to a string does not fail.
            let _ = plot(area, title, &rows, set, figure);
        }
    }
    svg
}

/// A point: the limit in percent of the set, and a figure.
fn points(rows: &[Row], set: u64, one: Configuration, figure: Figure) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = rows
        .iter()
        .filter(|row| row.configuration == one)
        .filter_map(|row| {
            let limit = row.limit?;
            Some((limit as f64 * 100.0 / set as f64, figure(&row.median)?))
        })
        .collect();
    points.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    points
}

fn plot(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    rows: &[Row],
    set: u64,
    figure: Figure,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>> {
    let all = Configuration::ALL.map(|one| points(rows, set, one, figure));
    let most = |of: fn(&(f64, f64)) -> f64| all.iter().flatten().map(of).fold(0.0, f64::max);
    let (right, top) = (most(|(x, _)| *x).max(100.0), most(|(_, y)| *y).max(1e-3) * 1.05);
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart.configure_mesh().x_desc("memory limit, % of the set").draw()?;
    for ((one, points), colour) in Configuration::ALL.iter().zip(all).zip(COLOURS) {
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)).point_size(4))?
            .label(one.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()
}
