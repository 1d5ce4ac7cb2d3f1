//! A target opened by whatever path leads to it: the driver's own queue pairs, or the kernel.
//!
//! A [`Device`] is what a benchmark or a store needs of a drive: its size, memory for its data, and queues.
//! A [`DeviceQueue`] of it takes [`Request`]s and gives [`Completion`]s, by the same few calls as a [`QueuePair`]
//! ([`CommandQueue`]), so that the same loop runs on any path:
//!
//! | target | module | requests become |
//! |---|---|---|
//! | `vfio:`, `vfio-user:`, `soft:` | `nvme` | commands on a queue pair of the driver's |
//! | `uring:PATH` | `uring` | reads and writes of a file or block device through io_uring |
//! | `uring-cmd:/dev/ng0n1` | `uring_cmd` | NVMe commands through io_uring and the kernel's passthrough device |
//! | `psync:PATH` | `psync` | pread and pwrite, one at a time |
//! | `mmap:PATH` | `mmap` | copies to and from a mapping, one at a time |
//! | `null:` | `null` | nothing: each completes at once, with no data moved |
//!
//! The kernel's paths need no privileges beyond those of the file. They are what the driver is compared with, and
//! what is left where VFIO is not allowed.

mod exclusive;
mod extent;
mod file;
mod kernel_ring;
mod late_memory;
mod mmap;
mod null;
mod nvme;
mod passthrough;
mod pieces;
mod psync;
mod queue;
mod synchronous;
mod uring;
mod uring_cmd;

use std::time::Duration;

pub use mmap::MmapQueue;
pub use null::NullQueue;
pub use nvme::NvmeQueue;
pub use psync::PsyncQueue;
pub use queue::DeviceQueue;
pub use uring::UringQueue;
pub use uring_cmd::UringCmdQueue;

use crate::Time;
use crate::bus::Clock;
use crate::bus::vfio_user::SERVER_TIMEOUT;
use crate::error::Result;
use crate::memory::{self, Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, Rejected, Stats};
use crate::spec::Lba;
use crate::target::{KernelPath, Target};
use crate::{Controller, Namespace, Protection};

/// What to do with a range of LBAs, and the memory it is done with.
#[derive(Debug)]
pub struct Request<B> {
    /// What to do.
    pub operation: Operation,
    /// The data of a read or write, and how long it is. A [`Operation::Deallocate`] uses its first
    /// segment for its own purposes, 16 bytes for each range that the run is cut into where the controller takes no longer
    /// one (4 KiB do for all); a [`Operation::Flush`] does not touch it.
    pub buffer: B,
}

/// What a [`Request`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the buffer with the LBAs from this one on.
    Read(Lba),
    /// Writes the buffer to the LBAs from this one on.
    Write(Lba),
    /// Makes everything that completed before durable.
    Flush,
    /// Tells the device that so many LBAs from this one on hold nothing of value.
    Deallocate(Lba, u32),
}

/// What executes requests: a queue pair with its namespace, or a path through the kernel.
///
/// `post` takes a request, `ring` tells the device of everything posted since the last, `poll` gives back what
/// finished. One thread owns a queue. Nothing on the way allocates or locks; a kernel path makes the system calls
/// it is made of, at most one for each `ring` and each empty `poll` where it is io_uring. Who finds nothing may poll
/// again at once, or `wait` and leave the processor to others.
pub trait CommandQueue<B: IoBuffer>: Send {
    /// Takes a request, which the device learns of at the next `ring`.
    ///
    /// # Errors
    /// The request back with the reason, [`crate::RejectReason::Full`] where polling helps.
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// The same for a request that failed before; it is counted in [`Stats::retries`].
    ///
    /// # Errors
    /// As [`CommandQueue::post`].
    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// Tells the device of everything posted.
    fn ring(&mut self);

    /// Gives each request that finished to `done`, without waiting; returns how many there were.
    fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize;

    /// Lets time pass until something finished, or `at_most`, and some microseconds more as sleeps do. True if it
    /// slept, in the kernel, as io_uring's queues do with something in flight that was rung. All others return
    /// false at once and are to be polled: a queue pair of the driver's, io_uring whose completions are polled for,
    /// and the paths where what was posted is done already.
    fn wait(&mut self, at_most: Duration) -> bool {
        let _ = at_most;
        false
    }

    /// Whether the path still works.
    ///
    /// # Errors
    /// [`Error::Failed`] with the first failure's reason.
    fn check(&self) -> Result<()>;

    /// What the queue counted.
    fn stats(&self) -> Stats;
}

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// I/O queues to ask for. Default 1.
    pub queue_count: u16,
    /// Whether anything will be written. A file is opened for reading only where not. Default true.
    pub writes: bool,
    /// A regular file is created where there is none, and extended to so many bytes where it is shorter. Block
    /// devices and controllers are as large as they are. Default none: the file must be there.
    pub file_bytes: Option<u64>,
    /// Whether it is opened for this handle alone: refused where another process or handle has opened it so, and of a
    /// block device where the kernel uses it, as for a mounted file system. A controller reached through VFIO has one
    /// user in any case, one behind a vfio-user socket as its server says. Default false.
    pub exclusive: bool,
    /// Whether the queues of a controller use shadow doorbells where it has them. Off where another agent drives queues
    /// of the same controller, as a GPU does: see [`Controller::create_raw_queue_pair`]. Default true.
    pub shadow_doorbells: bool,
    /// How long a vfio-user server may take for each answer ([`ControllerOptions::server_timeout`]). Default 5 s.
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
            exclusive: false,
            shadow_doorbells: true,
            server_timeout: SERVER_TIMEOUT,
        }
    }
}

