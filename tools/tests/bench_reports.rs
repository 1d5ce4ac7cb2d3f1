//! `adit bench`'s reports beside fio's: the same job by both gives JSON with the same keys and types.
//!
//! fio's keys are recorded in `fio-3.33-keys.txt`. Where that fio is installed, the record is compared with what it
//! writes; `ADIT_BLESS=1 cargo test -p adit --test bench_reports` records it anew.

#[path = "support/keys.rs"]
mod keys;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The fio whose keys are recorded.
const VERSION: &str = "fio-3.33";

/// A file that is gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("adit-reports-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The standard output of a job.
fn run(mut program: Command, case: &str, options: &str) -> String {
    let file = Scratch::new(case);
    let options = options.replace("{file}", &file.0.display().to_string());
    let ended = program
        .args(["--name=job", "--bs=4k"])
        .args(options.split_whitespace())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{case}: {said}");
    String::from_utf8(ended.stdout).expect("UTF-8")
}

/// Whether the fio whose keys are recorded is installed.
fn has_fio() -> bool {
    let version = Command::new("fio").arg("--version").output();
    version.is_ok_and(|ended| ended.stdout.trim_ascii_end() == VERSION.as_bytes())
}

#[test]
fn the_record_is_what_fio_writes() {
    if !has_fio() {
        eprintln!("{VERSION} is not installed: its record is taken for it");
        return;
    }
    let cases = keys::CASES.iter();
    let written: BTreeMap<&str, keys::Keys> = cases
        .map(|(case, options)| (*case, keys::of(&run(Command::new("fio"), case, options))))
        .collect();
    if std::env::var_os("ADIT_BLESS").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fio-3.33-keys.txt");
        std::fs::write(file, keys::record(&written)).expect("writable");
        return;
    }
    for (case, written) in &written {
        if let Some(difference) = keys::difference(written, &keys::recorded(case)) {
            panic!("{case}: {difference}\n(we: the record)\nADIT_BLESS=1 takes it over");
        }
    }
}
