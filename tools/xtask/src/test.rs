//! `cargo xtask test`: runs every check, in the order in which mistakes are cheapest to find.
//!
//! Builds run concurrently, and nothing is run until all are done, so that tests have the machine to
//! themselves. Failures do not stop later steps, so that one run reports everything; only the guests are
//! skipped if `adit` does not build.

use crate::deps::{self, FIO, STRACE, VALGRIND, WIPEFS};
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::matrix;
use crate::process;
use crate::progress::Progress;
use crate::tally::Tally;
use crate::workspace;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Leave out the guests
    #[arg(long, conflicts_with = "only")]
    no_vm: bool,

    /// Run only the guests whose name contains this (and build adit for them); bench-fio, which only measures, runs only
    /// so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// How many guests run side by side [default: one for each core, as far as memory permits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    jobs: Option<u8>,
}

/// Clippy, with code that default features exclude.
const CLIPPY: &[&str] = &[
    "clippy",
    "--quiet",
    "--workspace",
    "--all-targets",
    "--features",
    "adit-driver/iommufd",
    "--",
    "-D",
    "warnings",
];

/// Fails if a workspace of its own has a lock file that no longer fits, as after a change of the crates it uses. Builds
/// nothing: these have dependencies that take minutes.
const fn is_locked(manifest: &'static str) -> [&'static str; 6] {
    ["update", "--quiet", "--workspace", "--locked", "--manifest-path", manifest]
}

/// Checks without running tests; [`PROGRAMS`] are built beside them.
const LOOKS: [&[&str]; 5] = [
    &["fmt", "--all", "--check"],
    &is_locked(workspace::COMPARE),
    &is_locked("kvstore/examples/llama/Cargo.toml"),
    &is_locked("kvstore/examples/dynamo/Cargo.toml"),
    CLIPPY,
];

/// Builds the tests beside the other builds, so that none runs before all are built.
const BUILD_TESTS: &[&str] = &["test", "--quiet", "--workspace", "--no-run"];

/// Tests, with nothing beside them.
const RUNS: [&[&str]; 6] = [
    &["test", "--quiet", "--workspace"],
    // The GPU's code, as far as it can be tested without a GPU.
    &["xtask", "device"],
    &["xtask", "python"],
    // With fresh seeds on each run: a failure prints the line that repeats it.
    &["xtask", "sim", "--schedules", "100000"],
    // The store's simulation, and a power cut at every command of a long workload with each durability. The
    // seed is fixed, because fresh seeds belong in longer runs, as 100,000 schedules do: they take minutes.
    &["xtask", "sim", "--store", "--schedules", "25000", "--seed", "1"],
    &["xtask", "sim", "--store", "--sweep"],
];

/// What the guests and the simulation run; the guests are skipped if it does not build. Cargo builds each profile
/// in a directory of its own, so this runs beside other builds.
const PROGRAMS: [&str; 4] = ["--bin", "adit", "--bin", "adit-sim"];

/// Runs the checks; returns 0 if all pass.
pub(crate) fn run(arguments: &TestArgs) -> Result<u8> {
    let begun = Instant::now();
    let cases = matrix::select(arguments.only.as_deref())?;
    deps::ensure(deps::TO_BUILD.iter().chain([&VALGRIND, &STRACE, &FIO, &WIPEFS]))?;
    let mut steps = Tally::default();
    let built = if arguments.only.is_some() {
        let built = run_step(&[&workspace::CHECKED[..], &PROGRAMS].concat())?;
        steps.count(built);
        built
    } else {
        run_all_steps(&mut steps)?
    };
    let steps_took_s = begun.elapsed().as_secs_f64();
    let guests = if arguments.no_vm {
        Tally::default()
    } else if built {
        matrix::run(&cases, arguments.jobs.map(usize::from))?
    } else {
        eprintln!("xtask: adit does not build; the guests are skipped");
        Tally { passed: 0, failed: u32::try_from(cases.len()).context("too many cases")? }
    };
    let elapsed_s = begun.elapsed().as_secs_f64();
    println!("steps took {steps_took_s:.0} s, guests {:.0} s", elapsed_s - steps_took_s);
    println!("{}", summary(steps, guests, arguments.no_vm, elapsed_s));
    Ok(u8::from(steps.failed + guests.failed > 0))
}

/// Runs everything except the guests; returns whether there is an `adit` for them.
fn run_all_steps(steps: &mut Tally) -> Result<bool> {
    let programs = [&workspace::CHECKED[..], &PROGRAMS].concat();
    println!("== cargo {} begins beside what follows", programs.join(" "));
    let mut command = workspace::cargo();
    command.arg("--quiet").args(&programs);
    let begun = Instant::now();
    let build = std::thread::spawn(move || (process::run_quietly(&mut command), begun.elapsed()));
    for step in LOOKS {
        steps.count(run_step(step)?);
    }
    let (outcome, took) = {
        let _progress = Progress::start("building the tests, adit and the simulation");
        // A test that does not build fails below and is reported there.
        let _ = process::run_quietly(workspace::cargo().args(BUILD_TESTS));
        build.join().expect("it only runs cargo, and returns how that ended")
    };
    interrupt::check()?;
    let built = outcome.is_ok();
    if let Err(failure) = outcome {
        println!("{failure}");
    }
    tell(&programs, built, took);
    steps.count(built);
    for step in RUNS {
        steps.count(run_step(step)?);
    }
    Ok(built)
}

fn run_step(step: &[&str]) -> Result<bool> {
    println!("== cargo {}", step.join(" "));
    let begun = Instant::now();
    let status = workspace::cargo().args(step).stdin(Stdio::null()).status();
    let status = status.map_err(|why| Failure::new(format!("cannot run cargo: {why}")))?;
    interrupt::check()?;
    tell(step, status.success(), begun.elapsed());
    Ok(status.success())
}

fn tell(step: &[&str], passed: bool, took: Duration) {
    let verdict = if passed { "PASS" } else { "FAIL" };
    println!("{verdict} cargo {} ({:.1} s)\n", step.join(" "), took.as_secs_f64());
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
