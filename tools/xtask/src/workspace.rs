//! Paths of this workspace, and builds of its programs.

use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Programs this process has built, by cargo's arguments: cargo is slow to find that there is nothing to do, and
/// concurrent guests need the same programs.
static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// Returns the workspace's root directory.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("xtask is two directories below the root")
}

/// Returns cargo's target directory, wherever it is configured: this program is in its `debug` folder.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let directory = program.parent().and_then(Path::parent);
    directory
        .map(Path::to_path_buf)
        .ok_or_else(|| Failure::new("this program lies outside cargo's target directory"))
}

/// Returns a command that runs cargo in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root());
    command
}

/// What guests and the simulation run: optimized, with every assertion. Cargo always selects the same packages, so
/// that it resolves the same features and the programs share their dependencies.
pub(crate) const CHECKED: [&str; 9] = [
    "build",
    "--profile",
    "sim",
    "--package",
    "adit",
    "--package",
    "adit-sim",
    "--package",
    "adit-kvstore",
];

/// Builds one of the programs that guests and the simulation run, and returns its path.
pub(crate) fn build_checked(name: &str) -> Result<PathBuf> {
    build(name, &[&CHECKED[..], &["--bin", name]].concat())
}

/// Builds an integration test as the tests have it and returns its path. Selects what they select, so that it is
/// already built.
pub(crate) fn build_test(name: &str) -> Result<PathBuf> {
    build(name, &["test", "--workspace", "--no-run", "--test", name])
}

/// Builds the demonstration, which needs no libraries of the system, and returns its path.
pub(crate) fn build_demo() -> Result<PathBuf> {
    build("adit-demo", &["build", "--profile", "demo", "--package", "adit-demo"])
}

/// Builds a program to measure and returns its path.
pub(crate) fn build_release(package: &str, name: &str) -> Result<PathBuf> {
    build(name, &["build", "--release", "--package", package, "--bin", name])
}

/// The manifest of the comparison with other engines, a workspace of its own.
pub(crate) const COMPARE: &str = "benches/compare/Cargo.toml";

/// Builds the comparison with other engines and returns its path.
pub(crate) fn build_compare(with_rocksdb: bool) -> Result<PathBuf> {
    let target = target_directory()?.join("compare").to_string_lossy().into_owned();
    let how =
        ["build", "--release", "--locked", "--manifest-path", COMPARE, "--target-dir", &target];
    let without: &[&str] = if with_rocksdb { &[] } else { &["--no-default-features"] };
    build("adit-compare", &[&how[..], without].concat())
}

/// Builds `adit` to measure a GPU, which needs no libraries of the system, and returns its path.
pub(crate) fn build_lab() -> Result<PathBuf> {
    let how = ["build", "--release", "--package", "adit", "--no-default-features", "--bin", "adit"];
    build("adit", &how)
}

/// Builds the example server for a long run and returns its path.
pub(crate) fn build_server() -> Result<PathBuf> {
    build(
        "server",
        &["build", "--profile", "demo", "--package", "adit-kvstore", "--example", "server"],
    )
}

/// Builds `adit` as the tests have it and returns its path. Selects what they select, so that it is already built.
pub(crate) fn build_tested() -> Result<PathBuf> {
    build("adit", &["build", "--workspace", "--bin", "adit"])
}

/// Builds an example and returns its path. Selects what the tests select, so that its dependencies are already
/// built.
pub(crate) fn build_example(name: &str) -> Result<PathBuf> {
    build(name, &["build", "--workspace", "--example", name])
}

fn build(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    once(&arguments.join(" "), || build_anew(name, arguments))
}

/// Runs `build` the first time, and returns its result again afterwards.
fn once(what: &str, build: impl FnOnce() -> Result<PathBuf>) -> Result<PathBuf> {
    // A build that panicked has inserted nothing.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(file) = built.get(what) {
        return Ok(file.clone());
    }
    let file = build()?;
    built.insert(what.to_owned(), file.clone());
    Ok(file)
}

fn build_anew(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let _progress = Progress::start(format!("building {name}"));
    let how = ["--quiet", "--message-format", "json-render-diagnostics"];
    let output = process::run_quietly(cargo().args(arguments).args(how))?;
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = messages.lines().find_map(|line| executable(line, name));
    executable.ok_or_else(|| Failure::new(format!("cargo does not say where it built {name}")))
}

/// Returns the file in one of cargo's messages, if it is about the program `name`.
fn executable(message: &str, name: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let file = message["executable"].as_str().filter(|_| message["target"]["name"] == name)?;
    Some(PathBuf::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_built_is_not_built_again_and_what_failed_is() {
        let file = PathBuf::from("/built/once");
        assert!(once("a sample", || Err(Failure::new("no"))).is_err());
        assert_eq!(once("a sample", || Ok(file.clone())).ok(), Some(file.clone()));
        assert_eq!(once("a sample", || Err(Failure::new("asked again"))).ok(), Some(file));
    }

    #[test]
    fn a_program_is_where_cargo_says() {
        let library = r#"{"target":{"name":"adit"},"executable":null}"#;
        let program = r#"{"target":{"name":"adit"},"executable":"/target/sim/adit"}"#;
        assert_eq!(executable(library, "adit"), None);
        assert_eq!(executable(program, "adit-sim"), None);
        assert_eq!(executable(program, "adit"), Some(PathBuf::from("/target/sim/adit")));
    }
}
