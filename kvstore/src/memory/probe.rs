//! Reads the memory of the machine and of control groups from `/proc` and their file systems.
//!
//! `/proc/self/cgroup` names the process's groups, `/proc/self/mountinfo` where their files are. Every group from the
//! process's own up to the root of the mount limits it. Files that are missing or say nothing sensible limit nothing:
//! the root group has none, and a hybrid machine has a version 2 tree without memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::pressure::{Pressure, Waited};
use super::{GroupMemory, Memory, Strain};
use crate::error::{Error, Result};

/// Limits from here on mean "none": version 1 shows its largest number, rounded to pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Reads the memory that this process may use.
#[derive(Clone, Debug)]
pub struct Probe {
    proc: PathBuf,
    /// From the process's own group up.
    groups: Vec<(PathBuf, Version)>,
    pressure: Pressure,
}

impl Probe {
    /// Finds the control groups of this process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `/proc` cannot be read.
    pub fn new() -> Result<Probe> {
        Probe::at(Path::new("/proc"))
    }

    /// Finds the control groups of the process that the folder `self` in `proc` describes.
    ///
    /// # Errors
    /// As [`Probe::new`].
    pub fn at(proc: &Path) -> Result<Probe> {
        let memberships = text_of(&proc.join("self/cgroup"))?;
        let mounts = text_of(&proc.join("self/mountinfo"))?;
        let mut groups = Vec::new();
        for membership in memberships.lines() {
            let Some((version, path)) = memory_group(membership) else { continue };
            let Some((point, root)) = mounts.lines().find_map(|line| mount_of(line, version))
            else {
                continue;
            };
            groups.extend(upwards(&point, &root, path).map(|folder| (folder, version)));
        }
        let proc = proc.to_owned();
        Ok(Probe { proc, groups, pressure: Pressure::default() })
    }

    /// Reads the present memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `/proc/meminfo` has no `MemAvailable`.
    pub fn memory(&self) -> Result<Memory> {
        let path = self.proc.join("meminfo");
        let text = text_of(&path)?;
        let of = |name: &str| field(&text, name).map(|kib| kib.saturating_mul(1024));
        let Some(available_bytes) = of("MemAvailable:") else {
            return Err(unreadable(&path, "it has no MemAvailable"));
        };
        let groups = self.groups.iter().map(|(folder, version)| read_group(folder, *version));
        Ok(Memory {
            available_bytes,
            dirty_bytes: of("Dirty:").unwrap_or(0),
            background_per_mille: self.background_per_mille(available_bytes),
            groups: groups.collect(),
        })
    }

    /// Reads the share of memory from which on dirty pages are written back; 0 if the kernel does not say.
    fn background_per_mille(&self, available_bytes: u64) -> u32 {
        let read = |name: &str| number(&self.proc.join("sys/vm").join(name)).unwrap_or(0);
        // The one that was set last is not 0.
        let per_mille = match read("dirty_background_bytes") {
            0 => read("dirty_background_ratio").saturating_mul(10),
            bytes => bytes.saturating_mul(1000) / available_bytes.max(1),
        };
        per_mille.min(1000) as u32
    }

    /// Reads how long tasks have waited for memory: those of the process's own group if it has such a figure. Otherwise
    /// those of the machine, unless `memory` has a limit: then it is not this process that they wait for. `None` if the
    /// kernel does not measure it.
    fn waited(&self, memory: &Memory) -> Option<Waited> {
        // Beside memory groups of version 1, the process's group of version 2 may be the root, which is the machine.
        let own = self.groups.iter().all(|(_, version)| *version == Version::Two);
        let own = self.groups.iter().filter(|_| own);
        let own = own.map(|(folder, _)| folder.join("memory.pressure"));
        let is_limited = memory.groups.iter().any(|group| group.limit_bytes.is_some());
        let machine = (!is_limited).then(|| self.proc.join("pressure/memory"));
        let mut files = own.chain(machine);
        files.find_map(|file| Waited::parse(&fs::read_to_string(file).ok()?))
    }

    /// Evaluates how long tasks have waited for `memory` between earlier calls and `now`.
    pub fn strain(&mut self, memory: &Memory, now: Instant) -> Strain {
        let waited = self.waited(memory);
        waited.map_or(Strain::None, |waited| self.pressure.evaluate(waited, now))
    }
}

fn unreadable(path: &Path, why: impl ToString) -> Error {
    let fix = format!("{}: mount /proc", why.to_string());
    Error::invalid("the memory's description", path.display(), fix)
}

fn text_of(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|why| unreadable(path, why))
}

/// Returns version and path of a line of `/proc/self/cgroup`, if that hierarchy can limit memory.
fn memory_group(line: &str) -> Option<(Version, &str)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    match controllers {
        "" if id == "0" => Some((Version::Two, path)),
        _ if controllers.split(',').any(|name| name == "memory") => Some((Version::One, path)),
        _ => None,
    }
}

