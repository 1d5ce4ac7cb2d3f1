//! Tests `adit gpu lab` on the emulated CUDA driver: the report after each step, steps that fail, a lab that is cut off.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use adit_gpu_emulated::{Installation, directory_of};
use serde_json::Value;

use crate::support::interrupt;

/// Longer than any wait of these tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory of a test's own, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let directory =
            std::env::temp_dir().join(format!("adit-lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        Scratch(directory)
    }

    fn report(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.0.join("report.json")).ok()?).ok()
    }

    /// Runs `adit gpu lab` with these words, on the emulated GPU with these settings.
    fn lab(&self, settings: &str, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command
            .args(["gpu", "lab", "--quick", "--out"])
            .arg(self.0.join("report.json"))
            .args(words);
        command.env("LD_LIBRARY_PATH", directory_of(Installation::All));
        command.env("ADIT_EMULATED_GPU", settings);
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("adit runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn step<'a>(report: &'a Value, name: &str) -> &'a Value {
    let steps = report["steps"].as_array().expect("a list");
    steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name}"))
}

/// Returns the name and the state of each step.
fn states(report: &Value) -> Vec<(&str, &str)> {
    let steps = report["steps"].as_array().expect("a list").iter();
    let names = steps.clone().map(|step| step["name"].as_str().expect("a name"));
    names.zip(steps.map(|step| step["state"].as_str().expect("a state"))).collect()
}

#[test]
fn each_step_has_its_figures_beside_what_is_expected() {
    let scratch = Scratch::new("figures");
    let only = "host copies,checksums,foreign streams,green contexts,two processes";
    let (code, out, err) = run(&mut scratch.lab("sms=32", &["--only", only]));
    let report = scratch.report().expect("JSON");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}{report:#}");
    assert!(report["is_complete"] == true && report["is_emulated"] == true, "{report:#}");
    assert_eq!((&report["limit_s"], &report["faults"]), (&180.into(), &Value::Array(Vec::new())));
    let expected = [
        "machine",
        "host copies",
        "green contexts",
        "checksums",
        "foreign streams",
        "two processes",
    ];
    assert_eq!(states(&report), expected.map(|name| (name, "done")));
    for one in report["steps"].as_array().expect("a list") {
        let figures = one["expected"].as_array().expect("a list");
        assert!(!figures.is_empty(), "{one}");
        for figure in figures {
            assert!(figure["source"].is_string() && figure["expected"].is_string(), "{figure}");
            assert_eq!(figure["measured"].is_null(), figure["is_met"].is_null(), "{figure}");
        }
        let measured = figures.iter().filter(|figure| figure["is_met"] == true);
        assert!(measured.count() > 0, "{one}");
    }
    // Times mean nothing on the emulated GPU.
    let copies = step(&report, "host copies");
    assert_eq!(copies["report"]["best"]["to_gpu"], Value::Null, "{copies}");
    assert!(out.contains("GB/s from the GPU to pinned host memory: not measured"), "{out}");
    assert!(out.contains("met     bytes that arrived wrong: 0 (expected: 0 or less)"), "{out}");
}

#[test]
fn a_step_that_fails_does_not_end_the_lab() {
    let scratch = Scratch::new("failing");
    let only = ["--only", "host copies,checksums,KV tensors"];
    let (code, out, err) = run(&mut scratch.lab("nvrtc=error", &only));
    let report = scratch.report().expect("JSON");
    assert_eq!(code, Some(1), "{out}{err}");
    assert_eq!(report["is_complete"], true);
    let of = |name| step(&report, name)["state"].as_str().expect("a state");
    assert_eq!([of("host copies"), of("checksums"), of("KV tensors")], ["done", "failed", "done"]);
    assert!(
        err.contains("checksums: failed: ") && err.contains("NVRTC_ERROR_COMPILATION"),
        "{err}"
    );
    let said = step(&report, "checksums")["said"].as_str().expect("text");
    assert!(said.contains("NVRTC_ERROR_COMPILATION"), "{said}");
}

#[test]
fn a_figure_that_is_not_as_expected_is_told() {
    let scratch = Scratch::new("missed");
    let (code, out, err) = run(&mut scratch.lab("copies=dropped", &["--only", "host copies"]));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.contains("host copies: bytes that arrived wrong: "), "{err}");
    assert!(out.contains("MISSED  bytes that arrived wrong"), "{out}");
    let report = scratch.report().expect("JSON");
    let figure = &step(&report, "host copies")["expected"][0];
    assert_eq!((&figure["is_met"], &figure["expected"]), (&false.into(), &"0 or less".into()));
}

