//! `cargo xtask nightly`: named steps that take too long or need too much for each change.
//!
//! A step that cannot run on this machine is skipped, with the reason; failures do not stop later steps.

use crate::deps;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::process;
use crate::workspace;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  cargo xtask nightly             every step
  cargo xtask nightly --list      what they are
  cargo xtask nightly asan        this one alone";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NightlyArgs {
    /// Only these steps [default: all]
    #[arg(value_name = "STEP")]
    only: Vec<String>,

    /// Print the steps and their purpose
    #[arg(long)]
    list: bool,
}

/// A step: its name, its purpose, and its command, or what this machine lacks for it.
struct Step {
    name: &'static str,
    about: &'static str,
    command: fn() -> Result<Ready>,
}

const STEPS: [Step; 7] = [
    Step {
        name: "miri",
        about: "undefined behaviour in the driver's slots, rings, memory and planner (under an interpreter)",
        command: miri,
    },
    Step {
        name: "memcheck",
        about: "the same tests under valgrind: memory used after it is freed, or before it is written",
        command: memcheck,
    },
    Step {
        name: "asan",
        about: "the driver's tests on `soft:` under AddressSanitizer",
        command: asan,
    },
    Step {
        name: "fuzz",
        about: "ten minutes of vfio-user clients with files and states against the server, guided by coverage",
        command: fuzz,
    },
    Step {
        name: "deny",
        about: "licences, sources and versions of all dependencies",
        command: deny,
    },
    Step {
        name: "advisories",
        about: "known vulnerabilities of all dependencies (fetches the RustSec database)",
        command: advisories,
    },
    Step {
        name: "compare",
        about: "the comparison with other engines: its build and its tests",
        command: compare,
    },
];

/// The command of a step, or what this machine lacks for it.
type Ready = std::result::Result<Command, String>;

/// Tests of the driver's modules that need neither files nor devices. The list must not match other tests'
/// names.
const PURE: &[&str] = &[
    "queue_pair::slots::",
    "queue_pair::ring::",
    "memory::",
    "transfer::",
    "sys::dma_table::",
    "namespace::limits::",
    "--skip=paths::",
    "--skip=serve::",
    "--skip=soft::",
    "--skip=sys::host_memory::",
];

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Passed,
    Failed,
    LeftOut,
}

/// Runs the steps; returns 0 if none fails.
pub(crate) fn run(arguments: &NightlyArgs) -> Result<u8> {
    if arguments.list {
        STEPS.iter().for_each(|step| println!("{:<10} {}", step.name, step.about));
        return Ok(0);
    }
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    for step in select(&arguments.only)? {
        outcomes.push(run_step(step)?);
    }
    println!("{}; finished in {:.0} s", summary(&outcomes), begun.elapsed().as_secs_f64());
    Ok(u8::from(outcomes.contains(&StepOutcome::Failed)))
}

/// Returns the steps of these names in their usual order; all if there are no names.
fn select(only: &[String]) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let names = STEPS.map(|step| step.name).join(", ");
        return Err(Failure::usage(format!("there is no step '{unknown}'; there are {names}")));
    }
    let is_wanted = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(is_wanted).collect())
}

fn run_step(step: &Step) -> Result<StepOutcome> {
    println!("== {}: {}", step.name, step.about);
    let begun = Instant::now();
    let outcome = match (step.command)()? {
        Err(lacks) => {
            println!("{lacks}");
            StepOutcome::LeftOut
        }
        Ok(mut command) => {
            let status = command.stdin(Stdio::null()).status();
            let status = status.map_err(|why| {
                let program = command.get_program().to_string_lossy();
                Failure::new(format!("cannot run {program}: {why}"))
            })?;
            interrupt::check()?;
            if status.success() { StepOutcome::Passed } else { StepOutcome::Failed }
        }
    };
    println!("{} {} ({:.1} s)\n", verdict(outcome), step.name, begun.elapsed().as_secs_f64());
    Ok(outcome)
}

fn verdict(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Passed => "PASS",
        StepOutcome::Failed => "FAIL",
        StepOutcome::LeftOut => "LEFT OUT",
    }
}

fn summary(outcomes: &[StepOutcome]) -> String {
    let count = |kind| outcomes.iter().filter(|outcome| **outcome == kind).count();
    let [passed, failed, left_out] =
        [StepOutcome::Passed, StepOutcome::Failed, StepOutcome::LeftOut].map(count);
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    format!("nightly result: {verdict}. {passed} passed, {failed} failed, {left_out} left out")
}

/// Returns a build directory for the step, because different flags would otherwise rebuild everything each
/// time.
fn target(step: &str) -> Result<PathBuf> {
    Ok(workspace::target_directory()?.join("nightly").join(step))
}

/// Checks that cargo has a command, and returns how to install it if not.
fn require(command: &[&str], install: &str) -> std::result::Result<(), String> {
    let asked = Command::new("cargo").args(command).arg("--version").output();
    if asked.is_ok_and(|answer| answer.status.success()) {
        return Ok(());
    }
    Err(format!("cargo {} is not installed: {install}", command.join(" ")))
}

fn deny() -> Result<Ready> {
    Ok(cargo_deny(&["check", "bans", "licenses", "sources"]))
}

