//! Tests whole comparisons over a simulated device.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};

use super::comparison::Comparison;
use super::*;
use crate::errors::Errors;
use crate::failure::Failure;
use crate::measure::Levels;
use crate::options::{JobOptions, RunOptions, Section, SideOptions, Sweep};
use crate::outcome::{ClockOutcome, JobFailure, JobOutcome, WayOutcome};
use crate::output::Warning;
use crate::run::cpu::Cpu;
use crate::way::{PerWay, Way};
use adit_load::Latency;

/// The device's log: target and depth of each run.
type Ran = RefCell<Vec<(String, u32)>>;

fn request(targets: &str, rounds: u32, sweep: &[(&str, &str)]) -> Request {
    let job = JobOptions { name: "j".into(), ..JobOptions::usual() };
    let targets = targets.split_whitespace().map(|target| target.parse().expect("a target"));
    let sweep = sweep.iter().map(|(option, values)| Sweep {
        option: (*option).into(),
        values: values.split(',').map(str::to_owned).collect(),
    });
    Request {
        run: RunOptions {
            side: SideOptions {
                targets: targets.collect(),
                rounds,
                sweep: sweep.collect(),
                ceiling: false,
            },
            ..RunOptions::default()
        },
        global: vec![("bs".into(), "4k".into())],
        sections: vec![Section { job, given: vec![] }],
    }
}

/// A device that delivers 1000 IOPS for each I/O in flight up to 8, and twice as many on null targets.
fn formula(request: &Request) -> RunOutcome {
    let section = &request.sections[0];
    let target = section.job.files.filename.join(":");
    let factor = if target.starts_with("null") { 2 } else { 1 };
    let ios = u64::from(section.job.iodepth.min(8)) * 1000 * factor;
    let mut ways = PerWay([WayOutcome::default(), WayOutcome::default(), WayOutcome::default()]);
    let way = &mut ways[Way::Read];
    (way.ios, way.bytes, way.runtime) = (ios, ios * 4096, Duration::from_secs(1));
    way.lat.record_many(1_000_000 / factor, ios as usize as u64);
    RunOutcome {
        global: vec![],
        unix_ms: 1_700_000_000_000,
        jobs: vec![job_outcome(section.clone(), target, ways)],
        groups: vec![],
        clock: ClockOutcome::default(),
        disks: vec![],
        warnings: vec![Warning { code: "c", text: "doubt".into() }],
        interrupted: false,
    }
}

fn job_outcome(section: Section, target: String, ways: PerWay<WayOutcome>) -> JobOutcome {
    JobOutcome {
        section,
        target,
        lba_bytes: 512,
        group: 0,
        threads: 1,
        start_unix_ms: 1_700_000_000_000 - 1000,
        elapsed: Duration::from_secs(1),
        ways,
        sync: Latency::new(),
        depths: Levels::default(),
        submits: Levels::default(),
        completes: Levels::default(),
        cpu: Cpu::default(),
        stats: adit_driver::Stats::default(),
        recoveries: 0,
        errors: Errors::default(),
        failure: None,
        latency_depth: None,
        steady: None,
        sampled_reads: (0, 0),
        busy_percent: 50.0,
        is_cached: false,
    }
}

/// Runs `request` over `device` and logs the runs.
fn run_over(
    request: &Request,
    ran: &Ran,
    device: &dyn Fn(&Request) -> Result<RunOutcome>,
) -> Result<Comparison> {
    let mut run_one = |request: &Request| {
        let job = &request.sections[0].job;
        ran.borrow_mut().push((job.files.filename.join(":"), job.iodepth));
        device(request)
    };
    let mut bench = Bench { run_one: &mut run_one, progress: &mut |_| {} };
    run(request, &mut bench)
}

fn compared(request: &Request) -> (Comparison, Vec<(String, u32)>) {
    let ran = Ran::default();
    let comparison = run_over(request, &ran, &|request| Ok(formula(request)));
    (comparison.expect("a comparison"), ran.into_inner())
}

