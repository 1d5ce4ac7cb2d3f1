//! Devices by any path: the driver's own queue pairs, or the kernel.
//!
//! A [`Device`] gives a benchmark or store its drive's size, memory for data, and queues. A [`DeviceQueue`]
//! takes [`Request`]s and returns [`crate::Completion`]s by the same few calls as a [`crate::QueuePair`]
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
mod info;
mod null;
mod nvme;
mod queue;
mod request;
mod split;
mod synchronous;
mod uring;

use std::time::Duration;

pub use block::{BlockLimits, BlockRequests};
pub use file::check_writeback;
pub use info::{DeviceInfo, DeviceOptions, QueueOptions};
pub use null::NullQueue;
pub use nvme::NvmeQueue;
pub use queue::DeviceQueue;
pub use request::{CommandQueue, Durability, Operation, Request};
pub use split::Split;
pub use synchronous::{MmapQueue, PsyncQueue};
pub use uring::{UringCmdQueue, UringQueue};

use crate::Time;
use crate::bus::{Clock, Locality};
use crate::error::Result;
use crate::memory::{self, Buffer, IoBuffer};
use crate::queue_pair::CommandError;
use crate::sys::HostMemory;
use crate::target::{KernelPath, KernelTarget, Target};
use crate::{Controller, Namespace};
use exclusive::Lock;
use nvme::NvmeDevice;
use synchronous::{mmap, psync};

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
    Nvme(NvmeDevice),
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

    fn of_nvme(nvme: NvmeDevice, target: &Target) -> Device {
        let (info, locality) = (nvme.info(target), nvme.controller.locality());
        Device::new(info, Path::Nvme(nvme), locality)
    }

    /// Opens `target`.
    ///
    /// # Errors
    /// As [`Controller::open`]; on the kernel's paths the system's error, with a remedy.
    pub fn open(target: &Target, options: &DeviceOptions) -> Result<Device> {
        let Target::Kernel(kernel) = target else {
            return Ok(Device::of_nvme(nvme::open(target, options)?, target));
        };
        let (info, path) = match kernel.path {
            KernelPath::Null => {
                let path = Path::Null(null::NullDevice);
                return Ok(Device::new(null::info(kernel), path, Locality::default()));
            }
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
        Device::of_nvme(NvmeDevice::new(controller, namespace, target, None), target)
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
