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
/// The page with a kernel of a user's own, and the architectures of which it uses instructions.
const PAGE: &str = "docs/use/gpu.md";
const ASYNC_ARCHITECTURES: [&str; 2] = ["sm_90", "sm_100"];
/// The name of its file.
const DOCUMENTED: &str = "documented";
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.*";
/// The beginning of a CUBIN, which is an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Compiles the kernels and the documented one, and checks the result.
pub(super) fn run() -> Result<Tally> {
    let target = workspace::target_directory()?;
    let libraries = libraries(&target.join("nvrtc"))?;
    let output = target.join("device");
    compile(&libraries, &output)?;
    let mut tally = Tally::default();
    for architecture in ARCHITECTURES {
        let offences = look(&output, architecture)?;
        tell(&mut tally, &format!("PTX and CUBIN for {architecture}"), &offences);
    }
    for architecture in ASYNC_ARCHITECTURES {
        let file = output.join(format!("{DOCUMENTED}.{architecture}.ptx"));
        let text = fs::read_to_string(&file).context(file.display())?;
        let what = format!("the kernel of {PAGE} for {architecture}");
        tell(&mut tally, &what, &ptx::offences_of_waiting(&text));
    }
    Ok(tally)
}

fn tell(tally: &mut Tally, what: &str, offences: &[String]) {
    println!("{} {what}", if offences.is_empty() { "PASS" } else { "FAIL" });
    offences.iter().for_each(|offence| println!("    {offence}"));
    tally.count(offences.is_empty());
}

fn compile(libraries: &Path, output: &Path) -> Result<()> {
    let program = workspace::build_example("compile")?;
    let _progress = Progress::start("compiling the device code with NVRTC");
    fs::create_dir_all(output).context(output.display())?;
    let documented = output.join(format!("{DOCUMENTED}.cu"));
    fs::write(&documented, documented_kernel()?).context(documented.display())?;
    let compiler = || {
        let mut command = Command::new(&program);
        command.arg(output).env("ADIT_NVRTC", libraries);
        command
    };
    process::run_quietly(compiler().args(ARCHITECTURES))?;
    process::run_quietly(compiler().arg(&documented).args(ASYNC_ARCHITECTURES)).map(drop)
}

/// Returns the kernel in C++ that the page shows.
fn documented_kernel() -> Result<String> {
    let page = workspace::root().join(PAGE);
    let text = fs::read_to_string(&page).context(page.display())?;
    let block = text.split_once("```cpp\n").and_then(|(_, rest)| rest.split_once("```"));
    let (kernel, _) =
        block.ok_or_else(|| Failure::new(format!("{PAGE} shows no kernel in C++")))?;
    Ok(kernel.to_owned())
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
