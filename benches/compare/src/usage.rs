//! Resource usage of this process: CPU time, memory, and how it has its files open.
//!
//! CPU time is that of all its threads, including ended ones and io_uring's workers, as accounted by the kernel.
//! Unattributed kernel work (interrupts, writing back the page cache) is not included.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Processor {
    /// # Errors
    /// Any error of the system.
    pub(crate) fn now() -> Result<Processor> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok(Processor { user: duration(usage.user_time()), system: duration(usage.system_time()) })
    }

    /// Returns the seconds of user and system time since `earlier`.
    pub(crate) fn seconds_since(self, earlier: Processor) -> (f64, f64) {
        let since = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64();
        (since(self.user, earlier.user), since(self.system, earlier.system))
    }
}

fn duration(time: TimeVal) -> Duration {
    Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
}

/// Returns the peak resident memory in bytes, without huge pages of hugetlbfs.
///
/// # Errors
/// Any error of the system.
pub(crate) fn resident_bytes_max() -> Result<u64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss() as u64 * 1024)
}

/// How many files of a folder are open, and how many of these with O_DIRECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenFiles {
    pub(crate) all: u32,
    pub(crate) direct: u32,
}

impl OpenFiles {
    /// Counts this process's files in `folder` and below, by what the kernel says of each (`/proc/self/fdinfo`).
    ///
    /// # Errors
    /// Any error of the system.
    pub(crate) fn of(folder: &Path) -> Result<OpenFiles> {
        let (folder, mut open) = (folder.canonicalize()?, OpenFiles { all: 0, direct: 0 });
        for entry in fs::read_dir("/proc/self/fd")? {
            let entry = entry?;
            // One that is closed meanwhile, such as that of this loop, is not counted.
            let Ok(path) = fs::read_link(entry.path()) else { continue };
            if !path.starts_with(&folder) || !path.is_file() {
                continue;
            }
            let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name()))?;
            open.all += 1;
            open.direct += u32::from(is_direct(&info));
        }
        Ok(open)
    }
}

/// Returns whether the flags of a `/proc/self/fdinfo` have O_DIRECT.
fn is_direct(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_DIRECT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn files_open_with_o_direct_are_told_from_the_others() {
        let folder = std::env::current_dir().expect("a folder").join("target");
        let folder = folder.join(format!("open-files-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let _plain = fs::File::create(folder.join("plain")).expect("a file");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
        let direct = options.open(folder.join("direct")).expect("a disk with direct I/O");
        assert_eq!(OpenFiles::of(&folder).expect("counted"), OpenFiles { all: 2, direct: 1 });
        drop(direct);
        assert_eq!(OpenFiles::of(&folder).expect("counted"), OpenFiles { all: 1, direct: 0 });
        fs::remove_dir_all(folder).expect("it was made");
    }

    #[test]
    fn work_is_counted_as_processor_time() {
        let before = Processor::now().expect("usage");
        let mut random = crate::chooser::Random::new(1);
        let mut seconds = (0.0, 0.0);
        while seconds.0 + seconds.1 < 0.02 {
            std::hint::black_box((0..10_000).map(|_| random.next()).fold(0, |a, b| a ^ b));
            seconds = Processor::now().expect("usage").seconds_since(before);
        }
        assert!(resident_bytes_max().expect("usage") > 1 << 20);
    }
}
