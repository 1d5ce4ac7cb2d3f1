//! Devices by any path: the driver's own queue pairs, or the kernel.
//!
//! A [`Device`] gives a benchmark or store its drive's size, memory for data, and queues. A [`DeviceQueue`]
//! takes [`Request`]s and returns [`Completion`]s by the same few calls as a [`crate::QueuePair`]
//! ([`CommandQueue`]), so that the same loop runs on any path:
//!
//! | target | module | requests become |
//! |---|---|---|
//! | `vfio:`, `vfio-user:`, `soft:` | `nvme` | commands on a queue pair of the driver |
//! | `uring:PATH` | `uring/plain` | reads and writes of a file or block device through io_uring |
//! | `uring-cmd:/dev/ng0n1` | `uring/command` | NVMe commands through io_uring and the kernel's passthrough device |
//! | `psync:PATH` | `synchronous/psync` | pread and pwrite, one at a time |
//! | `mmap:PATH` | `synchronous/mmap` | copies to and from a mapping, one at a time |
//! | `null:` | `null` | nothing: each completes at once, with no data moved |
//!
//! The kernel's paths need only the file's permissions. They serve as a comparison for the driver, and as the
//! fallback if VFIO is not allowed.

mod block;
mod exclusive;
mod extent;
mod file;
mod null;
mod nvme;
mod queue;
mod split;
mod synchronous;
mod uring;

use std::time::Duration;

pub use block::{BlockLimits, BlockRequests};
pub use file::check_writeback;
pub use null::NullQueue;
pub use nvme::NvmeQueue;
pub use queue::DeviceQueue;
pub use split::Split;
pub use synchronous::{MmapQueue, PsyncQueue};
pub use uring::{UringCmdQueue, UringQueue};

use crate::Time;
use crate::bus::vfio_user::SERVER_TIMEOUT;
use crate::bus::{Clock, Locality};
use crate::error::Result;
use crate::memory::{self, Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, RejectReason, Rejected, Stats};
use crate::spec::{DsmRange, Lba};
use crate::sys::HostMemory;
use crate::target::{KernelPath, KernelTarget, Target};
use crate::{Controller, Namespace, Protection};
use exclusive::Lock;
use synchronous::{mmap, psync};

/// An operation on a range of LBAs, with its memory.
#[derive(Debug)]
pub struct Request<B> {
    /// The operation.
    pub operation: Operation,
    /// The data of a read or write, which sets its length. [`Operation::Deallocate`] uses its first segment
    /// as scratch: 16 bytes for each range that the controller's limits require (4 KiB always suffice).
    /// [`Operation::Flush`] does not touch it.
    pub buffer: B,
}

/// The operation of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the buffer with the LBAs from this one.
    Read(Lba),
    /// Writes the buffer to the LBAs from this one.
    Write(Lba),
    /// Makes all completed writes durable.
    Flush,
    /// Deallocates this many LBAs from this one.
    Deallocate(Lba, u32),
}

impl Operation {
    /// Returns whether it moves data between the device and its buffer.
    #[inline]
    fn moves(self) -> bool {
        matches!(self, Operation::Read(_) | Operation::Write(_))
    }
}

/// Executes requests: a queue pair with its namespace, or a path through the kernel.
///
/// `post` takes a request, `ring` submits everything posted, `poll` returns finished requests. One thread
/// owns a queue. The I/O path neither allocates nor locks; a kernel path makes its system calls, with
/// io_uring at most one for each `ring` and each empty `poll`. After an empty poll, poll again or call `wait`
/// to yield the CPU.
pub trait CommandQueue<B: IoBuffer>: Send {
    /// Takes a request; the device sees it after the next `ring`.
    ///
    /// # Errors
    /// Returns the request with the reason; [`crate::RejectReason::Full`] if polling helps.
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// Posts a request that failed before, counted in [`Stats::retries`].
    ///
    /// # Errors
    /// As [`CommandQueue::post`].
    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// Takes a deallocation of several ranges, at most [`DeviceInfo::deallocate_ranges_max`]. `buffer` is scratch: its first
    /// segment has room for 16 bytes for each.
    ///
    /// # Errors
    /// As [`CommandQueue::post`]; [`crate::RejectReason::TooLarge`] where only [`Operation::Deallocate`] works.
    fn post_ranges(
        &mut self,
        now: Time,
        ranges: &[DsmRange],
        buffer: B,
    ) -> Result<(), Rejected<B>> {
        let _ = now;
        let (what, needs) = ("ranges of a deallocation", ranges.len());
        Err(Rejected { buffer, reason: RejectReason::TooLarge { what, needs, has: 0 } })
    }

