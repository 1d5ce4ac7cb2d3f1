//! Compares `adit bench`'s reports with fio's: the same job gives JSON with the same keys and types.
//!
//! fio's keys are recorded in `fio-3.33-keys.txt`. If that fio is installed, the record is compared with its
//! output; `ADIT_BLESS=1 cargo test -p adit --test commands bench_reports` updates it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::keys;
use crate::support::kv::Scratch;

/// The recorded version of fio.
const VERSION: &str = "fio-3.33";

/// Returns the standard output of a job.
fn run(mut program: Command, case: &str, options: &str) -> String {
    // fio leaves files in its working directory.
    let scratch = Scratch::new(case);
    let options = options.replace("{file}", "file");
    let ended = program
        .current_dir(&scratch.0)
        .args(["--name=job", "--bs=4k"])
        .args(options.split_whitespace())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{case}: {said}");
    String::from_utf8(ended.stdout).expect("UTF-8")
}

/// Returns whether the recorded version of fio is installed.
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

#[test]
fn a_job_has_the_same_keys_and_types_as_with_fio() {
    for (case, options) in keys::CASES {
        let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
        adit.args(["bench", "--allow-destroy"]);
        let ours = keys::of(&run(adit, case, options));
        if let Some(difference) = keys::difference(&keys::recorded(case), &ours) {
            panic!("{case}: {difference}");
        }
    }
}

#[test]
fn each_job_says_when_it_started() {
    let unix_ms = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        since.as_millis() as u64
    };
    let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
    adit.arg("bench");
    let before = unix_ms();
    let second = "--size=1m --ioengine=null --rw=read --name=second --stonewall --size=1m \
                  --ioengine=null --rw=read --output-format=json";
    let report = run(adit, "starts", second);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let start = |job: usize| report["jobs"][job]["job_start"].as_u64().expect("a number");
    let times = [before, start(0), start(1), unix_ms()];
    assert!(times.is_sorted(), "{times:?}");
}

/// Returns the beginnings of the lines of a report for people, without units and figures.
fn labels(report: &str) -> BTreeSet<String> {
    let lines = report.lines().filter(|line| !line.starts_with("     |"));
    let mut after_disks = 0;
    // Only the first disk: fio also lists the disks a volume is made of.
    let lines = lines.take_while(|line| {
        after_disks += usize::from(after_disks > 0 || line.starts_with("Disk stats"));
        after_disks <= 2
    });
    let labels = lines.filter_map(|line| line.split_once(':')).map(|(label, _)| label.to_owned());
    let without_unit = |label: String| {
        ["nsec", "usec", "msec", "KiB", "MiB"].iter().fold(label, |l, unit| l.replace(unit, ""))
    };
    labels.map(without_unit).collect()
}

#[test]
fn the_other_formats_have_the_lines_and_fields_of_fios() {
    if !has_fio() {
        eprintln!("{VERSION} is not installed: there is nothing to compare with");
        return;
    }
    for (case, options) in keys::CASES.iter().filter(|(case, _)| *case != "bins") {
        let both = |format: &str| {
            let options = options.replace("--output-format=json", format);
            let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
            adit.args(["bench", "--allow-destroy"]);
            (run(Command::new("fio"), case, &options), run(adit, case, &options))
        };
        let (theirs, ours) = both("--output-format=normal");
        let (theirs, ours) = (labels(&theirs), labels(&ours));
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{case}: fio has and we have not: {missing:?}");
        let (theirs, ours) = both("--output-format=terse --disk_util=0");
        let fields = |report: &str| report.trim_end().split(';').count();
        assert_eq!(fields(&ours), fields(&theirs), "{case}");
    }
}

#[test]
fn blocks_that_fio_verified_are_verified_by_us() {
    if !has_fio() {
        eprintln!("{VERSION} is not installed: there is nothing to read");
        return;
    }
    let scratch = Scratch::new("verify");
    let run = |mut program: Command, options: &str| {
        let options = format!("--filename=a:b --size=256k --verify=crc32c {options}");
        program.current_dir(&scratch.0).args(["--name=job", "--bs=4k"]);
        program.args(options.split_whitespace()).output().expect("it runs")
    };
    let adit = || {
        let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
        adit.arg("bench");
        adit
    };
    for write in ["--rw=write", "--rw=randwrite --verify_interval=1k --verify_pattern=0xab%o"] {
        let ended = run(Command::new("fio"), &format!("{write} --do_verify=0"));
        assert!(ended.status.success(), "{write}");
        let read = write.replace("write", "read");
        let ended = run(adit(), &read);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{read}: {said}");
        let file = scratch.0.join("b");
        let mut content = std::fs::read(&file).expect("fio wrote it");
        content[5000] ^= 1;
        std::fs::write(&file, content).expect("writable");
        let ended = run(adit(), &read);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("is corrupt: crc32c"), "{read}: {said}");
    }
}
