//! Media in a sparse file.
//!
//! Positioned reads and writes through one bounce buffer. The page cache acts as the volatile write cache: Flush and
//! FUA are fdatasync, and Deallocate punches a hole.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::error::{MediaError, MediaResult};
use crate::error::{Error, Result};
use crate::memory::Dma;
use adit_spec::Iova;

const BOUNCE_BYTES: usize = 128 << 10;

#[derive(Debug)]
pub(crate) struct FileMedia {
    file: File,
    bytes: u64,
    bounce: Vec<u8>,
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
        Ok(FileMedia { file, bytes, bounce: vec![0; BOUNCE_BYTES] })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn read(&mut self, offset: u64, dma: &Dma<'_>, to: Iova, len: usize) -> MediaResult {
        let FileMedia { file, bounce, .. } = self;
        in_chunks(bounce, len as u64, |done, chunk| {
            file.read_exact_at(chunk, offset + done)?;
            Ok(dma.write(Iova(to.0.wrapping_add(done)), chunk)?)
        })
    }

    pub(super) fn write(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        from: Iova,
        len: usize,
    ) -> MediaResult {
        let FileMedia { file, bounce, .. } = self;
        in_chunks(bounce, len as u64, |done, chunk| {
            dma.read(Iova(from.0.wrapping_add(done)), chunk)?;
            Ok(file.write_all_at(chunk, offset + done)?)
        })
    }

    pub(super) fn compare(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        with: Iova,
        len: usize,
    ) -> MediaResult {
        let FileMedia { file, bounce, .. } = self;
        let (ours, theirs) = bounce.split_at_mut(BOUNCE_BYTES / 2);
        in_chunks(ours, len as u64, |done, ours| {
            file.read_exact_at(ours, offset + done)?;
            let theirs = &mut theirs[..ours.len()];
            dma.read(Iova(with.0.wrapping_add(done)), theirs)?;
            if ours == theirs { Ok(()) } else { Err(MediaError::Differ) }
        })
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, len: u64) -> MediaResult {
        let FileMedia { file, bounce, .. } = self;
        in_chunks(bounce, len, |done, chunk| {
            file.read_exact_at(chunk, from + done)?;
            Ok(file.write_all_at(chunk, to + done)?)
        })
    }

    pub(super) fn verify(&mut self, offset: u64, len: u64) -> MediaResult {
        let FileMedia { file, bounce, .. } = self;
        in_chunks(bounce, len, |done, chunk| Ok(file.read_exact_at(chunk, offset + done)?))
    }

    /// Punches a hole; writes zeros where the file system does not support holes.
    pub(super) fn zero(&mut self, offset: u64, len: u64) -> MediaResult {
        if len == 0 || adit_shared::punch_hole(&self.file, offset, len).is_ok() {
            return Ok(());
        }
        let FileMedia { file, bounce, .. } = self;
        bounce.fill(0);
        in_chunks(bounce, len, |done, chunk| Ok(file.write_all_at(chunk, offset + done)?))
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

/// Calls `step(bytes done, chunk)` until `len` bytes have passed through the buffer.
fn in_chunks(
    buffer: &mut [u8],
    len: u64,
    mut step: impl FnMut(u64, &mut [u8]) -> MediaResult,
) -> MediaResult {
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(buffer.len() as u64);
        step(done, &mut buffer[..chunk as usize])?;
        done += chunk;
    }
    Ok(())
}
