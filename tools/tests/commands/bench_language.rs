//! Tests fio's language in `adit bench`: job files and command lines, through the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn bench(words: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_adit"))
        .arg("bench")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("adit runs");
    // A program that refuses its command line does not read its input.
    drop(child.stdin.take().expect("a pipe").write_all(input.as_bytes()));
    child.wait_with_output().expect("adit ends")
}

/// Returns the message of a run that ends with exit code 2.
fn refusal(words: &[&str], input: &str) -> String {
    let output = bench(words, input);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
    assert_eq!(said.lines().count(), 1, "one sentence: {said}");
    said
}

fn shown(words: &[&str], input: &str) -> String {
    let output = bench(words, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn job_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs"));
    let files = entries.expect("tests/jobs").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "fio")).collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    files
}

#[test]
fn a_job_file_is_checked_without_touching_what_it_names() {
    for file in job_files() {
        let name = file.to_str().expect("UTF-8");
        let output = bench(&[name, "--parse-only"], "");
        let is_refused = name.contains("/refused-");
        assert_eq!(output.status.code(), Some(if is_refused { 2 } else { 0 }), "{name}");
        assert!(output.stdout.is_empty(), "{name}");
        assert_eq!(output.stderr.is_empty(), !is_refused, "{name}");
    }
}

#[test]
fn a_shell_runs_the_command_line_that_is_shown() {
    for file in job_files().iter().map(|file| file.to_str().expect("UTF-8")) {
        if file.contains("/refused-") {
            continue;
        }
        let first = shown(&[file, "--showcmd"], "");
        let line = first.replacen("adit ", &format!("{} ", env!("CARGO_BIN_EXE_adit")), 1);
        let line = format!("{} --showcmd", line.trim_end());
        let again = Command::new("sh").arg("-c").arg(line).output().expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&again.stdout), first, "{file}");
    }
}

#[test]
fn a_job_file_may_come_by_standard_input() {
    let text = shown(&["-", "--showcmd"], "[a]\nfilename=null:\nsize = 2*$pagesize ; two pages\n");
    assert!(text.starts_with("adit bench --name=a --filename=null: --size="), "{text}");
    assert!(refusal(&["-"], "bs=4k\n").contains("(standard input):1:1: "));
}

#[test]
fn variables_come_from_the_environment() {
    let output = Command::new(env!("CARGO_BIN_EXE_adit"))
        .args(["bench", "--showcmd"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/variables.fio"))
        .env("ADIT_NOBODY_SETS_THIS", "x")
        .output()
        .expect("adit runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("'--description=for xnobody'"), "{said}");
}

#[test]
fn what_is_wrong_is_told_in_a_sentence_with_what_to_do() {
    for (words, expected) in [
        (&["--filename=null:", "--bs=4x"][..], "--bs: '4x' is not a number"),
        (&["--filename=null:", "--rw=raed"], "did you mean 'read'?"),
        (&["--filename=null:", "--uid=5"], "as with setpriv --reuid"),
        (&["--filename=null:", "--ioengine=rbd"], "rbd map"),
        (
            &["--filename=null:", "--iodpeth=5"],
            "--iodpeth: there is no such option; did you mean 'iodepth'?",
        ),
        (&["--filename=null:", "--outptu=x"], "did you mean 'output'?"),
        (&["--filename=null:", "--bz=4k"], "--bz: there is no such option; 'adit bench --help'"),
        (&["-name=x"], "two dashes"),
        (&["--filename=/tmp/a::/tmp/b", "--parse-only"], "nothing between two colons"),
        (&["--nrfiles=2", "--size=1m", "--file_service_type=zipf:1.2"], "use random"),
        (&["--filename=null:", "--iodepth_low=5"], "give at most 1"),
        (&["--filename=null:", "--rw=write", "--readonly"], "--readonly forbids"),
        (&["--filename=null:", "--rw=rw", "--rwmixread=5", "--rwmixwrite=5"], "not 100 together"),
        (&["--filename=null:", "--bs=64k", "--size=4k"], "make size larger"),
        (&["--filename=null:", "--sweep=iodpeth=1,2"], "did you mean 'iodepth'?"),
        (&["--filename=vfo:0000:01:00.0", "--targets=vfo:1"], "vfio"),
        (&["/nonexistent/x.fio"], "/nonexistent/x.fio"),
        (&[], "there are no jobs"),
    ] {
        let said = refusal(words, "");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn the_help_lists_the_options_by_what_they_are_about() {
    let help = shown(&["--help"], "");
    for part in ["Job: which I/Os:", "Job: when and how fast:", "Run:", "--rw <WAY>", "Examples:"] {
        assert!(help.contains(part), "{part}");
    }
    assert!(!help.contains("--uid"));
}