#[test]
fn each_target_runs_with_each_value_in_each_round() {
    let request = request("uring:/x null:", 2, &[("iodepth", "1,4")]);
    let (comparison, mut ran) = compared(&request);
    assert_eq!(comparison.jobs.len(), 8);
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), 4, "{ran:?}");
    let first = &comparison.jobs[0];
    assert_eq!(first["adit"]["round"], 1);
    assert_eq!(first["adit"]["sweep"], json!({ "iodepth": "1" }));
    assert_eq!(first["adit"]["target"], "uring:/x");
}

#[test]
fn ratios_are_to_the_first_target() {
    let (comparison, _) = compared(&request("uring:/x null:", 6, &[]));
    let told = json(&comparison);
    let points = told["adit"]["comparison"]["points"].as_array().expect("points");
    assert_eq!(points.len(), 2);
    assert_eq!(points[0]["figures"]["iops"]["ratio"], Value::Null);
    let ratio = &points[1]["figures"]["iops"]["ratio"];
    assert_eq!((ratio["median"].as_f64(), ratio["confident"].as_bool()), (Some(2.0), Some(true)));
    assert_eq!(points[1]["figures"]["lat_p99_99_ns"]["ratio"]["samples"], 6);
    assert_eq!(told["jobs"].as_array().map(Vec::len), Some(12));
    assert_eq!(told["global options"]["bs"], "4k");
}

#[test]
fn the_table_is_narrow_and_says_what_its_ratios_are() {
    let long = format!("uring:/{}", "very-long-name/".repeat(12));
    let (comparison, _) = compared(&request(&format!("{long} null:"), 6, &[("iodepth", "1,4")]));
    let table = table(&comparison);
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    for said in [
        "j: medians of 6 rounds",
        "iodepth=4",
        "2.000 (2.00-2.00)",
        "95 % intervals",
        "warning (uring:/",
    ] {
        assert!(table.contains(said), "{said}: {table}");
    }
    let (comparison, _) = compared(&request("uring:/x null:", 1, &[]));
    assert!(super::table(&comparison).contains("one round does not show the noise"));
}

#[test]
fn a_warning_is_told_once_for_each_target() {
    let (comparison, _) = compared(&request("uring:/x null:", 3, &[]));
    let on: Vec<&str> = comparison.warnings.iter().map(|(target, _)| &**target).collect();
    assert_eq!(on, ["uring:/x", "null:"]);
    let round = RefCell::new(0);
    let device = |request: &Request| {
        *round.borrow_mut() += 1;
        let mut outcome = formula(request);
        outcome.warnings = ["a", "b"]
            .map(|job| Warning { code: "c", text: format!("{job}: {} times", round.borrow()) })
            .to_vec();
        Ok(outcome)
    };
    let comparison = run_over(&request("null:", 3, &[]), &Ran::default(), &device);
    let texts =
        comparison.expect("a comparison").warnings.into_iter().map(|(_, warning)| warning.text);
    assert_eq!(texts.collect::<Vec<_>>(), ["a: 1 times", "b: 1 times"], "each job's, once");
}

#[test]
fn a_sweep_of_what_is_no_option_is_the_users_fault() {
    let ran = Ran::default();
    let failure =
        run_over(&request("null:", 1, &[("depth", "1")]), &ran, &|request| Ok(formula(request)));
    let failure = failure.expect_err("no such option");
    assert_eq!(failure.code(), crate::failure::USAGE);
    assert!(
        failure
            .to_string()
            .contains("--sweep depth: '1' cannot be set: depth: there is no such option"),
        "{failure}"
    );
    assert!(ran.borrow().is_empty(), "nothing runs before all is checked");
}

#[test]
fn what_was_measured_before_a_failure_is_kept() {
    let ran = Ran::default();
    let device = |request: &Request| {
        if ran.borrow().len() == 4 { Err(Failure::failed("gone")) } else { Ok(formula(request)) }
    };
    let comparison =
        run_over(&request("uring:/x null:", 5, &[]), &ran, &device).expect("results so far");
    assert_eq!(comparison.jobs.len(), 3);
    assert_eq!(comparison.failure.as_ref().map(ToString::to_string).as_deref(), Some("gone"));
    assert_eq!(ran.borrow().len(), 4, "nothing runs after it");
    assert_eq!(json(&comparison)["adit"]["failure"], "gone");
    let first = Ran::default();
    let failure = run_over(&request("null:", 2, &[]), &first, &|_| Err(Failure::failed("absent")));
    assert!(failure.is_err(), "without any result there is only the failure");
}

