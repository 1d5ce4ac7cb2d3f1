//! Options of a run.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::Target;

use crate::error::{Error, Result};
use crate::overlap::Overlap;
use crate::shape::Shape;

/// Bounds the bytes of cached layers (the paper's X).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knob {
    /// As much as the budget allows, until several iterations measure that reads past the page cache are faster; then
    /// nothing.
    #[default]
    Measured,
    /// As much as the budget allows: X = B_pc.
    Budget,
    /// At most this many bytes, and at most the budget. With 0, all layers are read past the page cache.
    Bytes(u64),
}

/// The device and range for direct layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The drive, by any path. Its LBAs from `first_lba` on are overwritten, then deallocated.
    pub target: Target,
    /// The first LBA.
    pub first_lba: u64,
    /// Maximum bytes to use; by default all up to the end of the device.
    pub bytes: Option<u64>,
    /// Size with which a missing regular file is created.
    pub file_bytes: Option<u64>,
}

impl Extent {
    /// Creates an extent of all LBAs of a target.
    pub fn new(target: Target) -> Extent {
        Extent { target, first_lba: 0, bytes: None, file_bytes: None }
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Options of a run. Change the defaults with `RunOptions { copy_threads: 1, ..RunOptions::new(shape) }`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The tensors.
    pub shape: Shape,
    /// A folder for files, on a file system with preallocation and direct I/O. The files have no names during the run,
    /// so a crash leaves nothing behind. Without a folder, no layer is cached.
    pub folder: Option<PathBuf>,
    /// The place of direct layers; by default they lie in the files too, read past the page cache. Layers then change
    /// their group without moving bytes.
    pub extent: Option<Extent>,
    /// The bound on the bytes of cached layers.
    pub knob: Knob,
    /// Bytes of the budget left free for others; by default 16 MiB plus 2 % of the budget.
    pub headroom_bytes: Option<u64>,
    /// Maximum bytes that prefill writes into the page cache; by default as many as the kernel keeps without starting
    /// writeback. Other cached layers are written past it. Copy threads read them back through the page cache while
    /// idle, for example while the GPU computes; the first read in decode does the rest.
    pub dirty_bytes: Option<u64>,
    /// Copy threads, 1 to 64, each with its own pinned memory and file. At most one per tensor starts. A layer's keys
    /// and values are on different threads.
    pub copy_threads: u16,
    /// Maximum bytes that a copy thread moves at once, and pins: whole tokens, at least one. Pinned memory is missing
    /// in the page cache.
    pub portion_bytes: u64,
    /// The overlap of the threads' reads; by default the faster one, by measurement.
    pub overlap: Option<Overlap>,
    /// Whether to keep a checksum of each written token and verify it on each read.
    pub checksums: bool,
    /// Maximum bytes of a direct command; the device's own limit if that is less.
    pub command_bytes: u64,
    /// Maximum direct commands in flight per copy thread.
    pub queue_depth: u32,
    /// Interval between evaluations of the budget, up to a day. With 0, the number of cached layers changes only by
    /// [`crate::Tensors::rebudget`].
    pub rebudget_every: Duration,
    /// Time limit of each wait for a command or a copy thread, up to a day.
    pub timeout: Duration,
}

impl RunOptions {
    /// Returns the defaults for a shape: both groups in the same files, in the system's folder for temporary files.
    pub fn new(shape: Shape) -> RunOptions {
        RunOptions {
            shape,
            folder: Some(std::env::temp_dir()),
            extent: None,
            knob: Knob::Measured,
            headroom_bytes: None,
            dirty_bytes: None,
            copy_threads: 2,
            portion_bytes: 4 << 20,
            overlap: None,
            checksums: false,
            command_bytes: 256 << 10,
            queue_depth: 32,
            rebudget_every: Duration::from_millis(100),
            timeout: Duration::from_secs(30),
        }
    }

    /// Checks the options that do not depend on a device.
    pub(crate) fn check(&self) -> Result<()> {
        self.shape.check()?;
        if !(1..=64).contains(&self.copy_threads) {
            return Err(Error::invalid("copy threads", self.copy_threads, "use 1 to 64"));
        }
        if self.command_bytes == 0 || self.queue_depth == 0 {
            let value = format!("{} x {}", self.command_bytes, self.queue_depth);
            return Err(Error::invalid(
                "bytes and number of commands",
                value,
                "use numbers above 0",
            ));
        }
        if self.timeout.max(self.rebudget_every) > DAY {
            let value = format!("{:?} and {:?}", self.timeout, self.rebudget_every);
            return Err(Error::invalid("timeout and rebudget_every", value, "use a day at most"));
        }
        if self.folder.is_none() && self.extent.is_none() {
            let fix = "give a folder on a mounted file system, an extent on any drive, or both";
            return Err(Error::invalid("the folder", "none", fix));
        }
        Ok(())
    }

    /// Returns whether layers may ever be cached.
    pub(crate) fn may_cache(&self) -> bool {
        self.folder.is_some() && self.knob != Knob::Bytes(0)
    }

    /// Returns the number of copy threads that start, at most one per tensor.
    pub fn threads(&self) -> u16 {
        let tensors = u16::try_from(2 * u64::from(self.shape.model.layers)).unwrap_or(u16::MAX);
        self.copy_threads.min(tensors)
    }

    /// Returns the bytes of a portion: whole tokens.
    pub(crate) fn portion(&self) -> u64 {
        let unit = self.shape.unit_bytes();
        let tokens = (self.portion_bytes / unit).max(1);
        (unit * tokens).min(self.shape.tensor_bytes())
    }

    /// Returns the bytes that a run pins: a portion and small buffers for each copy thread. Lower memory limits are
    /// refused.
    ///
    /// # Panics
    /// For a shape that [`Shape::new`] refuses.
    pub fn reserve_bytes(&self) -> u64 {
        // One queue for the file, one for the extent. A set of at most 2^60 bytes has at most 2^64 here.
        let behind = 2 * crate::direct::BEHIND_COUNT * self.shape.unit_bytes();
        (self.portion() + behind) * u64::from(self.threads())
    }

    /// Returns X for a budget, less the headroom.
    pub(crate) fn x(&self, budget: u64) -> u64 {
        if !self.may_cache() {
            return 0;
        }
        let headroom = self.headroom_bytes.unwrap_or((16 << 20) + budget / 50);
        let usable = budget.saturating_sub(headroom);
        match self.knob {
            Knob::Measured | Knob::Budget => usable,
            Knob::Bytes(bytes) => usable.min(bytes),
        }
    }
}
