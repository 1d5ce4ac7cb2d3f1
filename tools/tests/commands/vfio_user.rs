//! Tests the same binary at both ends: `adit bench` and `adit identify` on a controller served by `adit
//! softnvme`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::kv::{Scratch, run, text};
use crate::support::softnvme::{Softnvme, kill};

/// Writes, reads back and verifies on a server with these options.
fn verified(serving: &[&str], settings: &str) -> serde_json::Value {
    let scratch = Scratch::new("softnvme");
    let server = Softnvme::start(&scratch.path("drive"), serving);
    let filename = format!("--filename={}{settings}", server.target());
    let ended = run(&[
        "bench",
        &filename,
        "--rw=randrw",
        "--bs=16k",
        "--iodepth=8",
        "--size=4M",
        "--verify=crc32c",
        "--output-format=json",
    ]);
    assert!(ended.status.success(), "{}{}", text(&ended.stdout), text(&ended.stderr));
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

fn violations(report: &serde_json::Value) -> u64 {
    report
        .pointer("/jobs/0/adit/violations")
        .and_then(serde_json::Value::as_u64)
        .expect("the driver's counters")
}

#[test]
fn identify_shows_what_the_server_serves() {
    let scratch = Scratch::new("softnvme");
    let words = ["--media", "mem=8M", "--serial", "ACROSS"];
    let server = Softnvme::start(&scratch.path("drive"), &words);
    let ended = run(&["identify", &server.target()]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert!(text(&ended.stdout).contains("ACROSS"), "{}", text(&ended.stdout));
}

#[test]
fn data_survives_with_doorbells_mapped() {
    assert_eq!(violations(&verified(&["--media", "mem=8M"], "")), 0);
    let words = ["--media", "mem=8M", "--mdts", "1", "--lba", "4096"];
    assert_eq!(violations(&verified(&words, ",sgl=off")), 0);
}

#[test]
fn data_survives_with_queues_in_the_controller_memory_buffer() {
    let words = ["--media", "mem=8M", "--cmb", "1M"];
    assert_eq!(violations(&verified(&words, ",queues=cmb")), 0);
}

#[test]
fn data_survives_with_doorbells_by_message() {
    let words = ["--media", "mem=8M", "--doorbells", "messages"];
    assert_eq!(violations(&verified(&words, "")), 0);
    assert_eq!(violations(&verified(&words, ",dbbuf=off")), 0);
}

#[test]
fn no_server_is_one_sentence() {
    let ended = run(&["identify", "vfio-user:/nonexistent/cntrl"]);
    assert_eq!(ended.status.code(), Some(1));
    let said = text(&ended.stderr);
    assert!(
        said.starts_with("adit: ")
            && said.lines().count() == 1
            && said.contains("/nonexistent/cntrl"),
        "{said}"
    );
}

/// Reads from a server for a minute, printing a line every 500 ms.
fn reading(server: &Softnvme, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    command.args(["bench", "--rw=randread", "--bs=4k", "--iodepth=4", "--io_timeout=1"]);
    command.args(["--time_based", "--eta=always", "--eta-interval=500ms"]);
    command.arg(format!("--filename={}", server.target())).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("adit runs")
}

/// Reads lines until one contains `part`; returns the remaining lines.
fn skip_to(lines: &mut impl BufRead, part: &str) {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("UTF-8"), 0, "no '{part}'");
    }
}

#[test]
fn a_server_that_is_killed_or_hangs_ends_the_run_soon_and_its_figures_before() {
    for signal in ["KILL", "STOP"] {
        let scratch = Scratch::new("softnvme");
        let server = Softnvme::start(&scratch.path("drive"), &["--media", "mem=8M"]);
        let mut bench = reading(&server, &["--runtime=60", "--output-format=json"]);
        let mut said = BufReader::new(bench.stderr.take().expect("piped"));
        skip_to(&mut said, "[r=");
        kill(signal, server.id());
        let since = Instant::now();
        let mut out = String::new();
        bench.stdout.take().expect("piped").read_to_string(&mut out).expect("UTF-8");
        let took = since.elapsed();
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("UTF-8");
        assert_eq!(bench.wait().expect("a child").code(), Some(1), "{rest}");
        assert!(rest.contains("read as all ones") && !rest.contains("CAP 0xffff"), "{rest}");
        // 2 s on an idle machine; a regression took more than 10 s.
        assert!(took < Duration::from_secs(8), "{signal}: {took:?}: {rest}");
        let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_ne!(report["jobs"][0]["error"], 0);
    }
}

#[test]
fn with_recover_the_run_goes_on_when_the_server_is_there_again() {
    let scratch = Scratch::new("softnvme");
    let folder = scratch.path("drive");
    let server = Softnvme::start(&folder, &["--media", "mem=8M"]);
    let mut bench = reading(&server, &["--runtime=2", "--recover", "--output-format=json"]);
    let mut said = BufReader::new(bench.stderr.take().expect("piped"));
    skip_to(&mut said, "[r=");
    kill("KILL", server.id());
    skip_to(&mut said, "for it to come back");
    drop(server);
    let again = Softnvme::start(&folder, &["--media", "mem=8M"]);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("UTF-8");
    let ended = bench.wait_with_output().expect("a child");
    assert!(ended.status.success(), "{rest}");
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!(report["jobs"][0]["adit"]["recoveries"], 1, "{rest}");
    drop(again);
}
