//! The options and properties of a device, and the options of its queues.

use std::time::Duration;

use crate::Protection;
use crate::bus::vfio_user::SERVER_TIMEOUT;

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
    /// GPU, drives queues of the same controller: see [`crate::Controller::create_raw_queue_pair`]. Default true.
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
    /// The most commands in flight on a queue.
    pub queue_depth_max: u32,
    /// Whether `post` itself carries a request out, one at a time.
    pub is_synchronous: bool,
    /// The most queues.
    pub queue_count_max: u16,
    /// Whether the controller says that it refuses writes to the namespace for now (NSATTR, Base 2.0 section 8.12). Other
    /// paths are opened for reading only, or not at all.
    pub is_write_protected: bool,
    /// Whether [`super::Operation::Deallocate`] works.
    pub deallocates: bool,
    /// The most LBAs of one deallocation; the largest number for no limit.
    pub deallocate_lbas_max: u64,
    /// Whether it is a regular file with all blocks allocated. A deallocation then gives blocks back to the file
    /// system, and a later write there may find no space.
    pub is_preallocated: bool,
    /// Whether it is a regular file that has holes: a write there may find no space.
    pub has_holes: bool,
    /// Whether data passes through the page cache.
    pub is_cached: bool,
    /// The device's own check of each read, if any ([`crate::Namespace::protection`]). Does not cover the kernel's
    /// own protection of a block device.
    pub protection: Option<Protection>,
}

/// Options for creating a device's queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The most commands in flight, 1 to [`DeviceInfo::queue_depth_max`].
    pub depth: u32,
    /// Time limit of a command before it is aborted, if the path can abort.
    pub timeout: Duration,
    /// Time limit of an aborted command before its queue is recreated.
    pub abort_timeout: Duration,
}
