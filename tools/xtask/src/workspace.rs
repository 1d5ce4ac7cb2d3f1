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

/// Programs this process has built, by description: cargo is slow to find that there is nothing to do, and
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

/// Builds the release binary of `adit` and returns its path.
pub(crate) fn build_adit() -> Result<PathBuf> {
    build("adit", &["--release", "--package", "adit"], "release/adit")
}

/// Builds a measuring program of the benches and returns its path.
pub(crate) fn build_bench(name: &str) -> Result<PathBuf> {
    let arguments = ["--release", "--package", "adit-benches", "--bin", name];
    build(name, &arguments, &format!("release/{name}"))
}

/// Builds an example of the driver and returns its path. Uses the tests' profile, so that its dependencies are
/// already built.
pub(crate) fn build_example(name: &str) -> Result<PathBuf> {
    let arguments = ["--package", "adit-driver", "--example", name];
    build(name, &arguments, &format!("debug/examples/{name}"))
}

/// Builds an example of the GPU crate and returns its path.
pub(crate) fn build_gpu_example(name: &str) -> Result<PathBuf> {
    let arguments = ["--package", "adit-gpu", "--example", name];
    build(name, &arguments, &format!("debug/examples/{name}"))
}

/// Builds an integration test with the simulation's profile, optimized and with every assertion, and returns
/// its path.
pub(crate) fn build_test(package: &str, name: &str) -> Result<PathBuf> {
    once(&format!("the test {name} of {package}"), || build_test_anew(package, name))
}

fn build_test_anew(package: &str, name: &str) -> Result<PathBuf> {
    let _progress = Progress::start(format!("building the test {name} of {package}"));
    let which = ["--package", package, "--test", name];
    let how = ["--profile", "sim", "--no-run", "--message-format", "json"];
    let output = process::run_quietly(cargo().args(["test", "--quiet"]).args(which).args(how))?;
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message["target"]["name"] == name && message["profile"]["test"] == true;
        message["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
    });
    executable.ok_or_else(|| Failure::new(format!("cargo does not say where it built {name}")))
}

fn build(name: &str, arguments: &[&str], file: &str) -> Result<PathBuf> {
    once(name, || build_anew(name, arguments, file))
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

fn build_anew(name: &str, arguments: &[&str], file: &str) -> Result<PathBuf> {
    let _progress = Progress::start(format!("building {name}"));
    process::run_quietly(cargo().args(["build", "--quiet"]).args(arguments))?;
    let binary = target_directory()?.join(file);
    if binary.is_file() {
        Ok(binary)
    } else {
        Err(Failure::new(format!("cargo built {name} but {} is not there", binary.display())))
    }
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
}
