//! Tests `adit gpu bench` and `adit gpu selftest` on the emulated CUDA driver: output and exit codes.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::interrupt;

/// Few warps and short parts, because the emulated GPU's threads share the machine with other tests.
const SMALL: &str = "bench --queues 2 --depth 64 --sms 2 --warps 2";

fn emulated(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    command.arg("gpu").args(line.split_whitespace());
    command.env("LD_LIBRARY_PATH", adit_gpu_emulated::directory());
    command.env("ADIT_EMULATED_GPU", "sms=8");
    command
}

fn output(line: &str) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = emulated(line).output().expect("adit runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn json(line: &str) -> Value {
    let (code, out, err) = output(line);
    assert_eq!(code, Some(0), "adit gpu {line}: {out}{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_bench_counts_commands_and_doorbells_for_programs() {
    let report = json(&format!("{SMALL} --runtime 1ms --json"));
    assert_eq!(keys(&report), ["measured_against", "gpu", "is_emulated", "options", "curve"]);
    assert_eq!(report["measured_against"], "software controller, no PCIe");
    assert_eq!(report["is_emulated"], true);
    let point = &report["curve"][0];
    let parts = ["sms", "saturated", "single", "beside_compute", "why_no_compute"];
    assert_eq!(keys(point), parts);
    assert!(point["saturated"]["commands"].as_u64().expect("a count") > 0);
    assert_eq!(point["saturated"]["commands_per_second"], Value::Null);
    assert_eq!(point["single"]["commands"], point["single"]["sq_doorbells"]);
    assert_eq!(point["beside_compute"]["partition"], "green contexts");
    assert_eq!(point["why_no_compute"], Value::Null);
}

#[test]
fn a_curve_has_a_point_for_each_number_of_multiprocessors() {
    let report = json("bench --queues 2 --depth 64 --warps 2 --runtime 1ms --sms 1,2 --json");
    let curve = report["curve"].as_array().expect("a list");
    let sms: Vec<&Value> = curve.iter().map(|point| &point["sms"]).collect();
    assert_eq!(sms, [1, 2]);
}

#[test]
fn a_bench_against_a_controller_on_the_cpu_says_what_it_leaves_out() {
    let (code, out, err) = output(&format!("{SMALL} --runtime 1ms --controller cpu"));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("software controller, no PCIe"), "{out}");
    assert!(out.contains("in host"), "{out}");
    assert!(out.contains("no compute kernel beside the rings: the CPU"), "{out}");
}

#[test]
fn multiprocessors_that_are_not_set_apart_are_not_given_away() {
    let beside = |settings: &str, arguments: &str| {
        let line = format!("{SMALL} --runtime 1ms {arguments}");
        let ended = emulated(&line).env("ADIT_EMULATED_GPU", settings).output().expect("adit runs");
        String::from_utf8(ended.stdout).expect("UTF-8")
    };
    let out = beside("sms=8,no-green", "");
    assert!(out.contains("2 SMs: not set apart (priorities alone: "), "{out}");
    for (settings, given, share) in [("sms=8,no-green", 0, 0.0), ("sms=8", 2, 0.25)] {
        let out = beside(settings, "--json");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let beside = &report["curve"][0]["beside_compute"];
        assert_eq!((&beside["sms_all"], &beside["sms_given"]), (&8.into(), &given.into()), "{out}");
        assert_eq!(beside["share_given"], share, "{out}");
    }
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_runs() {
    for (line, part) in [
        ("bench --queues 0", "0 is not in 1..=256"),
        ("bench --depth 4097", "4097 is not in 2..=4096"),
        ("bench --sms 9", "--sms 9: the GPU has 8 multiprocessors"),
        ("bench --sms 4,0", "0 is not in 1.."),
        ("bench --warps 17", "17 is not in 1..=16"),
        ("bench --controller cpu --placement hbm", "take host"),
    ] {
        let (code, out, err) = output(line);
        assert_eq!((code, out.as_str()), (Some(2), ""), "adit gpu {line}: {err}");
        assert!(err.contains(part) && err.lines().count() == 1, "adit gpu {line}: {err}");
    }
}

#[test]
fn an_interrupted_bench_ends_with_130() {
    let mut child = emulated(&format!("{SMALL} --runtime 1h"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("adit runs");
    interrupt::wait_for_handler(child.id());
    interrupt::send(child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}

#[test]
fn a_selftest_lists_every_check_for_programs() {
    let report = json("selftest --json");
    assert_eq!(keys(&report), ["gpu", "verdict", "checks"]);
    assert_eq!(report["verdict"], "passed");
    let checks = report["checks"].as_array().expect("a list");
    assert_eq!(checks.len(), 20);
    for check in checks {
        assert_eq!(keys(check), ["name", "outcome", "detail", "took_ms"]);
        // A GPU of 8 multiprocessors cannot reserve 8.
        let expected = if check["name"] == "partitions" { "skipped" } else { "passed" };
        assert_eq!(check["outcome"], expected, "{check}");
    }
}

#[test]
fn a_failed_check_ends_a_selftest_with_1() {
    let mut command = emulated("selftest");
    let ended = command.env("ADIT_EMULATED_GPU", "nvrtc=error").output().expect("adit runs");
    assert_eq!(ended.status.code(), Some(1));
    let out = String::from_utf8(ended.stdout).expect("UTF-8");
    assert!(out.contains("failed  device code"), "{out}");
    assert_eq!(String::from_utf8(ended.stderr).expect("UTF-8"), "adit: 1 of 20 checks failed\n");
}
