//! The regular file or block device of a kernel path: opened, sized, extended on request.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::block::BlockLimits;
use super::exclusive::Lock;
use super::extent::{ByteRange, Extent, TRANSFER_BYTES_MAX};
use super::info::{DeviceInfo, DeviceOptions};
use super::uring::Cutter;
use crate::bus::Locality;
use crate::error::{Error, Result};
use crate::memory::allocate_for_host;
use crate::queue_pair::{CommandError, Errno};
use crate::sys::{file_io, punch_hole};
use crate::target::{KernelPath, KernelTarget};

/// Default alignment of offsets: a sector.
const SECTOR: u32 = 512;
/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;
/// Bytes of a polled command if the kernel reports no limit.
const POLLED_BYTES: u64 = 128 << 10;
/// Largest alignment that any file system requires for direct I/O.
const DIRECT_MAX: u32 = 4096;

/// An open file, shared by its queues.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    file: Arc<File>,
    kind: FileKind,
    bytes: u64,
    lba_bytes: u32,
    writes: bool,
    deallocates: bool,
    is_preallocated: bool,
    has_holes: bool,
    /// Those of the disk below, unless the page cache is between.
    block_limits: Option<BlockLimits>,
    lock: Option<Lock>,
    laid_out: Option<LaidOut>,
}

/// A file that was made or made longer as it was opened.
#[derive(Clone, Debug)]
struct LaidOut {
    path: PathBuf,
    /// Its length before; `None` if it was not there.
    before: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FileKind {
    Regular,
    Block(KernelLimits),
}

/// Checks that writing back pages of `file` did not fail since it was opened or last checked. Does not wait for pages
/// that are not written back yet.
///
/// After a failure, the kernel takes the pages for clean: once they are evicted, reads return what the drive held before.
///
/// # Errors
/// The failure, which is reported once for each opening of the file.
pub fn check_writeback(file: &File) -> io::Result<()> {
    file_io::check_writeback(file)
}

/// Opens the file of `target`.
///
/// # Errors
/// [`Error::Refused`] with the system's error; [`Error::Invalid`] for an empty file, and for anything but a
/// file or block device.
pub(super) fn open(target: &KernelTarget, options: &DeviceOptions) -> Result<OpenFile> {
    let device = target.device();
    // Opening some other kinds would wait for a peer.
    let is_other = |about: Metadata| !(about.is_file() || about.file_type().is_block_device());
    if target.file.metadata().is_ok_and(is_other) {
        return Err(no_file(&device));
    }
    let mut laid_out = None;
    let opened = open_laid_out(target, options, &mut laid_out);
    let mut opened = opened.inspect_err(|_| {
        // Another process may have taken it as its own meanwhile.
        let is_taken = |laid_out: &&LaidOut| Lock::of(options, &laid_out.path, &device).is_ok();
        laid_out.as_ref().filter(is_taken).inspect(|laid_out| laid_out.take_back());
    })?;
    opened.laid_out = laid_out;
    Ok(opened)
}

fn open_laid_out(
    target: &KernelTarget,
    options: &DeviceOptions,
    laid_out: &mut Option<LaidOut>,
) -> Result<OpenFile> {
    let device = target.device();
    let (file, lock) = Lock::around(options, &target.file, &device, || {
        if let Some(bytes) = options.file_bytes {
            *laid_out = lay_out(target, bytes, options.fills_holes)?;
        }
        open_as(target, options.writes).map_err(|error| refusal(target, options, error))
    })?;
    let about = file.metadata().map_err(|error| refusal(target, options, error))?;
    let file_type = about.file_type();
    let (kind, bytes) = if file_type.is_block_device() {
        let bytes = file_io::block_bytes(&file).map_err(|e| refusal(target, options, e))?;
        (FileKind::Block(KernelLimits::of_block(about.rdev())), bytes)
    } else if file_type.is_file() {
        (FileKind::Regular, about.len())
    } else {
        return Err(no_file(&device));
    };
    let lba_bytes = lba_bytes(&file, &kind, target.direct, options.byte_addressed);
    let bytes = bytes & !u64::from(lba_bytes - 1);
    if bytes == 0 {
        let why = format!("it holds less than {lba_bytes} bytes; give its size (size=)");
        return Err(Error::invalid(device, why));
    }
    let writes = options.writes;
    let deallocates = writes && deallocates(&file, &kind, bytes);
    let file = Arc::new(file);
    let has_holes = kind == FileKind::Regular && has_holes(&about);
    let is_preallocated = kind == FileKind::Regular && !has_holes;
    let block_limits = match &kind {
        _ if !target.direct => None,
        FileKind::Block(queue) => queue.block_limits(),
        FileKind::Regular => KernelLimits::of_block(about.dev()).block_limits(),
    };
    Ok(OpenFile {
        file,
        kind,
        bytes,
        lba_bytes,
        writes,
        deallocates,
        is_preallocated,
        has_holes,
        block_limits,
        lock,
        laid_out: None,
    })
}

fn no_file(device: &str) -> Error {
    Error::invalid(device, "neither a regular file nor a block device: give one")
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

    pub(super) fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// Takes back what [`DeviceOptions::file_bytes`] made of the file.
    pub(super) fn take_back(&self) {
        self.laid_out.iter().for_each(LaidOut::take_back);
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    pub(super) fn block_limits(&self) -> Option<BlockLimits> {
        self.block_limits
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
            is_synchronous: matches!(target.path, KernelPath::Psync | KernelPath::Mmap),
            queue_count_max: u16::MAX,
            is_write_protected: false,
            deallocates: self.deallocates,
            deallocate_lbas_max: u64::MAX,
            is_preallocated: self.is_preallocated,
            has_holes: self.has_holes,
            is_cached: !target.direct,
            protection: None,
        }
    }

    /// Discards a range of a block device, or punches a hole in a file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn deallocate(&self, run: ByteRange) -> io::Result<()> {
        match self.kind {
            FileKind::Block(_) => file_io::discard(&self.file, run.offset, run.bytes),
            FileKind::Regular => punch_hole(&self.file, run.offset, run.bytes),
        }
    }

