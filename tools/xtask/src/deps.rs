//! Installs the system packages commands need, if apt is available.
//!
//! Each package is named before it is installed. Without apt, or without the right to use it, the failure lists
//! what to install by hand.

use crate::failure::{Failure, Result};
use crate::process;
use crate::progress::Progress;
use std::process::{Command, Stdio};

/// A system requirement: how to detect it, and the Debian package that provides it.
pub(crate) struct Need {
    package: &'static str,
    probe: Probe,
}

enum Probe {
    /// A program in `PATH`.
    Program(&'static str),
    /// A library known to pkg-config.
    Library(&'static str),
    /// A shared library known to the loader, by how its file's name begins.
    Shared(&'static str),
    /// A module that Python can import.
    Module(&'static str),
}

pub(crate) const QEMU: Need =
    Need { package: "qemu-system-x86", probe: Probe::Program("qemu-system-x86_64") };
pub(crate) const PKG_CONFIG: Need =
    Need { package: "pkg-config", probe: Probe::Program("pkg-config") };
pub(crate) const HWLOC: Need = Need { package: "libhwloc-dev", probe: Probe::Library("hwloc") };
pub(crate) const UDEV: Need = Need { package: "libudev-dev", probe: Probe::Library("libudev") };
pub(crate) const C_COMPILER: Need = Need { package: "gcc", probe: Probe::Program("cc") };
/// Builds the emulated driver and the tests of the device code.
pub(crate) const CPP_COMPILER: Need = Need { package: "g++", probe: Probe::Program("c++") };
/// Fetches NVRTC.
pub(crate) const PIP: Need = Need { package: "python3-pip", probe: Probe::Program("pip3") };
/// Reads the interfaces of Dynamo's crates.
pub(crate) const PROTOC: Need =
    Need { package: "protobuf-compiler", probe: Probe::Program("protoc") };
/// Builds llama.cpp.
pub(crate) const CMAKE: Need = Need { package: "cmake", probe: Probe::Program("cmake") };
/// Reads llama.cpp's headers.
pub(crate) const LIBCLANG: Need =
    Need { package: "libclang-dev", probe: Probe::Shared("libclang-") };
/// Makes environments with pip; Debian leaves it out of Python.
pub(crate) const VENV: Need = Need { package: "python3-venv", probe: Probe::Module("ensurepip") };
pub(crate) const C_LIBRARY: Need = Need { package: "libc6-dev", probe: Probe::Program("ldd") };
pub(crate) const VALGRIND: Need = Need { package: "valgrind", probe: Probe::Program("valgrind") };
/// Compared with our benchmark and its reports.
pub(crate) const FIO: Need = Need { package: "fio", probe: Probe::Program("fio") };
/// Finds signatures, which drives to be written must not have.
pub(crate) const WIPEFS: Need = Need { package: "util-linux", probe: Probe::Program("wipefs") };
/// Pins programs to cores.
pub(crate) const TASKSET: Need = Need { package: "util-linux", probe: Probe::Program("taskset") };
/// Makes root file systems.
pub(crate) const DEBOOTSTRAP: Need =
    Need { package: "debootstrap", probe: Probe::Program("debootstrap") };
/// The headers' package brings the name that programs are linked with.
pub(crate) const ROCKSDB: Need =
    Need { package: "librocksdb-dev", probe: Probe::Shared("librocksdb.so (") };
pub(crate) const STRACE: Need = Need { package: "strace", probe: Probe::Program("strace") };

/// What every build needs besides Rust: it links with the C compiler.
pub(crate) const TO_LINK: [Need; 2] = [C_COMPILER, C_LIBRARY];

/// What building everything needs besides Rust.
pub(crate) const TO_BUILD: [Need; 6] =
    [C_COMPILER, CPP_COMPILER, C_LIBRARY, PKG_CONFIG, HWLOC, UDEV];

impl Need {
    pub(crate) fn is_met(&self) -> bool {
        match self.probe {
            Probe::Program(name) => process::find(name).is_some(),
            Probe::Library(name) => has_library(name),
            Probe::Shared(name) => is_loadable(name),
            Probe::Module(name) => has_module(name),
        }
    }
}

fn is_loadable(name: &str) -> bool {
    // Not in the path of every user.
    let known = ["ldconfig", "/sbin/ldconfig"]
        .iter()
        .find_map(|program| process::run_quietly(Command::new(program).arg("-p")).ok());
    known.is_some_and(|known| {
        let list = String::from_utf8_lossy(&known.stdout).into_owned();
        list.lines().any(|line| line.trim_start().starts_with(name))
    })
}

fn has_library(name: &str) -> bool {
    let mut command = Command::new("pkg-config");
    command.args(["--exists", name]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn has_module(name: &str) -> bool {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("import {name}")]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs the missing `needs`.
pub(crate) fn ensure<'a>(needs: impl IntoIterator<Item = &'a Need>) -> Result<()> {
    let missing: Vec<&str> =
        needs.into_iter().filter(|need| !need.is_met()).map(|need| need.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let Some(apt_get) = apt_get()? else {
        return Err(Failure::new(by_hand(&list)));
    };
    eprintln!("xtask: installing {list} with apt-get");
    install(&apt_get, &missing)
}

/// Runs `apt-get update`.
pub(crate) fn update_lists() -> Result<()> {
    let apt_get = apt_get()?.ok_or_else(|| Failure::new("apt-get update takes root or sudo"))?;
    eprintln!("xtask: updating apt's package lists");
    apt(&apt_get, &["update"])
}

fn by_hand(list: &str) -> String {
    format!(
        "these are missing and cannot be installed from here (that takes apt-get, as root or with sudo):\n    {list}\n\
         on Debian or Ubuntu run\n    apt-get install --no-install-recommends {list}\n\
         elsewhere install the packages that bring the same programs and libraries"
    )
}

/// Returns the words that run apt-get with the right to install; `None` if there is no such way.
fn apt_get() -> Result<Option<Vec<&'static str>>> {
    if process::find("apt-get").is_none() {
        return Ok(None);
    }
    let id = process::run_quietly(Command::new("id").arg("-u"))?;
    if id.stdout.trim_ascii() == b"0" {
        return Ok(Some(vec!["apt-get"]));
    }
    let sudo = process::find("sudo").is_some()
        && process::run_quietly(Command::new("sudo").args(["-n", "true"])).is_ok();
    Ok(sudo.then(|| vec!["sudo", "-n", "apt-get"]))
}

fn install(apt_get: &[&str], packages: &[&str]) -> Result<()> {
    let _progress = Progress::start(format!("installing {}", packages.join(" ")));
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    if apt(apt_get, &install).is_ok() {
        return Ok(());
    }
    // On a fresh machine, package lists are usually missing or outdated.
    apt(apt_get, &["update"])?;
    apt(apt_get, &install)
}

fn apt(apt_get: &[&str], arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("env");
    // sudo drops variables set outside it, hence env.
    let (program, sudo) = apt_get.split_last().expect("apt-get is always one of the words");
    command.args(sudo).args(["env", "DEBIAN_FRONTEND=noninteractive", program]);
    // Waits up to two minutes for another apt to finish.
    command.args(["-o", "DPkg::Lock::Timeout=120"]).args(arguments);
    process::run_quietly(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_met_need_is_not_installed() {
        let shell = Need { package: "dash", probe: Probe::Program("sh") };
        assert!(ensure([&shell]).is_ok());
    }

    #[test]
    fn the_loader_knows_the_c_library_and_nothing_made_up() {
        assert!(is_loadable("libc.so") && !is_loadable("libadit-is-no-library"));
    }

    #[test]
    fn the_list_for_other_systems_names_the_packages() {
        let text = by_hand("libhwloc-dev valgrind");
        assert!(text.contains("apt-get install --no-install-recommends libhwloc-dev valgrind"));
    }
}
