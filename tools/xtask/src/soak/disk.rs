//! The disk of the servers: a file system of its own, which can be filled, in a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::failure::{Context, Failure, Result};
use crate::process;

/// Bytes for the file system itself, and for others to fill.
const SPARE_BYTES: u64 = 640 << 20;

/// How long the kernel may keep the files of a server that was killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The mounted file system, unmounted on drop.
pub(super) struct Disk {
    directory: PathBuf,
    image: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// Makes and mounts a file system with room for `bytes`, in `place`.
    ///
    /// # Errors
    /// If this user may not mount, or a program is missing.
    pub(super) fn mount(place: &Path, bytes: u64) -> Result<Disk> {
        let (directory, image) = (place.join("disk"), place.join("disk.img"));
        fs::create_dir_all(&directory).context(directory.display())?;
        let file = File::create(&image).context(image.display())?;
        file.set_len(bytes + SPARE_BYTES).context(image.display())?;
        let needs = "a full disk needs a file system of its own: run as root, with e2fsprogs and loop devices";
        let failed = |why: Failure| Failure::new(format!("{why}\n{needs}"));
        process::run_quietly(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))
            .map_err(failed)?;
        process::run_quietly(Command::new("mount").args(["-o", "loop"]).args([&image, &directory]))
            .map_err(failed)?;
        Ok(Disk { directory, image, is_mounted: true })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Allocates all free space to a file, without writing to it.
    pub(super) fn fill(&self) -> Result<()> {
        let (mut filled, mut step) = (0u64, 1u64 << 30);
        while step >= 4096 {
            let mut fallocate = Command::new("fallocate");
            fallocate.args(["--offset", &filled.to_string(), "--length", &step.to_string()]);
            match fallocate.arg(self.filler()).stderr(Stdio::null()).status() {
                Ok(status) if status.success() => filled += step,
                Ok(_) => step /= 2,
                Err(why) => return Err(why).context("cannot run fallocate"),
            }
        }
        Ok(())
    }

    /// Frees what was filled.
    pub(super) fn free(&self) -> Result<()> {
        match fs::remove_file(self.filler()) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                Err(why).context(self.filler().display())
            }
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.directory.join("filler")
    }

    /// Unmounts it and removes its file.
    pub(super) fn remove(mut self) -> Result<()> {
        self.unmount()?;
        fs::remove_file(&self.image).context(self.image.display())
    }

    /// Unmounts it, when the kernel has let go of the files of servers that were killed.
    fn unmount(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_mounted) {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match process::run_quietly(Command::new("umount").arg(&self.directory)) {
                Err(why) if Instant::now() >= until => {
                    return Err(Failure::new(format!(
                        "{why}\nunmount {} yourself",
                        self.directory.display()
                    )));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(why) = self.unmount() {
            eprintln!("xtask: {why}");
        }
    }
}
