//! The page: what the reports say, as HTML with plots as inline SVG.
//!
//! The style is inline as well, so that the page opens without a network, on a phone and on paper. All text from reports
//! is escaped, here in [`escaped`] and in plots by the plotting crate.

mod data;
mod draw;
mod plot;

use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::side::figures::Metric;
use crate::side::file::Report;
use crate::side::table::{self, Table};
use crate::way::Way;
use data::{Data, job_text};
use draw::Drawn;
use plot::{COLOURS, PALETTE};

/// Maximum plots of one kind; the table has the remaining figures.
const PLOTS_MAX: usize = 12;
const STYLE: &str = include_str!("style.css");

/// Formats a page of reports.
///
/// # Errors
/// A plot cannot be drawn, which is a defect of this program.
pub(super) fn page(title: &str, reports: &[Report]) -> Result<String> {
    let data = Data::of(reports);
    let title = escaped(&printable(title));
    let mut body = format!("<header>\n<h1>{title}</h1>\n{}</header>\n<main>\n", sources(reports));
    body += &remarks(reports);
    body += &tables(&data);
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

/// Says which reports these are.
fn sources(reports: &[Report]) -> String {
    let made = |report: &Report| {
        let parts = [&*report.name, &*report.version, &*report.time].map(printable);
        let known: Vec<String> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| escaped(part)).collect();
        known.join(" · ")
    };
    format!("<p>{}</p>\n", reports.iter().map(made).collect::<Vec<_>>().join("<br>"))
}

/// Formats the reports' remarks.
fn remarks(reports: &[Report]) -> String {
    let all = reports.iter().flat_map(|report| &report.remarks);
    let items: String =
        all.map(|remark| format!("<li>{}</li>\n", escaped(&printable(remark)))).collect();
    if items.is_empty() {
        return items;
    }
    format!("<section>\n<h2>Remarks</h2>\n<ul class=\"remarks\">\n{items}</ul>\n</section>\n")
}

/// Formats all figures, and the ratios of paths, as tables.
fn tables(data: &Data) -> String {
    let points: Vec<_> = data.points.iter().collect();
    let rounds = points.iter().flat_map(|point| &point.figures).map(|it| it.samples.len()).max();
    let note = format!(
        "Medians of up to {} round(s). Latencies are total latencies if all reports have them, else completion latencies.",
        rounds.unwrap_or(1)
    );
    let figures = html_table(&table::figures(&points, "job", job_text));
    let mut html =
        format!("<section>\n<h2>Summary</h2>\n{figures}<p class=\"note\">{note}</p>\n</section>\n");
    let ratios = table::ratios(&points, "job", job_text);
    if !ratios.is_empty() {
        let note = escaped(&printable(&table::against(&points)));
        html += &format!(
            "<section>\n<h2>Paths compared</h2>\n{}<p class=\"note\">{note}</p>\n</section>\n",
            html_table(&ratios)
        );
    }
    html
}

fn html_table(table: &Table) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n");
    for (index, row) in table.rows().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let cell = |(cell, is_text): (&str, bool)| {
            let class = if is_text { "" } else { " class=\"n\"" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        };
        html += &format!("<tr>{}</tr>\n", row.map(cell).collect::<String>());
    }
    html + "</table></div>\n"
}

/// Plots over the queue depth and over each swept option.
fn swept(data: &Data) -> Result<String> {
    let mut options = vec!["iodepth"];
    for (name, _) in data.points.iter().flat_map(|point| &point.sweep) {
        if !options.contains(&&**name) {
            options.push(name);
        }
    }
    let mut html = String::new();
    for option in options {
        let ways = Way::ALL.into_iter().flat_map(|way| [(way, Metric::Iops), (way, Metric::P99)]);
        let plots = ways.filter_map(|(way, metric)| draw::over_option(data, option, way, metric));
        let heading =
            if option == "iodepth" { "Queue depth".to_owned() } else { format!("Over {option}") };
        html += &section(&heading, "", plots.collect())?;
    }
    Ok(html)
}

fn by_panel(data: &Data) -> Result<String> {
    let panels = data.panels();
    let over_time =
        |metric| panels.iter().filter_map(|panel| draw::over_time(panel, metric)).collect();
    let nines = "Each mark adds a nine: the slowest of ten, of a hundred, of a thousand.";
    let distributions = panels.iter().filter_map(draw::distribution).collect();
    Ok(section("Latency distribution", nines, distributions)?
        + &section("IOPS over time", "", over_time(Metric::Iops))?
        + &section("Bandwidth over time", "", over_time(Metric::Bandwidth))?)
}

/// Formats a heading and its plots; empty without plots.
fn section(heading: &str, note: &str, plots: Vec<Drawn>) -> Result<String> {
    if plots.is_empty() {
        return Ok(String::new());
    }
    let mut html = format!("<section>\n<h2>{}</h2>\n", escaped(heading));
    let mut notes = Vec::from_iter((!note.is_empty()).then(|| note.to_owned()));
    if let Some(more) = plots.len().checked_sub(PLOTS_MAX).filter(|more| *more > 0) {
        notes.push(format!("{more} more plots are omitted; their figures are in the table."));
    }
    for note in notes {
        html += &format!("<p class=\"note\">{}</p>\n", escaped(&note));
    }
    let class = if plots.len() == 1 { "plots one" } else { "plots" };
    html += &format!("<div class=\"{class}\">\n");
    for plot in plots.iter().take(PLOTS_MAX) {
        html += &figure(plot)?;
    }
    Ok(html + "</div>\n</section>\n")
}

fn figure(drawn: &Drawn) -> Result<String> {
    let defect = |why| {
        Failure::failed(format!("a plot cannot be drawn; this is a defect of this program: {why}"))
    };
    let svg = drawn.plot.svg().map_err(defect)?;
    let description = escaped(&drawn.description);
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{description}\" "), 1);
    let entry = |(label, colour): &(String, usize)| {
        format!("<li><i class=\"c{}\"></i>{}</li>", colour % COLOURS, escaped(label))
    };
    let legend: String = drawn.legend.iter().map(entry).collect();
    Ok(format!(
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"plot\">{svg}</div>\n\
         <ul class=\"legend\">{legend}</ul>\n</figure>\n",
        escaped(&drawn.title)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::side::summary::tests::report;

    fn page_of(reports: &[serde_json::Value]) -> String {
        let named = |(index, report): (usize, &serde_json::Value)| {
            Report::of(&format!("{index}.json"), report, None).expect("a report")
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