/// Starts a lab whose last step takes long, and waits until the report says that it runs.
fn cut_off(scratch: &Scratch, stress_s: &str) -> Child {
    let words = ["--only", "host copies,doorbell stress,KV tensors", "--stress-seconds", stress_s];
    let mut lab = scratch.lab("", &words);
    let child = lab.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("adit runs");
    let begun = Instant::now();
    let runs =
        |report: Value| step_if(&report, "doorbell stress").is_some_and(|it| it == "running");
    while !scratch.report().is_some_and(runs) {
        assert!(begun.elapsed() < PATIENCE, "the step does not begin: {:?}", scratch.report());
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn step_if(report: &Value, name: &str) -> Option<String> {
    let steps = report["steps"].as_array()?;
    let step = steps.iter().find(|step| step["name"] == name)?;
    Some(step["state"].as_str()?.to_owned())
}

fn check_cut_off(scratch: &Scratch, stress: &str) {
    let report = scratch.report().expect("JSON");
    assert_eq!(report["is_complete"], false);
    let expected = [
        ("machine", "done"),
        ("host copies", "done"),
        ("doorbell stress", stress),
        ("KV tensors", "not begun"),
    ];
    assert_eq!(states(&report), expected);
    assert_eq!(step(&report, "host copies")["report"]["wrong_bytes"], 0);
}

#[test]
fn a_lab_that_is_killed_leaves_what_it_found_and_names_the_step_that_ran() {
    let scratch = Scratch::new("killed");
    let mut child = cut_off(&scratch, "3");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    check_cut_off(&scratch, "running");
}

#[test]
fn an_interrupted_lab_ends_its_step_and_says_where_the_report_is() {
    let scratch = Scratch::new("interrupted");
    let child = cut_off(&scratch, "600");
    interrupt::wait_for_handler(child.id());
    interrupt::send(child.id());
    let ended = child.wait_with_output().expect("it ends");
    let err = String::from_utf8(ended.stderr).expect("UTF-8");
    assert_eq!(ended.status.code(), Some(130), "{err}");
    assert!(err.contains("report.json has the steps so far"), "{err}");
    check_cut_off(&scratch, "failed");
}

#[test]
fn bad_input_is_refused_before_any_step() {
    let scratch = Scratch::new("input");
    for (words, code, part) in [
        (
            &["--only", "copies"][..],
            2,
            "there is no such step; there are: 'selftest', 'host copies'",
        ),
        (&["--stress-seconds", "0"], 2, "0 is not in 1..=3600"),
        (&["--measure", "nothing"], 2, "nothing"),
        (&["vfio:nonsense"], 2, "vfio:nonsense"),
        (&["--gpu", "7", "--only", "selftest"], 2, "--gpu 7: there is no GPU 7"),
    ] {
        let (ended, out, err) = run(&mut scratch.lab("", words));
        assert_eq!(ended, Some(code), "{words:?}: {out}{err}");
        assert!(err.contains(part), "{words:?}: {err}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_any_step() {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_adit"));
    let (code, out, err) = run(lab.args(["gpu", "lab", "--out", "/nowhere/report.json"]));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(
        err.contains("/nowhere/report.json: ") && err.contains("another file by --out"),
        "{err}"
    );
}

#[test]
fn without_a_gpu_the_report_says_why_and_the_lab_ends_with_3() {
    let scratch = Scratch::new("without");
    let mut lab = scratch.lab("", &[]);
    let (code, out, err) = run(lab.env_remove("LD_LIBRARY_PATH").env("CUDA_VISIBLE_DEVICES", "-1"));
    assert_eq!(code, Some(3), "{out}{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let report = scratch.report().expect("JSON");
    assert_eq!(states(&report), [("machine", "lacks")]);
    assert_eq!(report["is_complete"], true);
}

/// Makes a virtual environment of Python that has NVRTC.
fn environment_with_nvrtc(scratch: &Scratch) -> PathBuf {
    let environment = scratch.0.join("venv");
    let wheel = environment.join("lib/python3.12/site-packages/nvidia/cu13/lib");
    fs::create_dir_all(&wheel).expect("a directory");
    let library = Path::new(directory_of(Installation::All)).join("libnvrtc.so.13");
    symlink(library, wheel.join("libnvrtc.so.13")).expect("a link");
    environment
}

#[test]
fn nvrtc_is_found_among_pythons_packages() {
    let scratch = Scratch::new("nvrtc");
    let mut lab = scratch.lab("sms=16", &["--only", "checksums"]);
    lab.env("LD_LIBRARY_PATH", directory_of(Installation::DriverAlone));
    lab.env("VIRTUAL_ENV", environment_with_nvrtc(&scratch)).env_remove("ADIT_NVRTC");
    let (code, out, err) = run(&mut lab);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("verdicts that are wrong: 0 ("), "{out}");
}
