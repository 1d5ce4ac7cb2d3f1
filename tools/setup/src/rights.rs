//! Who can change a file that root trusts: a program that a boot runs, or a record of `adit setup`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Write permission of the group and of others.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// The owner and mode of a file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

impl Rights {
    /// Returns those of a file, or of a link itself, if it exists.
    pub(crate) fn of(path: &Path) -> Option<Rights> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Rights { uid: found.uid(), gid: found.gid(), mode: found.mode() })
    }

    /// Returns whether only root may write.
    fn are_roots(self) -> bool {
        let group = self.gid != 0 && self.mode & GROUP_WRITES != 0;
        self.uid == 0 && !group && self.mode & OTHERS_WRITE == 0
    }
}

/// Returns a sentence if others than root can change the file `real` of this machine; `None` if there is no such file.
pub(crate) fn changed_by_others(real: &Path) -> Option<String> {
    fs::symlink_metadata(real).ok()?;
    // Links above it are as good as what they lead to.
    let folder = fs::canonicalize(real.parent()?).ok()?;
    of_others(&folder.join(real.file_name()?), Rights::of)
}

/// Returns a sentence if others than root can write to a file or to a directory above it.
pub(crate) fn of_others(file: &Path, rights: impl Fn(&Path) -> Option<Rights>) -> Option<String> {
    let mut places: Vec<PathBuf> = file.ancestors().map(Path::to_owned).collect();
    places.reverse();
    let place = places.iter().find(|place| !rights(place).is_some_and(Rights::are_roots))?;
    let place = place.display();
    Some(format!(
        "others than root can change {place} ('sudo chown root:root {place}' and 'sudo chmod go-w {place}' end that)"
    ))
}
