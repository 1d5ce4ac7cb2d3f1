//! `cargo xtask test`: every check, in the order in which a mistake is cheapest to find.
//!
//! Nothing stops at the first failure, so that one run tells everything; only the guests are left out when `adit` does
//! not build.

use crate::deps::{self, FIO, STRACE, VALGRIND, WIPEFS};
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::matrix;
use crate::workspace;
use std::process::Stdio;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Leave out the guests
    #[arg(long, conflicts_with = "only")]
    no_vm: bool,

    /// Run only the guests whose name contains this (and build adit for them)
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// The checks that cargo does. The last one builds what the guests run: they are left out when it fails.
const STEPS: [&[&str]; 8] = [
    &["fmt", "--all", "--check"],
    &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"],
    // What the default features leave out.
    &["clippy", "--quiet", "-p", "adit-driver", "--features", "iommufd", "--", "-D", "warnings"],
    &["test", "--quiet", "--workspace"],
    // With fresh seeds on each run: a failure prints the line that repeats it.
    &["xtask", "sim", "--schedules", "100000"],
    // The store's, and a power cut at every command of a long workload in each durability.
    &["xtask", "sim", "--store", "--schedules", "100000"],
    &["xtask", "sim", "--store", "--sweep"],
    BUILD,
];

const BUILD: &[&str] = &["build", "--quiet", "--release", "--package", "adit"];

/// How many passed and failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Passed.
    pub passed: u32,
    /// Failed.
    pub failed: u32,
}

impl Tally {
    /// Counts one more.
    pub(crate) fn count(&mut self, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }
}

/// Runs the checks; returns 0 when all of them pass.
pub(crate) fn run(arguments: &TestArgs) -> Result<u8> {
    let begun = Instant::now();
    let cases = matrix::select(arguments.only.as_deref())?;
    deps::ensure(deps::TO_BUILD.iter().chain([&VALGRIND, &STRACE, &FIO, &WIPEFS]))?;
    let mut steps = Tally::default();
    let mut built = false;
    for step in if arguments.only.is_some() { &[BUILD] } else { &STEPS[..] } {
        let passed = run_step(step)?;
        steps.count(passed);
        built = passed;
    }
    let guests = if arguments.no_vm {
        Tally::default()
    } else if built {
        matrix::run(&cases)?
    } else {
        eprintln!("xtask: adit does not build, so no guest can run it");
        Tally { passed: 0, failed: u32::try_from(cases.len()).context("too many cases")? }
    };
    println!("{}", summary(steps, guests, arguments.no_vm, begun.elapsed().as_secs_f64()));
    Ok(u8::from(steps.failed + guests.failed > 0))
}

fn run_step(step: &[&str]) -> Result<bool> {
    let name = format!("cargo {}", step.join(" "));
    println!("== {name}");
    let begun = Instant::now();
    let status = workspace::cargo().args(step).stdin(Stdio::null()).status();
    let status = status.map_err(|why| Failure::new(format!("cannot run cargo: {why}")))?;
    interrupt::check()?;
    let verdict = if status.success() { "PASS" } else { "FAIL" };
    println!("{verdict} {name} ({:.1} s)\n", begun.elapsed().as_secs_f64());
    Ok(status.success())
}

fn summary(steps: Tally, guests: Tally, no_vm: bool, elapsed_s: f64) -> String {
    let verdict = if steps.failed + guests.failed == 0 { "ok" } else { "FAILED" };
    let left_out = if no_vm { " (left out)" } else { "" };
    format!(
        "test result: {verdict}. steps: {} passed, {} failed; matrix: {} passed, {} failed{left_out}; \
         finished in {elapsed_s:.2}s",
        steps.passed, steps.failed, guests.passed, guests.failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_both_kinds() {
        let steps = Tally { passed: 4, failed: 0 };
        let guests = Tally { passed: 17, failed: 1 };
        let line = summary(steps, guests, false, 312.4);
        let expected = "test result: FAILED. steps: 4 passed, 0 failed; matrix: 17 passed, 1 failed; finished in 312.40s";
        assert_eq!(line, expected);
        assert!(summary(steps, Tally::default(), true, 1.0).starts_with("test result: ok."));
    }
}
