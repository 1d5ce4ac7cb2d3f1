//! Compiles the device code with NVRTC from PyPI's wheel, which needs neither a GPU nor its driver.

use super::ptx;
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use crate::tally::Tally;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first architecture with the required instructions, the most common one, and the newest.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.*";
/// The beginning of a CUBIN, which is an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Compiles the kernels and checks the result.
pub(super) fn run() -> Result<Tally> {
    let target = workspace::target_directory()?;
    let libraries = libraries(&target.join("nvrtc"))?;
    let output = target.join("device");
    compile(&libraries, &output)?;
    let mut tally = Tally::default();
    for architecture in ARCHITECTURES {
        let offences = look(&output, architecture)?;
        println!(
            "{} PTX and CUBIN for {architecture}",
            if offences.is_empty() { "PASS" } else { "FAIL" }
        );
        offences.iter().for_each(|offence| println!("    {offence}"));
        tally.count(offences.is_empty());
    }
    Ok(tally)
}

fn compile(libraries: &Path, output: &Path) -> Result<()> {
    let program = workspace::build_example("compile")?;
    let _progress = Progress::start("compiling the device code with NVRTC");
    fs::create_dir_all(output).context(output.display())?;
    let mut command = Command::new(program);
    command.arg(output).args(ARCHITECTURES).env("ADIT_NVRTC", libraries);
    process::run_quietly(&mut command).map(drop)
}

fn look(output: &Path, architecture: &str) -> Result<Vec<String>> {
    let file = |kind: &str| output.join(format!("kernels.{architecture}.{kind}"));
    let read = |kind: &str| fs::read_to_string(file(kind)).context(file(kind).display());
    let mut offences = ptx::offences(&read("ptx")?);
    offences.extend(ptx::canary(&read("ptx")?));
    offences.extend(ptx::spills(&read("log")?));
    let cubin = fs::read(file("cubin")).context(file("cubin").display())?;
    if !cubin.starts_with(ELF) {
        offences.push("the CUBIN is no ELF file".to_owned());
    }
    Ok(offences)
}

/// Returns the directory of NVRTC's libraries, fetching them on first use.
fn libraries(directory: &Path) -> Result<PathBuf> {
    if let Some(found) = find_libraries(directory) {
        return Ok(found);
    }
    fs::create_dir_all(directory).context(directory.display())?;
    let wheel = match find_wheel(directory) {
        Some(wheel) => wheel,
        None => fetch(directory)?,
    };
    process::run_quietly(
        Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(directory),
    )?;
    find_libraries(directory).ok_or_else(|| {
        Failure::new(format!(
            "{} holds no libnvrtc.so: remove it and run this again",
            wheel.display()
        ))
    })
}

fn fetch(directory: &Path) -> Result<PathBuf> {
    let _progress = Progress::start("fetching NVRTC from PyPI (90 MB, once)");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]);
    let fetched = process::run_quietly(pip.arg(directory).arg(PACKAGE));
    fetched.map_err(|failure| {
        let directory = directory.display();
        Failure::new(format!(
            "{failure}\nwithout a way to PyPI, put the wheel of {PACKAGE} into {directory} and run this again"
        ))
    })?;
    find_wheel(directory)
        .ok_or_else(|| Failure::new("pip says that it has fetched NVRTC, and has not"))
}

fn find_wheel(directory: &Path) -> Option<PathBuf> {
    files(directory).into_iter().find(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("nvidia_cuda_nvrtc-13.0") && name.ends_with(".whl")
    })
}

/// Returns the place of the wheel's libraries.
fn find_libraries(directory: &Path) -> Option<PathBuf> {
    let libraries = directory.join("nvidia/cu13/lib");
    let is_nvrtc = |file: &PathBuf| file.file_name().is_some_and(|name| name == "libnvrtc.so.13");
    files(&libraries).iter().any(is_nvrtc).then_some(libraries)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
