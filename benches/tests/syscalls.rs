//! Shows by strace that an I/O makes no system call.
//!
//! Runs `hotpath` with 10 and with 2000 bursts under strace. Opening the controller and printing the report take
//! system calls; if the numbers are equal, the bursts in between take none. A contended lock would show as `futex`.
//!
//! Without strace, or where tracing is forbidden, the test reports that and is skipped; in CI (`CI` is set) it must
//! run.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The count of each system call, by name.
type Calls = BTreeMap<String, u64>;

/// Counts the lines of a trace by the name of the call.
fn count(trace: &str) -> Calls {
    let mut calls = Calls::new();
    for line in trace.lines() {
        // "1234 write(1, ..." of one of several threads; signals and exits have no name before a parenthesis.
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let name: String =
            line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if !name.is_empty() && line[name.len()..].starts_with('(') {
            *calls.entry(name).or_default() += 1;
        }
    }
    calls
}

/// Runs hotpath under strace; `Err` says why it cannot be traced.
fn trace(bursts: u32, pointer: &str) -> Result<Calls, String> {
    let name = format!("adit-syscalls-{}-{pointer}-{bursts}.txt", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    let output = Command::new("strace")
        .arg("-f")
        .arg("-o")
        .arg(&file)
        .arg(env!("CARGO_BIN_EXE_hotpath"))
        .args(["--depth", "32", "--bs", "4096", "--pointer", pointer, "--idle-polls", "3"])
        .args(["--bursts", &bursts.to_string()])
        .output()
        .map_err(|why| format!("cannot run strace: {why}"))?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    // The file may not exist.
    let _ = std::fs::remove_file(&file);
    let calls = count(&text);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if calls.is_empty() {
        return Err(format!("strace traced nothing: {message}"));
    }
    assert!(output.status.success(), "hotpath fails under strace: {message}");
    Ok(calls)
}

/// Returns the calls of few and of many bursts, or `None` if they cannot be counted.
fn few_and_many(pointer: &str) -> Option<(Calls, Calls)> {
    match trace(10, pointer).and_then(|few| Ok((few, trace(2000, pointer)?))) {
        Ok(both) => Some(both),
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "system calls must be counted in CI: {why}");
            eprintln!("left out, system calls cannot be counted here: {why}; install strace");
            None
        }
    }
}

#[test]
fn an_io_makes_no_system_call() {
    for pointer in ["prp", "sgl"] {
        let Some((few, many)) = few_and_many(pointer) else { return };
        assert!(few.contains_key("mmap"), "the trace holds the start of the program: {few:?}");
        assert_eq!(few, many, "{pointer}: bursts make system calls");
    }
}

#[test]
fn the_counter_counts() {
    let trace = "12 execve(\"x\", [], 0x0) = 0\n12 mmap(NULL, 1) = 0x7\n13 mmap(NULL, 2 <unfinished ...>\n\
                 13 <... mmap resumed>) = 0x8\n12 --- SIGCHLD {} ---\n12 +++ exited with 0 +++\n";
    let expected = Calls::from([("execve".to_owned(), 1), ("mmap".to_owned(), 2)]);
    assert_eq!(count(trace), expected);
}