    /// Submits everything posted.
    fn ring(&mut self);

    /// Passes each finished request to `done`, without waiting; returns their number.
    fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize;

    /// Waits until a request finishes, at most `at_most` plus some microseconds. Returns `true` if it slept
    /// in the kernel, as io_uring's queues do with submitted requests in flight. All others return `false` at
    /// once and must be polled: queue pairs of the driver, io_uring with polled completions, and the paths
    /// that finish a request in `post`.
    fn wait(&mut self, at_most: Duration) -> bool {
        let _ = at_most;
        false
    }

    /// Prepares the region of `memory` for requests, on the thread that drives the queue: io_uring pins it once instead
    /// of for each request, until it is freed. Returns `false` if each request has to pin its pages, which works as
    /// well: the limit on locked memory, the kernel or the target's options allow no more. All other paths return
    /// `true`.
    fn register(&mut self, memory: &Buffer) -> bool {
        let _ = memory;
        true
    }

    /// Checks that the path still works.
    ///
    /// # Errors
    /// [`crate::Error::Failed`] with the first failure's reason.
    fn check(&self) -> Result<()>;

    /// Returns the queue's counters.
    fn stats(&self) -> Stats;
}

/// Options for opening a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// I/O queues to request. Default 1.
    pub queue_count: u16,
    /// Whether there will be writes; if not, a file is opened for reading only. Default true.
    pub writes: bool,
    /// Create a missing regular file, and extend a shorter one, to this many bytes. Block devices and
    /// controllers keep their size. Default none: the file must exist.
    pub file_bytes: Option<u64>,
    /// Allocate all blocks of a regular file of this size, also those of its holes, so that a full disk shows now
    /// and not at a write. Only with `file_bytes`. Default false: only what is added is allocated.
    pub fills_holes: bool,
    /// Address a regular file that is reached through the page cache by the byte: its LBAs are then one byte long.
    /// No effect with direct I/O and on devices. Default false: sectors of 512 bytes.
    pub byte_addressed: bool,
    /// Open for this handle alone: refused if another process or handle has opened it so, or if the kernel
    /// uses the block device, for example for a mounted file system. A controller reached through VFIO always
    /// has one user; one behind a vfio-user socket, as its server decides. Default false.
    pub exclusive: bool,
    /// Refused while another process or handle has it open exclusively, and keeps others from that meanwhile: for
    /// handles that write over what may be a store. Default false.
    pub respects_exclusive: bool,
    /// Whether a controller's queues use shadow doorbells if available. Turn off if another agent, such as a
    /// GPU, drives queues of the same controller: see [`Controller::create_raw_queue_pair`]. Default true.
    pub shadow_doorbells: bool,
    /// Time limit of each answer of a vfio-user server ([`ControllerOptions::server_timeout`]). Default 5 s.
    ///
    /// [`ControllerOptions::server_timeout`]: crate::ControllerOptions::server_timeout
    pub server_timeout: Duration,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            queue_count: 1,
            writes: true,
            file_bytes: None,
            fills_holes: false,
            byte_addressed: false,
            exclusive: false,
            respects_exclusive: false,
            shadow_doorbells: true,
            server_timeout: SERVER_TIMEOUT,
        }
    }
}

/// A device's properties, for planning requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The target without its settings, for messages.
    pub device: String,
    /// Addressable size in bytes.
    pub bytes: u64,
    /// Bytes of an LBA: the alignment of offsets and lengths. For a file, what direct I/O requires.
    pub lba_bytes: u32,
    /// A longer request becomes several commands, which must fit the queue: see [`DeviceInfo::split`].
    pub command_bytes_max: u64,
    /// A request that crosses a multiple of this becomes several commands (NOIOB): a multiple of 4 KiB; 0 for no boundary.
    pub boundary_bytes: u64,
    /// Most commands in flight on a queue.
    pub queue_depth_max: u32,
    /// Whether `post` itself carries a request out, one at a time.
    pub is_synchronous: bool,
    /// Most queues.
    pub queue_count_max: u16,
    /// Whether the controller says that it refuses writes to the namespace for now (NSATTR, Base 2.0 section 8.12). Other
    /// paths are opened for reading only, or not at all.
    pub is_write_protected: bool,
    /// Whether [`Operation::Deallocate`] works.
    pub deallocates: bool,
    /// Most LBAs of one deallocation; the largest number for no limit.
    pub deallocate_lbas_max: u64,
    /// Most ranges that [`CommandQueue::post_ranges`] takes; 0 where it takes none.
    pub deallocate_ranges_max: u32,
    /// Most LBAs of each of these ranges; the largest number for no limit.
    pub deallocate_range_lbas_max: u64,
    /// Whether it is a regular file with all blocks allocated. A deallocation then gives blocks back to the file
    /// system, and a later write there may find no space.
    pub is_preallocated: bool,
    /// Whether it is a regular file that has holes: a write there may find no space.
    pub has_holes: bool,
    /// Whether data passes through the page cache.
    pub is_cached: bool,
    /// The device's own check of each read, if any ([`Namespace::protection`]). Does not cover the kernel's
    /// own protection of a block device.
    pub protection: Option<Protection>,
}

