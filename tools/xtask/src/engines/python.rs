//! `cargo xtask engines --python`: the wheel's adapters in LMCache, vLLM, SGLang and llama-cpp-python, and the store
//! against the engines' own storage.

use std::fs;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::deps::{self, CMAKE, CPP_COMPILER, PIP, VENV};
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::python::{self, Profile};
use crate::workspace;

/// What has no GPU code is unpacked from its wheel, which is fetched for that.
const VLLM: &str = "vllm==0.33.0";
/// Built from its source distribution, without the parts for images.
const LLAMA: &str = "llama-cpp-python==0.3.36";
const LLAMA_BUILD: (&str, &str) = ("CMAKE_ARGS", "-DLLAVA_BUILD=OFF");
/// On the drive: the packages, and vLLM's wheel until it is unpacked.
const VENV_GB: u64 = 7;
/// On the drive: the stores of the tests and of the comparison.
const STORES_GB: u64 = 4;

/// Words of `cargo xtask engines` about the Python packages.
#[derive(Args)]
pub(crate) struct PythonArgs {
    /// LMCache, vLLM, SGLang and llama-cpp-python: the wheel's adapters through the engines' own factories on a CPU, and
    /// the comparison with their own storage. Takes about 7 GB for the packages
    #[arg(long)]
    pub(crate) python: bool,

    /// Installs the packages without asking
    #[arg(long, requires = "python")]
    yes: bool,

    /// Use this environment, which has the packages; the wheel is installed into it
    #[arg(long, value_name = "DIR", requires = "python")]
    venv: Option<PathBuf>,

    /// Use this version of LMCache, such as a preview, in place of the list's
    #[arg(long, value_name = "VERSION", requires = "python")]
    lmcache: Option<String>,

    /// Where the comparison's files go: the file system that is measured
    #[arg(long, value_name = "DIR", requires = "python")]
    folder: Option<PathBuf>,
}

/// Runs the tests in the engines, then the comparison; returns the exit code of the first that fails.
pub(super) fn run(arguments: &PythonArgs) -> Result<u8> {
    deps::ensure(deps::TO_LINK.iter().chain([&PIP, &VENV, &CPP_COMPILER, &CMAKE]))?;
    let own = workspace::target_directory()?.join("engines/python");
    let venv = match &arguments.venv {
        Some(venv) => venv.clone(),
        None => packages(&own.join("venv"), arguments.yes)?,
    };
    let python = venv.join("bin/python");
    if !python.exists() {
        return Err(Failure::new(format!("{} has no bin/python: is it a venv?", venv.display())));
    }
    let folder = arguments.folder.clone().unwrap_or_else(|| own.join("stores"));
    fs::create_dir_all(&folder).context(folder.display())?;
    has_room(&folder, STORES_GB)?;
    let wheel = python::build(&own, Profile::Release)?;
    python::pip_install(&venv, ["--no-deps", "--force-reinstall", &utf8(&wheel)?])?;
    let lmcache = match &arguments.lmcache {
        Some(version) => Some(other_lmcache(&venv, &own, version)?),
        None => None,
    };
    test_and_compare(&Engines { python, lmcache }, &folder, &own)
}

/// The interpreter that has the engines.
struct Engines {
    python: PathBuf,
    /// A folder that has another LMCache, which is found before the environment's.
    lmcache: Option<PathBuf>,
}

impl Engines {
    /// Returns what runs a script beside ours. Nothing is written into the repository.
    fn script(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg("-B").current_dir(scripts());
        if let Some(folder) = &self.lmcache {
            command.env("PYTHONPATH", folder);
        }
        command
    }
}

/// Returns a folder with this version of LMCache alone, which is fetched on first use.
fn other_lmcache(venv: &Path, own: &Path, version: &str) -> Result<PathBuf> {
    let folder = own.join(format!("lmcache-{version}"));
    if !folder.join("lmcache").exists() {
        let _progress = Progress::start(format!("fetching LMCache {version}"));
        let wanted = format!("lmcache=={version}");
        python::pip_install(venv, ["--no-deps", "--target", &utf8(&folder)?, &wanted])?;
    }
    Ok(folder)
}

fn test_and_compare(engines: &Engines, folder: &Path, own: &Path) -> Result<u8> {
    let temporary = folder.join("tests");
    let code = test(engines, &temporary)?;
    fs::remove_dir_all(&temporary).context(temporary.display())?;
    if code != 0 {
        return Ok(code);
    }
    let figures = utf8(&own.join("compare.json"))?;
    let mut compare = engines.script();
    compare.args(["compare.py", "--folder", &utf8(folder)?, "--json", &figures]);
    let code = process::exit_code(&mut compare)?;
    if code == 0 {
        eprintln!("xtask: all figures are in {figures}");
    }
    Ok(code)
}

