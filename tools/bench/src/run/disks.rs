//! The kernel's counts for the disks under a run's files and block devices (the kernel's
//! Documentation/block/stat.rst).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_driver::Target;
use nix::sys::stat::{major, minor};

use crate::outcome::DiskOutcome;

/// Where the kernel describes block devices by number.
const BLOCK_DEVICES: &str = "/sys/dev/block";

/// The disks under a run, with their counts at its start.
#[derive(Debug)]
pub(super) struct Disks {
    start: Instant,
    /// The counters' path and values, by disk name.
    before: BTreeMap<String, (PathBuf, Counters)>,
}

/// A disk's counters, in the kernel's order.
type Counters = [u64; 11];

impl Disks {
    /// Finds the disks under `targets`. Controllers of the driver, passthrough devices and file systems without
    /// a disk have none.
    pub(super) fn of<'a>(targets: impl Iterator<Item = &'a Target>) -> Disks {
        Disks::below(Path::new(BLOCK_DEVICES), targets.filter_map(device_number))
    }

    /// Finds the disks with these numbers in `devices`.
    fn below(devices: &Path, numbers: impl Iterator<Item = u64>) -> Disks {
        let paths = numbers.filter_map(|number| {
            let path = devices.join(format!("{}:{}", major(number), minor(number)));
            let path = path.canonicalize().ok()?;
            // A partition shares its disk's queue and counters.
            let is_part = path.join("partition").exists();
            if is_part { path.parent().map(Path::to_owned) } else { Some(path) }
        });
        let named = paths.filter_map(|path| {
            let name = path.file_name()?.to_str()?.replace('!', "/");
            let stat = path.join("stat");
            Some((name, (stat.clone(), read(&stat)?)))
        });
        Disks { start: Instant::now(), before: named.collect() }
    }

    /// Returns the counts since the run began.
    pub(super) fn outcome(&self) -> Vec<DiskOutcome> {
        let took = self.start.elapsed();
        let of = |(name, (stat, before)): (&String, &(PathBuf, Counters))| {
            Some(outcome_of(&read(stat)?, before, name, took))
        };
        self.before.iter().filter_map(of).collect()
    }
}

fn read(stat: &Path) -> Option<Counters> {
    let text = fs::read_to_string(stat).ok()?;
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let fields: Vec<u64> = words.by_ref().take(11).collect::<Option<_>>()?;
    fields.try_into().ok()
}

fn outcome_of(now: &Counters, before: &Counters, name: &str, took: Duration) -> DiskOutcome {
    // A counter may wrap, and a device may have been replugged.
    let more = |field: usize| now[field].saturating_sub(before[field]);
    let reads_and_writes = |field: usize| [more(field), more(field + 4)];
    DiskOutcome {
        name: name.to_owned(),
        ios: reads_and_writes(0),
        merges: reads_and_writes(1),
        ms: reads_and_writes(3),
        queue_ms: more(10),
        busy_percent: (more(9) as f64 * 100.0 / (took.as_secs_f64() * 1e3).max(1.0)).min(100.0),
    }
}

/// Returns the number of the block device that a target is or lies on.
fn device_number(target: &Target) -> Option<u64> {
    let Target::Kernel(kernel) = target else { return None };
    let about = fs::metadata(&kernel.file).ok()?;
    match about.file_type() {
        kind if kind.is_block_device() => Some(about.rdev()),
        kind if kind.is_file() => Some(about.dev()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;

    #[test]
    fn a_disk_is_told_once_by_what_was_added_and_partitions_are_its_own() {
        let root = std::env::temp_dir().join(format!("adit-disks-{}", std::process::id()));
        let (disk, part) = (root.join("devices/sdx"), root.join("devices/sdx/sdx1"));
        fs::create_dir_all(&part).expect("directories");
        fs::create_dir_all(root.join("block")).expect("a directory");
        fs::write(part.join("partition"), "1\n").expect("a file");
        for (path, number) in [(&disk, "8:0"), (&part, "8:1")] {
            std::os::unix::fs::symlink(path, root.join("block").join(number)).expect("a link");
            fs::write(path.join("stat"), "   10 1 80 5 20 2 160 7 0 100 12 0 0 0 0 0 0\n")
                .expect("a file");
        }
        let numbers = [makedev(8, 1), makedev(8, 0), makedev(9, 9)];
        let disks = Disks::below(&root.join("block"), numbers.into_iter());
        fs::write(disk.join("stat"), "17 2 99 8 23 6 200 17 0 1000000 40\n").expect("a file");
        let told = disks.outcome();
        fs::remove_dir_all(&root).expect("what was created");
        let expected = DiskOutcome {
            name: "sdx".to_owned(),
            ios: [7, 3],
            merges: [1, 4],
            ms: [3, 10],
            queue_ms: 28,
            busy_percent: 100.0,
        };
        assert_eq!(told, [expected]);
        assert_eq!(disks.outcome(), [], "it is gone");
    }

    #[test]
    fn a_controller_of_ours_lies_on_no_disk() {
        let targets: Vec<Target> =
            ["soft:mem=1M", "null:"].map(|text| text.parse().expect("a target")).into();
        assert_eq!(Disks::of(targets.iter()).outcome(), []);
    }
}
