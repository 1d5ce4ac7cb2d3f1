//! The folder of a comparison: `adit-compare` in the folder given, removed at the end.
//!
//! It is locked while in use. A folder left by a killed run is not locked, and the next run removes it.

use std::fs;
use std::path::{Path, PathBuf};

use adit_driver::lock::{LockFile, NotTaken};
use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;

use crate::options::Load;
use crate::size::Size;

const NAME: &str = "adit-compare";

/// The working folder of a comparison.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    /// The folder around it, if this run created it.
    made: Option<PathBuf>,
    /// Present until the drop.
    lock: Option<LockFile>,
}

impl Place {
    /// Creates the folder, after checking that there is room for `load`.
    ///
    /// # Errors
    /// If there is not, if another run uses the folder, or any error of the system.
    pub(crate) fn new(parent: &Path, load: &Load) -> Result<Place> {
        let made = (!parent.exists()).then(|| parent.to_owned());
        let about = || {
            format!(
                "{} cannot be used; name a folder with --dir that can be written",
                parent.display()
            )
        };
        fs::create_dir_all(parent).with_context(about)?;
        let lock = match LockFile::take(&parent.join(format!("{NAME}.lock"))) {
            Ok(lock) => lock,
            Err(NotTaken::Held(_)) => {
                bail!(
                    "another comparison is at work in {}; wait for it, or name another folder with --dir",
                    parent.display()
                )
            }
            Err(why) => return Err(why).with_context(about),
        };
        let place = Place { folder: parent.join(NAME), made, lock: Some(lock) };
        place.empty()?;
        check_room(parent, room_bytes(load))?;
        Ok(place)
    }

    /// Returns an empty folder for an engine, removing what the previous one left.
    ///
    /// # Errors
    /// Any error of the system.
    pub(crate) fn fresh(&self) -> Result<PathBuf> {
        self.empty()?;
        fs::create_dir(&self.folder)
            .with_context(|| format!("{} cannot be made", self.folder.display()))?;
        Ok(self.folder.clone())
    }

    fn empty(&self) -> Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                Err(why).with_context(|| format!("{} cannot be removed", self.folder.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now.
        let _ = self.empty();
        // Its file is in the way of removing the folder.
        drop(self.lock.take());
        if let Some(made) = &self.made {
            let _ = fs::remove_dir(made);
        }
    }
}

/// Returns the most that one engine's files take: its data, as much again for replaced objects not yet reclaimed, and
/// logs.
fn room_bytes(load: &Load) -> u64 {
    load.data.0.saturating_mul(2).saturating_add(1 << 30)
}

fn check_room(folder: &Path, needed: u64) -> Result<()> {
    let stat = statvfs(folder)?;
    let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
    if free < needed {
        let mib = |bytes: u64| Size(bytes >> 20 << 20);
        bail!(
            "{} has {} free, and {} may be needed; free some, take less with --data, or name another folder with --dir",
            folder.display(),
            mib(free),
            mib(needed)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::Parser;

    fn load(data: &str) -> Load {
        Cli::parse_from(["adit-compare", "--data", data]).options.load
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("adit-compare-test-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_folder_is_fresh_for_each_engine_and_gone_at_the_end() {
        let parent = folder("fresh");
        let place = Place::new(&parent, &load("1M")).expect("room for 1 GiB");
        fs::write(place.fresh().expect("a folder").join("left"), "x").expect("a file");
        let again = place.fresh().expect("a folder");
        assert_eq!(fs::read_dir(&again).expect("it is there").count(), 0);
        drop(place);
        assert!(!parent.exists(), "it was made for the run");
    }

    #[test]
    fn two_runs_in_one_folder_are_refused() {
        let parent = folder("two");
        let place = Place::new(&parent, &load("1M")).expect("room for 1 GiB");
        let why = Place::new(&parent, &load("1M")).expect_err("it is in use").to_string();
        assert!(why.contains("another comparison"), "{why}");
        drop(place);
    }

    #[test]
    fn too_little_room_is_said_before_anything_is_written() {
        let parent = folder("room");
        let why = Place::new(&parent, &load("900000T")).expect_err("no such disk").to_string();
        assert!(why.contains("free") && why.contains("--data"), "{why}");
        assert!(!parent.exists(), "nothing is left behind");
    }
}