/// What a device is, for whoever plans requests to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The target without its settings, for messages.
    pub device: String,
    /// Size of what can be addressed, in bytes.
    pub bytes: u64,
    /// Bytes of an LBA: offsets and lengths are multiples of it. Of a file, what direct I/O asks for.
    pub lba_bytes: u32,
    /// A request longer than this becomes several commands.
    pub command_bytes_max: u64,
    /// A request that crosses a multiple of this becomes several commands (NOIOB); 0 where there is none.
    pub boundary_bytes: u64,
    /// Most commands in flight on a queue. 1 where each is carried out by the call that posts it.
    pub queue_depth_max: u32,
    /// How many queues there can be.
    pub queue_count_max: u16,
    /// Whether [`Operation::Deallocate`] works.
    pub deallocates: bool,
    /// Most LBAs of one of them; the largest number for no limit.
    pub deallocate_lbas_max: u64,
    /// Whether data passes through the page cache.
    pub is_cached: bool,
    /// How the device checks each read by itself, if it does ([`Namespace::protection`]). The kernel's own
    /// protection of a block device is not told.
    pub protection: Option<Protection>,
}

/// How a queue of a device is made.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Commands in flight at most, 1 to [`DeviceInfo::queue_depth_max`].
    pub depth: u32,
    /// How long a command may take before it is aborted, where the path can.
    pub timeout: Duration,
    /// How long an aborted command may take to end before its queue is created anew.
    pub abort_timeout: Duration,
}

/// What a write that completed survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// What the device grants by itself; a loss of power may cost what lies in a volatile cache.
    #[default]
    Cached,
    /// A loss of power does not cost its data: Force Unit Access of an NVMe write, RWF_DSYNC of a file's, msync of a
    /// mapping.
    Data,
    /// Nor the file's metadata: RWF_SYNC; to a controller the same as [`Durability::Data`].
    All,
}

impl Durability {
    /// What a file's write says for it (`pwritev2(2)`).
    #[inline]
    fn write_flags(self) -> i32 {
        match self {
            Durability::Cached => 0,
            Durability::Data => libc::RWF_DSYNC,
            Durability::All => libc::RWF_SYNC,
        }
    }
}

/// A target that was opened.
#[derive(Clone, Debug)]
pub struct Device {
    info: DeviceInfo,
    clock: Clock,
    path: Path,
}

/// What is behind a [`Device`].
#[derive(Clone, Debug)]
enum Path {
    Nvme(nvme::NvmeDevice),
    Null(null::NullDevice),
    Psync(file::OpenFile),
    Mmap(mmap::Mapped),
    Uring(uring::UringDevice),
    UringCmd(uring_cmd::UringCmdDevice),
}

impl Device {
    fn new(info: DeviceInfo, path: Path) -> Device {
        Device { info, clock: Clock::start(), path }
    }

    /// Opens `target`.
    ///
    /// # Errors
    /// As [`Controller::open`]; for the kernel's paths what the system refused, with what to do about it.
    pub fn open(target: &Target, options: &DeviceOptions) -> Result<Device> {
        let Target::Kernel(kernel) = target else { return nvme::open(target, options) };
        match kernel.path {
            KernelPath::Null => Ok(null::open(kernel)),
            KernelPath::Psync => {
                let file = file::open(kernel, options)?;
                Ok(Device::new(file.info(kernel, 1), Path::Psync(file)))
            }
            KernelPath::Mmap => {
                let file = file::open(kernel, options)?;
                let info = file.info(kernel, 1);
                Ok(Device::new(info, Path::Mmap(mmap::map(file, &kernel.device())?)))
            }
            KernelPath::Uring => {
                let uring = uring::open(kernel, options)?;
                Ok(Device::new(uring.info(kernel), Path::Uring(uring)))
            }
            KernelPath::UringCmd => {
                let uring_cmd = uring_cmd::open(kernel, options)?;
                Ok(Device::new(uring_cmd.info(kernel), Path::UringCmd(uring_cmd)))
            }
        }
    }

    /// A namespace of a controller that is open.
    pub fn of_namespace(controller: Controller, namespace: Namespace, target: &Target) -> Device {
        nvme::device(controller, namespace, target, None)
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The controller, where it is the driver's own.
    pub fn controller(&self) -> Option<&Controller> {
        match &self.path {
            Path::Nvme(nvme) => Some(&nvme.controller),
            _ => None,
        }
    }

    /// Whether `buffer` is memory that its queues can use: other controllers' is not.
    pub fn accepts<B: IoBuffer>(&self, buffer: &B) -> bool {
        match &self.path {
            Path::Nvme(nvme) => buffer.is_in(nvme.domain()),
            _ => true,
        }
    }

    /// Memory of at least `len` bytes for its requests, as [`Controller::allocate`] gives it.
    ///
    /// # Errors
    /// As [`Controller::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.allocate(len),
            _ => memory::allocate_for_host(len),
        }
    }

    /// Makes a queue for one thread to drive. `memory` is what its requests will use, all or most of it: a kernel
    /// path has it pinned once instead of for each request.
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`]; for the kernel's paths what the system refused.
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

    /// The present on the device's clock, which `post` and `poll` go by.
    pub fn now(&self) -> Time {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.now(),
            _ => self.clock.now(),
        }
    }

    /// When a request that failed may be sent again, if that may help.
    pub fn retry_delay(&self, error: &CommandError) -> Option<Duration> {
        match &self.path {
            Path::Nvme(nvme) => nvme.controller.retry_delay(error),
            _ => error.is_retryable().then_some(Duration::ZERO),
        }
    }
}