    /// Punches a hole. On a block device this zeroes a range and deallocates it if the device does both at
    /// once.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn punch(&self, run: ByteRange) -> io::Result<()> {
        punch_hole(&self.file, run.offset, run.bytes)
    }

    /// Returns whether [`OpenFile::punch`] works.
    pub(super) fn punches(&self) -> bool {
        match &self.kind {
            FileKind::Regular => self.deallocates,
            FileKind::Block(queue) => {
                self.deallocates && queue.is_above_zero("write_zeroes_max_bytes")
            }
        }
    }

    /// Finds the cause of a request's failure: on a removed block device, whose size is then 0, reads end
    /// short and writes find no space.
    #[cold]
    pub(super) fn explain(&self, error: CommandError) -> CommandError {
        let is_block = matches!(self.kind, FileKind::Block(_));
        let was_removed =
            is_block && file_io::block_bytes(&self.file).is_ok_and(|bytes| bytes == 0);
        if was_removed { CommandError::System(Errno(libc::ENODEV)) } else { error }
    }

    /// Returns how to split polled requests: those that the kernel itself would split never end (seen with
    /// 6.1, by fio as well).
    pub(super) fn polled_cutter(&self) -> Cutter {
        let FileKind::Block(queue) = &self.kind else {
            unreachable!("only block devices are polled")
        };
        let lba = u64::from(self.lba_bytes);
        let told = queue.command_bytes_max("max_sectors_kb").unwrap_or(POLLED_BYTES);
        let command_bytes_max = (told & !(lba - 1)).max(lba);
        Cutter { lba_bytes: self.lba_bytes, command_bytes_max }
    }

    /// Returns why completions cannot be polled for, if they cannot.
    pub(super) fn cannot_poll(&self, direct: bool) -> Option<&'static str> {
        match &self.kind {
            _ if !direct => Some("only direct I/O can be polled: keep direct=on"),
            FileKind::Regular => Some("it is a file; polling needs a block device"),
            FileKind::Block(queue) if queue.is_above_zero("chunk_sectors") => Some(
                "the kernel splits requests at a boundary of it (queue/chunk_sectors), and cannot poll those",
            ),
            FileKind::Block(queue) if queue.polls() => None,
            FileKind::Block(_) => Some(
                "its queues are not set up for polling (queue/io_poll is 0): load its driver with poll queues, \
                 as with nvme.poll_queues=2",
            ),
        }
    }
}

