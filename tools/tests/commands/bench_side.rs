//! Tests the shipped jobs, and the commands on reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn jobs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/jobs");
    let files =
        fs::read_dir(folder).expect("the folder of jobs").map(|file| file.expect("a file").path());
    let mut jobs: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "fio")).collect();
    jobs.sort();
    assert!(jobs.len() >= 6, "{jobs:?}");
    jobs
}

fn adit(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adit")).args(args).output().expect("adit runs")
}

/// Creates a folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench_side").join(name);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Returns a report of a job with `iops` I/Os per second.
fn report(iops: f64) -> Value {
    let latency = json!({ "mean": 1e9 / iops, "percentile": { "50.000000": 5e8 / iops, "99.000000": 2e9 / iops } });
    let read = json!({ "total_ios": 1_000_000, "iops": iops, "bw_bytes": iops * 4096.0, "clat_ns": latency });
    json!({ "fio version": "fio-3.33", "jobs": [{ "jobname": "j", "read": read }] })
}

fn write(folder: &Path, name: &str, report: &Value) -> String {
    let path = folder.join(name);
    fs::write(&path, report.to_string()).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn fio_takes_all_shipped_jobs() {
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("skipped: there is no fio");
        return;
    }
    for job in jobs() {
        let output = Command::new("fio").arg("--parse-only").arg(&job).output().expect("fio runs");
        assert!(output.status.success(), "{}: {output:?}", job.display());
    }
}

#[test]
fn we_take_all_shipped_jobs() {
    for job in jobs() {
        let output = adit(&["bench", "--parse-only", job.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}: {output:?}", job.display());
    }
}

#[test]
fn what_got_worse_ends_with_its_exit_code() {
    let folder = folder("compare");
    let (old, slow) =
        (write(&folder, "old", &report(1000.0)), write(&folder, "slow", &report(900.0)));
    let same = adit(&["bench", "compare", &old, &old]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    let worse = adit(&["bench", "compare", &old, &slow]);
    assert_eq!(worse.status.code(), Some(1), "{worse:?}");
    let table = String::from_utf8(worse.stdout).expect("UTF-8");
    assert!(table.contains("worse") && table.contains("0.900"), "{table}");
    assert_eq!(
        adit(&["bench", "compare", &old, &slow, "--threshold", "20%"]).status.code(),
        Some(0)
    );
    let told = adit(&["bench", "compare", &old, &slow, "--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(told["rows"][0]["verdict"], "worse");
}

#[test]
fn what_is_no_report_is_the_users_fault() {
    let folder = folder("bad");
    let good = write(&folder, "good", &report(1000.0));
    let bad = write(&folder, "bad", &json!({ "jobs": 5 }));
    for args in [["bench", "compare", &*good, &*bad], ["bench", "report", &*bad, "--title=x"]] {
        let output = adit(&args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(said.contains("--output-format=json") && said.contains("bad"), "{said}");
    }
}

#[test]
fn a_page_is_written_where_it_is_asked_for() {
    let folder = folder("page");
    let (one, other) =
        (write(&folder, "one", &report(1000.0)), write(&folder, "other", &report(2000.0)));
    let page = folder.join("page.html");
    let output = adit(&["bench", "report", &one, &other, "-o", page.to_str().expect("UTF-8")]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{output:?}");
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg role=\"img\""));
}

#[test]
fn latencies_of_two_reports_are_of_the_same_kind() {
    let folder = folder("kinds");
    let (plain, mut both) = (report(1000.0), report(1000.0));
    let slow =
        json!({ "mean": 7.77e6, "percentile": { "50.000000": 7.77e6, "99.000000": 7.77e6 } });
    both["jobs"][0]["read"]["lat_ns"] = slow;
    let mut total = both.clone();
    total["jobs"][0]["read"]["clat_ns"].take();
    let files = [("plain", plain), ("both", both), ("total", total)];
    let [plain, both, total] = files.map(|(name, report)| write(&folder, name, &report));
    // A report with both is compared by what the other has.
    for pair in [[&plain, &both], [&both, &plain], [&total, &both]] {
        let output = adit(&["bench", "compare", pair[0], pair[1]]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let output = adit(&["bench", "compare", &plain, &total]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("lat_percentiles=1"), "{said}");
    let page = |reports: [&str; 2]| adit(&[&["bench", "report"], &reports[..]].concat()).stdout;
    let shows_total = |page: Vec<u8>| String::from_utf8_lossy(&page).contains("7.8 ms");
    assert!(!shows_total(page([&plain, &both])) && shows_total(page([&both, &total])));
}

#[test]
fn paths_run_side_by_side_and_their_report_is_read_back() {
    let folder = folder("paths");
    let out = folder.join("out.json");
    let out = out.to_str().expect("UTF-8");
    let job = "--name=j --rw=randread --bs=4k --size=8m --iodepth=4 --number_ios=2000";
    let mut args =
        vec!["bench", "--targets=null:,soft:mem=16M", "--rounds=2", "--sweep=iodepth=1,4"];
    args.extend(job.split(' '));
    args.extend(["--output-format=json", "--output", out]);
    let ran = adit(&args);
    assert!(ran.status.success(), "{ran:?}");
    let told: Value = serde_json::from_slice(&fs::read(out).expect("a report")).expect("JSON");
    assert_eq!(told["jobs"].as_array().map(Vec::len), Some(8));
    let points = told["adit"]["comparison"]["points"].as_array().expect("points");
    assert_eq!(points.len(), 4);
    assert!(
        points[1]["figures"]["iops"]["ratio"]["median"].as_f64().is_some_and(|ratio| ratio > 0.0)
    );
    assert_eq!(adit(&["bench", "compare", out, out]).status.code(), Some(0));
    let page = adit(&["bench", "report", out]);
    let page = String::from_utf8(page.stdout).expect("UTF-8");
    assert!(page.contains("Paths compared") && page.contains("soft:mem=16M"));
}
