//! `cargo xtask python`: builds the wheel, installs it where nothing else is, and runs its tests from Python.

use crate::deps::{self, PIP, VENV};
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the wheel. Pinned, so that a new release cannot break an old commit.
const MATURIN: &str = "maturin==1.16.*";
/// What the tests need.
const PACKAGES: [&str; 3] = ["numpy", "pytest>=8", "mypy>=1.15"];

/// Builds and tests the wheel; returns the exit code.
pub(crate) fn run() -> Result<u8> {
    deps::ensure(deps::TO_LINK.iter().chain([&PIP, &VENV]))?;
    let folder = workspace::target_directory()?.join("python");
    let wheel = build(&folder, Profile::Tested)?;
    let python = install(&folder.join("fresh"), &wheel)?;
    let mut tests = Command::new(python);
    // Nothing is written into the repository.
    tests.args(["-B", "-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    // Some of them connect to a store that it serves.
    tests.env("ADIT", workspace::build_tested()?);
    process::exit_code(tests.current_dir(sources()))
}

fn sources() -> PathBuf {
    workspace::root().join("kvstore/python")
}

/// How the wheel is built.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Profile {
    /// As the other tests' programs are: soon, and with every assertion.
    Tested,
    /// As users have it.
    Release,
}

/// Returns the wheel, built in a folder.
pub(crate) fn build(folder: &Path, profile: Profile) -> Result<PathBuf> {
    let maturin = maturin(&folder.join("tools"))?;
    let wheels = folder.join("wheels");
    // An older version's wheel would be found in its place.
    if wheels.exists() {
        fs::remove_dir_all(&wheels).context(wheels.display())?;
    }
    let _progress = Progress::start("building the wheel");
    let mut command = Command::new(maturin);
    command.args(["build", "--quiet", "--locked", "--out"]).arg(&wheels);
    if profile == Profile::Release {
        command.arg("--release");
    }
    command.env("CARGO_TARGET_DIR", workspace::target_directory()?);
    process::run_quietly(command.current_dir(sources()))?;
    let mut built = fs::read_dir(&wheels).context(wheels.display())?;
    let wheel = built.next().ok_or_else(|| Failure::new("maturin made no wheel"))?;
    Ok(wheel.context(wheels.display())?.path())
}

/// Returns maturin, fetching it on first use.
fn maturin(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("bin/maturin");
    let is_right = || {
        let asked = process::run_quietly(Command::new(&program).arg("--version")).ok();
        let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        said.is_some_and(|said| {
            said.contains(MATURIN.trim_start_matches("maturin==").trim_end_matches('*'))
        })
    };
    if !is_right() {
        let _progress = Progress::start("fetching maturin from PyPI (once)");
        make_venv(folder)?;
        pip_install(folder, [MATURIN])?;
    }
    Ok(program)
}

/// Installs the wheel into an environment without anything else but what the tests need. Returns its interpreter.
fn install(folder: &Path, wheel: &Path) -> Result<PathBuf> {
    let _progress = Progress::start("installing the wheel, numpy, pytest and mypy");
    make_venv(folder)?;
    let wheel = wheel.to_str().ok_or_else(|| Failure::new("the wheel's path is not UTF-8"))?;
    pip_install(folder, PACKAGES.into_iter().chain([wheel]))?;
    Ok(folder.join("bin/python"))
}

/// Makes an empty environment.
pub(crate) fn make_venv(folder: &Path) -> Result<()> {
    let mut venv = Command::new("python3");
    process::run_quietly(venv.args(["-m", "venv", "--clear"]).arg(folder)).map(drop)
}

/// Installs packages into an environment.
pub(crate) fn pip_install<'a>(
    folder: &Path,
    packages: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    process::run_quietly(&mut pip).map(drop)
}
