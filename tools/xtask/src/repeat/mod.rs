//! `cargo xtask repeat`: runs every test binary repeatedly, to find tests that fail by chance.
//!
//! Each binary runs N times alone, as `cargo test` runs it, and N times beside others, which stresses deadlines
//! and reveals colliding file names. Features are always those of a build of the whole workspace. Documentation
//! tests have no binary and are left out.

mod binaries;
mod outcome;
mod record;
mod runs;

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::workspace;
use binaries::Binary;
use record::Record;
use runs::Limits;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Concurrent binaries per core.
const JOBS_PER_CORE: usize = 2;

const EXAMPLES: &str = "\
Examples:
  cargo xtask repeat 30
      every binary 30 times alone and 30 times side by side
  cargo xtask repeat 100 -p adit-driver --only lib -- uring::ring
      some unit tests of the driver
  cargo xtask repeat 10 -- --test-threads=1
      within each binary one test after the other

Exit code: 0 when every run passed, 1 when one did not, 130 after Ctrl-C, which first prints
what is known so far.";

/// The tests to repeat, and how often.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RepeatArgs {
    /// How many times each test binary runs alone, and then side by side with others
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,

    /// Run only the tests of this package; may be given several times
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,

    /// Run only test binaries whose name (such as "adit-driver lib" or "adit-driver faults") contains this; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// How many binaries run side by side [default: two for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    jobs: Option<u8>,

    /// Kill a run of a binary after this many seconds, and count it as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// Arguments for the test binaries: a part of the tests' names, or options such as --test-threads=1
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Repeats the tests; returns 0 if all runs passed.
pub(crate) fn run(arguments: &RepeatArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    let all = binaries::build()?;
    let binaries = select(all, &arguments.packages, &arguments.only)?;
    let limits = Limits {
        times: arguments.times,
        timeout: Duration::from_secs(arguments.timeout),
        outputs: workspace::target_directory()?.join("repeat"),
    };
    let begun = Instant::now();
    let mut record = Record::new(&binaries, arguments.times);
    for jobs in [1, jobs(arguments)?] {
        if !interrupt::requested() {
            println!(
                "== each of {} binaries {} times, {jobs} at a time",
                binaries.len(),
                limits.times
            );
            record.begin_pass();
            runs::pass(&binaries, &arguments.arguments, jobs, &limits, &mut record)?;
        }
    }
    println!("{}finished in {:.0} s", record.summary(), begun.elapsed().as_secs_f64());
    interrupt::check()?;
    Ok(u8::from(record.has_failures()))
}

fn jobs(arguments: &RepeatArgs) -> Result<usize> {
    match arguments.jobs {
        Some(jobs) => Ok(jobs.into()),
        None => {
            Ok(JOBS_PER_CORE * available_parallelism().context("cannot count the cores")?.get())
        }
    }
}

/// Returns the binaries of the requested packages and names.
fn select(all: Vec<Binary>, packages: &[String], only: &[String]) -> Result<Vec<Binary>> {
    let names: Vec<String> = all.iter().map(Binary::name).collect();
    let is_asked_for = |binary: &Binary| {
        let in_package = packages.is_empty() || packages.contains(&binary.package);
        let has_name = only.is_empty() || only.iter().any(|part| binary.name().contains(part));
        in_package && has_name
    };
    let selected: Vec<Binary> = all.into_iter().filter(is_asked_for).collect();
    if selected.is_empty() {
        let names = names.join("\n    ");
        return Err(Failure::usage(format!("no test binary is selected; there are\n    {names}")));
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn binary(package: &str, target: &str) -> Binary {
        let nowhere = PathBuf::new;
        Binary {
            package: package.into(),
            target: target.into(),
            program: nowhere(),
            directory: nowhere(),
        }
    }

    #[test]
    fn a_selection_is_by_package_and_part_of_a_name_and_never_empty() {
        let all = || vec![binary("a", "lib"), binary("a", "faults"), binary("b", "lib")];
        let names = |packages: &[String], only: &[String]| {
            let selected = select(all(), packages, only)?;
            Ok(selected.iter().map(Binary::name).collect::<Vec<_>>())
        };
        let told: Result<Vec<String>> = names(&["a".into()], &["lib".into()]);
        assert_eq!(told.expect("one"), ["a lib"]);
        assert_eq!(names(&[], &["a f".into(), "b l".into()]).expect("two"), ["a faults", "b lib"]);
        let refused = names(&["c".into()], &[]).expect_err("no such package");
        assert_eq!(refused.code(), 2);
        assert!(refused.to_string().contains("a faults"), "{refused}");
    }
}