/// Runs our tests of the engines, then LMCache's own; returns the exit code of the first that fails.
fn test(engines: &Engines, temporary: &Path) -> Result<u8> {
    let pytest = ["-m", "pytest", "-W", "ignore", "-p", "no:cacheprovider"];
    let mut ours = engines.script();
    ours.args(pytest).args(["-rP", "--show-capture=stdout", "--basetemp"]).arg(temporary);
    // Some of them connect to a store that it serves.
    ours.env("ADIT", workspace::build_tested()?);
    let code = process::exit_code(&mut ours)?;
    if code != 0 {
        return Ok(code);
    }
    let tests = temporary.join("lmcache");
    process::run_quietly(engines.script().arg("lmcache_tests.py").arg(&tests))?;
    let mut theirs = engines.script();
    // The plug-in that puts our connector and adapter in the place of theirs.
    theirs.args(pytest).args(["--quiet", "-p", "contract", "--rootdir"]).arg(temporary);
    process::exit_code(theirs.arg(&tests).env("TMPDIR", temporary))
}

fn scripts() -> PathBuf {
    workspace::root().join("kvstore/python/engines")
}

/// Returns the environment with the packages, which are installed on first use and when the list changes.
fn packages(venv: &Path, is_agreed: bool) -> Result<PathBuf> {
    let list = scripts().join("requirements.txt");
    let wanted = format!("{VLLM}\n{LLAMA}\n{}", fs::read_to_string(&list).context(list.display())?);
    let installed = venv.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(venv.to_owned());
    }
    fs::create_dir_all(venv).context(venv.display())?;
    has_room(venv, VENV_GB + STORES_GB)?;
    if !is_agreed && !agrees(venv)? {
        return Err(Failure::new("nothing was installed"));
    }
    install(venv, &utf8(&list)?)?;
    fs::write(&installed, wanted).context(installed.display())?;
    Ok(venv.to_owned())
}

fn install(venv: &Path, list: &str) -> Result<()> {
    {
        let _progress = Progress::start("installing LMCache, vLLM, SGLang and torch, minutes");
        python::make_venv(venv)?;
        python::pip_install(venv, ["--no-cache-dir", "--no-deps", "--requirement", list])?;
        unpack_vllm(venv)?;
    }
    let _progress = Progress::start("building llama-cpp-python, minutes");
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps", LLAMA]);
    process::run_quietly(pip.env(LLAMA_BUILD.0, LLAMA_BUILD.1)).map(drop)
}

fn unpack_vllm(venv: &Path) -> Result<()> {
    let fetched = venv.join("fetched");
    let python = venv.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", VLLM, "--dest"]);
    process::run_quietly(pip.arg(&fetched))?;
    let mut unpack = Command::new(&python);
    process::run_quietly(unpack.arg(scripts().join("unpack_vllm.py")).arg(&fetched))?;
    fs::remove_dir_all(&fetched).context(fetched.display())
}

/// Asks on a terminal, and agrees elsewhere, where an answer cannot come.
fn agrees(venv: &Path) -> Result<bool> {
    let what = format!("{VENV_GB} GB of packages from PyPI in {}", venv.display());
    if !stdin().is_terminal() {
        eprintln!("xtask: installing {what}");
        return Ok(true);
    }
    print!("Install {what}? [y/N] ");
    stdout().flush().context("the terminal")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("the terminal")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Checks that a folder's file system has room.
fn has_room(folder: &Path, gigabytes: u64) -> Result<()> {
    let mut df = Command::new("df");
    let output = process::run_quietly(df.args(["--output=avail", "--block-size=1"]).arg(folder))?;
    let free = free_bytes(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| Failure::new("df did not tell the free space"))?;
    if free < gigabytes * 1_000_000_000 {
        let has = free / 1_000_000_000;
        let text = format!("{} needs {gigabytes} GB and has {has} GB free", folder.display());
        return Err(Failure::new(text));
    }
    Ok(())
}

/// Returns the figure below the heading of df.
fn free_bytes(text: &str) -> Option<u64> {
    text.lines().nth(1)?.trim().parse().ok()
}

fn utf8(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| Failure::new("a path is not UTF-8"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_space_is_below_the_heading() {
        assert_eq!(free_bytes("      Avail\n43211234304\n"), Some(43_211_234_304));
        assert_eq!(free_bytes("      Avail\n"), None);
        assert_eq!(free_bytes("      Avail\n-\n"), None);
    }

    #[test]
    fn a_folder_without_room_is_refused_with_both_figures() {
        assert!(has_room(Path::new("/"), 0).is_ok());
        let refused = has_room(Path::new("/"), 1_000_000_000).expect_err("no file system has it");
        assert!(refused.to_string().contains("needs 1000000000 GB and has"), "{refused}");
    }
}
