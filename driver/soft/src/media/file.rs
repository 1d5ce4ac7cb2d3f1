//! Media in a sparse file.
//!
//! Positioned reads and writes. The page cache acts as the volatile write cache: Flush and
//! FUA are fdatasync, and Deallocate punches a hole.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::error::MediaResult;
use crate::error::{Error, Result};

const ZEROS_BYTES_MAX: u64 = 128 << 10;

#[derive(Debug)]
pub(crate) struct FileMedia {
    file: File,
    bytes: u64,
}

impl FileMedia {
    pub(super) fn open(path: &Path, bytes: Option<u64>) -> Result<FileMedia> {
        let name = path.display();
        let refused = |what: &str, why: std::io::Error| {
            Error::refused(format!("soft:file={name}"), what, why, "check the path and its rights")
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(bytes.is_some())
            .truncate(false)
            // Others could read what a program keeps on the drive, and lock it.
            .mode(0o600)
            .open(path)
            .map_err(|why| refused("open the file", why))?;
        let present = file.metadata().map_err(|why| refused("read its length", why))?.len();
        let bytes = bytes.unwrap_or(present);
        if bytes == 0 {
            let why = "the file is empty; give its size, as in 'size=4G'";
            return Err(Error::invalid(format!("soft:file={name}"), why));
        }
        if present < bytes {
            file.set_len(bytes).map_err(|why| refused("make it longer", why))?;
        }
        Ok(FileMedia { file, bytes })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Punches a hole; writes zeros where the file system does not support holes.
    pub(super) fn zero(&mut self, offset: u64, len: u64) -> MediaResult {
        if len == 0 || adit_shared::punch_hole(&self.file, offset, len).is_ok() {
            return Ok(());
        }
        let zeros = vec![0; len.min(ZEROS_BYTES_MAX) as usize];
        let mut done = 0;
        while done < len {
            let now = (len - done).min(ZEROS_BYTES_MAX);
            self.file.write_all_at(&zeros[..now as usize], offset + done)?;
            done += now;
        }
        Ok(())
    }

    pub(super) fn load(&mut self, offset: u64, into: &mut [u8]) -> MediaResult {
        Ok(self.file.read_exact_at(into, offset)?)
    }

    pub(super) fn store(&mut self, offset: u64, from: &[u8]) -> MediaResult {
        Ok(self.file.write_all_at(from, offset)?)
    }

    pub(super) fn flush(&mut self) -> MediaResult {
        Ok(self.file.sync_data()?)
    }
}
