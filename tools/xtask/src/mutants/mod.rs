//! `cargo xtask mutants`: cargo-mutants changes critical code, one place at a time, and runs its tests; a
//! change that no test notices is a survivor.
//!
//! A survivor needs a new test, or a line in `equal.txt` with the reason why the changed code is equivalent.
//! Any other survivor fails the step, and so does a listed name that no longer survives. Not part of `cargo
//! xtask test`: a full run takes many hours.

mod equal;

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::interrupt;
use crate::process;
use crate::workspace;
use std::fs;
use std::path::Path;

/// Code of one package, and the tests that cover it.
struct Group {
    package: &'static str,
    /// Files and globs, from the workspace's root.
    files: &'static [&'static str],
    /// The tests, as arguments of `cargo test`.
    tests: &'static [&'static str],
}

const GROUPS: [Group; 2] = [
    Group {
        package: "adit-driver",
        files: &[
            "driver/src/queue_pair/ring.rs",
            "driver/src/queue_pair/slots.rs",
            "driver/src/queue_pair/core.rs",
            "driver/src/queue_pair/command.rs",
            "driver/src/queue_pair/outcome.rs",
            "driver/src/transfer/*.rs",
            "driver/src/memory.rs",
        ],
        tests: &[
            "--lib",
            "--test=planner",
            "--test=fixed_commands",
            "--test=queue_pairs",
            "--test=registered",
            "--test=faults",
            "--test=model",
        ],
    },
    Group {
        package: "adit-kvstore",
        files: &[
            "kvstore/src/media/journal.rs",
            "kvstore/src/media/recovery.rs",
            "kvstore/src/space/extent.rs",
            "kvstore/src/shard/answer.rs",
            "kvstore/src/shard/batch.rs",
            "kvstore/src/shard/change.rs",
            "kvstore/src/shard/checkpoints.rs",
            "kvstore/src/shard/effects/ahead.rs",
            "kvstore/src/shard/effects/due.rs",
            "kvstore/src/shard/effects/key_order.rs",
            "kvstore/src/shard/effects/mod.rs",
            "kvstore/src/shard/effects/turns.rs",
            "kvstore/src/shard/extract.rs",
            "kvstore/src/shard/lanes.rs",
            "kvstore/src/shard/log/flushes.rs",
            "kvstore/src/shard/log/mod.rs",
            "kvstore/src/shard/log/writing.rs",
            "kvstore/src/shard/lookup.rs",
            "kvstore/src/shard/memory.rs",
            "kvstore/src/shard/mod.rs",
            "kvstore/src/shard/objects/accounts.rs",
            "kvstore/src/shard/objects/changing.rs",
            "kvstore/src/shard/objects/layouts.rs",
            "kvstore/src/shard/objects/mod.rs",
            "kvstore/src/shard/objects/spaces.rs",
            "kvstore/src/shard/opening.rs",
            "kvstore/src/shard/opening/rebuild.rs",
            "kvstore/src/shard/opening/renewed.rs",
            "kvstore/src/shard/opening/replaced.rs",
            "kvstore/src/shard/opening/tables.rs",
            "kvstore/src/shard/options.rs",
            "kvstore/src/shard/parts.rs",
            "kvstore/src/shard/reads/mod.rs",
            "kvstore/src/shard/reads/plan.rs",
            "kvstore/src/shard/reads/reading.rs",
            "kvstore/src/shard/request.rs",
            "kvstore/src/shard/room/claim.rs",
            "kvstore/src/shard/room/claims.rs",
            "kvstore/src/shard/room/evict.rs",
            "kvstore/src/shard/room/find.rs",
            "kvstore/src/shard/room/mod.rs",
            "kvstore/src/shard/room/pieces.rs",
            "kvstore/src/shard/room/quotas.rs",
            "kvstore/src/shard/room/unlogged.rs",
            "kvstore/src/shard/stats.rs",
            "kvstore/src/shard/sweeps.rs",
            "kvstore/src/shard/turn.rs",
            "kvstore/src/shard/writes/begin.rs",
            "kvstore/src/shard/writes/mod.rs",
            "kvstore/src/shard/writes/put.rs",
            "kvstore/src/shard/writes/reserve.rs",
            "kvstore/src/shard/writes/share.rs",
            "kvstore/src/shard/writes/writers.rs",
        ],
        tests: &["--lib"],
    },
];

const EXAMPLES: &str = "\
Examples:
  cargo xtask mutants --install            install cargo-mutants where it is missing, then all
  cargo xtask mutants --only ring.rs       the changes to one file
  cargo xtask mutants --only core.rs --name 'in Core<B>::in_one'
                                           the changes to one function

Exit code: 0 when each survivor is named in tools/xtask/src/mutants/equal.txt, 1 when one is not.
What cargo-mutants logs of each change is in target/mutants.";

/// The code to change.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MutantsArgs {
    /// Change only files whose path contains this
    #[arg(long, value_name = "PATH")]
    only: Option<String>,

    /// Make only changes whose name, as cargo-mutants prints it, contains this
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,

    /// How many changes are tried side by side, each in a build of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,

    /// Install cargo-mutants with `cargo install cargo-mutants --locked` if it is missing
    #[arg(long)]
    install: bool,
}

