//! The directory of one run: images, the guest's first file system, logs. Removed when the run ends.
//!
//! A killed run leaves its directory behind; the next run removes it.

use crate::failure::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "run-";

/// Number of directories this process has created; concurrent guests have one each.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A directory that is removed on drop.
pub(crate) struct Scratch {
    directory: PathBuf,
}

impl Scratch {
    /// Creates a new directory of this process below `cache` and removes those of processes that no longer
    /// exist.
    pub(crate) fn create(cache: &Path) -> Result<Self> {
        remove_stale(cache);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let directory = cache.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir_all(&directory)
            .context(format_args!("cannot create {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// Returns the path of `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, content).context(format_args!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Creates an empty sparse image file.
    pub(crate) fn sparse_image(&self, name: &str, size_bytes: u64) -> Result<PathBuf> {
        let path = self.path(&format!("{name}.img"));
        let made = File::create(&path).and_then(|file| file.set_len(size_bytes));
        made.context(format_args!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Returns a text file's content; empty if the file does not exist.
    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn remove_stale(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(process_of);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another run may be removing it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the id of the process that created the directory `name`.
fn process_of(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.split('-').next()
}

/// Returns a text that no command prints by chance.
pub(crate) fn marker() -> Result<String> {
    let random =
        fs::read_to_string("/proc/sys/kernel/random/uuid").context("cannot get a random number")?;
    Ok(format!("<{}>", random.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_goes_away_and_a_dead_runs_directory_too() {
        let cache = std::env::temp_dir().join(format!("adit-xtask-scratch-{}", std::process::id()));
        // No process has this id: Linux stops at 4194304.
        fs::create_dir_all(cache.join("run-4194305-0")).unwrap();
        let scratch = Scratch::create(&cache).unwrap();
        let image = scratch.sparse_image("disk", 1 << 30).unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 30);
        assert!(!cache.join("run-4194305-0").exists());
        drop(scratch);
        assert!(fs::read_dir(&cache).unwrap().next().is_none());
        fs::remove_dir(&cache).unwrap();
    }

    #[test]
    fn guests_side_by_side_have_a_directory_each() {
        let cache = std::env::temp_dir().join(format!("adit-xtask-lanes-{}", std::process::id()));
        let (one, other) = (Scratch::create(&cache).unwrap(), Scratch::create(&cache).unwrap());
        one.write("initramfs", b"one").unwrap();
        other.write("initramfs", b"other").unwrap();
        assert_eq!(
            (one.read("initramfs"), other.read("initramfs")),
            ("one".into(), "other".into())
        );
        drop(one);
        assert_eq!(other.read("initramfs"), "other");
        drop(other);
        fs::remove_dir(&cache).unwrap();
    }

    #[test]
    fn markers_differ() {
        assert_ne!(marker().unwrap(), marker().unwrap());
    }
}
