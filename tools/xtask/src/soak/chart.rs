//! The picture of a run: hit ratio and latency over time, with what went on around the servers.

use std::fmt::Write;

use super::figures::{Around, Row};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
/// Height of each plot, and where the two begin.
const HEIGHT: f64 = 170.0;
const TOPS: [f64; 2] = [50.0, 270.0];
/// Height of each bar below, and where the first one lies.
const BAR: f64 = 12.0;
const BARS: f64 = 480.0;
const TOTAL: f64 = 560.0;

/// What a bar shows: its name, its colour, and when it is there.
type Bar = (&'static str, &'static str, fn(&Around) -> bool);
const BARS_SHOWN: [Bar; 4] = [
    ("kill -9 or stop", "#d62728", |around| around.ended),
    ("busy neighbour", "#ff7f0e", |around| around.neighbour),
    ("second model", "#2ca02c", |around| around.second_model),
    ("full disk", "#9467bd", |around| around.full_disk),
];

/// A vertical scale: how a value lies between 0 and 1, and the marks beside it.
struct Scale {
    place: fn(f64) -> f64,
    marks: &'static [(f64, &'static str)],
}

const RATIO: Scale = Scale {
    place: |ratio| ratio,
    marks: &[(0.0, "0 %"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %")],
};
/// 0.1 ms to 10 s, logarithmic.
const LATENCY: Scale = Scale {
    place: |ms| (ms.max(0.1).log10() + 1.0) / 5.0,
    marks: &[
        (0.1, "0.1 ms"),
        (1.0, "1 ms"),
        (10.0, "10 ms"),
        (100.0, "100 ms"),
        (1000.0, "1 s"),
        (10_000.0, "10 s"),
    ],
};

/// Draws the rows as SVG.
pub(super) fn svg(rows: &[Row], title: &str) -> String {
    let end = rows.last().map_or(1, |row| row.second.max(1)) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {TOTAL}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text(&mut svg, (LEFT, 24.0), "start", title);
    frame(&mut svg, TOPS[0], &RATIO);
    frame(&mut svg, TOPS[1], &LATENCY);
    line(&mut svg, rows, end, (TOPS[0], &RATIO, "#1f77b4"), |row| row.hit_ratio);
    line(&mut svg, rows, end, (TOPS[1], &LATENCY, "#aec7e8"), |row| row.hit_p50_ms);
    line(&mut svg, rows, end, (TOPS[1], &LATENCY, "#1f77b4"), |row| row.hit_p99_ms);
    line(&mut svg, rows, end, (TOPS[1], &LATENCY, "#ff7f0e"), |row| row.put_p99_ms);
    text(&mut svg, (LEFT, TOPS[0] - 6.0), "start", "hit ratio of the cache, per 10 s");
    text(
        &mut svg,
        (LEFT, TOPS[1] - 6.0),
        "start",
        "latency: hits p50 (light) and p99 (blue), puts p99 (orange)",
    );
    for (index, bar) in BARS_SHOWN.iter().enumerate() {
        around(&mut svg, rows, end, BARS + (BAR + 4.0) * index as f64, bar);
    }
    text(&mut svg, (LEFT, TOPS[1] + HEIGHT + 16.0), "middle", "0");
    let end = format!("{:.0} min", end / 60.0);
    text(&mut svg, (WIDTH - RIGHT, TOPS[1] + HEIGHT + 16.0), "end", &end);
    svg + "</svg>\n"
}

fn x(second: f64, end: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * second / end
}

fn y(top: f64, scale: &Scale, value: f64) -> f64 {
    top + HEIGHT * (1.0 - (scale.place)(value).clamp(0.0, 1.0))
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>")
        .expect("a string takes all that is written");
}

fn frame(svg: &mut String, top: f64, scale: &Scale) {
    for (value, name) in scale.marks {
        let y = y(top, scale, *value);
        writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/>", WIDTH - RIGHT)
            .expect("a string takes all that is written");
        text(svg, (LEFT - 6.0, y + 4.0), "end", name);
    }
}

/// Draws a line through the values; a gap stays one.
fn line(
    svg: &mut String,
    rows: &[Row],
    end: f64,
    (top, scale, colour): (f64, &Scale, &str),
    value: impl Fn(&Row) -> Option<f64>,
) {
    let (mut path, mut is_drawing) = (String::new(), false);
    for row in rows {
        let Some(value) = value(row) else {
            is_drawing = false;
            continue;
        };
        let step = if std::mem::replace(&mut is_drawing, true) { 'L' } else { 'M' };
        path += &format!("{step}{:.1} {:.1}", x(row.second as f64, end), y(top, scale, value));
    }
    writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>")
        .expect("a string takes all that is written");
}

fn around(svg: &mut String, rows: &[Row], end: f64, top: f64, (name, colour, is_there): &Bar) {
    text(svg, (LEFT + 4.0, top + BAR - 2.0), "start", name);
    let mut before = 0.0;
    for row in rows {
        let (from, to) = (x(before, end), x(row.second as f64, end));
        before = row.second as f64;
        if is_there(&row.around) {
            let width = to - from;
            writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\" \
                 fill-opacity=\"0.5\"/>"
            )
            .expect("a string takes all that is written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::*;

    #[test]
    fn a_value_lies_between_its_marks_and_a_gap_is_none() {
        let row = |second, hits, gets| {
            let mut figures = Figures::default();
            figures.gets = gets;
            (0..hits).for_each(|_| figures.hit(std::time::Duration::from_millis(10)));
            Row::new(second, figures, Around { full_disk: second == 20, ..Around::default() })
        };
        let svg = svg(&[row(10, 1, 2), row(20, 0, 0), row(30, 1, 1)], "a <run>");
        let half = format!(
            "M{:.1} {:.1}M{:.1} {:.1}",
            x(10.0, 30.0),
            TOPS[0] + HEIGHT / 2.0,
            x(30.0, 30.0),
            TOPS[0]
        );
        assert!(svg.contains(&half), "{svg}");
        assert!(svg.contains("a &lt;run>") && svg.matches("fill-opacity").count() == 1, "{svg}");
        assert!((y(0.0, &LATENCY, 10.0) - HEIGHT * 0.6).abs() < 1e-9);
    }
}
