use std::path::Path;
use std::time::Duration;

mod fixture;

use super::*;
use crate::errors::Tolerance;
use crate::options::{LatencyTarget, Request, RunOptions, SteadyOf, SteadyState};
use crate::outcome::{JobOutcome, SteadyOutcome};
use crate::way::Way;

#[path = "../../../../tests/commands/support/keys.rs"]
mod keys;

/// Compares with `tests/reports/NAME`, or writes it if `ADIT_BLESS` is set.
fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports").join(name);
    // The process number varies.
    let text = text.replace(&format!("pid={}:", std::process::id()), "pid=1:");
    if std::env::var_os("ADIT_BLESS").is_some() {
        return std::fs::write(&file, text).expect("writable");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    let (was, is): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), text.lines().collect());
    let differs = (0..was.len().max(is.len())).find(|at| was.get(*at) != is.get(*at));
    if let Some(at) = differs {
        let (was, is) = (was.get(at), is.get(at));
        panic!(
            "{}, line {}:\n  was {was:?}\n  is  {is:?}\nADIT_BLESS=1 takes it over",
            file.display(),
            at + 1
        );
    }
}

#[test]
fn the_report_for_people_reads_as_it_did() {
    let outcome = fixture::run();
    let request = Request {
        run: RunOptions::default(),
        global: outcome.global.clone(),
        sections: outcome.jobs.iter().map(|job| job.section.clone()).collect(),
    };
    golden("normal.txt", &(head(&request) + &render(OutputFormat::Normal, &outcome)));
}

#[test]
fn the_terse_report_reads_as_it_did() {
    golden("terse.txt", &render(OutputFormat::Terse, &fixture::run()));
}

#[test]
fn the_json_reads_as_it_did() {
    golden("json.json", &render(OutputFormat::Json, &fixture::run()));
}

#[test]
fn the_json_with_bins_reads_as_it_did() {
    let mut outcome = fixture::run();
    // One job with bins suffices.
    outcome.jobs = vec![fixture::job("bins", 0)];
    let way = &mut outcome.jobs[0].ways[Way::Read];
    for ns in [900, 950, 950, 70_001, 4_000_000_000] {
        way.clat.record(ns);
        way.ios += 1;
    }
    golden("json-plus.json", &render(OutputFormat::JsonPlus, &outcome));
}

#[test]
fn bins_hold_each_io_once() {
    let report: serde_json::Value =
        serde_json::from_str(&render(OutputFormat::JsonPlus, &fixture::run())).expect("JSON");
    let clat = &report["jobs"][0]["read"]["clat_ns"];
    let bins = clat["bins"].as_object().expect("bins");
    assert_eq!(bins.values().filter_map(|count| count.as_u64()).sum::<u64>(), 40_000);
    let cdf = report["jobs"][0]["adit"]["cdf"]["read"].as_array().expect("points");
    assert_eq!(cdf.last().map(|point| &point[1]), Some(&40_000.into()));
    assert!(cdf.len() <= 400, "{} points", cdf.len());
}

#[test]
fn a_terse_line_has_the_fields_of_fios() {
    // fio 3.33 writes 5 fields of the job, 41 of each way, 5 of the processor, 29 of depths and latencies, and
    // 9 of each disk.
    let terse = render(OutputFormat::Terse, &fixture::run());
    let fields: Vec<usize> = terse.lines().map(|line| line.split(';').count()).collect();
    let [description, errors, one_way_less] = [1, 2, 41];
    let all = 5 + 2 * 41 + 5 + 29 + 9;
    let unified = all - one_way_less;
    assert_eq!(fields, [all + description, all + errors, all, unified, unified]);
}

/// Returns a job with the options of a case of [`keys::CASES`].
fn case(name: &str) -> JobOutcome {
    let mut job = fixture::job(name, 0);
    let done = match name {
        "trim" => [Way::Trim, Way::Write],
        "target" | "steady" => [Way::Read, Way::Read],
        _ => [Way::Read, Way::Write],
    };
    for way in done {
        fixture::fill(&mut job.ways[way], 100, 1000);
    }
    let asked = &mut job.section.job;
    asked.reports.unified_rw_reporting = name == "unified";
    asked.reports.clat_percentiles = name != "target";
    (asked.reports.slat_percentiles, asked.reports.lat_percentiles) =
        (["detailed", "bins"].contains(&name), ["detailed", "bins"].contains(&name));
    match name {
        "detailed" => {
            asked.reports.percentile_list = vec![50.0, 99.9];
            asked.description = Some("words".to_owned());
            asked.failures.continue_on_error = Tolerance::All;
            job.sync.record(5000);
        }
        "target" => {
            asked.time.latency_target = Some(LatencyTarget {
                target: Duration::from_millis(10),
                window: Duration::from_secs(1),
                percentile: 99.0,
                run: false,
            });
        }
        "steady" => {
            asked.time.steadystate = Some(SteadyState {
                of: SteadyOf::Iops,
                limit: 100.0,
                in_percent: true,
                duration: Duration::from_secs(1),
                ramp: Duration::ZERO,
            });
            let (iops, bytes) = (vec![5], vec![20_480]);
            let (slope, deviation, criterion) = (0.0, 0.0, 0.0);
            job.steady =
                Some(SteadyOutcome { attained: true, slope, deviation, criterion, iops, bytes });
        }
        _ => {}
    }
    job
}

#[test]
fn the_json_has_the_keys_and_types_of_fio_for_every_kind_of_job() {
    for (name, _) in keys::CASES {
        let mut outcome = fixture::run();
        outcome.jobs = vec![case(name)];
        let format = if name == "bins" { OutputFormat::JsonPlus } else { OutputFormat::Json };
        let ours = keys::of(&render(format, &outcome));
        assert!(ours.len() > 100, "{name}: {}", ours.len());
        if let Some(difference) = keys::difference(&keys::recorded(name), &ours) {
            panic!("{name}: {difference}");
        }
    }
}

#[test]
fn a_run_of_nothing_is_told_in_every_format() {
    let mut outcome = fixture::run();
    outcome.jobs.clear();
    outcome.groups.clear();
    outcome.disks.clear();
    outcome.warnings.clear();
    assert_eq!(render(OutputFormat::Normal, &outcome), "\n");
    assert_eq!(render(OutputFormat::Terse, &outcome), "");
    let json: serde_json::Value =
        serde_json::from_str(&render(OutputFormat::Json, &outcome)).expect("JSON");
    assert_eq!(json["jobs"], serde_json::json!([]));
}
