//! `cargo xtask python`: builds the wheel, installs it where nothing else is, and runs its tests from Python.
//!
//! zig links it with an older glibc than this machine's, and maturin refuses a wheel that needs a newer one.

use crate::deps::{self, PIP, VENV};
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, iter};

/// Build the wheel, and `adit` for a release. Pinned, so that a new release cannot break an old commit.
const TOOLS: [&str; 3] = ["maturin==1.16.*", "ziglang==0.17.1", "cargo-zigbuild==0.24.1"];
/// The oldest systems that the wheel installs on: those with glibc 2.28, as the engines' own wheels.
const PLATFORM: &str = "manylinux_2_28";
/// The same for a program.
pub(crate) const GLIBC: (u32, u32) = (2, 28);
/// What the tests need.
const PACKAGES: [&str; 4] = ["numpy", "pytest>=8", "pytest-xdist>=3.6", "mypy>=1.15"];
/// How many processes run the tests: they mostly wait for drives, other processes and deadlines.
const PROCESSES: &str = "2";

/// Builds and tests the wheel; returns the exit code.
pub(crate) fn run() -> Result<u8> {
    deps::ensure(deps::TO_LINK.iter().chain([&PIP, &VENV]))?;
    let folder = workspace::target_directory()?.join("python");
    let wheel = build(&folder, Profile::Tested)?;
    let python = install(&folder.join("fresh"), &wheel)?;
    let mut tests = Command::new(python);
    // Nothing is written into the repository.
    tests.args(["-B", "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-n", PROCESSES]);
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
    let tools = tools(&folder.join("tools"))?;
    let wheels = folder.join("wheels");
    // An older version's wheel would be found in its place.
    if wheels.exists() {
        fs::remove_dir_all(&wheels).context(wheels.display())?;
    }
    let _progress = Progress::start("building the wheel");
    let mut command = Command::new(tools.join("maturin"));
    command.args(["build", "--quiet", "--locked", "--zig", "--compatibility", PLATFORM, "--out"]);
    command.arg(&wheels);
    if profile == Profile::Release {
        command.arg("--release");
    }
    with_zig(&mut command, folder, &tools)?;
    process::run_quietly(command.current_dir(sources()))?;
    let mut built = fs::read_dir(&wheels).context(wheels.display())?;
    let wheel = built.next().ok_or_else(|| Failure::new("maturin made no wheel"))?;
    Ok(wheel.context(wheels.display())?.path())
}

/// Builds `adit` for any system with the wheel's glibc, without libraries beyond it, and returns its path.
pub(crate) fn build_adit(folder: &Path) -> Result<PathBuf> {
    let tools = tools(&folder.join("tools"))?;
    let _progress = Progress::start("building adit");
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut command = Command::new(tools.join("cargo-zigbuild"));
    command.args(["zigbuild", "--quiet", "--locked", "--release", "--package", "adit"]);
    command.args(["--bin", "adit", "--no-default-features", "--target"]);
    command.arg(format!("{triple}.{}.{}", GLIBC.0, GLIBC.1));
    with_zig(&mut command, folder, &tools)?;
    process::run_quietly(command.current_dir(workspace::root()))?;
    Ok(workspace::target_directory()?.join(triple).join("release/adit"))
}

/// Makes a build find zig, and keep its files in a folder.
fn with_zig(command: &mut Command, folder: &Path, tools: &Path) -> Result<()> {
    // It asks the first interpreter of the path for zig.
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(iter::once(tools.to_owned()).chain(env::split_paths(&path)));
    command.env("PATH", path.context("PATH")?);
    // Else both write below the user's home.
    command.env("CARGO_ZIGBUILD_CACHE_DIR", folder.join("zigbuild"));
    command.env("ZIG_GLOBAL_CACHE_DIR", folder.join("zig"));
    command.env("CARGO_TARGET_DIR", workspace::target_directory()?);
    Ok(())
}

/// Returns the folder of maturin and an interpreter that has zig, fetching them on first use.
fn tools(folder: &Path) -> Result<PathBuf> {
    let (wanted, installed) = (TOOLS.join("\n"), folder.join("installed.txt"));
    if !fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        let _progress = Progress::start("fetching maturin and zig from PyPI (once)");
        make_venv(folder)?;
        pip_install(folder, TOOLS)?;
        fs::write(&installed, wanted).context(installed.display())?;
    }
    Ok(folder.join("bin"))
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
