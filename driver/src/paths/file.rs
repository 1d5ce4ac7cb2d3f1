//! The regular file or block device of a kernel path: opened, sized, extended on request.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use super::exclusive::Lock;
use super::extent::{Extent, Run, TRANSFER_BYTES_MAX};
use super::pieces::Cutter;
use super::{DeviceInfo, DeviceOptions};
use crate::error::{Error, Result};
use crate::memory::allocate_for_host;
use crate::queue_pair::{CommandError, Errno};
use crate::sys::{file_io, punch_hole};
use crate::target::KernelTarget;

/// Default alignment of offsets: a sector.
const SECTOR: u32 = 512;
/// Bytes of a polled command if the kernel reports no limit.
const POLLED_BYTES: u64 = 128 << 10;
/// Largest alignment that any file system requires for direct I/O.
const DIRECT_MAX: u32 = 4096;

/// An open file, shared by its queues.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    file: Arc<File>,
    kind: Kind,
    bytes: u64,
    lba_bytes: u32,
    writes: bool,
    deallocates: bool,
    _lock: Option<Lock>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    /// With the sysfs directory of its queue, if any.
    Block(Option<PathBuf>),
}

/// Opens the file of `target`.
///
/// # Errors
/// [`Error::Refused`] with the system's error; [`Error::Invalid`] for an empty file, and for anything but a
/// file or block device.
pub(super) fn open(target: &KernelTarget, options: &DeviceOptions) -> Result<OpenFile> {
    let device = target.device();
    if let Some(bytes) = options.file_bytes {
        lay_out(target, bytes)?;
    }
    let no_file = || Error::invalid(&device, "neither a regular file nor a block device");
    // Opening some other kinds would wait for a peer.
    let is_other = |about: Metadata| !(about.is_file() || about.file_type().is_block_device());
    if target.file.metadata().is_ok_and(is_other) {
        return Err(no_file());
    }
    let file = open_as(target, options.writes).map_err(|error| refusal(target, options, error))?;
    let take = || Lock::take(&target.file, &device);
    let lock = options.exclusive.then(take).transpose()?;
    let about = file.metadata().map_err(|error| refusal(target, options, error))?;
    let kind = about.file_type();
    let (kind, bytes) = if kind.is_block_device() {
        let bytes = file_io::block_bytes(&file).map_err(|e| refusal(target, options, e))?;
        (Kind::Block(queue_of(about.rdev())), bytes)
    } else if kind.is_file() {
        (Kind::Regular, about.len())
    } else {
        return Err(no_file());
    };
    let lba_bytes = lba_bytes(&file, &kind, target.direct);
    let bytes = bytes & !u64::from(lba_bytes - 1);
    if bytes == 0 {
        let why = format!("it holds no {lba_bytes} bytes; say how large it shall be (size=)");
        return Err(Error::invalid(device, why));
    }
    let writes = options.writes;
    let deallocates = writes && deallocates(&file, &kind, bytes);
    let file = Arc::new(file);
    Ok(OpenFile { file, kind, bytes, lba_bytes, writes, deallocates, _lock: lock })
}

impl OpenFile {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    pub(super) fn extent(&self) -> Extent {
        Extent::new(self.bytes, self.lba_bytes)
    }

    /// Describes it as a device whose queues take `queue_depth_max` requests.
    pub(super) fn info(&self, target: &KernelTarget, queue_depth_max: u32) -> DeviceInfo {
        DeviceInfo {
            device: target.device(),
            bytes: self.bytes,
            lba_bytes: self.lba_bytes,
            command_bytes_max: TRANSFER_BYTES_MAX & !u64::from(self.lba_bytes - 1),
            boundary_bytes: 0,
            queue_depth_max,
            queue_count_max: u16::MAX,
            deallocates: self.deallocates,
            deallocate_lbas_max: u64::MAX,
            is_cached: !target.direct,
            protection: None,
        }
    }

    /// Discards a range of a block device, or punches a hole in a file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn deallocate(&self, run: Run) -> io::Result<()> {
        match self.kind {
            Kind::Block(_) => file_io::discard(&self.file, run.offset, run.bytes),
            Kind::Regular => punch_hole(&self.file, run.offset, run.bytes),
        }
    }

    /// Punches a hole. On a block device this zeroes a range and deallocates it if the device does both at
    /// once.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn punch(&self, run: Run) -> io::Result<()> {
        punch_hole(&self.file, run.offset, run.bytes)
    }

    /// Returns whether [`OpenFile::punch`] works.
    pub(super) fn punches(&self) -> bool {
        match &self.kind {
            Kind::Regular => self.deallocates,
            Kind::Block(queue) => {
                let most = attribute(queue, "write_zeroes_max_bytes");
                self.deallocates && most.is_some_and(|most| most > 0)
            }
        }
    }

    /// Finds the cause of a request's failure: on a removed block device, whose size is then 0, reads end
    /// short and writes find no space.
    #[cold]
    pub(super) fn explain(&self, error: CommandError) -> CommandError {
        let is_block = matches!(self.kind, Kind::Block(_));
        let was_removed =
            is_block && file_io::block_bytes(&self.file).is_ok_and(|bytes| bytes == 0);
        if was_removed { CommandError::System(Errno(libc::ENODEV)) } else { error }
    }

    /// Returns how to split polled requests: those that the kernel itself would split never end (seen with
    /// 6.1, by fio as well).
    pub(super) fn polled_cutter(&self) -> Cutter {
        let Kind::Block(queue) = &self.kind else { unreachable!("only block devices are polled") };
        let by_queue = attribute(queue, "max_sectors_kb").map(|kib| kib << 10);
        // A page may be a segment of its own.
        let by_segments =
            attribute(queue, "max_segments").map(|count| count.saturating_sub(1) * 4096);
        let told = [by_queue, by_segments].into_iter().flatten().min();
        let lba = u64::from(self.lba_bytes);
        let command_bytes_max = (told.unwrap_or(POLLED_BYTES) & !(lba - 1)).max(lba);
        Cutter { lba_bytes: self.lba_bytes, command_bytes_max }
    }

    /// Returns why completions cannot be polled for, if they cannot.
    pub(super) fn cannot_poll(&self, direct: bool) -> Option<&'static str> {
        match &self.kind {
            _ if !direct => Some("only direct I/O can be polled for: leave direct=on"),
            Kind::Regular => Some("it is a file; polling asks for a block device"),
            Kind::Block(queue)
                if attribute(queue, "chunk_sectors").is_some_and(|most| most > 0) =>
            {
                Some(
                    "the kernel splits requests at a boundary of it (queue/chunk_sectors), and cannot poll for those",
                )
            }
            Kind::Block(queue) if attribute(queue, "io_poll") == Some(1) => None,
            Kind::Block(_) => Some(
                "its queues are not set up for polling (queue/io_poll is 0): load its driver with poll queues, \
                 as with nvme.poll_queues=2",
            ),
        }
    }
}

