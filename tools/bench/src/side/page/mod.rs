//! `adit bench report`: one self-contained page of all results.
//!
//! Plots are inline SVG and the style is inline, so the page opens without a network, on a phone and on paper.
//! All text from reports is escaped, here in [`escaped`] and in plots by the plotting crate.

mod data;
mod draw;
mod plots;

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::figures::{Entry, Kind, Metric};
use super::file::Report;
use super::statistics::{CONFIDENCE, Estimate};
use super::summary::Point;
use super::table;
use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::output::Output;
use crate::way::Way;
use data::{Data, job_text};
use draw::Drawn;
use plots::{COLOURS, PALETTE};

/// Maximum plots of one kind; the table has the remaining figures.
const PLOTS_MAX: usize = 12;
const STYLE: &str = include_str!("style.css");

/// Makes a page of reports in JSON, ours or fio's: latencies, rates over time, depths, paths compared
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  adit bench jobs.fio --output-format=json --rounds 6 --output out.json
  adit bench report out.json -o report.html")]
pub(crate) struct ReportArgs {
    /// Reports; with several, the others are compared with the first
    #[arg(required = true, value_name = "FILE")]
    reports: Vec<PathBuf>,
    /// File for the page instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The page's heading
    #[arg(long, default_value = "Benchmark report")]
    title: String,
}

/// Runs the command.
///
/// # Errors
/// A usage error if a file is no report; a failure when the page cannot be written.
pub(crate) fn report(args: &ReportArgs) -> Result<()> {
    let page = page(&args.title, &alike(&args.reports)?)?;
    Output::open(args.output.as_deref())?.write(&page)
}

/// Reads the reports; several use the same kind of latency if they have one in common.
fn alike(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let mut reports = paths.iter().map(|path| Report::open(path)).collect::<Result<Vec<_>>>()?;
    if reports.len() < 2 {
        return Ok(reports);
    }
    let by_kind = paths.iter().map(|path| Report::by_kind(path)).collect::<Result<Vec<_>>>()?;
    let is_in_all = |kind: &Kind| {
        let mut ways = by_kind.iter().flat_map(|of| &of[*kind as usize]).flat_map(Entry::done);
        ways.all(|(_, figures)| !figures.percentiles.is_empty())
    };
    if let Some(kind) = Kind::ALL.into_iter().find(is_in_all) {
        for (report, mut entries) in reports.iter_mut().zip(by_kind) {
            report.entries = std::mem::take(&mut entries[kind as usize]);
        }
    }
    Ok(reports)
}

fn page(title: &str, reports: &[Report]) -> Result<String> {
    let data = Data::of(reports);
    let title = escaped(&printable(title));
    let mut body =
        format!("<header>\n<h1>{title}</h1>\n{}</header>\n<main>\n", subtitle(reports, &data));
    body += &remarks(reports);
    body += &summary(&data);
    body += &compared_paths(&data)?;
    body += &swept(&data)?;
    body += &by_panel(&data)?;
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n{body}</main>\n\
         <footer>adit {}</footer>\n</body>\n</html>\n",
        colours(),
        env!("CARGO_PKG_VERSION")
    ))
}

/// Escapes text for HTML content and attributes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns the style rules of the legends' squares, in the plots' colours.
fn colours() -> String {
    let rule = |(index, colour): (usize, &plotters::style::RGBColor)| {
        let plotters::style::RGBColor(red, green, blue) = colour;
        format!(".c{index} {{ background: #{red:02X}{green:02X}{blue:02X}; }}\n")
    };
    let light: String = PALETTE.iter().enumerate().map(rule).collect();
    format!("@layer base {{\n{light}}}\n")
}

fn subtitle(reports: &[Report], data: &Data) -> String {
    let made = |report: &Report| {
        let parts = [&*report.name, &*report.version, &*report.time].map(printable);
        let known: Vec<String> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| escaped(part)).collect();
        known.join(" · ")
    };
    let files: Vec<String> = reports.iter().map(made).collect();
    let jobs: std::collections::BTreeSet<&str> =
        data.points.iter().map(|point| &*point.job).collect();
    let rounds = data.points.iter().map(samples).max().unwrap_or(1);
    format!(
        "<p>{}</p>\n<ul class=\"facts\"><li><b>{}</b> {}</li><li><b>{}</b> {}</li><li><b>{}</b> {}</li></ul>\n",
        files.join("<br>"),
        jobs.len(),
        plural("job", jobs.len()),
        data.paths.len(),
        plural("path", data.paths.len()),
        rounds,
        plural("round", rounds),
    )
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn samples(point: &Point) -> usize {
    point.figures.iter().map(|figure| figure.samples.len()).max().unwrap_or(0)
}

/// Formats the reports' remarks.
fn remarks(reports: &[Report]) -> String {
    let all: Vec<&String> = reports.iter().flat_map(|report| &report.remarks).collect();
    if all.is_empty() {
        return String::new();
    }
    let items: String =
        all.iter().map(|remark| format!("<li>{}</li>\n", escaped(&printable(remark)))).collect();
    format!("<section>\n<h2>Remarks</h2>\n<ul class=\"remarks\">\n{items}</ul>\n</section>\n")
}