/// Options for creating a device's queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Most commands in flight, 1 to [`DeviceInfo::queue_depth_max`].
    pub depth: u32,
    /// Time limit of a command before it is aborted, if the path can abort.
    pub timeout: Duration,
    /// Time limit of an aborted command before its queue is recreated.
    pub abort_timeout: Duration,
}

/// The losses that a completed write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The device's own guarantee; a power loss may lose data in a volatile cache.
    #[default]
    Cached,
    /// A power loss does not lose its data: Force Unit Access of an NVMe write, RWF_DSYNC of a file's, msync
    /// of a mapping.
    Data,
    /// Nor the file's metadata: RWF_SYNC; on a controller the same as [`Durability::Data`].
    All,
}

impl Durability {
    /// Returns the flags of a file's write (`pwritev2(2)`).
    #[inline]
    fn write_flags(self) -> i32 {
        match self {
            Durability::Cached => 0,
            Durability::Data => libc::RWF_DSYNC,
            Durability::All => libc::RWF_SYNC,
        }
    }
}

/// An open target.
#[derive(Clone, Debug)]
pub struct Device {
    info: DeviceInfo,
    clock: Clock,
    path: Path,
    locality: Locality,
}

#[derive(Clone, Debug)]
enum Path {
    Nvme(nvme::NvmeDevice),
    Null(null::NullDevice),
    Psync(file::OpenFile),
    Mmap(mmap::Mapped),
    Uring(uring::plain::UringDevice),
    UringCmd(uring::command::UringCmdDevice),
}

impl Path {
    /// Returns the path to an open file, and what it is.
    fn of_file(target: &KernelTarget, file: &file::OpenFile) -> Result<(DeviceInfo, Path)> {
        let (info, file) = (file.info(target, 1), file.clone());
        Ok(match target.path {
            KernelPath::Mmap => (info, Path::Mmap(mmap::map(file, &target.device())?)),
            KernelPath::Uring => {
                let uring = uring::plain::open(target, file)?;
                (uring.info(target), Path::Uring(uring))
            }
            _ => (info, Path::Psync(file)),
        })
    }
}

impl Device {
    fn new(info: DeviceInfo, path: Path, locality: Locality) -> Device {
        Device { info, clock: Clock::start(), path, locality }
    }

    /// Opens `target`.
    ///
    /// # Errors
    /// As [`Controller::open`]; on the kernel's paths the system's error, with a remedy.
    pub fn open(target: &Target, options: &DeviceOptions) -> Result<Device> {
        let Target::Kernel(kernel) = target else { return nvme::open(target, options) };
        let (info, path) = match kernel.path {
            KernelPath::Null => return Ok(null::open(kernel)),
            KernelPath::UringCmd => {
                let uring_cmd = uring::command::open(kernel, options)?;
                (uring_cmd.info(kernel), Path::UringCmd(uring_cmd))
            }
            _ => {
                let file = file::open(kernel, options)?;
                Path::of_file(kernel, &file).inspect_err(|_| file.take_back())?
            }
        };
        Ok(Device::new(info, path, file::locality(&kernel.file)))
    }

    /// Takes back what [`DeviceOptions::file_bytes`] made of its file, for a use that was refused: removes one that was
    /// made, and gives one that was made longer its length back.
    pub fn take_back_file(&self) {
        match &self.path {
            Path::Psync(file) => file.take_back(),
            Path::Mmap(mapped) => mapped.file().take_back(),
            Path::Uring(uring) => uring.file().take_back(),
            Path::Nvme(_) | Path::Null(_) | Path::UringCmd(_) => {}
        }
    }

    /// Closes its file to users who may only read it, if it was opened exclusively to write: they could lock it too. For a
    /// file that turned out to be the caller's, as the change stays.
    pub fn close_to_others(&self) {
        let lock = match &self.path {
            Path::Psync(file) => file.lock(),
            Path::Mmap(mapped) => mapped.file().lock(),
            Path::Uring(uring) => uring.file().lock(),
            Path::Nvme(nvme) => nvme.lock(),
            Path::Null(_) | Path::UringCmd(_) => None,
        };
        lock.into_iter().for_each(Lock::close_to_others);
    }

