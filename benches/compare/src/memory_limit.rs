//! A memory group for a child that limits its memory and page cache together.
//!
//! Tries both versions of control groups. If neither is writable there is no limit, and the report says so. A group
//! left by a killed run is empty; the next group with the same number, or the next boot, removes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

/// A group, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    folder: PathBuf,
    peak_file: &'static str,
}

impl MemoryLimit {
    /// Returns whether a group can be made here, by making one.
    pub(crate) fn is_possible() -> bool {
        MemoryLimit::new(1 << 30).is_some()
    }

    /// Creates a group of this process whose members may use `bytes` together; returns `None` if that is not allowed.
    pub(crate) fn new(bytes: u64) -> Option<MemoryLimit> {
        let first = || {
            MemoryLimit::make(
                Path::new(VERSION_1),
                "memory.limit_in_bytes",
                "memory.max_usage_in_bytes",
                bytes,
            )
        };
        let second = || {
            let root = Path::new(VERSION_2);
            fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
            MemoryLimit::make(root, "memory.max", "memory.peak", bytes)
        };
        first().or_else(second)
    }

    fn make(
        root: &Path,
        limit_file: &str,
        peak_file: &'static str,
        bytes: u64,
    ) -> Option<MemoryLimit> {
        let folder = root.join(format!("adit-compare-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let limit = MemoryLimit { folder, peak_file };
        fs::write(limit.folder.join(limit_file), bytes.to_string()).ok()?;
        Some(limit)
    }

    /// Returns the file through which a process joins.
    pub(crate) fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns the peak usage, page cache included.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.peak_file)).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Drop the files' page cache, so that it does not burden the next group. Version 2 has no such file.
        let _ = fs::write(self.folder.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Adds this process to a group by its [`MemoryLimit::members`].
///
/// # Errors
/// Any error of the system.
pub(crate) fn join(members: &Path) -> Result<()> {
    let written = fs::write(members, std::process::id().to_string());
    written
        .with_context(|| format!("{}: the child cannot join its memory group", members.display()))
}
