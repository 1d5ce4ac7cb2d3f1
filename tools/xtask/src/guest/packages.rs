//! Fetches the distribution's packages for the guest: its kernel, busybox if the host has no static one, and
//! programs for tests that the host may lack.
//!
//! `apt-get download` fetches them and they are unpacked below the target directory, never installed on the
//! host. Existing ones are reused; remove the directory to fetch them again.

use super::programs;
use super::vmlinux;
use crate::failure::{Context, Failure, Result};
use crate::process;
use crate::progress::Progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Packages that always depend on the current kernel: Debian's, then Ubuntu's.
const META_PACKAGES: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];

/// Programs fetched if the host lacks them, each with its package.
const PROGRAMS: [(&str, &str); 6] = [
    ("lvm", "lvm2"),
    ("mdadm", "mdadm"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.vfat", "dosfstools"),
    ("nvme", "nvme-cli"),
    ("sfdisk", "fdisk"),
];

/// Held while fetching or unpacking, because concurrent guests need the same packages.
static FETCHING: Mutex<()> = Mutex::new(());

/// A kernel and its modules.
pub(crate) struct Kernel {
    /// The file QEMU boots.
    pub image: PathBuf,
    /// `lib/modules/VERSION`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds the kernel in `root`, which has `boot/vmlinuz-VERSION` and `lib/modules/VERSION`.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let boot = root.join("boot");
        let mut images: Vec<PathBuf> =
            files(&boot)?.into_iter().filter(|file| version(file).is_some()).collect();
        images.sort();
        for image in images.into_iter().rev() {
            let version = version(&image).unwrap_or_default();
            let places = [
                root.join("lib/modules").join(&version),
                root.join("usr/lib/modules").join(&version),
            ];
            if let Some(modules) = places.into_iter().find(|modules| modules.is_dir()) {
                return Ok(Self { image, modules });
            }
        }
        Err(Failure::new(format!(
            "no boot/vmlinuz-VERSION with lib/modules/VERSION below {}",
            root.display()
        )))
    }

    /// Returns the distribution's kernel, fetched into `cache` on first use.
    pub(crate) fn fetched(cache: &Path) -> Result<Self> {
        let root = cache.join("kernel");
        fetch_once(&root, kernel_packages)?;
        let packed = Self::find(&root)?;
        let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { image: vmlinux::beside(&packed.image)?, ..packed })
    }
}

/// Returns a static busybox: the host's, or one fetched into `cache`.
pub(crate) fn busybox(cache: &Path) -> Result<PathBuf> {
    if let Some(found) = process::find("busybox").filter(|file| programs::is_static(file)) {
        return Ok(found);
    }
    let root = cache.join("busybox");
    fetch_once(&root, || Ok(vec!["busybox-static".to_owned()]))?;
    let places = [root.join("bin/busybox"), root.join("usr/bin/busybox")];
    let found = places.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| {
        Failure::new(format!("no busybox below {}; remove it and try again", root.display()))
    })
}

/// Returns the package of `program`, if it can be fetched.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    PROGRAMS.iter().find(|(name, _)| *name == program).map(|(_, package)| *package)
}

/// Returns `program` from `package`, fetched into `cache` on first use.
pub(crate) fn program(package: &str, program: &str, cache: &Path) -> Result<PathBuf> {
    let root = cache.join(format!("package-{package}"));
    fetch_once(&root, || Ok(vec![package.to_owned()]))?;
    let places = ["usr/bin", "usr/sbin", "bin", "sbin"].map(|place| root.join(place).join(program));
    places.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Failure::new(format!("no {program} below {}; remove it and try again", root.display()))
    })
}

