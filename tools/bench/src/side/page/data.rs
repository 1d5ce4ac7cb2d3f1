//! The data of a page: entries of one or several reports, by path, and the lines of each plot.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::figures::{Entry, WayFigures};
use super::super::file::Report;
use super::super::statistics::Estimate;
use super::super::summary::{self, Point, sweep_text};
use super::plots::COLOURS;
use crate::human::printable;
use crate::way::Way;

/// All data of a page.
#[derive(Debug)]
pub(super) struct Data {
    /// All entries; their targets are names of paths.
    pub(super) entries: Vec<Entry>,
    /// Medians, and ratios to the first path.
    pub(super) points: Vec<Point>,
    /// The paths in order: targets, with their report if there are several.
    pub(super) paths: Vec<String>,
    /// Whether ratios compare rounds of one report, rather than separate reports.
    pub(super) is_paired: bool,
}

/// The contents of one plot.
#[derive(Debug)]
pub(super) struct Panel<'a> {
    /// What its lines have in common.
    pub(super) title: String,
    pub(super) way: Way,
    pub(super) lines: Vec<Line<'a>>,
}

/// One line: the rounds of a job on a path.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// What distinguishes it from the others.
    pub(super) label: String,
    /// Index of its colour.
    pub(super) colour: usize,
    /// Each round's figures.
    pub(super) rounds: Vec<&'a WayFigures>,
}

impl Data {
    /// Combines reports.
    pub(super) fn of(reports: &[Report]) -> Data {
        let is_paired = reports.len() == 1;
        let (mut entries, mut points) = (Vec::new(), Vec::<Point>::new());
        for report in reports {
            let file = &report.name;
            let mut of_file = summary::points(&report.entries, None);
            for point in &mut of_file {
                if !is_paired {
                    compare_with_first_report(point, &points, reports);
                    point.target = path_name(file, &point.target);
                }
            }
            points.extend(of_file);
            entries.extend(report.entries.iter().cloned().map(|mut entry| {
                if !is_paired {
                    entry.target = path_name(file, &entry.target);
                }
                entry
            }));
        }
        let mut paths: Vec<String> = Vec::new();
        for point in &points {
            if !paths.contains(&point.target) {
                paths.push(point.target.clone());
            }
        }
        Data { entries, points, paths, is_paired }
    }

    /// Returns the index of a path's colour.
    pub(super) fn colour_of_path(&self, path: &str) -> usize {
        self.paths.iter().position(|known| known == path).unwrap_or(0)
    }

    /// Returns plots with a line per path for jobs with several, else with a line per job.
    pub(super) fn panels(&self) -> Vec<Panel<'_>> {
        let mut panels: Vec<Panel<'_>> = Vec::new();
        let mut members: Vec<Vec<&Point>> = Vec::new();
        for point in &self.points {
            match members.iter_mut().find(|panel| panel[0].is_peer_of(point)) {
                Some(panel) => panel.push(point),
                None => members.push(vec![point]),
            }
        }
        if members.iter().all(|panel| panel.len() == 1) {
            members = by_way(self.points.iter().collect());
            for points in members {
                panels.push(self.panel_of_jobs(&points));
            }
        } else {
            panels.extend(members.iter().map(|points| self.panel_of_paths(points)));
        }
        panels
    }

    fn panel_of_paths(&self, points: &[&Point]) -> Panel<'_> {
        let first = points[0];
        let lines = points.iter().map(|point| Line {
            label: printable(&point.target),
            colour: self.colour_of_path(&point.target),
            rounds: self.rounds(point),
        });
        Panel { title: job_text(first), way: first.way, lines: lines.collect() }
    }

    fn panel_of_jobs(&self, points: &[&Point]) -> Panel<'_> {
        let first = points[0];
        let title = match points {
            [only] => job_text(only),
            _ => format!("{} jobs", points.len()),
        };
        let lines = points.iter().enumerate().map(|(colour, point)| Line {
            label: job_text(point),
            colour,
            rounds: self.rounds(point),
        });
        Panel { title, way: first.way, lines: lines.collect() }
    }

    fn rounds(&self, point: &Point) -> Vec<&WayFigures> {
        let same = self.entries.iter().filter(|entry| is_of(entry, point));
        same.filter_map(|entry| entry.ways[point.way].as_ref()).collect()
    }

    /// Returns a job's options on a path.
    pub(super) fn options(&self, point: &Point) -> Option<&BTreeMap<String, String>> {
        self.entries.iter().find(|entry| is_of(entry, point)).map(|entry| &entry.options)
    }
}

fn is_of(entry: &Entry, point: &Point) -> bool {
    (&entry.job, &entry.sweep, &entry.target) == (&point.job, &point.sweep, &point.target)
}

/// Groups jobs by way into plots of similar size, with no more lines than colours.
fn by_way(points: Vec<&Point>) -> Vec<Vec<&Point>> {
    let of_way = |way| points.iter().copied().filter(move |point| point.way == way);
    let chunked = Way::ALL.into_iter().flat_map(|way| {
        let of_way: Vec<&Point> = of_way(way).collect();
        let plots = of_way.len().div_ceil(COLOURS).max(1);
        let each = of_way.len().div_ceil(plots).max(1);
        of_way.chunks(each).map(<[&Point]>::to_vec).collect::<Vec<_>>()
    });
    chunked.collect()
}

/// Formats `job iodepth=4`.
pub(super) fn job_text(point: &Point) -> String {
    let text = [printable(&point.job), printable(&sweep_text(&point.sweep))].join(" ");
    text.trim_end().to_owned()
}

fn path_name(file: &str, target: &str) -> String {
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    [stem.unwrap_or_else(|| file.to_owned()), target.to_owned()].join(" ").trim_end().to_owned()
}

/// Compares with the first report. Reports are made separately, so their rounds do not correspond.
fn compare_with_first_report(point: &mut Point, known: &[Point], reports: &[Report]) {
    let same = path_name(&reports[0].name, &point.target);
    let mut peers = known.iter().filter(|other| other.is_peer_of(point));
    let base = peers.clone().find(|other| other.target == same).or(peers.next());
    let metrics: Vec<_> = point.figures.iter().map(|figure| figure.metric).collect();
    for (figure, metric) in point.figures.iter_mut().zip(metrics) {
        let base = base.and_then(|base| base.figure(metric));
        figure.ratio = base.and_then(|base| {
            let values =
                |samples: &BTreeMap<u64, f64>| samples.values().copied().collect::<Vec<_>>();
            Estimate::of_ratio(&values(&base.samples), &values(&figure.samples))
        });
    }
}
