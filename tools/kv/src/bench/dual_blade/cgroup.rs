//! A memory cgroup of a run's own: made with a limit, entered by a child process, removed at the end.
//!
//! Version 2 wants a group without processes of its own above those that limit memory, so a new group is made below
//! this process's group if that gives out the memory controller, and beside it otherwise. Version 1 has no such rule.
//! Sources: `Documentation/admin-guide/cgroup-v2.rst` ("No Internal Process Constraint") and `cgroup-v1/memory.rst`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::human;

/// Time limit for a group's last process to be gone.
const REMOVAL: Duration = Duration::from_secs(2);
/// Time limit for what exceeds a new limit to be written back.
const WRITEBACK: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }
}

/// A group of this process's making; dropping it removes it.
#[derive(Debug)]
pub(super) struct Cgroup {
    folder: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Makes a group whose processes, their page cache included, have at most `limit` bytes.
    ///
    /// # Errors
    /// A failure that says what this process may do about it.
    pub(super) fn make(limit: u64) -> Result<Cgroup> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|why| Failure::failed(format!("{path}: {why}")))
        };
        let (mounts, groups) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        let (version, own) = own_group(&mounts, &groups).ok_or_else(|| {
            Failure::unavailable(
                "no memory cgroup is mounted, so memory cannot be limited; mount one: \
                 mount -t cgroup2 none /sys/fs/cgroup",
            )
        })?;
        let name = format!("adit-bench-{}", std::process::id());
        let folder = parent(version, &own).join(name);
        fs::create_dir(&folder).map_err(|why| refusal(&folder, &why))?;
        let group = Cgroup { folder, version };
        group.set_limit(limit)?;
        Ok(group)
    }

    /// Changes the limit, in bytes. The kernel reclaims what is above it.
    ///
    /// # Errors
    /// A failure if the kernel refuses it.
    pub(super) fn set_limit(&self, bytes: u64) -> Result<()> {
        let path = self.folder.join(self.version.limit_file());
        let start = Instant::now();
        // Version 1 gives up while it waits for dirty pages to be written back.
        while let Err(why) = fs::write(&path, bytes.to_string()) {
            if why.kind() != io::ErrorKind::ResourceBusy {
                return Err(refusal(&path, &why));
            }
            if start.elapsed() > WRITEBACK {
                return Err(Failure::failed(format!(
                    "a memory limit of {} is less than what the run needs without any cache; raise --memory-limit",
                    human::bytes(bytes as f64)
                )));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Moves a process into the group; what it used before stays with its old group.
    ///
    /// # Errors
    /// A failure if the kernel refuses it.
    pub(super) fn enter(&self, process: u32) -> Result<()> {
        let path = self.folder.join("cgroup.procs");
        fs::write(&path, process.to_string()).map_err(|why| refusal(&path, &why))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let start = Instant::now();
        // The kernel lists a process for a moment after it was waited for.
        while let Err(why) = fs::remove_dir(&self.folder) {
            if why.kind() != io::ErrorKind::ResourceBusy || start.elapsed() > REMOVAL {
                tracing::warn!("{}: {why}; remove it with rmdir", self.folder.display());
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn refusal(path: &Path, why: &io::Error) -> Failure {
    let fix = match why.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "run as root, or in a group that is yours: \
             systemd-run --user --scope --property=Delegate=yes adit kv bench ..."
        }
        io::ErrorKind::NotFound => {
            "the group above does not give out the memory controller; as root: \
             echo +memory > cgroup.subtree_control in it"
        }
        _ => "check that memory cgroups are enabled (cgroup_disable= of the kernel's command line)",
    };
    Failure::failed(format!("{}: {why}; memory cannot be limited: {fix}", path.display()))
}

/// Returns where a new group goes.
fn parent(version: Version, own: &Path) -> PathBuf {
    let gives_memory = |group: &Path| {
        fs::read_to_string(group.join("cgroup.subtree_control"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|name| name == "memory"))
    };
    match own.parent() {
        Some(above) if version == Version::Two && !gives_memory(own) && gives_memory(above) => {
            above.to_owned()
        }
        _ => own.to_owned(),
    }
}

/// Finds the folder of this process's group that limits memory, from `mountinfo` and `cgroup` of `/proc/self`.
fn own_group(mounts: &str, groups: &str) -> Option<(Version, PathBuf)> {
    let of = |version| {
        let path = groups.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            let is_it = match version {
                Version::One => controllers.split(',').any(|name| name == "memory"),
                Version::Two => controllers.is_empty(),
            };
            is_it.then_some(path)
        })?;
        let folder = mounts.lines().find_map(|line| mounted(line, version, path))?;
        Some((version, folder))
    };
    // With both, version 1 has the memory controller if it names it.
    of(Version::One).or_else(|| of(Version::Two))
}

/// Returns the folder of the group `path` if `line` is the mount of its hierarchy.
fn mounted(line: &str, version: Version, path: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let is_it = match version {
        Version::One => {
            kind.next() == Some("cgroup") && kind.nth(1)?.split(',').any(|name| name == "memory")
        }
        Version::Two => kind.next() == Some("cgroup2"),
    };
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let below = Path::new(path).strip_prefix(root).ok()?;
    is_it.then(|| Path::new(point).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "25 24 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        30 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        31 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2: &str = "31 25 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_group_is_found_in_both_versions() {
        let found = |mounts, groups| {
            own_group(mounts, groups).map(|(version, path)| (version, path.display().to_string()))
        };
        let v1 = found(V1, "9:cpu,cpuacct:/x\n4:memory:/box/7\n0::/\n");
        assert_eq!(v1, Some((Version::One, "/sys/fs/cgroup/memory/box/7".to_owned())));
        let v2 = found(V2, "0::/user.slice/run-1.scope\n");
        assert_eq!(v2, Some((Version::Two, "/sys/fs/cgroup/user.slice/run-1.scope".to_owned())));
        assert_eq!(found("", "0::/\n"), None, "not mounted");
        assert_eq!(found(V2, ""), None);
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_taken_from_its_root() {
        let bind = "31 25 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw";
        let found = |path: &str| mounted(bind, Version::Two, path);
        assert_eq!(found("/docker/abc/app"), Some(PathBuf::from("/sys/fs/cgroup/app")));
        assert_eq!(found("/elsewhere"), None);
        assert_eq!(mounted(bind, Version::One, "/docker/abc"), None);
    }

    #[test]
    fn a_group_that_gives_out_no_memory_gets_a_sibling() {
        let root = std::env::temp_dir().join(format!("adit-cgroup-{}", std::process::id()));
        let own = root.join("own");
        fs::create_dir_all(&own).expect("folders");
        let control = |group: &Path, text: &str| {
            fs::write(group.join("cgroup.subtree_control"), text).expect("a file");
        };
        control(&root, "cpu memory\n");
        control(&own, "\n");
        assert_eq!(parent(Version::Two, &own), root);
        assert_eq!(parent(Version::One, &own), own);
        control(&own, "memory\n");
        assert_eq!(parent(Version::Two, &own), own);
        fs::remove_dir_all(&root).expect("removed");
    }
}
