//! Reports in files: ours of a run or a comparison, and fio's own.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::ceiling::Ceiling;
use super::figures::{self, LatencyKind, ReportEntry, WayFigures};
use crate::failure::{Failure, Result};

/// A report's contents.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "report"), expect(dead_code, reason = "only pages show all of it"))]
pub(super) struct Report {
    /// The file's path.
    pub(super) name: String,
    /// The version of the program that made it.
    pub(super) version: String,
    /// Its own statement of when it was made.
    pub(super) time: String,
    /// Its jobs.
    pub(super) entries: Vec<ReportEntry>,
    /// Remarks on the figures, in sentences: warnings, ceilings, why it ended early.
    pub(super) remarks: Vec<String>,
}

impl Report {
    /// Reads a report, with latencies of one kind only if one is given.
    ///
    /// # Errors
    /// A usage error if it is none, or has no jobs.
    pub(super) fn of(name: &str, report: &Value, kind: Option<LatencyKind>) -> Result<Report> {
        let entries = figures::entries(report, kind).map_err(|why| refused(name, &why))?;
        if entries.is_empty() {
            return Err(Failure::usage(format!("{name}: no job in it did any I/O")));
        }
        let text = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
        Ok(Report {
            version: text("fio version"),
            time: text("time"),
            entries,
            remarks: remarks(&report["adit"]),
            name: name.to_owned(),
        })
    }
}

fn ways(reports: &[Report]) -> impl Iterator<Item = &WayFigures> {
    let entries = reports.iter().flat_map(|report| &report.entries);
    entries.flat_map(ReportEntry::done).map(|(_, figures)| figures)
}

/// Reads reports with latencies of one kind: the first that all of them have, percentiles before means. Without such a
/// kind, each has what it prefers.
///
/// # Errors
/// A usage error when one is missing or no JSON report.
pub(super) fn alike(paths: &[&Path]) -> Result<(Vec<Report>, Option<LatencyKind>)> {
    let files = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let of = |kind| {
        let reports = files.iter().map(|(name, report)| Report::of(name, report, kind));
        reports.collect::<Result<Vec<_>>>()
    };
    let preferred = of(None)?;
    let has_percentiles: fn(&WayFigures) -> bool = |figures| !figures.percentiles.is_empty();
    for has in [has_percentiles, |figures| figures.mean_ns.is_some()] {
        for kind in LatencyKind::ALL {
            let reports = of(Some(kind))?;
            let suits = |(any, of_kind): (&WayFigures, _)| any.mean_ns.is_none() || has(of_kind);
            if ways(&preferred).zip(ways(&reports)).all(suits) {
                return Ok((reports, Some(kind)));
            }
        }
    }
    Ok((preferred, None))
}

fn read(path: &Path) -> Result<(String, Value)> {
    let name = path.display().to_string();
    let bytes = fs::read(path).map_err(|why| Failure::usage(format!("{name}: {why}")))?;
    let report = serde_json::from_slice(&bytes).map_err(|why| refused(&name, &why.to_string()))?;
    Ok((name, report))
}

fn refused(name: &str, why: &str) -> Failure {
    Failure::usage(format!("{name}: {why}; a report made with --output-format=json is needed"))
}

fn remarks(ours: &Value) -> Vec<String> {
    let list = |key: &str| ours[key].as_array().into_iter().flatten();
    let ceilings = list("ceilings").filter_map(|it| Ceiling::deserialize(it).ok());
    let mut remarks: Vec<String> = ceilings.map(|it| it.sentence() + ".").collect();
    for warning in list("warnings") {
        let Some(text) = warning["text"].as_str() else { continue };
        let on = warning["target"].as_str().filter(|target| !target.is_empty());
        remarks.push(on.map_or_else(|| text.to_owned(), |on| format!("({on}) {text}")));
    }
    if ours["interrupted"].as_bool() == Some(true) {
        remarks.push("It was interrupted: figures are those until then.".to_owned());
    }
    if let Some(failure) = ours["failure"].as_str() {
        remarks.push(format!("A run failed, figures are those until then: {failure}"));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::super::summary::tests::report;
    use super::*;
    use crate::failure::USAGE;

    #[test]
    fn what_is_no_report_is_refused_with_what_to_do() {
        for (what, says) in [
            (json!([]), "no list `jobs`"),
            (json!({ "jobs": {} }), "no list `jobs`"),
            (json!({ "jobs": [{}] }), "entry 1 of `jobs` has no `jobname`"),
            (json!({ "jobs": [{ "jobname": "a" }] }), "none of `read`, `write` and `trim`"),
            (json!({ "jobs": [] }), "no job in it"),
        ] {
            let failure = Report::of("x.json", &what, None).expect_err(says);
            assert!(failure.to_string().contains(says), "{failure}");
            assert!(failure.to_string().starts_with("x.json: "), "{failure}");
            assert_eq!(failure.code(), USAGE);
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_line() {
        let failure = alike(&[&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")]);
        let failure = failure.expect_err("no JSON").to_string();
        assert!(
            failure.contains("line 1 column") && failure.contains("--output-format=json"),
            "{failure}"
        );
        assert!(alike(&[Path::new("/nonexistent/x.json")]).is_err());
    }

    /// Writes a report of a job with these latencies; returns its path.
    fn with(latencies: &[(&str, f64)]) -> PathBuf {
        let mut read = json!({ "total_ios": 1_000_000, "iops": 1000.0 });
        for (kind, p99) in latencies {
            read[*kind] = json!({ "mean": p99, "percentile": { "99.000000": p99 } });
        }
        let report = json!({ "jobs": [{ "jobname": "j", "read": read }] });
        let name: String = latencies.iter().map(|(kind, _)| *kind).collect();
        let path = std::env::temp_dir().join(format!("kinds-{name}-{}", std::process::id()));
        fs::write(&path, report.to_string()).expect("written");
        path
    }

    #[test]
    fn latencies_of_several_reports_are_of_one_kind() {
        let (total, completion) = (("lat_ns", 700.0), ("clat_ns", 50.0));
        for (old, new, kind, p99) in [
            (&[completion][..], &[total, completion][..], Some(LatencyKind::Completion), 50.0),
            (&[total, completion], &[completion], Some(LatencyKind::Completion), 50.0),
            (&[total, completion], &[total, completion], Some(LatencyKind::Total), 700.0),
            (&[total], &[completion], None, 700.0),
            (&[], &[total], Some(LatencyKind::Total), 0.0),
        ] {
            let (old, new) = (with(old), with(new));
            let (reports, found) = alike(&[&old, &new]).expect("reports");
            let first = ways(&reports).next().expect("reads").percentile(99.0);
            assert_eq!((found, first.unwrap_or(0.0)), (kind, p99));
        }
    }

    #[test]
    fn doubts_and_ceilings_are_remarks() {
        let mut report = report(&[1000.0], 1.0);
        report["adit"] = json!({
            "warnings": [{ "target": "t", "code": "c", "text": "The machine was the limit." }],
            "ceilings": [{ "job": "j", "target": "t", "iops": 2000.0, "iodepth": 8, "reached_iops": 1000.0 }],
            "interrupted": true,
            "failure": "gone",
        });
        let remarks = Report::of("x", &report, None).expect("a report").remarks;
        assert_eq!(
            remarks,
            [
                "j reached 50.0 % of the ceiling of t (2000 IOPS at depth 8).",
                "(t) The machine was the limit.",
                "It was interrupted: figures are those until then.",
                "A run failed, figures are those until then: gone",
            ]
        );
    }
}