fn open_as(target: &KernelTarget, writes: bool) -> io::Result<File> {
    let flags = if target.direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).write(writes).custom_flags(flags).open(&target.file)
}

/// Creates or extends a regular file, with its space allocated if the file system can, so that a full disk
/// shows now.
fn lay_out(target: &KernelTarget, bytes: u64) -> Result<()> {
    let refused = |what: &str, why: io::Error| {
        let fix = match why.kind() {
            io::ErrorKind::NotFound => "create the directory first",
            io::ErrorKind::FileTooLarge => {
                "raise the limit on file sizes (ulimit -f), or ask for less"
            }
            io::ErrorKind::PermissionDenied => "choose a file that you may write",
            _ => "free space, or ask for less (size=)",
        };
        Error::refused(target.device(), what, why, fix)
    };
    let before = target.file.metadata();
    if before.as_ref().is_ok_and(|about| !about.is_file() || about.len() >= bytes) {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(&target.file);
    let file = file.map_err(|why| refused("create it", why))?;
    let len = file.metadata().map_err(|why| refused("look at it", why))?.len();
    let Some(missing) = bytes.checked_sub(len).filter(|missing| *missing > 0) else {
        // Another process extended it meanwhile.
        return Ok(());
    };
    let laid_out = match file_io::set_aside(&file, len, missing) {
        Err(why) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes),
        other => other,
    };
    laid_out.map_err(|why| {
        // Otherwise the partial allocation would stay and fill the disk.
        let taken_back = match before {
            Err(_) if len == 0 => std::fs::remove_file(&target.file),
            _ => file.set_len(len),
        };
        if let Err(error) = taken_back {
            tracing::warn!("{}: giving its space back: {error}", target.device());
        }
        refused(&format!("make it {bytes} bytes long"), why)
    })
}

fn refusal(target: &KernelTarget, options: &DeviceOptions, error: io::Error) -> Error {
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) if options.file_bytes.is_none() => {
            "give the path of a file that is there, or say how large a new one shall be (size=)"
        }
        Some(libc::ENOENT) => "create the directory first",
        Some(libc::EACCES | libc::EPERM) => "run as a user who may open it",
        Some(libc::EROFS) => "only read from it",
        Some(libc::EINVAL) if target.direct => {
            "its file system may have no direct I/O: write 'direct=off' behind the path"
        }
        Some(libc::EBUSY) => "end whatever holds it, such as a mounted file system",
        _ => "see what the path leads to",
    };
    let what = if options.writes { "open it for writing" } else { "open it" };
    Error::refused(target.device(), what, error, fix)
}

/// Returns the alignment of offsets and lengths. The page cache needs none; a sector keeps addresses as on a
/// drive.
fn lba_bytes(file: &File, kind: &Kind, direct: bool) -> u32 {
    if matches!(kind, Kind::Block(_)) {
        return usable(file_io::block_lba_bytes(file).unwrap_or(SECTOR));
    }
    if !direct {
        return SECTOR;
    }
    match file_io::direct_offset_alignment(file) {
        Some(align) => usable(align),
        None if reads_a_sector(file) => SECTOR,
        None => DIRECT_MAX,
    }
}

fn usable(bytes: u32) -> u32 {
    if bytes.is_power_of_two() { bytes.max(SECTOR) } else { DIRECT_MAX }
}

/// Tries whether direct I/O of one sector works.
fn reads_a_sector(file: &File) -> bool {
    use std::os::unix::fs::FileExt;
    let Ok(mut buffer) = allocate_for_host(DIRECT_MAX as usize) else { return false };
    file.read_at(&mut buffer[..SECTOR as usize], 0).is_ok()
}

/// Returns whether ranges can be deallocated: by a block device's queue attributes, or by punching a hole
/// behind a file's end.
fn deallocates(file: &File, kind: &Kind, bytes: u64) -> bool {
    match kind {
        Kind::Block(queue) => attribute(queue, "discard_max_bytes").is_some_and(|most| most > 0),
        Kind::Regular => {
            let behind = bytes.next_multiple_of(1 << 20) + (1 << 20);
            punch_hole(file, behind, 1 << 20).is_ok()
        }
    }
}

/// Returns the sysfs directory of a block device's queue; a partition shares its disk's.
fn queue_of(rdev: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let candidates = [disk.join("queue"), disk.join("../queue")];
    candidates.into_iter().find(|queue| queue.is_dir())
}

fn attribute(queue: &Option<PathBuf>, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(queue.as_ref()?.join(name)).ok()?;
    text.trim().parse().ok()
}