/// Returns where a line of `mountinfo` mounts the hierarchy, and which of its groups is at the top there.
fn mount_of(line: &str, version: Version) -> Option<(PathBuf, String)> {
    let (about, system) = line.split_once(" - ")?;
    let mut about = about.split(' ').skip(3);
    let (root, point) = (about.next()?, about.next()?);
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let fits = match version {
        Version::Two => kind == "cgroup2",
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    fits.then(|| (PathBuf::from(point), root.to_owned()))
}

/// Lists the folders of a group and those above it, up to the mount. In a container, the path may be that of the host;
/// then the mount itself is the group.
fn upwards(point: &Path, root: &str, path: &str) -> impl Iterator<Item = PathBuf> {
    let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
    let own = point.join(below.trim_start_matches('/'));
    let inside = own.starts_with(point) && !below.contains("..") && own.is_dir();
    let own = if inside { own } else { point.to_owned() };
    let point = point.to_owned();
    let mut next = Some(own);
    std::iter::from_fn(move || {
        let folder = next.take()?;
        if folder != point {
            next = folder.parent().map(Path::to_owned);
        }
        Some(folder)
    })
}

fn read_group(folder: &Path, version: Version) -> GroupMemory {
    let number = |name: &str| number(&folder.join(name));
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| field(&stat, name).unwrap_or(0);
    let (limit, anon_shmem_bytes, kernel_bytes) = match version {
        Version::Two => {
            // "kernel" holds what the others sum up to; kernels before 5.18 have only these.
            let parts =
                || of("kernel_stack") + of("pagetables") + of("percpu") + of("slab_unreclaimable");
            let kernel =
                field(&stat, "kernel").map(|all| all.saturating_sub(of("slab_reclaimable")));
            let high = number("memory.high").unwrap_or(u64::MAX);
            let limit = number("memory.max").unwrap_or(u64::MAX).min(high);
            (Some(limit), of("anon") + of("shmem"), kernel.unwrap_or_else(parts))
        }
        Version::One => {
            let kernel = number("memory.kmem.usage_in_bytes").unwrap_or(0);
            // "total_" covers the groups below, which the limit covers as well.
            (number("memory.limit_in_bytes"), of("total_rss") + of("total_shmem"), kernel)
        }
    };
    GroupMemory {
        name: folder.display().to_string(),
        limit_bytes: limit.filter(|limit| *limit < UNLIMITED_BYTES),
        anon_shmem_bytes,
        kernel_bytes,
        bounds_dirty: version == Version::Two,
    }
}

/// Returns the number that is all of a file.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the number behind `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut values = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        if words.next()? == name { words.next()?.parse().ok() } else { None }
    });
    values.next()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::budget;

    /// A made-up machine in a folder that is removed at the end.
    pub(crate) struct Machine(PathBuf);

    impl Machine {
        pub(crate) fn new(name: &str) -> Machine {
            let folder =
                std::env::temp_dir().join(format!("adit-probe-{name}-{}", std::process::id()));
            let machine = Machine(folder);
            machine.put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");
            machine
        }

        pub(crate) fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        pub(crate) fn mounted(&self, cgroup: &str, mounts: &[(&str, &str, &str)]) -> Probe {
            let root = self.0.display();
            let line = |(top, point, rest): &(&str, &str, &str)| {
                format!("31 23 0:28 {top} {root}/{point} rw - {rest}\n")
            };
            self.put("proc/self/cgroup", cgroup);
            self.put("proc/self/mountinfo", &mounts.iter().map(line).collect::<String>());
            Probe::at(&self.0.join("proc")).expect("a probe")
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("its folder is there");
        }
    }

    #[test]
    fn version_2_reads_the_group_and_its_parents() {
        let machine = Machine::new("two");
        machine.put("cg/a/b/memory.max", "max\n");
        machine.put(
            "cg/a/b/memory.stat",
            "anon 100\nfile 5000\nkernel 70\nshmem 10\nslab_reclaimable 50\n",
        );
        machine.put("cg/a/memory.max", "3000000\n");
        machine.put("cg/a/memory.high", "2000000\n");
        machine.put(
            "cg/a/memory.stat",
            "anon 500000\nfile 7\nkernel_stack 3\npagetables 4\nshmem 100\n",
        );
        let probe = machine.mounted("0::/a/b\n", &[("/", "cg", "cgroup2 cgroup2 rw")]);
        let memory = probe.memory().expect("memory");
        assert_eq!(memory.available_bytes, 4_096_000);
        assert_eq!(memory.groups.len(), 3, "the root of the mount is the last");
        let of = |index: usize| {
            let group = &memory.groups[index];
            (group.limit_bytes, group.anon_shmem_bytes, group.kernel_bytes)
        };
        assert_eq!(of(0), (None, 110, 20));
        assert_eq!(of(1), (Some(2_000_000), 500_100, 7));
        assert_eq!(of(2), (None, 0, 0));
        assert_eq!(budget(&memory, 1000), 2_000_000 - 500_107 - 1000);
    }

    #[test]
    fn version_1_counts_the_groups_below_and_ignores_a_version_2_tree_without_memory() {
        let machine = Machine::new("one");
        machine.put("mem/job/memory.limit_in_bytes", "1000000\n");
        machine.put("mem/job/memory.stat", "rss 1\nshmem 1\ntotal_rss 200000\ntotal_shmem 3000\n");
        machine.put("mem/job/memory.kmem.usage_in_bytes", "500\n");
        machine.put("mem/memory.limit_in_bytes", "9223372036854771712\n");
        machine.put("uni/cgroup.procs", "");
        let mounts = [
            ("/", "cpu", "cgroup cgroup rw,cpu"),
            ("/", "mem", "cgroup cgroup rw,memory"),
            ("/", "uni", "cgroup2 cgroup2 rw"),
        ];
        let probe = machine.mounted("5:cpu:/\n4:memory:/job\n0::/\n", &mounts);
        let memory = probe.memory().expect("memory");
        assert_eq!(budget(&memory, 0), 1_000_000 - 203_500);
        assert!(memory.groups[1].limit_bytes.is_none(), "the largest number is no limit");
    }

    #[test]
    fn the_threshold_of_writeback_is_a_share_or_bytes() {
        let machine = Machine::new("dirty");
        let of = |probe: &Probe| {
            let memory = probe.memory().expect("memory");
            (memory.dirty_bytes, memory.background_per_mille)
        };
        let probe = machine.mounted("0::/\n", &[]);
        assert_eq!(of(&probe), (0, 0), "the kernel does not say");
        machine.put("proc/meminfo", "MemAvailable: 4000 kB\nDirty: 12 kB\n");
        machine.put("proc/sys/vm/dirty_background_ratio", "10\n");
        machine.put("proc/sys/vm/dirty_background_bytes", "0\n");
        assert_eq!(of(&probe), (12 << 10, 100));
        machine.put("proc/sys/vm/dirty_background_ratio", "0\n");
        machine.put("proc/sys/vm/dirty_background_bytes", "1024000\n");
        assert_eq!(of(&probe), (12 << 10, 250));
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        let machine = Machine::new("container");
        machine.put("cg/memory.max", "5000\n");
        machine.put("cg/memory.stat", "anon 1000\nshmem 0\nkernel 0\n");
        let inside =
            machine.mounted("0::/docker/abc\n", &[("/docker/abc", "cg", "cgroup2 cgroup2 rw")]);
        assert_eq!(budget(&inside.memory().expect("memory"), 0), 4000);
        let hidden = machine.mounted("0::/../other\n", &[("/", "cg", "cgroup2 cgroup2 rw")]);
        assert_eq!(budget(&hidden.memory().expect("memory"), 0), 4000);
    }

    #[test]
    fn waits_are_the_groups_or_the_machines() {
        let machine = Machine::new("waits");
        machine.put("cg/a/cgroup.procs", "");
        let mut probe = machine.mounted("0::/a\n", &[("/", "cg", "cgroup2 cgroup2 rw")]);
        let memory = probe.memory().expect("memory");
        assert_eq!(probe.waited(&memory), None, "the kernel does not measure it");
        assert_eq!(probe.strain(&memory, Instant::now()), Strain::None);
        let text = |some: u64, full: u64| format!("some total={some}\nfull total={full}\n");
        let of = |some, full| Waited::parse(&text(some, full));
        machine.put("proc/pressure/memory", &text(90, 40));
        assert_eq!(probe.waited(&memory), of(90, 40));
        let limited = GroupMemory { limit_bytes: Some(1), ..GroupMemory::default() };
        let other = Memory { groups: vec![limited], ..memory.clone() };
        assert_eq!(probe.waited(&other), None, "others wait");
        machine.put("cg/a/memory.pressure", &text(10, 5));
        assert_eq!(probe.waited(&other), of(10, 5));
        let mounts = [("/", "mem", "cgroup cgroup rw,memory"), ("/", "cg", "cgroup2 cgroup2 rw")];
        machine.put("mem/cgroup.procs", "");
        let hybrid = machine.mounted("4:memory:/\n0::/a\n", &mounts);
        assert_eq!(hybrid.waited(&other), None, "a version 2 tree without memory");
        assert_eq!(hybrid.waited(&memory), of(90, 40));
    }

    #[test]
    fn this_machine_can_be_read() {
        let memory = Probe::new().and_then(|probe| probe.memory()).expect("/proc is mounted");
        assert!(memory.available_bytes > 0 && budget(&memory, 0) <= memory.available_bytes);
        assert_eq!(budget(&memory, u64::MAX), 0);
        assert!(Probe::at(Path::new("/nonexistent")).is_err());
    }
}
