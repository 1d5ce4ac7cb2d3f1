//! The dma-buf of GPU memory: its requirements, and its mapping in this process.

use std::os::fd::{AsRawFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};

use crate::cuda::Attributes;
use crate::error::{Error, Result};

/// Checks that the GPU's memory has dma-bufs.
///
/// # Errors
/// [`Error::Unavailable`] if it has none.
pub fn check(attributes: &Attributes) -> Result<()> {
    if attributes.dma_buf {
        return Ok(());
    }
    let fix = "use NVIDIA's open kernel modules on Linux 5.12 or later";
    Err(Error::unavailable("a dma-buf of GPU memory", "the GPU's driver exports none", fix))
}

/// Checks that its dma-bufs can be mapped into a process.
///
/// # Errors
/// [`Error::Unavailable`] if the driver says that they cannot.
pub fn check_mapping(attributes: &Attributes) -> Result<()> {
    check(attributes)?;
    match attributes.dma_buf_mmap {
        Some(true) => Ok(()),
        said => Err(Error::unavailable(
            "a mapping of a dma-buf of GPU memory",
            if said.is_some() {
                "the GPU's driver says that it cannot be mapped on this GPU"
            } else {
                "the GPU's driver does not know of such mappings"
            },
            "use driver 595 or later (CUDA 13.3), or load gdrdrv",
        )),
    }
}

/// Maps all `bytes` of a dma-buf for reading and writing.
///
/// # Errors
/// [`Error::Refused`] with the system's reason.
pub(super) fn map(file: &OwnedFd, bytes: u64) -> Result<MmapRaw> {
    let what = format!("mapping {bytes} bytes of a dma-buf of GPU memory");
    let refused = |why: std::io::Error| {
        let fix = match why.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC | libc::EINVAL) => {
                "it may not fit the GPU's BAR1: enable Resizable BAR, or make the pool smaller"
            }
            _ => "see the kernel log (dmesg) for nvidia, or load gdrdrv",
        };
        Error::refused(&what, why, fix)
    };
    let len = usize::try_from(bytes).map_err(|why| Error::invalid(&what, why))?;
    MmapOptions::new().len(len).map_raw(file.as_raw_fd()).map_err(refused)
}