/// Left out where the database cannot be fetched: a check against none would say nothing.
fn advisories() -> Result<Ready> {
    let mut fetch = match cargo_deny(&["fetch", "db"]) {
        Ok(fetch) => fetch,
        lacks => return Ok(lacks),
    };
    Ok(match process::run_quietly(&mut fetch) {
        Ok(_) => cargo_deny(&["check", "advisories"]),
        Err(why) => Err(format!("the advisory database cannot be fetched: {why}")),
    })
}

/// Returns the command that runs cargo-deny on the workspace, or what to install.
fn cargo_deny(arguments: &[&str]) -> Ready {
    require(&["deny"], "cargo install cargo-deny --locked")?;
    let mut command = workspace::cargo();
    command.args(["deny", "--workspace", "--all-features"]).args(arguments);
    Ok(command)
}

/// Builds and tests the comparison, a workspace of its own; with RocksDB, because `cargo xtask compare` has it.
fn compare() -> Result<Ready> {
    if !deps::ROCKSDB.is_met() {
        return Ok(Err("RocksDB is not installed: apt-get install librocksdb-dev".to_owned()));
    }
    let mut command = workspace::cargo();
    command.args(["test", "--quiet", "--locked", "--manifest-path", workspace::COMPARE]);
    command.arg("--target-dir").arg(target("compare")?);
    Ok(Ok(command))
}

fn fuzz() -> Result<Ready> {
    if let Err(lacks) = require(&["fuzz"], "cargo install cargo-fuzz --locked") {
        return Ok(Err(lacks));
    }
    let corpus = target("fuzz")?.join("corpus");
    std::fs::create_dir_all(&corpus)
        .map_err(|why| Failure::new(format!("cannot make {}: {why}", corpus.display())))?;
    let mut command = Command::new("cargo");
    command
        .current_dir(workspace::root())
        .env("RUSTC_BOOTSTRAP", "1")
        // The driver intentionally leaks memory a device may still write.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .args(["fuzz", "run", "--features", "libfuzzer", "vfio_user_server"])
        .arg(corpus)
        .arg("fuzz/seeds/vfio_user_server")
        .args(["--", "-max_total_time=600", "-max_len=1500", "-timeout=30"]);
    Ok(Ok(command))
}

fn miri() -> Result<Ready> {
    let install = "rustup toolchain install nightly --component miri --component rust-src";
    if let Err(lacks) = require(&["+nightly", "miri"], install) {
        return Ok(Err(lacks));
    }
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root()).args(["+nightly", "miri", "test"]);
    command.args(["--package", "adit-driver", "--lib", "--target-dir"]).arg(target("miri")?);
    command.arg("--").args(PURE);
    // 65535 slots and every run of a thousand pages are too many for an interpreter.
    command.args(["--skip=every_slot_is_used_once", "--skip=every_run_of_a_region"]);
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance");
    Ok(Ok(command))
}

fn memcheck() -> Result<Ready> {
    if process::find("valgrind").is_none() {
        return Ok(Err("valgrind is not installed: apt-get install valgrind".to_owned()));
    }
    let mut command = workspace::cargo();
    command.args(["test", "--quiet", "--package", "adit-driver", "--features", "serve", "--lib"]);
    command.arg("--").args(PURE);
    let valgrind = "valgrind --quiet --error-exitcode=9 --exit-on-first-error=yes";
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", valgrind);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", valgrind);
    Ok(Ok(command))
}

/// Uses `--target`, so that build scripts and macros are built without the sanitizer. Does not look for leaks:
/// the driver leaks memory a device may still write (law 3), and tests cause that.
fn asan() -> Result<Ready> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = workspace::cargo();
    command.args(["test", "--quiet", "--features", "adit-driver/serve", "--tests"]);
    command
        .args(["adit-driver", "adit-soft", "adit-shared"].map(|name| format!("--package={name}")));
    command.args(["--no-fail-fast", "--target", &triple, "--target-dir"]).arg(target("asan")?);
    // A stable compiler has the sanitizer too, but only accepts its flag with this variable.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    Ok(Ok(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_and_a_wrong_one_is_answered_with_those_there_are() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let steps = select(&only).map_err(|failure| failure.to_string())?;
            Ok::<Vec<&str>, String>(steps.iter().map(|step| step.name).collect())
        };
        assert_eq!(names(&[]).expect("all").len(), STEPS.len());
        assert_eq!(names(&["asan", "miri"]), Ok(vec!["miri", "asan"]));
        assert!(names(&["msan"]).is_err_and(|why| why.contains("'msan'; there are miri,")));
    }

    #[test]
    fn what_was_left_out_fails_nothing_and_is_said() {
        let step = |command| Step { name: "a", about: "b", command };
        let lacks = step(|| Ok(Err("it lacks something".to_owned())));
        let passes = step(|| Ok(Ok(Command::new("true"))));
        let fails = step(|| Ok(Ok(Command::new("false"))));
        let outcomes = [lacks, passes, fails].map(|step| run_step(&step).expect("it can be run"));
        assert_eq!(outcomes, [StepOutcome::LeftOut, StepOutcome::Passed, StepOutcome::Failed]);
        assert!(summary(&outcomes).ends_with("FAILED. 1 passed, 1 failed, 1 left out"));
        assert!(summary(&outcomes[..2]).ends_with("ok. 1 passed, 0 failed, 1 left out"));
    }
}
