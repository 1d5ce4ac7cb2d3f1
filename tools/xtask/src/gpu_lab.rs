//! `cargo xtask gpu-lab`: builds `adit gpu lab`, and runs it, makes a folder of it, or rehearses that folder.
//!
//! The folder is what a machine with a GPU gets that has no Rust: `adit` without hwloc, and the script `run`. The
//! rehearsal runs it with the emulated GPU in the root file system of another distribution's release, without a network.
//! What it measures is `adit gpu lab`'s (docs/use/gpu.md, "The lab").

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::gpu;
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES_MAX: u64 = 40 << 20;
/// Libraries of the GNU C library and of GCC's runtime, which every system with either has.
const LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];
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
    let told = process::run_quietly(Command::new("objdump").arg("-p").arg(&adit))?;
    let needs = Needs::of(&String::from_utf8_lossy(&told.stdout));
    needs.check()?;
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

/// What a program needs of the system.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    libraries: BTreeSet<String>,
    /// The newest version of the GNU C library's symbols.
    glibc: (u32, u32),
}

impl Needs {
    /// Reads what `objdump -p` prints of a program.
    fn of(told: &str) -> Needs {
        let mut needs = Needs::default();
        for line in told.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["NEEDED", library] = words[..] {
                needs.libraries.insert(library.to_owned());
            }
            let version =
                words.last().and_then(|word| word.strip_prefix("GLIBC_")?.split_once('.'));
            let number = |text: &str| text.split('.').next()?.parse().ok();
            if let Some((major, minor)) =
                version.and_then(|(major, minor)| Some((number(major)?, number(minor)?)))
            {
                needs.glibc = needs.glibc.max((major, minor));
            }
        }
        needs
    }

    /// Fails if a bare machine may lack any of it.
    fn check(&self) -> Result<()> {
        if let Some(other) = self.libraries.iter().find(|name| !LIBRARIES.contains(&name.as_str()))
        {
            return Err(Failure::new(format!("adit needs {other}, which bare machines lack")));
        }
        let ((major, minor), (most_major, most_minor)) = (self.glibc, GLIBC_MAX);
        if self.glibc > GLIBC_MAX {
            return Err(Failure::new(format!(
                "adit needs glibc {major}.{minor}, and machines with GPUs may have {most_major}.{most_minor}: \
                 build it on an older system"
            )));
        }
        Ok(())
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
    let code = process::exit_code(&mut run)?;
    let file = lab.join("report.json");
    let text = fs::read_to_string(&file).context(file.display())?;
    let report = serde_json::from_str(&text).context(file.display())?;
    println!("{}: {}", file.display(), summary(&report));
    Ok(code)
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

/// Counts what became of the steps.
fn summary(report: &Value) -> String {
    let steps = report["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let count = |state: &str| steps.iter().filter(|step| step["state"] == state).count();
    let states = ["done", "lacks", "failed", "late", "not begun"];
    let counts = states.map(|state| format!("{} {state}", count(state)));
    let whole = if report["is_complete"] == true { "complete" } else { "cut off" };
    format!("{whole}; of {} steps {}", steps.len(), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOLD: &str = "
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
Version References:
  required from libgcc_s.so.1:
    0x0b792650 0x00 05 GCC_3.0
  required from libc.so.6:
    0x06969188 0x00 04 GLIBC_2.2.5
    0x069691b4 0x00 03 GLIBC_2.34
    0x09691a75 0x00 02 GLIBC_2.9
";

    #[test]
    fn what_a_program_needs_is_read_and_checked() {
        let needs = Needs::of(TOLD);
        assert_eq!(needs.glibc, (2, 34));
        assert_eq!(needs.libraries.len(), 2);
        assert!(needs.check().is_ok());
        let refused = |told: String| Needs::of(&told).check().expect_err("refused").to_string();
        let newer = refused(TOLD.replace("GLIBC_2.9", "GLIBC_2.38"));
        assert!(newer.contains("needs glibc 2.38") && newer.contains("2.35"), "{newer}");
        let other = refused(TOLD.replace("libgcc_s.so.1\n", "libhwloc.so.15\n"));
        assert!(other.contains("needs libhwloc.so.15"), "{other}");
    }

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

    #[test]
    fn steps_are_counted_by_what_became_of_them() {
        let steps = json!([{ "state": "done" }, { "state": "lacks" }, { "state": "done" }]);
        let told = summary(&json!({ "is_complete": true, "steps": steps }));
        assert_eq!(told, "complete; of 3 steps 2 done, 1 lacks, 0 failed, 0 late, 0 not begun");
    }
}