/// Returns the directories of the libraries `package` depends on, fetched into `cache` on first use. The C
/// library is the host's, which the guest's other programs use too.
pub(crate) fn libraries(package: &str, cache: &Path) -> Result<Vec<PathBuf>> {
    let root = cache.join(format!("libraries-{package}"));
    fetch_once(&root, || {
        let libraries = dependencies(package).into_iter();
        Ok(libraries.filter(|name| name.starts_with("lib") && name != "libc6").collect())
    })?;
    Ok(["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|place| root.join(place)).into())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).context(format_args!("cannot list {}", directory.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn version(image: &Path) -> Option<String> {
    Some(image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned())
}

/// Returns the newest kernel's package, and the package of its modules if separate.
fn kernel_packages() -> Result<Vec<String>> {
    require_apt()?;
    let first = find_kernel_package().or_else(|| {
        // A fresh machine has no package lists. Updating them requires root; the failure below says what to do.
        crate::deps::update_lists().ok()?;
        find_kernel_package()
    });
    let image = first.ok_or_else(|| {
        Failure::new(format!(
            "apt knows none of {}; run apt-get update and try again",
            META_PACKAGES.join(", ")
        ))
    })?;
    let modules =
        dependencies(&image).into_iter().find(|package| package.starts_with("linux-modules-"));
    Ok([Some(image), modules].into_iter().flatten().collect())
}

fn find_kernel_package() -> Option<String> {
    let candidates = META_PACKAGES.iter().flat_map(|meta| dependencies(meta));
    candidates.into_iter().find(|package| package.starts_with("linux-image-"))
}

fn dependencies(package: &str) -> Vec<String> {
    let output =
        process::run_quietly(Command::new("apt-cache").args(["depends", "--important", package]));
    output.map_or_else(
        |_| Vec::new(),
        |output| depends_lines(&String::from_utf8_lossy(&output.stdout)),
    )
}

/// Parses the package names in the output of `apt-cache depends`.
fn depends_lines(text: &str) -> Vec<String> {
    let depends = text
        .lines()
        .map(|line| line.trim().trim_start_matches('|').trim_start_matches("Pre"))
        .filter_map(|line| line.strip_prefix("Depends: "));
    depends.map(|package| package.trim_matches(['<', '>', ' ']).to_owned()).collect()
}

fn require_apt() -> Result<()> {
    if ["apt-get", "apt-cache", "dpkg"].into_iter().all(|program| process::find(program).is_some())
    {
        return Ok(());
    }
    Err(Failure::new(
        "the guest's kernel and busybox come from Debian's or Ubuntu's archive, and there is no apt-get here; install \
         qemu-system-x86_64 and a static busybox, and pass --kernel DIR, a directory with boot/vmlinuz-VERSION and \
         lib/modules/VERSION (/ for this machine's own kernel)",
    ))
}

/// Downloads `packages` and unpacks them at `root`, unless it exists.
fn fetch_once(root: &Path, packages: impl FnOnce() -> Result<Vec<String>>) -> Result<()> {
    // A panic elsewhere leaves nothing incomplete, because the directory appears at once.
    let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    if root.is_dir() { Ok(()) } else { fetch(&packages()?, root) }
}

/// Downloads `packages` and unpacks them at `root`, which appears once complete.
fn fetch(packages: &[String], root: &Path) -> Result<()> {
    require_apt()?;
    let place = root.parent().unwrap_or(root).display();
    eprintln!(
        "xtask: downloading {} with apt-get into {place} (nothing is installed)",
        packages.join(" ")
    );
    let _progress = Progress::start("downloading");
    let partial = root.with_extension(format!("partial-{}", std::process::id()));
    fs::create_dir_all(&partial).context(format_args!("cannot create {}", partial.display()))?;
    let done = unpack(packages, &partial).or_else(|why| {
        // Package lists are missing or outdated.
        crate::deps::update_lists().map_err(|_| why)?;
        unpack(packages, &partial)
    });
    if done.is_ok() && !root.is_dir() {
        let _ = fs::rename(&partial, root);
    }
    // Clean up, whether it failed or another run was faster.
    let _ = fs::remove_dir_all(&partial);
    done
}

fn unpack(packages: &[String], directory: &Path) -> Result<()> {
    let mut download = Command::new("apt-get");
    // apt downloads as its own user, which may not write here.
    download
        .args(["download", "-q", "-o", "APT::Sandbox::User=root"])
        .args(packages)
        .current_dir(directory);
    process::run_quietly(&mut download)?;
    let archives = files(directory)?;
    for archive in
        archives.iter().filter(|file| file.extension().is_some_and(|extension| extension == "deb"))
    {
        process::run_quietly(Command::new("dpkg").arg("-x").arg(archive).arg(directory))?;
        fs::remove_file(archive).context(format_args!("cannot remove {}", archive.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_lines_are_read_with_alternatives_and_virtual_packages() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n |Depends: kmod\n  Depends: <linux-initramfs-tool>\n  Suggests: x\n  PreDepends: libc6\n";
        assert_eq!(
            depends_lines(text),
            ["linux-image-6.1.0-56-amd64", "kmod", "linux-initramfs-tool", "libc6"]
        );
    }

    #[test]
    fn a_kernel_version_is_in_its_file_name() {
        assert_eq!(
            version(Path::new("/x/boot/vmlinuz-6.1.0-56-amd64")).as_deref(),
            Some("6.1.0-56-amd64")
        );
        assert_eq!(version(Path::new("/x/boot/System.map-6.1")), None);
    }
}