/// Formats all figures as a table.
fn summary(data: &Data) -> String {
    let has_ratio = data.points.iter().any(|point| ratio(point).is_some());
    let many = data.paths.len() > 1;
    let mut html = String::from(
        "<section>\n<h2>Summary</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>Job</th>",
    );
    html += if many { "<th>Path</th>" } else { "" };
    html += "<th>Way</th>";
    for metric in Metric::ALL {
        write!(html, "<th class=\"n\">{}</th>", metric.name()).expect("a string takes everything");
    }
    html += if has_ratio { "<th class=\"n\">IOPS ratio</th>" } else { "" };
    html += "</tr></thead>\n<tbody>\n";
    let mut last: Option<&Point> = None;
    for point in &data.points {
        let is_next = last.is_some_and(|last| !last.is_peer_of(point));
        html += if is_next { "<tr class=\"next\">" } else { "<tr>" };
        html += &row(data, point, many);
        if has_ratio {
            let ratio = ratio(point).map_or_else(|| "1".to_owned(), table::ratio);
            write!(html, "<td class=\"n\">{ratio}</td>").expect("a string takes everything");
        }
        html += "</tr>\n";
        last = Some(point);
    }
    html + "</tbody></table></div>\n" + &note(data) + "</section>\n"
}

fn row(data: &Data, point: &Point, many: bool) -> String {
    let mut html = format!("<td>{}</td>", escaped(&job_text(point)));
    if many {
        let colour = data.colour_of_path(&point.target) % COLOURS;
        let path = escaped(&printable(&point.target));
        html += &format!("<td><i class=\"c{colour}\"></i>{path}</td>");
    }
    html += &format!("<td>{}</td>", point.way.name());
    for metric in Metric::ALL {
        let value = point.figure(metric).map(|figure| plots::value(metric, figure.estimate.median));
        html += &format!("<td class=\"n\">{}</td>", value.unwrap_or_else(|| "–".to_owned()));
    }
    html
}

fn ratio(point: &Point) -> Option<Estimate> {
    point.figure(Metric::Iops)?.ratio
}

/// Explains the table's figures and the confidence of its ratios.
fn note(data: &Data) -> String {
    let rounds = data.points.iter().map(samples).max().unwrap_or(1);
    let mut sentences = Vec::new();
    if rounds > 1 {
        sentences.push(format!("Figures are medians of up to {rounds} rounds."));
    }
    let fewest = data.points.iter().filter_map(ratio).min_by_key(|ratio| ratio.samples);
    if let Some(fewest) = fewest {
        let pairing = if data.is_paired { "round by round" } else { "of any two rounds" };
        sentences.push(format!(
            "Ratios are medians {pairing}, to {}.",
            escaped(&printable(&data.paths[0]))
        ));
        sentences.push(if fewest.confident {
            format!("In parentheses and as lines in plots: their {:.0} % intervals.", CONFIDENCE * 100.0)
        } else if fewest.samples > 1 {
            "In parentheses and as lines in plots: the least and the greatest, as there are too few rounds for a \
             95 % interval."
                .to_owned()
        } else {
            "One round does not show the noise.".to_owned()
        });
    }
    sentences.push(
        "Latencies are total latencies if all reports have them, else completion latencies."
            .to_owned(),
    );
    format!("<p class=\"note\">{}</p>\n", sentences.join(" "))
}

fn compared_paths(data: &Data) -> Result<String> {
    let Some(first) = data.paths.first() else { return Ok(String::new()) };
    const TOLD: [Metric; 4] = [Metric::Iops, Metric::Mean, Metric::P99, Metric::P9999];
    let plots = TOLD.into_iter().filter_map(|metric| draw::paths(data, metric)).collect();
    let note = format!("Ratios to {}; lines show their intervals.", printable(first));
    section("Paths compared", &note, plots)
}

fn swept(data: &Data) -> Result<String> {
    let mut options = vec!["iodepth"];
    let swept = data.points.iter().flat_map(|point| point.sweep.iter().map(|(name, _)| &**name));
    for name in swept {
        if !options.contains(&name) {
            options.push(name);
        }
    }
    let mut html = String::new();
    for option in options {
        let mut plots = Vec::new();
        for way in Way::ALL {
            for metric in [Metric::Iops, Metric::P99] {
                plots.extend(draw::over_option(data, option, way, metric));
            }
        }
        let heading =
            if option == "iodepth" { "Queue depth".to_owned() } else { format!("Over {option}") };
        html += &section(&heading, "", plots)?;
    }
    Ok(html)
}

