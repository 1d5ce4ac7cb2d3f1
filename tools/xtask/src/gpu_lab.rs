//! `cargo xtask gpu-lab`: builds `adit gpu lab`, and runs it, makes a folder of it, or rehearses that folder.
//!
//! The folder is what a machine with a GPU gets that has no Rust: `adit` without hwloc, and the script `run`. The
//! rehearsal runs it with the emulated GPU in the root file system of another distribution's release, without a network.
//! What it measures is `adit gpu lab`'s (docs/use/gpu.md, "The lab").

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::gpu;
use crate::needs::Needs;
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES_MAX: u64 = 40 << 20;
/// The GNU C library of Ubuntu 22.04, the oldest that machines with GPUs are expected to have.
const GLIBC_MAX: (u32, u32) = (2, 35);
/// Where the emulated driver lies in the folder, and where NVRTC lies among Python's packages.
const EMULATED: &str = "emulated";
const WHEEL: &str = "nvidia/cu13/lib";
/// Where Debian has Python's packages, and where the rehearsal has the folder.
const PACKAGES: &str = "usr/lib/python3/dist-packages";
const IN_ROOT: &str = "gpu-lab";

const RUN: &str = r#"#!/bin/sh
# Measures this machine's GPU, within eight minutes: DIR/run --out FILE, or with --quick within three. --help tells more.
# Needs NVIDIA's driver, and NVRTC of CUDA or of Python's package nvidia-cuda-nvrtc. Reads and writes no drive.
case $0 in */*) here=${0%/*}/ ;; *) here=. ;; esac
here=$(cd "$here" && pwd) || exit 1
# Where containers have the driver.
libraries=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64:/usr/lib/wsl/lib
if [ -d "$here/emulated" ]; then
    libraries=$here/emulated:$libraries
    export PYTHONPATH="$here/emulated${PYTHONPATH:+:$PYTHONPATH}"
fi
export LD_LIBRARY_PATH="$libraries"
exec "$here/adit" gpu lab "$@"
"#;

const HELP: &str = "\
Examples:
  On a machine with an NVIDIA GPU, whose report is gpu-lab.json in cargo's target directory:
    cargo xtask gpu-lab
  A folder for a machine with a GPU and without Rust, on which DIR/run --out FILE runs:
    cargo xtask gpu-lab --bundle DIR
  The same steps on the emulated GPU, whose times mean nothing:
    cargo xtask gpu-lab --emulated -- --quick
  The folder, with the emulated GPU, in a root file system of Debian's next release (as root, with debootstrap):
    cargo xtask gpu-lab --rehearse -- --quick

Exit codes: those of 'adit gpu lab': 0 all is as expected, 1 otherwise, 3 no GPU.";

/// `cargo xtask gpu-lab`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct GpuLabArgs {
    /// Makes a folder that runs the lab on a machine without Rust, and runs nothing
    #[arg(long, value_name = "DIR", conflicts_with = "rehearse")]
    bundle: Option<PathBuf>,

    /// Runs such a folder with the emulated GPU in a root file system of its own
    #[arg(long)]
    rehearse: bool,

    /// The root file system's release of Debian
    #[arg(long, value_name = "NAME", default_value = "trixie", requires = "rehearse")]
    suite: String,

    /// Uses the emulated GPU
    #[arg(long)]
    emulated: bool,

    /// Options of `adit gpu lab`, as in: cargo xtask gpu-lab -- --quick
    #[arg(last = true, value_name = "ARGS")]
    words: Vec<String>,
}

/// Does what the options say; returns the exit code.
pub(crate) fn run(arguments: &GpuLabArgs) -> Result<u8> {
    deps::ensure(deps::TO_LINK.iter().chain([&deps::CPP_COMPILER]))?;
    if let Some(directory) = &arguments.bundle {
        bundle(directory, arguments.emulated)?;
        println!("copy it to the machine, and there run: {}/run --out FILE", directory.display());
        return Ok(0);
    }
    if arguments.rehearse {
        return rehearse(&arguments.suite, &arguments.words);
    }
    let mut lab = Command::new(workspace::build_lab()?);
    lab.args(["gpu", "lab"]).args(&arguments.words);
    if !arguments.words.iter().any(|word| word.starts_with("--out")) {
        lab.arg("--out").arg(workspace::target_directory()?.join("gpu-lab.json"));
    }
    if arguments.emulated {
        lab.env(gpu::LIBRARY_PATH, gpu::library_path()?);
    }
    process::exit_code(&mut lab)
}

/// Makes the folder.
fn bundle(directory: &Path, is_emulated: bool) -> Result<()> {
    check_place(directory)?;
    let built = workspace::build_lab()?;
    fs::create_dir_all(directory).context(directory.display())?;
    let adit = directory.join("adit");
    process::run_quietly(Command::new("strip").arg("-o").arg(&adit).arg(built))?;
    let script = directory.join("run");
    fs::write(&script, RUN).context(script.display())?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).context(script.display())?;
    let needs = Needs::of(&adit)?;
    needs.check(GLIBC_MAX)?;
    let mut files = vec![adit, script];
    if is_emulated {
        let libraries = gpu::build_libraries()?;
        let driver = directory.join(EMULATED);
        let wheel = driver.join(WHEEL);
        fs::create_dir_all(&wheel).context(wheel.display())?;
        for (place, name) in
            [(&driver, "libcuda.so.1"), (&driver, "libgdrapi.so.2"), (&wheel, "libnvrtc.so.13")]
        {
            fs::copy(libraries.join(name), place.join(name)).context(place.display())?;
            files.push(place.join(name));
        }
    }
    let sizes = files.iter().map(|file| fs::metadata(file).map(|file| file.len()));
    let bytes: u64 = sizes.sum::<std::io::Result<u64>>().context(directory.display())?;
    if bytes > BYTES_MAX {
        let (bytes, most) = (bytes >> 20, BYTES_MAX >> 20);
        return Err(Failure::new(format!("the folder has {bytes} MiB, and {most} are the most")));
    }
    let (megabytes, (major, minor)) = (bytes as f64 / f64::from(1 << 20), needs.glibc);
    println!("{}: {megabytes:.1} MiB, for glibc {major}.{minor} and later", directory.display());
    Ok(())
}

/// Refuses a folder with files that are not an earlier bundle's.
fn check_place(directory: &Path) -> Result<()> {
    let ours = ["adit", "run", EMULATED].map(OsString::from);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    match entries.map(|entry| entry.file_name()).find(|name| !ours.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::new(format!(
            "--bundle {}: it holds {}; name a new folder",
            directory.display(),
            name.display()
        ))),
    }
}

/// Runs the folder in a root file system that has a C library, Python and what apt needs; returns the exit code.
fn rehearse(suite: &str, words: &[String]) -> Result<u8> {
    deps::ensure([&deps::DEBOOTSTRAP])?;
    let place = workspace::target_directory()?.join("gpu-lab");
    let root = root_of(suite, &place)?;
    let lab = root.join(IN_ROOT);
    for old in [&lab, &root.join(PACKAGES).join("nvidia")] {
        if old.exists() {
            fs::remove_dir_all(old).context(old.display())?;
        }
    }
    bundle(&lab, true)?;
    // As pip would install it.
    let packages = root.join(PACKAGES);
    fs::create_dir_all(&packages).context(packages.display())?;
    fs::rename(lab.join(EMULATED).join("nvidia"), packages.join("nvidia"))
        .context(packages.display())?;
    let report = format!("/{IN_ROOT}/report.json");
    let mut run = Command::new("unshare");
    run.args(["--mount", "--pid", "--fork", "--net", "--mount-proc", "--root"]).arg(&root);
    run.arg(format!("/{IN_ROOT}/run")).args(["--out", &report]).args(words);
    run.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/");
    process::exit_code(&mut run)
}

/// Makes the root file system, once.
fn root_of(suite: &str, place: &Path) -> Result<PathBuf> {
    let root = place.join(suite);
    if root.join("usr/bin/python3").exists() {
        return Ok(root);
    }
    fs::create_dir_all(place).context(place.display())?;
    let _progress = Progress::start(format!("making a root file system of {suite}"));
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=python3-minimal", suite]).arg(&root);
    process::run_quietly(&mut debootstrap)?;
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_other_files_is_refused_and_an_earlier_bundle_is_not() {
        let folder = std::env::temp_dir().join(format!("adit-bundle-{}", std::process::id()));
        assert!(check_place(&folder).is_ok(), "a new one");
        fs::create_dir_all(folder.join(EMULATED)).expect("a directory");
        assert!(check_place(&folder).is_ok());
        fs::write(folder.join("letter"), "").expect("a file");
        let refused = check_place(&folder).expect_err("not ours").to_string();
        fs::remove_dir_all(&folder).expect("removed");
        assert!(refused.contains("it holds letter; name a new folder"), "{refused}");
    }
}
