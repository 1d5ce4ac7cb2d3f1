//! The data of a page: entries of one or several reports, by path, and the lines of each plot.

use std::collections::BTreeMap;
use std::path::Path;

use super::plot::COLOURS;
use crate::human::printable;
use crate::side::figures::{ReportEntry, WayFigures};
use crate::side::file::Report;
use crate::side::summary::{self, Point, sweep_text};
use crate::way::Way;

/// All data of a page.
#[derive(Debug)]
pub(super) struct Data {
    /// All entries; their targets are names of paths.
    pub(super) entries: Vec<ReportEntry>,
    /// Medians, and ratios to the first path.
    pub(super) points: Vec<Point>,
    /// The paths in order: targets, with their report if there are several.
    paths: Vec<String>,
}

/// The lines of one plot.
#[derive(Debug)]
pub(super) struct Panel<'a> {
    /// What its lines have in common.
    pub(super) title: String,
    pub(super) lines: Vec<PanelLine<'a>>,
}

/// The rounds of a job on a path.
#[derive(Debug)]
pub(super) struct PanelLine<'a> {
    /// What distinguishes it from the others.
    pub(super) label: String,
    /// Index of its colour.
    pub(super) colour: usize,
    /// Each round's figures.
    pub(super) rounds: Vec<&'a WayFigures>,
}

impl Data {
    /// Combines reports; the others are compared with the first.
    pub(super) fn of(reports: &[Report]) -> Data {
        let (mut entries, mut points) = (Vec::new(), Vec::<Point>::new());
        for report in reports {
            let path = |target: &str| match reports {
                [_] => target.to_owned(),
                _ => path_name(&report.name, target),
            };
            let mut of_file = summary::points(&report.entries, None);
            for point in &mut of_file {
                if reports.len() > 1 {
                    let same = path_name(&reports[0].name, &point.target);
                    summary::compare_apart(point, &points, &same);
                    point.target = path(&point.target);
                }
            }
            points.extend(of_file);
            let named =
                |entry: &ReportEntry| ReportEntry { target: path(&entry.target), ..entry.clone() };
            entries.extend(report.entries.iter().map(named));
        }
        let mut paths: Vec<String> = Vec::new();
        for point in &points {
            if !paths.contains(&point.target) {
                paths.push(point.target.clone());
            }
        }
        Data { entries, points, paths }
    }

    /// Returns the number of paths.
    pub(super) fn path_count(&self) -> usize {
        self.paths.len()
    }

    /// Returns the index of a path's colour.
    pub(super) fn colour_of_path(&self, path: &str) -> usize {
        self.paths.iter().position(|known| known == path).unwrap_or(0)
    }

    /// Returns plots with a line per path if there are jobs with several, else with a line per job.
    pub(super) fn panels(&self) -> Vec<Panel<'_>> {
        let are_peers = |a: &Point, b: &Point| a.is_peer_of(b) && a.target != b.target;
        let are_compared = self.points.iter().any(|a| self.points.iter().any(|b| are_peers(a, b)));
        let mut groups: Vec<Vec<&Point>> = Vec::new();
        for point in &self.points {
            let is_its = |group: &&mut Vec<&Point>| match are_compared {
                true => group[0].is_peer_of(point),
                false => group[0].way == point.way && group.len() < COLOURS,
            };
            match groups.iter_mut().find(is_its) {
                Some(group) => group.push(point),
                None => groups.push(vec![point]),
            }
        }
        groups.iter().map(|points| self.panel(points, are_compared)).collect()
    }

    fn panel(&self, points: &[&Point], are_compared: bool) -> Panel<'_> {
        let line = |(index, point): (usize, &&Point)| PanelLine {
            label: if are_compared { printable(&point.target) } else { job_text(point) },
            colour: if are_compared { self.colour_of_path(&point.target) } else { index },
            rounds: self.rounds(point),
        };
        let of_all = match points {
            [first, ..] if are_compared || points.len() == 1 => job_text(first),
            _ => format!("{} jobs", points.len()),
        };
        let title = format!("{of_all}: {}", points[0].way.name());
        Panel { title, lines: points.iter().enumerate().map(line).collect() }
    }

    fn rounds(&self, point: &Point) -> Vec<&WayFigures> {
        let same = self.entries.iter().filter(|entry| point.covers(entry));
        same.filter_map(|entry| entry.ways[point.way].as_ref()).collect()
    }

    /// Returns a job's options on a path.
    pub(super) fn options(&self, point: &Point) -> Option<&BTreeMap<String, String>> {
        self.entries.iter().find(|entry| point.covers(entry)).map(|entry| &entry.options)
    }

    /// Returns the points of one way.
    pub(super) fn of_way(&self, way: Way) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.way == way)
    }
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
