//! Files under the page cache, one per copy thread, with a place for each of its tensors.
//!
//! The kernel locks a file for each write, so threads sharing a file would wait for each other. Blocks are allocated
//! layer by layer, before the first write, so that a full disk fails a call and never loses writeback. The files have
//! no names during the run.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_driver::paths::{Device, DeviceOptions, check_writeback};
use adit_driver::{KernelPath, KernelTarget, Target};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::error::{Error, Result};

/// Makes file names unique in this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Checks that files of `bytes` in `folder` fit in memory, if the file system keeps files in memory: the kernel kills a
/// process whose files exceed its memory.
///
/// # Errors
/// [`Error::Invalid`] if they take more than `memory_bytes`.
pub(crate) fn check_folder(folder: &Path, bytes: u64, memory_bytes: u64) -> Result<()> {
    let is_in_memory = statfs(folder).is_ok_and(|about| about.filesystem_type() == TMPFS_MAGIC);
    if !is_in_memory || bytes <= memory_bytes {
        return Ok(());
    }
    let fix = format!(
        "it lies in memory (tmpfs), which has room for {memory_bytes} of the {bytes} bytes of tensors: choose a folder \
         on a drive, as below /var/tmp"
    );
    Err(Error::invalid("the folder", folder.display(), fix))
}

/// Bytes of one call that reads or reads ahead.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;
/// Pieces that the drive reads while one is copied.
const PIECES_AHEAD: u64 = 4;

/// One copy thread's file under the page cache. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct CachedFile {
    /// Handle whose read-ahead continues behind each read.
    file: Arc<File>,
    /// Handle without such read-ahead.
    bounded: Arc<File>,
    /// The former path, for messages.
    path: PathBuf,
    bytes: u64,
}