impl LaidOut {
    /// Gives the space back: removes a file that was made, and shortens one that was made longer.
    fn take_back(&self) {
        let taken_back = match self.before {
            None => std::fs::remove_file(&self.path),
            Some(len) => {
                let file = OpenOptions::new().write(true).open(&self.path);
                file.and_then(|file| file.set_len(len))
            }
        };
        if let Err(error) = taken_back {
            tracing::warn!("{}: cannot give its space back: {error}", self.path.display());
        }
    }
}

fn open_as(target: &KernelTarget, writes: bool) -> io::Result<File> {
    let flags = if target.direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).write(writes).custom_flags(flags).open(&target.file)
}

/// Creates or extends a regular file, with its space allocated if the file system can, so that a full disk
/// shows now; also the space of its holes, if asked to. Returns what that changed.
fn lay_out(target: &KernelTarget, bytes: u64, fills_holes: bool) -> Result<Option<LaidOut>> {
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
    let is_done = |about: &Metadata| about.len() >= bytes && !(fills_holes && has_holes(about));
    if before.as_ref().is_ok_and(|about| !about.is_file() || is_done(about)) {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    // Others could read what a program keeps in it, and lock it.
    options.read(true).write(true).mode(0o600);
    let made = options.clone().create_new(true).open(&target.file);
    let is_made = made.is_ok();
    let file = match made {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => options.open(&target.file),
        made => made,
    };
    let file = file.map_err(|why| refused("create it", why))?;
    let about = file.metadata().map_err(|why| refused("look at it", why))?;
    if is_done(&about) {
        // Another process extended it meanwhile.
        return Ok(None);
    }
    let what = format!("allocate its {bytes} bytes");
    let before = (!is_made).then_some(about.len());
    let laid_out = LaidOut { path: target.file.clone(), before };
    match allocate(&file, &about, bytes, fills_holes) {
        Ok(()) => Ok(Some(laid_out)),
        Err(why) => {
            // Otherwise the partial allocation would stay and fill the disk.
            laid_out.take_back();
            Err(refused(&what, why))
        }
    }
}

/// Makes a file at least `bytes` long and allocates what is added, and its holes if asked to.
fn allocate(file: &File, about: &Metadata, bytes: u64, fills_holes: bool) -> io::Result<()> {
    let len = about.len();
    let fills_holes = fills_holes && has_holes(about);
    if fills_holes {
        // Blocks allocated inside the file look like those that it had before, so they stay.
        check_free(file, bytes.max(len) - about.blocks() * SECTOR_BYTES)?;
    }
    let from = if fills_holes { 0 } else { len };
    match file_io::set_aside(file, from, bytes.max(len) - from) {
        Err(why) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes.max(len)),
        other => other,
    }
}

/// Checks that a file's system has this many bytes free.
fn check_free(file: &File, bytes: u64) -> io::Result<()> {
    let about = nix::sys::statvfs::fstatvfs(file)?;
    let free = about.blocks_available() as u64 * about.fragment_size() as u64;
    // A file system without a size of its own has no blocks.
    if about.blocks() > 0 && free < bytes {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    Ok(())
}

/// Returns whether a file has fewer blocks than its length takes.
fn has_holes(about: &Metadata) -> bool {
    about.blocks() * SECTOR_BYTES < about.len()
}

fn refusal(target: &KernelTarget, options: &DeviceOptions, error: io::Error) -> Error {
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) if options.file_bytes.is_none() => {
            "give the path of an existing file, or the size of a new one (size=)"
        }
        Some(libc::ENOENT) => "create the directory first",
        Some(libc::EACCES | libc::EPERM) => "run as a user who may open it",
        Some(libc::EROFS) => "only read from it",
        Some(libc::EINVAL) if target.direct => {
            "its file system may have no direct I/O: write 'direct=off' behind the path"
        }
        Some(libc::EBUSY) => "close its other users first, such as a mounted file system",
        _ => "check what the path names",
    };
    let what = if options.writes { "open it for writing" } else { "open it" };
    Error::refused(target.device(), what, error, fix)
}