#[test]
fn a_failed_job_ends_the_comparison_and_names_its_round() {
    let ran = Ran::default();
    let device = |request: &Request| {
        let mut outcome = formula(request);
        if ran.borrow().len() == 2 {
            outcome.jobs[0].failure =
                Some(JobFailure { count: 1, first: "I/O error".into(), errno: 5 });
        }
        Ok(outcome)
    };
    let comparison =
        run_over(&request("uring:/x null:", 5, &[]), &ran, &device).expect("results so far");
    let failure = comparison.failure.expect("a failure").to_string();
    assert_eq!(failure, "j on null: in round 1: I/O error");
    assert_eq!(ran.borrow().len(), 2);
}

#[test]
fn an_interrupted_run_is_the_last() {
    let ran = Ran::default();
    let device = |request: &Request| Ok(RunOutcome { interrupted: true, ..formula(request) });
    let comparison =
        run_over(&request("uring:/x null:", 5, &[]), &ran, &device).expect("results so far");
    assert!(comparison.interrupted && comparison.jobs.len() == 1);
    assert!(table(&comparison).contains("interrupted"));
}

#[test]
fn the_ceiling_is_where_more_depth_gives_no_more() {
    let mut request = request("uring:/x null:", 3, &[]);
    request.run.side.ceiling = true;
    request.sections[0].job.iodepth = 4;
    let (comparison, ran) = compared(&request);
    let ceilings = &comparison.ceilings;
    assert_eq!(ceilings.len(), 2);
    assert_eq!((ceilings[0].iops, ceilings[0].depth), (8000.0, 8));
    assert_eq!((ceilings[1].iops, ceilings[1].target.as_str()), (16000.0, "null:"));
    assert_eq!(ceilings[0].reached_iops, Some(4000.0));
    let depths: Vec<u32> = ran[6..12].iter().map(|(_, depth)| *depth).collect();
    assert_eq!(depths, [1, 2, 4, 8, 16, 32], "two depths without growth are the last");
    let said = "j reached 50.0 % of the ceiling of uring:/x (8000 IOPS at depth 8)";
    assert!(table(&comparison).contains(said), "{}", table(&comparison));
}

#[test]
fn a_ceiling_that_fails_leaves_what_was_measured() {
    let mut request = request("null:", 2, &[]);
    request.run.side.ceiling = true;
    let ran = Ran::default();
    let device = |request: &Request| {
        if ran.borrow().len() > 4 { Err(Failure::failed("gone")) } else { Ok(formula(request)) }
    };
    let comparison = run_over(&request, &ran, &device).expect("results so far");
    assert_eq!((comparison.jobs.len(), comparison.ceilings.len()), (2, 0));
    assert!(comparison.failure.is_some());
    let interrupted = Ran::default();
    let device = |request: &Request| {
        let is_ceiling = interrupted.borrow().len() > 2;
        Ok(RunOutcome { interrupted: is_ceiling, ..formula(request) })
    };
    let comparison = run_over(&request, &interrupted, &device).expect("results so far");
    assert!(
        comparison.interrupted && comparison.ceilings.is_empty(),
        "some depths make no ceiling"
    );
}

#[test]
fn the_ceiling_is_measured_without_what_slows_the_job() {
    let mut request = request("null:", 1, &[]);
    request.run.side.ceiling = true;
    let job = &mut request.sections[0].job;
    job.rates.rate_iops = PerWay::all(Some(10));
    job.time.thinktime.time = Duration::from_secs(1);
    job.amount.number_ios = Some(1);
    let ran = Ran::default();
    let device = |request: &Request| {
        if ran.borrow().len() > 1 {
            let job = &request.sections[0].job;
            assert_eq!((job.rates.rate_iops, job.amount.number_ios), (PerWay::all(None), None));
            assert!(
                job.time.thinktime.time.is_zero()
                    && job.time.time_based
                    && job.time.runtime.is_some()
            );
            assert!(job.rw.reads && !job.rw.writes, "a job that reads is measured with reads");
        }
        Ok(formula(request))
    };
    run_over(&request, &ran, &device).expect("a comparison");
    assert!(ran.borrow().len() > 2);
}
