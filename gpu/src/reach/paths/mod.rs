//! The paths by which a controller's DMA reaches memory that the GPU works on.
//!
//! Each path has its own conditions, and no machine says beforehand which of them it meets. So each is tried for real,
//! best first, with a small piece of memory that is exposed, mapped for the controller, filled by it with an LBA
//! ([`carry`]) and released. The first that works is used; the reasons against earlier ones are kept, for
//! `adit gpu doctor` and for errors.
//!
//! | path | what is mapped | needs |
//! |---|---|---|
//! | coherent | the memory at its own address | a GPU that shares the CPU's page tables |
//! | dma-buf through iommufd | the file of its dma-buf | a kernel whose iommufd takes the GPU driver's dma-bufs |
//! | dma-buf mapped here | a mapping of that file in this process | a GPU driver that lets its dma-bufs be mapped |
//! | gdrdrv | a mapping that gdrdrv makes | NVIDIA's module gdrdrv and `libgdrapi.so.2` |
//! | pinned host memory | host memory that the GPU reaches | a GPU that registers host memory |
//! | CPU only | nothing of the GPU's | nothing |
//!
//! The order of ownership implements law 3: a mapping for a device ([`Mapped`]) owns what it maps ([`Block`]), which
//! owns the mapping in this process, which owns the memory. If unmapping fails, the driver leaks all of that.

mod block;
mod carry;
mod coherent;
mod dma_buf;
mod exposed;
mod gdr;
mod host;
mod mapped;
mod path;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use adit_driver::Controller;

use crate::cuda::Gpu;
use crate::error::{Error, Result};

pub(crate) use block::Block;
pub use carry::Carried;
pub(crate) use carry::{check_arrival, flush_if_needed, host_copy, other_than};
#[cfg(feature = "internals")]
pub use dma_buf::{check as check_dma_buf, check_mapping as check_dma_buf_mapping};
pub(crate) use exposed::Exposed;
#[cfg(feature = "internals")]
pub use gdr::is_present as gdr_is_present;
pub(crate) use host::HostBlock;
pub(crate) use mapped::Mapped;
pub use path::MemoryPath;

/// Bytes to try a path with: one granule of exportable memory.
const PROBE_BYTES: u64 = 2 << 20;

/// Result of trying a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// The path.
    pub path: MemoryPath,
    /// What it carried, or why it does not work here and how to change that.
    pub outcome: Result<Carried, String>,
}

impl std::fmt::Display for PathReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.outcome {
            Ok(Carried::Nothing) => write!(f, "{} maps, not tried", self.path.name()),
            Ok(_) => write!(f, "{} carried data", self.path.name()),
            Err(why) => write!(f, "{}: {why}", self.path.name()),
        }
    }
}

impl PathReport {
    fn new(path: MemoryPath, outcome: &Result<Carried>) -> PathReport {
        let outcome = outcome.as_ref().copied().map_err(Error::to_string);
        PathReport { path, outcome }
    }
}

/// Tries one path with a small piece of memory, for all of the controllers, and leaves nothing behind. Returns what each
/// of them carried.
///
/// # Errors
/// What the path lacks here, or why data did not arrive; [`Error::Refused`] while the persistent kernel of rings runs on
/// the GPU.
pub fn try_path(
    path: MemoryPath,
    gpu: &Arc<Gpu>,
    controllers: &[Arc<Controller>],
) -> Result<Carried> {
    if path == MemoryPath::CpuOnly {
        return Ok(Carried::Nothing);
    }
    let _making = gpu.may_make("try a way to the GPU's memory")?;
    let block = block(path, gpu, controllers, PROBE_BYTES)?;
    let mut least = Carried::BothWays;
    for controller in controllers {
        least = least.min(carry::prove(gpu, controller, &block, block.map(controller)?)?);
    }
    Ok(least)
}

/// Allocates `bytes` for a path: in the GPU, or in the host for [`MemoryPath::PinnedHost`].
pub(crate) fn block(
    path: MemoryPath,
    gpu: &Arc<Gpu>,
    controllers: &[Arc<Controller>],
    bytes: u64,
) -> Result<Block> {
    match path {
        MemoryPath::PinnedHost => HostBlock::allocate(gpu, controllers, bytes).map(Block::Host),
        MemoryPath::CpuOnly => {
            Err(Error::invalid("memory for the GPU", "the CPU's own is not reached by the GPU"))
        }
        _ => Exposed::allocate(gpu, bytes, path).map(Block::Gpu),
    }
}

/// Returns the first path by which all of the controllers reach GPU memory and `make` succeeds, with its result, and a
/// report of each path tried. Tries none without a controller.
pub(crate) fn first_to_gpu<T>(
    gpu: &Arc<Gpu>,
    controllers: &[Arc<Controller>],
    mut make: impl FnMut(MemoryPath) -> Result<T>,
) -> (Option<(MemoryPath, T)>, Vec<PathReport>) {
    let mut reports = Vec::new();
    let ways: &[MemoryPath] = if controllers.is_empty() { &[] } else { &MemoryPath::TO_GPU };
    for &path in ways {
        let made = try_path(path, gpu, controllers).and_then(|carried| Ok((carried, make(path)?)));
        let (outcome, made) = match made {
            Ok((carried, made)) => (Ok(carried), Some((path, made))),
            Err(error) => (Err(error), None),
        };
        reports.push(PathReport::new(path, &outcome));
        if made.is_some() {
            return (made, reports);
        }
    }
    (None, reports)
}

/// Combines the reasons against all paths to GPU memory into one error.
pub(crate) fn no_way(reports: &[PathReport]) -> Error {
    let what = "the device's way into GPU memory";
    let fix = "place it in host memory, or let CPU threads stage the transfers; 'adit gpu doctor' says what each way needs";
    Error::unavailable(what, failures(reports).join("; "), fix)
}

/// Returns why each path that failed did.
pub(crate) fn failures(reports: &[PathReport]) -> Vec<String> {
    let failed = reports.iter().filter(|report| report.outcome.is_err());
    failed.map(ToString::to_string).collect()
}
