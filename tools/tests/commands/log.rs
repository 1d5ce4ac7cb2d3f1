//! Tests `adit log` as users see it: output and exit codes.

use std::process::Command;

/// Runs `adit` with `line`, split at spaces: exit code, standard output, standard error.
fn run(line: &str) -> (Option<i32>, String, String) {
    let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
    let output = adit.args(line.split_whitespace()).output().expect("adit runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn succeed(line: &str) -> String {
    let (code, out, err) = run(line);
    assert_eq!((code, err.as_str()), (Some(0), ""), "adit {line}\n{out}");
    out
}

/// Expects exit code `code` and one error line that contains `part`.
fn fail(line: &str, code: i32, part: &str) {
    let (ended, out, err) = run(line);
    assert_eq!((ended, out.as_str()), (Some(code), ""), "adit {line}\n{err}");
    assert!(err.contains(part) && err.lines().count() == 1, "adit {line}: {err}");
}

#[test]
fn all_logs_are_printed_by_the_names_of_the_specification() {
    let out = succeed("log soft:mem=64M");
    for part in [
        "SMART / Health Information",
        "Critical Warning                        none",
        "Composite Temperature                   27 C",
        "Data Units Read                         0B (0 bytes)",
        "Error Information",
        "0 of up to 64 entries",
        "Firmware Slot Information",
        "slot 1, ",
    ] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}

#[test]
fn a_log_that_is_named_is_the_only_one() {
    let titles = ["SMART / Health", "Error Information\n", "Firmware Slot"];
    for (flag, title) in ["--smart", "--errors", "--firmware"].into_iter().zip(titles) {
        let out = succeed(&format!("log soft:mem=64M {flag}"));
        let found: Vec<&str> = titles.into_iter().filter(|title| out.contains(title)).collect();
        assert_eq!(found, [title], "{flag}:\n{out}");
    }
}

#[test]
fn json_has_every_field_in_its_unit() {
    let out = succeed("log soft:mem=64M --json");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["smart"]["composite_temperature_celsius"], 27);
    assert_eq!(report["smart"]["critical_warnings"].as_array().map(Vec::len), Some(0));
    assert!(report["smart"]["data_written_bytes"].is_number());
    assert_eq!(report["errors"]["entries_max"], 64);
    assert_eq!(report["firmware"]["active_slot"], 1);
    let smart = succeed("log soft:mem=64M --json --smart");
    let smart: serde_json::Value = serde_json::from_str(&smart).expect("JSON");
    assert!(smart["errors"].is_null() && smart["smart"].is_object());
}

#[test]
fn what_cannot_be_is_refused_in_one_sentence() {
    fail("log soft:mem=1M,ns=1", 2, "leave ',ns=1' out");
    fail("log sfot:mem=1M", 2, "did you mean 'soft:mem=1M'");
    fail("log", 2, "<TARGET>");
    fail("log soft:mem=1M --smrat", 2, "--smart");
    fail("log vfio-user:/nonexistent/cntrl", 1, "/nonexistent/cntrl");
}

#[test]
fn help_has_examples() {
    let out = succeed("log --help");
    for part in ["adit log vfio:0000:01:00.0", "--errors", "--firmware", "--json"] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}
