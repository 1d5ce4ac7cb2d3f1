//! The server's use of the file system: the socket's folder, exclusive use of the media, free space.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use adit_driver::lock::{self, NotTaken};
use adit_driver::soft::Storage;
use nix::sys::statvfs::statvfs;

use crate::failure::{Failure, Result};
use crate::human;

/// A socket's folder, removed on drop if it was created here.
pub(super) struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Folder {
    /// Creates the folder if necessary.
    ///
    /// # Errors
    /// When it cannot be created, or its name is taken.
    pub(super) fn make(path: &Path) -> Result<Folder> {
        let failed = |why: &dyn std::fmt::Display| {
            let fix = "name a folder that you may write to";
            Failure::failed(format!("--socket {}: {why}; {fix}", path.display()))
        };
        let is_ours = match fs::create_dir(path) {
            Ok(()) => true,
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => false,
            Err(why) => return Err(failed(&why)),
        };
        if !path.is_dir() {
            return Err(failed(&"it is no folder"));
        }
        Ok(Folder { path: path.to_owned(), is_ours })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_ours {
            // Fails if the folder is not empty, which keeps it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Locks the media's file against other servers; `None` for other media.
///
/// # Errors
/// When another server has it.
pub(super) fn claim(storage: &Storage) -> Result<Option<File>> {
    let Storage::File { path, .. } = storage else { return Ok(None) };
    // The controller explains why a file cannot be opened.
    let Ok(file) = File::options().read(true).write(true).open(path) else { return Ok(None) };
    if let Err(NotTaken::Held(by)) = lock::take(&file) {
        let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
        return Err(Failure::failed(format!(
            "--media file={}: another server has it{by}; end that one first",
            path.display()
        )));
    }
    // A file system without locks does not prevent serving.
    Ok(Some(file))
}

/// Closes the locked file to users who may only read it: they could lock it too.
pub(super) fn close_to_others(storage: &Storage, file: Option<&File>) {
    if let (Storage::File { path, .. }, Some(file)) = (storage, file) {
        lock::close_to_others(file, path);
    }
}

/// Warns if the media can grow beyond the free space of its file system.
pub(super) fn check_room(storage: &Storage) {
    let Storage::File { path, .. } = storage else { return };
    let Ok(about) = fs::metadata(path) else { return };
    let Ok(system) = statvfs(path) else { return };
    let free = system.blocks_available() * system.fragment_size();
    let missing = about.len().saturating_sub(std::os::unix::fs::MetadataExt::blocks(&about) * 512);
    if missing > free {
        tracing::warn!(
            "{}: it may grow by {} and its file system has {} left: writes beyond that end with Write Fault; \
             make room, or give a smaller --size",
            path.display(),
            human::bytes(missing as f64),
            human::bytes(free as f64),
        );
    }
}