impl CachedFile {
    /// Creates a file of `bytes` without any blocks in `folder`.
    ///
    /// # Errors
    /// [`Error::Failed`] with the system's error.
    pub(crate) fn create(folder: &Path, bytes: u64) -> Result<CachedFile> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("adit-tensors-{}-{number}", std::process::id()));
        let failed = |what: &str, why: io::Error| {
            Error::failed(path.display(), what, why, "choose a folder that you may write")
        };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|why| failed("create it", why))?;
        let sized = file.set_len(bytes).map_err(|why| failed("extend it", why));
        // The second handle has its own read-ahead state.
        let again = || OpenOptions::new().read(true).write(true).open(&path);
        let bounded = sized.and_then(|()| again().map_err(|why| failed("open it again", why)));
        let bounded = bounded.inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })?;
        // The advice only affects speed, so failures are ignored.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        let _ = posix_fadvise(&bounded, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        Ok(CachedFile { file: Arc::new(file), bounded: Arc::new(bounded), path, bytes })
    }

    /// Opens it through io_uring, past the page cache. Only before [`CachedFile::unlink`].
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn open(&self) -> Result<Device> {
        let target = Target::Kernel(KernelTarget::new(KernelPath::Uring, &self.path));
        Ok(Device::open(&target, &DeviceOptions::default())?)
    }

    /// Removes the file's name; its blocks are freed with the last handle.
    ///
    /// # Errors
    /// [`Error::Failed`] with the system's error.
    pub(crate) fn unlink(&self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|why| {
            Error::failed(self.path.display(), "remove its name", why, "remove it yourself")
        })
    }

    /// Returns the former path, for messages.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn assert_inside(&self, offset: u64, bytes: u64) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "a run stays inside the file");
    }

    /// Allocates the blocks of a run.
    ///
    /// # Errors
    /// [`Error::Failed`] if the disk is full or the file system cannot allocate ahead.
    pub(crate) fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.assert_inside(offset, bytes);
        let (at, len) = (signed(offset), signed(bytes));
        fallocate(&self.file, FallocateFlags::empty(), at, len).map_err(|why| {
            let fix = match why {
                Errno::EOPNOTSUPP => {
                    "its file system cannot allocate ahead (fallocate), without which a full disk would lose \
                     tensors: choose a folder on ext4, XFS or Btrfs"
                }
                Errno::ENOSPC => "free space, or choose a folder on another file system",
                _ => "choose another folder",
            };
            Error::failed(self.name(), format!("allocate {bytes} bytes"), why, fix)
        })
    }

    /// Reads through the page cache. The kernel's read-ahead, which is fast because it uses large pages, may continue
    /// behind the end.
    ///
    /// # Errors
    /// [`Error::Failed`] with the system's error.
    pub(crate) fn read(&self, offset: u64, memory: &mut [u8]) -> Result<()> {
        self.assert_inside(offset, memory.len() as u64);
        self.file.read_exact_at(memory, offset).map_err(|why| self.failed("read it", why))
    }

    /// Reads through the page cache, but nothing behind the end, which would evict other pages. The drive reads the
    /// next pieces while one is copied.
    ///
    /// # Errors
    /// [`Error::Failed`] with the system's error.
    pub(crate) fn read_bounded(&self, offset: u64, memory: &mut [u8]) -> Result<()> {
        let bytes = memory.len() as u64;
        self.assert_inside(offset, bytes);
        let ahead = |at: u64, len: u64| {
            if at < bytes {
                self.read_ahead(offset + at, len.min(bytes - at));
            }
        };
        ahead(0, PIECES_AHEAD * PIECE_BYTES);
        let pieces = memory.chunks_mut(PIECE_BYTES as usize);
        for (piece, at) in pieces.zip((0..).step_by(PIECE_BYTES as usize)) {
            ahead(at + PIECES_AHEAD * PIECE_BYTES, PIECE_BYTES);
            let read = self.bounded.read_exact_at(piece, offset + at);
            read.map_err(|why| self.failed("read it", why))?;
        }
        Ok(())
    }

    /// Writes into the page cache.
    ///
    /// # Errors
    /// [`Error::Failed`] with the system's error.
    pub(crate) fn write(&self, offset: u64, memory: &[u8]) -> Result<()> {
        self.assert_inside(offset, memory.len() as u64);
        self.file.write_all_at(memory, offset).map_err(|why| self.failed("write it", why))
    }

    /// Checks that all writeback succeeded. Bytes that the drive refused are lost once their page is evicted, and a
    /// read then returns older bytes, so call this after each read before trusting it.
    ///
    /// # Errors
    /// [`Error::Failed`], once for each failure.
    pub(crate) fn check_writeback(&self) -> Result<()> {
        check_writeback(&self.file).map_err(|why| self.failed("write back what was written", why))
    }

    fn failed(&self, what: &str, why: io::Error) -> Error {
        Error::failed(self.name(), what, why, "check its drive (dmesg), then restart the run")
    }

    /// Makes the kernel read a run into the page cache, without waiting for the data.
    pub(crate) fn read_ahead(&self, offset: u64, bytes: u64) {
        // One call reads no more than the device's read-ahead.
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(bytes - at);
            self.advise(offset + at, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
        }
    }

    /// Drops the written-back parts of a run from the page cache and begins to write back the rest.
    pub(crate) fn forget(&self, offset: u64, bytes: u64) {
        self.advise(offset, bytes, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }

    /// Gives advice, which only affects speed.
    fn advise(&self, offset: u64, bytes: u64, advice: PosixFadviseAdvice) {
        self.assert_inside(offset, bytes);
        if let Err(why) = posix_fadvise(&self.bounded, signed(offset), signed(bytes), advice) {
            tracing::debug!("{}: {advice:?} is refused: {why}", self.name());
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("a shape has at most 2^60 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_after_they_left_the_page_cache() {
        let file = CachedFile::create(&std::env::temp_dir(), 1 << 20).expect("a file");
        file.unlink().expect("it has a name");
        assert!(!Path::new(&file.name()).exists(), "a crash leaves nothing");
        file.allocate(0, 1 << 20).expect("space");
        let data: Vec<u8> = (0..1 << 16).map(|index| (index % 251) as u8).collect();
        file.write(4096, &data).expect("a write");
        file.forget(0, 1 << 20);
        file.read_ahead(4096, 1 << 16);
        let mut back = vec![0; 1 << 16];
        file.read(4096, &mut back).expect("a read");
        assert_eq!(back, data);
        file.forget(0, 1 << 20);
        back.fill(0);
        file.read_bounded(4096, &mut back).expect("a read");
        assert_eq!(back, data);
        // Neither begin nor end is page-aligned.
        file.write(1536, &data[1..4609]).expect("a write");
        file.read_bounded(1536, &mut back[..4608]).expect("a read");
        assert_eq!(back[..4608], data[1..4609]);
        let error = file
            .allocate(0, 1 << 20)
            .and_then(|()| CachedFile::create(Path::new("/nonexistent"), 1));
        let text = error.expect_err("no such folder").to_string();
        assert!(text.contains("/nonexistent") && text.contains("choose a folder"), "{text}");
    }
}