    /// Wraps a namespace of an open controller.
    pub fn of_namespace(controller: Controller, namespace: Namespace, target: &Target) -> Device {
        nvme::device(controller, namespace, target, None)
    }

    /// Returns its properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the controller, if the path is the driver's own.
    pub fn controller(&self) -> Option<&Controller> {
        match &self.path {
            Path::Nvme(nvme) => Some(&nvme.controller),
            _ => None,
        }
    }

    /// Returns the placement identifiers through which its namespace takes writes (Flexible Data Placement), in the order of
    /// their handles; none if it has no such handles, or the path carries no placement. Creates a queue for a moment.
    ///
    /// # Errors
    /// As [`Device::create_queue`]; the controller's, if it does not tell them.
    pub fn placement_handles(&self) -> Result<Vec<u16>> {
        match &self.path {
            Path::Nvme(nvme) => nvme.placement_handles(&self.info.device),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns its location: a controller's, or that of the hardware behind a file or block device.
    pub fn locality(&self) -> &Locality {
        &self.locality
    }

    /// Returns whether the thread of its queues should own a core: it polls a drive or another process, on a path
    /// without the kernel (`vfio:`, `vfio-user:`).
    pub fn wants_core(&self) -> bool {
        matches!(&self.path, Path::Nvme(nvme) if nvme.is_outside)
    }

    /// Returns whether another process maps the files behind registered memory, so that they must stay writable to it
    /// (`vfio-user:`).
    pub fn maps_files(&self) -> bool {
        matches!(&self.path, Path::Nvme(nvme) if nvme.maps_files)
    }

    /// Returns whether its queues can use `buffer`; memory of other controllers cannot be used.
    pub fn accepts<B: IoBuffer>(&self, buffer: &B) -> bool {
        match &self.path {
            Path::Nvme(nvme) => buffer.is_in(nvme.domain()),
            _ => true,
        }
    }

    /// Returns the limits by which the kernel cuts its requests, on a path where the pages of memory decide that: direct
    /// I/O of a file or block device. `None` otherwise, and if the kernel does not tell.
    pub fn block_limits(&self) -> Option<BlockLimits> {
        match &self.path {
            Path::Psync(file) => file.block_limits(),
            Path::Uring(uring) => uring.file().block_limits(),
            // Passed-through commands are cut before, into commands of as many segments as pages.
            Path::Nvme(_) | Path::Null(_) | Path::Mmap(_) | Path::UringCmd(_) => None,
        }
    }

    /// Allocates at least `len` bytes for its requests, like [`Controller::allocate`].
    ///
    /// # Errors
    /// As [`Controller::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.allocate(len),
            _ => memory::allocate_for_host(len),
        }
    }

    /// Registers memory for its requests, such as memory that [`HostMemory::adopt`] took from the caller: maps it for a
    /// controller. Of the kernel's paths, io_uring pins it once [`CommandQueue::register`] is called, or after some uses.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] with the limit that refused.
    pub fn register(&self, memory: HostMemory) -> Result<Buffer> {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.register_memory(memory),
            _ => Ok(memory::register_for_host(memory)),
        }
    }

    /// Creates a queue for one thread to drive. `memory` is all or most of what its requests will use: io_uring pins it
    /// once instead of for each request, as far as the limit on locked memory allows.
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`]; on the kernel's paths the system's error.
    pub fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
    ) -> Result<DeviceQueue<B>> {
        let device = &self.info.device;
        match &self.path {
            Path::Nvme(nvme) => nvme.create_queue(options).map(DeviceQueue::Nvme),
            Path::Null(null) => Ok(DeviceQueue::Null(null.create_queue(options))),
            Path::Psync(file) => Ok(DeviceQueue::Psync(psync::create_queue(file, device))),
            Path::Uring(uring) => {
                uring.create_queue(options, memory, device).map(DeviceQueue::Uring)
            }
            Path::UringCmd(uring_cmd) => {
                uring_cmd.create_queue(options, memory, device).map(DeviceQueue::UringCmd)
            }
            Path::Mmap(mapped) => Ok(DeviceQueue::Mmap(mmap::create_queue(mapped, device))),
        }
    }

    /// Returns the current time on the device's clock, which `post` and `poll` use.
    pub fn now(&self) -> Time {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.now(),
            _ => self.clock.now(),
        }
    }

    /// Returns the delay before resending a failed request, if that may help.
    pub fn retry_delay(&self, error: &CommandError) -> Option<Duration> {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.retry_delay(error),
            _ => error.is_retryable().then_some(Duration::ZERO),
        }
    }
}
