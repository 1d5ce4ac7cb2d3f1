//! The outcome of one run of a test binary, from its exit code and libtest's output.

use crate::process::tail;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// Maximum lines shown of a failed test's output.
const SHOWN_LINES: usize = 40;

/// How the process ended.
#[derive(Clone, Copy)]
pub(super) enum End {
    Exit(ExitStatus),
    /// Killed after running this long.
    Killed(Duration),
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(status) => write!(out, "ended with {status}"),
            End::Killed(after) => write!(out, "killed after {} s", after.as_secs_f64()),
        }
    }
}

/// A failed test, or a binary that ended without naming one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// The test's path, or how the binary ended.
    pub(super) name: String,
    /// The end of its output.
    pub(super) said: String,
}

/// Returns the failures of a run that printed `output`; empty if it passed.
pub(super) fn failures(end: End, output: &str) -> Vec<Failed> {
    if matches!(end, End::Exit(status) if status.success()) {
        return Vec::new();
    }
    let names = failed_names(output);
    if names.is_empty() {
        return vec![Failed { name: format!("the binary {end}"), said: tail(output, SHOWN_LINES) }];
    }
    let failed = |name: &str| Failed { name: name.to_owned(), said: said_by(name, output) };
    names.into_iter().map(failed).collect()
}

/// Returns the names in libtest's final list. Tests may print similar text before it.
fn failed_names(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let Some(start) = lines.iter().rposition(|line| *line == "failures:") else {
        return Vec::new();
    };
    lines[start + 1..].iter().map_while(|line| line.strip_prefix("    ")).collect()
}

/// Returns a test's output as shown by libtest, up to the first backtrace.
fn said_by(name: &str, output: &str) -> String {
    let head = format!("---- {name} stdout ----");
    let is_end = |line: &str| {
        let is_next = line.starts_with("---- ") && line.ends_with(" ----");
        is_next || line == "failures:" || line == "stack backtrace:"
    };
    let lines = output.lines().skip_while(|line| *line != head).skip(1);
    let said: Vec<&str> = lines.take_while(|line| !is_end(line)).collect();
    tail(&said.join("\n"), SHOWN_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const OUTPUT: &str = "
running 3 tests
test a::one ... FAILED
test a::two ... ok
test a::three ... FAILED

failures:

---- a::one stdout ----
thread 'a::one' panicked at a.rs:1:
seed 17
stack backtrace:
   0: a::one

---- a::three stdout ----
Error: \"late\"


failures:
    a::one
    a::three

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn exit(code: i32) -> End {
        End::Exit(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn each_failed_test_has_its_own_output() {
        assert_eq!(failures(exit(0), OUTPUT), []);
        let failed = failures(exit(101), OUTPUT);
        let said: Vec<(&str, &str)> =
            failed.iter().map(|failed| (failed.name.as_str(), failed.said.as_str())).collect();
        let first = "thread 'a::one' panicked at a.rs:1:\nseed 17";
        assert_eq!(said, [("a::one", first), ("a::three", "Error: \"late\"")]);
    }

    #[test]
    fn a_binary_that_names_no_test_is_told_by_its_end() {
        let aborted = failures(End::Exit(ExitStatus::from_raw(6)), "running 3 tests\nabort!\n");
        assert_eq!(aborted.len(), 1);
        assert!(aborted[0].name.contains("signal: 6"), "{}", aborted[0].name);
        assert!(aborted[0].said.ends_with("abort!"));
        let killed = failures(End::Killed(Duration::from_millis(1500)), "");
        assert_eq!(killed[0].name, "the binary killed after 1.5 s");
        assert_eq!(failures(exit(1), "failures:\n").len(), 1, "a list without a name");
    }
}