fn by_panel(data: &Data) -> Result<String> {
    let panels = data.panels();
    let distributions = panels.iter().filter_map(draw::distribution).collect();
    let rates = [Metric::Iops, Metric::Bandwidth].map(|metric| {
        panels.iter().filter_map(|panel| draw::over_time(panel, metric)).collect::<Vec<_>>()
    });
    let [iops, bandwidth] = rates;
    let nines = "Each mark adds a nine: the slowest of ten, of a hundred, of a thousand.";
    Ok(section("Latency distribution", nines, distributions)?
        + &section("IOPS over time", "", iops)?
        + &section("Bandwidth over time", "", bandwidth)?)
}

/// Formats a heading and its plots; empty without plots.
fn section(heading: &str, note: &str, plots: Vec<Drawn>) -> Result<String> {
    if plots.is_empty() {
        return Ok(String::new());
    }
    let mut html = format!("<section>\n<h2>{}</h2>\n", escaped(heading));
    if !note.is_empty() {
        html += &format!("<p class=\"note\">{}</p>\n", escaped(note));
    }
    html +=
        if plots.len() == 1 { "<div class=\"plots one\">\n" } else { "<div class=\"plots\">\n" };
    for plot in plots.iter().take(PLOTS_MAX) {
        html += &figure(plot)?;
    }
    html += "</div>\n";
    if let Some(more) = plots.len().checked_sub(PLOTS_MAX).filter(|more| *more > 0) {
        html += &format!(
            "<p class=\"note\">{more} more plots are omitted; their figures are in the table.</p>\n"
        );
    }
    Ok(html + "</section>\n")
}

fn figure(drawn: &Drawn) -> Result<String> {
    let defect = |why| {
        Failure::failed(format!("a plot cannot be drawn; this is a defect of this program: {why}"))
    };
    let svg = drawn.plot.svg().map_err(defect)?;
    let description = escaped(&drawn.description);
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{description}\" "), 1);
    let caption = escaped(&drawn.title);
    let mut html =
        format!("<figure>\n<figcaption>{caption}</figcaption>\n<div class=\"plot\">{svg}</div>\n");
    if !drawn.legend.is_empty() {
        html += "<ul class=\"legend\">";
        for (label, colour) in &drawn.legend {
            html += &format!("<li><i class=\"c{}\"></i>{}</li>", colour % COLOURS, escaped(label));
        }
        html += "</ul>\n";
    }
    Ok(html + "</figure>\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::summary::tests::report;
    use super::*;

    fn page_of(reports: &[serde_json::Value]) -> String {
        let named = |(index, report): (usize, &serde_json::Value)| {
            Report::of(format!("{index}.json"), report).expect("a report")
        };
        let reports: Vec<_> = reports.iter().enumerate().map(named).collect();
        page("title", &reports).expect("a page")
    }

    #[test]
    fn names_in_a_report_are_text_and_nothing_else() {
        let evil = "<script>alert('\"&')</script>";
        let mut report = report(&[1000.0, 1100.0], 1.5);
        for job in report["jobs"].as_array_mut().expect("jobs") {
            job["jobname"] = evil.into();
            let target = job["adit"]["target"].as_str().expect("a target").to_owned();
            job["adit"]["target"] = format!("{evil}{target}").into();
            job["adit"]["sweep"] = json!({ evil: evil });
            job["adit"]["series"] = json!({ "read": [[500, 1.0, 1.0], [1000, 2.0, 2.0]] });
        }
        report["adit"] = json!({ "warnings": [{ "text": evil, "target": evil }] });
        report["time"] = evil.into();
        let page = page_of(&[report]);
        assert!(!page.contains("<script"), "a name became a tag");
        assert!(!page.contains("alert('"), "a quote is as it was");
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere() {
        let page = page_of(&[report(&[1000.0], 2.0)]);
        let namespace = "http://www.w3.org/2000/svg";
        let rest = page.replace(namespace, "");
        for reference in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
            assert!(!rest.contains(reference), "{reference}");
        }
    }

    #[test]
    fn only_what_was_measured_is_drawn() {
        let page = page_of(&[report(&[1000.0], 2.0)]);
        for heading in ["Summary", "Paths compared", "Latency distribution"] {
            assert!(page.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        }
        for heading in ["IOPS over time", "Queue depth"] {
            assert!(!page.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        }
    }

    #[test]
    fn two_reports_are_paths_of_one_page() {
        let page = page_of(&[report(&[1000.0], 1.0), report(&[2000.0], 1.0)]);
        assert!(page.contains("1 b") && page.contains("0 a"), "files name paths");
        assert!(page.contains("2.000"), "the second is twice as fast");
    }

    #[test]
    fn depths_of_several_jobs_make_a_line() {
        let latency = json!({ "mean": 1.0, "percentile": { "99.000000": 5 } });
        let job = |depth: u32| {
            json!({
                "jobname": format!("qd{depth}"),
                "job options": { "bs": "4k", "iodepth": depth.to_string(), "rw": "randread" },
                "read": { "total_ios": 10, "iops": depth * 1000, "clat_ns": latency },
            })
        };
        let page = page_of(&[json!({ "jobs": [job(32), job(1), job(128)] })]);
        assert!(page.contains("<h2>Queue depth</h2>") && page.contains("rw=randread bs=4k"));
    }
}