/// Tries the changes; returns 0 if no survivor is new.
pub(crate) fn run(arguments: &MutantsArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    ensure_tool(arguments.install)?;
    let equal = equal::parse(include_str!("equal.txt"))?;
    let mut offences = Vec::new();
    let mut met = 0;
    for group in &GROUPS {
        let files = selected(group, arguments.only.as_deref())?;
        if files.is_empty() {
            continue;
        }
        let outcome = change(group, &files, arguments)?;
        println!("{}", outcome.summary(group.package));
        met += outcome.count();
        let is_whole = arguments.name.is_none();
        offences.extend(equal::offences(&equal, &outcome.survivors, &files, is_whole));
    }
    offences.iter().for_each(|offence| println!("{offence}"));
    if met == 0 {
        return Err(Failure::usage("no change is selected: leave out --only or --name"));
    }
    let verdict = if offences.is_empty() { "ok" } else { "FAILED" };
    println!("mutants: {verdict}. {met} changes, {} findings", offences.len());
    Ok(u8::from(!offences.is_empty()))
}

fn ensure_tool(install: bool) -> Result<()> {
    if process::run_quietly(workspace::cargo().args(["mutants", "--version"])).is_ok() {
        return Ok(());
    }
    if !install {
        return Err(Failure::new(
            "cargo-mutants is missing: run this with --install, or 'cargo install cargo-mutants --locked'",
        ));
    }
    eprintln!("xtask: installing cargo-mutants with 'cargo install cargo-mutants --locked'");
    let install = ["install", "cargo-mutants", "--locked"];
    process::run_quietly(workspace::cargo().args(install)).map(drop)
}

/// Returns the files of a group whose path contains `only`.
fn selected(group: &Group, only: Option<&str>) -> Result<Vec<String>> {
    let mut list = workspace::cargo();
    list.args(["mutants", "--no-config", "--list-files"]);
    list.args(group.files.iter().map(|file| format!("--file={file}")));
    let output = process::run_quietly(&mut list)?;
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = all.lines().count();
    if count < group.files.len() {
        return Err(Failure::new(format!(
            "{count} files match {:?}: was one renamed?",
            group.files
        )));
    }
    let is_selected = |file: &&str| only.is_none_or(|part| file.contains(part));
    Ok(all.lines().filter(is_selected).map(str::to_owned).collect())
}

/// The results of a group's changes.
struct Outcome {
    /// cargo-mutants' names.
    survivors: Vec<String>,
    caught: usize,
    timed_out: usize,
    unviable: usize,
}

impl Outcome {
    /// Reads the lists cargo-mutants wrote to `directory`.
    fn read(directory: &Path) -> Result<Outcome> {
        let lines = |list: &str| -> Result<Vec<String>> {
            let file = directory.join(list);
            let text = fs::read_to_string(&file).context(file.display())?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Outcome {
            survivors: lines("missed.txt")?,
            caught: lines("caught.txt")?.len(),
            timed_out: lines("timeout.txt")?.len(),
            unviable: lines("unviable.txt")?.len(),
        })
    }

    fn count(&self) -> usize {
        self.survivors.len() + self.caught + self.timed_out + self.unviable
    }

    fn summary(&self, package: &str) -> String {
        let Outcome { survivors, caught, timed_out, unviable } = self;
        format!(
            "{package}: {caught} caught, {timed_out} ended by the time limit, {unviable} do not compile, {} survive",
            survivors.len()
        )
    }
}

/// Makes cargo-mutants change `files` and run the group's tests, in a copy of the workspace.
fn change(group: &Group, files: &[String], arguments: &MutantsArgs) -> Result<Outcome> {
    let output = workspace::target_directory()?.join("mutants").join(group.package);
    fs::create_dir_all(&output).context(output.display())?;
    let mut command = workspace::cargo();
    command.args(["mutants", "--no-config", "--test-workspace=false"]);
    command.arg(format!("--jobs={}", arguments.jobs)).arg("--output").arg(&output);
    command.args(files.iter().map(|file| format!("--file={file}")));
    command.args(arguments.name.iter().map(|text| format!("--re={}", literal(text))));
    let status =
        command.arg("--").args(group.tests).status().context("cannot run cargo mutants")?;
    interrupt::check()?;
    match status.code() {
        // All caught; survivors; time limits.
        Some(0 | 2 | 3) => Outcome::read(&output.join("mutants.out")),
        _ => Err(Failure::new(format!(
            "cargo mutants {status}: do the tests of {} pass unchanged? its logs are in {}",
            group.package,
            output.display()
        ))),
    }
}

/// Returns a regular expression for exactly this text.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for char in text.chars() {
        if r"\.+*?()|[]{}^$".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_searched_for_as_it_stands() {
        assert_eq!(literal("|= in Core<B>::a (b)"), r"\|= in Core<B>::a \(b\)");
    }

    #[test]
    fn the_lists_of_cargo_mutants_are_counted_and_all_must_be_there() {
        let directory = std::env::temp_dir().join(format!("adit-mutants-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let lists = [
            ("missed", "a.rs:1:2: x\n"),
            ("caught", "a\nb\n"),
            ("timeout", ""),
            ("unviable", "c\n"),
        ];
        assert!(Outcome::read(&directory).is_err());
        for (list, text) in lists {
            fs::write(directory.join(format!("{list}.txt")), text).expect("a file");
        }
        let outcome = Outcome::read(&directory).expect("four lists");
        assert_eq!((outcome.count(), outcome.survivors), (4, vec!["a.rs:1:2: x".to_owned()]));
        fs::remove_dir_all(&directory).expect("it is there");
    }
}
