//! `cargo xtask gpu`: runs `adit gpu` with the emulated CUDA driver, on a machine without a GPU.
//!
//! The GPU is the C++ build of the device code on threads of this machine: its behaviour is the same, its
//! timings mean nothing.

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use clap::Args;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Directories the loader searches before the system's.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The package whose build script builds the libraries.
const EMULATED: &str = "adit-gpu-emulated";

/// `cargo xtask gpu`.
#[derive(Args)]
pub(crate) struct GpuArgs {
    /// Arguments of `adit gpu`, as in: cargo xtask gpu -- trace --blocks 64
    #[arg(last = true, value_name = "ARGS")]
    words: Vec<String>,
}

/// Builds adit and the emulated driver, runs `adit gpu` and returns its exit code.
pub(crate) fn run(arguments: &GpuArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    let libraries = library_path()?;
    let adit = workspace::build_checked("adit")?;
    eprintln!(
        "xtask: no GPU is used: its code runs as C++ on threads of this machine, and figures of time say nothing of a GPU"
    );
    let mut command = Command::new(adit);
    command.arg("gpu").args(&arguments.words).env(LIBRARY_PATH, libraries);
    process::exit_code(&mut command)
}

/// Builds the emulated libraries and returns the loader's path with them in front.
pub(crate) fn library_path() -> Result<OsString> {
    before_others(build_libraries()?)
}

/// Builds the emulated libraries and returns the directory with all of them.
pub(crate) fn build_libraries() -> Result<PathBuf> {
    let _progress = Progress::start("building the emulated CUDA driver");
    let how = ["build", "--quiet", "--package", EMULATED, "--message-format", "json"];
    let output = process::run_quietly(workspace::cargo().args(how))?;
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let directory = messages.lines().find_map(directory_of);
    directory.ok_or_else(|| Failure::new(format!("cargo does not say where it built {EMULATED}")))
}

/// Returns the directory in one of cargo's messages, if it is about the libraries.
fn directory_of(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_script = message["reason"] == "build-script-executed";
    let package = message["package_id"].as_str().filter(|_| is_script)?;
    // `path+file://…/gpu/emulated#name@version`.
    let is_ours = package.contains("/gpu/emulated#");
    Some(PathBuf::from(message["out_dir"].as_str().filter(|_| is_ours)?).join("all"))
}

/// Returns the loader's path with a directory in front.
fn before_others(directory: PathBuf) -> Result<OsString> {
    let others = env::var_os(LIBRARY_PATH).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    env::join_paths(std::iter::once(directory).chain(others))
        .context("the directory that cargo builds into cannot be one of a list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_are_where_their_build_script_was_told_to_put_them() {
        let message = |reason: &str, package: &str| {
            format!(r#"{{"reason":"{reason}","package_id":"{package}","out_dir":"/t/out"}}"#)
        };
        let ours = "path+file:///adit/gpu/emulated#adit-gpu-emulated@0.1.0";
        let all = Some(PathBuf::from("/t/out/all"));
        assert_eq!(directory_of(&message("build-script-executed", ours)), all);
        assert_eq!(directory_of(&message("compiler-artifact", ours)), None);
        let other = "registry+https://github.com/rust-lang/crates.io-index#libc@0.2.1";
        assert_eq!(directory_of(&message("build-script-executed", other)), None);
        assert_eq!(directory_of("not JSON"), None);
    }

    #[test]
    fn the_libraries_come_before_what_the_path_had() {
        let path = before_others(PathBuf::from("/t/all")).expect("no colon");
        assert_eq!(env::split_paths(&path).next(), Some(PathBuf::from("/t/all")));
        assert!(before_others(PathBuf::from("/t:/all")).is_err());
    }
}
