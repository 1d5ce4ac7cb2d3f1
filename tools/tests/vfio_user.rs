//! The same binary at both ends: `adit bench` and `adit identify` on what `adit softnvme` serves.
#![allow(missing_docs)]

#[path = "support/softnvme.rs"]
mod softnvme;

use softnvme::{Scratch, Softnvme, adit, text};

/// Writes, reads back and verifies on a server of these options.
fn verified(serving: &[&str], settings: &str) -> serde_json::Value {
    let scratch = Scratch::new();
    let server = Softnvme::start(&scratch.path("drive"), serving);
    let filename = format!("--filename={}{settings}", server.target());
    let ended = adit(&[
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
    let scratch = Scratch::new();
    let words = ["--media", "mem=8M", "--serial", "ACROSS"];
    let server = Softnvme::start(&scratch.path("drive"), &words);
    let ended = adit(&["identify", &server.target()]);
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
    let ended = adit(&["identify", "vfio-user:/nonexistent/cntrl"]);
    assert_eq!(ended.status.code(), Some(1));
    let said = text(&ended.stderr);
    assert!(
        said.starts_with("adit: ")
            && said.lines().count() == 1
            && said.contains("/nonexistent/cntrl"),
        "{said}"
    );
}
