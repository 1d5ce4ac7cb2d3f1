//! The same binary on a controller in another thread behind a vfio-user socket, by a
//! server of another make than the driver's client.
#![allow(missing_docs)]

#[path = "../../driver/tests/support/vfio_user_server.rs"]
mod server;

use std::process::{Command, Output};

use adit_driver::soft::Options;
use server::{DoorbellPage, VfioUserServer};

fn adit(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adit")).args(words).output().expect("adit runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes, reads back and verifies on a server made of `options`.
fn verified(options: &str, doorbells: DoorbellPage, settings: &str) -> serde_json::Value {
    let options: Options = options.parse().expect("valid options");
    let server = VfioUserServer::start(options, doorbells);
    let filename = format!("--filename=vfio-user:{}{settings}", server.socket().display());
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
    let options = "mem=8M,serial=ACROSS".parse().expect("valid options");
    let server = VfioUserServer::start(options, DoorbellPage::Mappable);
    let ended = adit(&["identify", &format!("vfio-user:{}", server.socket().display())]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert!(text(&ended.stdout).contains("ACROSS"), "{}", text(&ended.stdout));
}

#[test]
fn data_survives_with_doorbells_mapped() {
    assert_eq!(violations(&verified("mem=8M", DoorbellPage::Mappable, "")), 0);
    assert_eq!(
        violations(&verified("mem=8M,mdts=1,lba=4096", DoorbellPage::Mappable, ",sgl=off")),
        0
    );
}

#[test]
fn data_survives_with_doorbells_by_message() {
    assert_eq!(violations(&verified("mem=8M", DoorbellPage::Messages, "")), 0);
    assert_eq!(violations(&verified("mem=8M", DoorbellPage::Messages, ",dbbuf=off")), 0);
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
