//! Tests `adit gpu bench` and `adit gpu selftest` on the emulated CUDA driver: output and exit codes.
#![forbid(unsafe_code)]

#[path = "support/interrupt.rs"]
mod interrupt;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Few warps and short parts, because the emulated GPU's threads share the machine with other tests.
const SMALL: &str = "bench --queues 2 --depth 64 --sms 2 --warps 2 --single 20 --compute 5ms";

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
    let parts = [
        "measured_against",
        "gpu",
        "is_emulated",
        "options",
        "saturated",
        "single",
        "beside_compute",
        "preparation",
        "missing",
    ];
    assert_eq!(keys(&report), parts);
    assert_eq!(report["measured_against"], "software controller, no PCIe");
    let saturated = &report["saturated"];
    assert_eq!(saturated["commands"], saturated["checked"]);
    assert_eq!(saturated["refused"], 0);
    assert_eq!(
        (&report["is_emulated"], &saturated["commands_per_second"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(
        (&report["single"]["commands"], &report["single"]["sq_doorbells"]),
        (&20.into(), &20.into())
    );
    assert_eq!(report["beside_compute"]["partition"], "green contexts");
    assert_eq!(report["preparation"]["tensors"], 8000);
    assert_eq!(report["missing"], Value::Array(Vec::new()));
}

#[test]
fn a_bench_against_controllers_on_the_cpu_says_what_it_leaves_out() {
    let (code, out, err) = output(&format!("{SMALL} --runtime 1ms --controller cpu"));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("software controller, no PCIe"), "{out}");
    assert!(out.contains("in host"), "{out}");
    assert!(out.contains("not measured: the threads that serve the rings"), "{out}");
}

#[test]
fn multiprocessors_that_are_not_set_apart_are_not_given_away() {
    let beside = |settings: &str, arguments: &str| {
        let line = format!("{SMALL} --runtime 1ms {arguments}");
        let ended = emulated(&line).env("ADIT_EMULATED_GPU", settings).output().expect("adit runs");
        String::from_utf8(ended.stdout).expect("UTF-8")
    };
    let shared =
        "multiprocessors given away                not set apart: all share 8 SMs (priorities";
    let out = beside("sms=8,no-green", "");
    assert!(out.contains(shared), "{out}");
    for (settings, given, share) in [("sms=8,no-green", 0, 0.0), ("sms=8", 2, 0.25)] {
        let out = beside(settings, "--json");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let beside = &report["beside_compute"];
        assert_eq!((&beside["sms_all"], &beside["sms_given"]), (&8.into(), &given.into()), "{out}");
        assert_eq!(beside["share_given"], share, "{out}");
    }
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_runs() {
    for (line, part) in [
        ("bench --queues 0", "queues of the GPU bench: 0 is outside 1 to 256"),
        ("bench --depth 4097", "depth of the GPU bench: 4097 is outside 2 to 4096"),
        ("bench --sms 9", "sms of the GPU bench: 9 is outside 1 to 8, which the GPU has"),
        ("bench --warps 17", "outside 1 to 16"),
        ("bench --bs 513", "no multiple of 512"),
        ("bench --compute 10m", "compute of the GPU bench: 600 s are more than 10 s"),
        ("bench --bs 8G", "more than a command's"),
        ("bench --controller cpu --placement hbm", "take host"),
    ] {
        let (code, out, err) = output(line);
        assert_eq!((code, out.as_str()), (Some(2), ""), "adit gpu {line}: {err}");
        assert!(err.contains(part) && err.lines().count() == 1, "adit gpu {line}: {err}");
    }
}

#[test]
fn more_warps_than_a_gpu_runs_are_refused_with_the_options_that_make_fewer() {
    let mut command = emulated("bench --queues 2 --depth 64 --sms 32 --runtime 1ms");
    let ended = command.env("ADIT_EMULATED_GPU", "sms=64").output().expect("adit runs");
    let err = String::from_utf8(ended.stderr).expect("UTF-8");
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.contains("lower --sms or --warps: 32 x 16 warps were asked for"), "{err}");
    assert!(err.contains("room for 256)"), "{err}");
}

#[test]
fn an_interrupted_bench_reports_what_it_has_and_ends_with_130() {
    let mut child = emulated(&format!("{SMALL} --runtime 1h --json"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("adit runs");
    interrupt::wait_for_handler(child.id());
    interrupt::send(child.id());
    let lines: Vec<String> = BufReader::new(child.stdout.take().expect("piped"))
        .lines()
        .map(|line| line.expect("UTF-8"))
        .collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let report: Value = serde_json::from_str(&lines.join("\n")).expect("JSON");
    assert!(report["saturated"]["commands"].as_u64().expect("a count") > 0);
    assert_eq!(report["single"], Value::Null);
    assert_eq!(report["missing"][0]["why"], "interrupted");
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