/// Returns the alignment of offsets and lengths. The page cache needs none; a sector, unless the caller wants bytes, keeps
/// addresses as on a drive.
fn lba_bytes(file: &File, kind: &FileKind, direct: bool, byte_addressed: bool) -> u32 {
    if matches!(kind, FileKind::Block(_)) {
        return usable(file_io::block_lba_bytes(file).unwrap_or(SECTOR));
    }
    if !direct {
        return if byte_addressed { 1 } else { SECTOR };
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
fn deallocates(file: &File, kind: &FileKind, bytes: u64) -> bool {
    match kind {
        FileKind::Block(queue) => queue.is_above_zero("discard_max_bytes"),
        FileKind::Regular => {
            let behind = bytes.next_multiple_of(1 << 20) + (1 << 20);
            punch_hole(file, behind, 1 << 20).is_ok()
        }
    }
}

/// The kernel's limits of a block device: the sysfs directory of its queue, if it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelLimits(Option<PathBuf>);

impl KernelLimits {
    /// Finds those of a block device; a partition shares its disk's.
    fn of_block(rdev: u64) -> KernelLimits {
        let disk = sysfs("block", rdev).canonicalize();
        let candidates = disk.map(|disk| [disk.join("queue"), disk.join("../queue")]);
        KernelLimits(candidates.into_iter().flatten().find(|queue| queue.is_dir()))
    }

    /// Finds those of the block device beside a namespace's character device, whose node may have any name.
    pub(super) fn beside(character: &File) -> KernelLimits {
        let number = character.metadata().map(|about| about.rdev()).ok();
        KernelLimits(number.and_then(|number| queue_beside(&sysfs("char", number))))
    }

    fn attribute(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.0.as_ref()?.join(name)).ok()?.trim().parse().ok()
    }

    fn is_above_zero(&self, name: &str) -> bool {
        self.attribute(name).is_some_and(|value| value > 0)
    }

    /// Returns whether its queues are set up for polling.
    pub(super) fn polls(&self) -> bool {
        self.attribute("io_poll") == Some(1)
    }

    /// Returns the limits of a request, if the kernel tells how many segments it takes.
    fn block_limits(&self) -> Option<BlockLimits> {
        let at_least = |name, least: u64| Some(self.attribute(name)?.max(least));
        Some(BlockLimits {
            request_bytes_max: at_least("max_sectors_kb", 4)?.saturating_mul(1 << 10),
            segments_max: at_least("max_segments", 1)?,
            segment_bytes_max: at_least("max_segment_size", 4096)?,
        })
    }

    /// Returns the most bytes of a command, with `sectors` the attribute that limits its KiB.
    pub(super) fn command_bytes_max(&self, sectors: &str) -> Option<u64> {
        let by_sectors = self.attribute(sectors).map(|kib| kib << 10);
        // A page may be a segment of its own, and so may the last of a run that starts inside one.
        let by_segments =
            self.attribute("max_segments").map(|count| count.saturating_sub(1) * 4096);
        [by_sectors, by_segments].into_iter().flatten().min()
    }
}

/// Returns the location of the hardware behind a file, block device or namespace's character device, as far as the
/// kernel reports it.
pub(super) fn locality(path: &Path) -> Locality {
    let Ok(about) = path.metadata() else { return Locality::default() };
    let hardware = match about.file_type() {
        kind if kind.is_char_device() => sysfs("char", about.rdev()),
        kind if kind.is_block_device() => sysfs("block", about.rdev()),
        _ => sysfs("block", about.dev()),
    };
    Locality { pci_address: None, numa_node: numa_node(&hardware) }
}

/// Returns the NUMA node of a device's directory in sysfs, or of the first directory above that has one.
fn numa_node(device: &Path) -> Option<u32> {
    let device = device.canonicalize().ok()?;
    let node = |folder: &Path| std::fs::read_to_string(folder.join("numa_node")).ok();
    // The kernel reports -1 if it does not know.
    device.ancestors().find_map(node)?.trim().parse().ok()
}

fn sysfs(kind: &str, rdev: u64) -> PathBuf {
    format!("/sys/dev/{kind}/{}:{}", libc::major(rdev), libc::minor(rdev)).into()
}

/// Returns the queue's directory by the character device's, which the kernel calls `ng0n1` beside `nvme0n1`.
fn queue_beside(character: &Path) -> Option<PathBuf> {
    let path = character.canonicalize().ok()?;
    let numbers = path.file_name()?.to_str()?.strip_prefix("ng")?;
    Some(PathBuf::from(format!("/sys/block/nvme{numbers}/queue")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_by_what_the_kernel_calls_a_device() {
        let sys = std::env::temp_dir().join(format!("adit-char-{}", std::process::id()));
        std::fs::create_dir_all(sys.join("devices/ng3n2")).expect("a directory");
        std::os::unix::fs::symlink("devices/ng3n2", sys.join("240:7")).expect("a link");
        let queue = queue_beside(&sys.join("240:7"));
        assert_eq!(queue.as_deref(), Some(Path::new("/sys/block/nvme3n2/queue")));
        std::fs::remove_dir_all(&sys).expect("removing it");
        let null = File::open("/dev/null").expect("a device");
        assert_eq!(KernelLimits::beside(&null), KernelLimits(None), "no namespace");
    }

    #[test]
    fn a_partition_is_where_the_hardware_below_it_is() {
        let sys = std::env::temp_dir().join(format!("adit-node-{}", std::process::id()));
        let partition = sys.join("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1");
        std::fs::create_dir_all(&partition).expect("a directory");
        assert_eq!(numa_node(&partition), None);
        let of_function = sys.join("pci0000:00/0000:01:00.0/numa_node");
        for (text, node) in [("1\n", Some(1)), ("-1\n", None)] {
            std::fs::write(&of_function, text).expect("a file");
            assert_eq!(numa_node(&partition), node);
        }
        std::fs::remove_dir_all(&sys).expect("removing it");
        assert_eq!(locality(Path::new("/nowhere/at/all")), Locality::default());
    }

    #[test]
    fn a_command_is_as_long_as_the_kernel_allows() {
        let queue = std::env::temp_dir().join(format!("adit-queue-{}", std::process::id()));
        std::fs::create_dir_all(&queue).expect("a directory");
        let limits = KernelLimits(Some(queue.clone()));
        assert_eq!(limits.command_bytes_max("max_hw_sectors_kb"), None);
        std::fs::write(queue.join("max_hw_sectors_kb"), "1024\n").expect("a file");
        assert_eq!(limits.command_bytes_max("max_hw_sectors_kb"), Some(1024 << 10));
        assert_eq!(limits.block_limits(), None, "it does not tell its segments");
        std::fs::write(queue.join("max_segments"), "127\n").expect("a file");
        assert_eq!(limits.command_bytes_max("max_hw_sectors_kb"), Some(126 * 4096));
        for (name, value) in [("max_sectors_kb", "512\n"), ("max_segment_size", "65536\n")] {
            std::fs::write(queue.join(name), value).expect("a file");
        }
        let told = limits.block_limits().map(|limits| {
            (limits.request_bytes_max, limits.segments_max, limits.segment_bytes_max)
        });
        assert_eq!(told, Some((512 << 10, 127, 64 << 10)));
        std::fs::remove_dir_all(&queue).expect("removing it");
    }
}
