//! GPU memory that the CPU's page tables map: Grace Hopper and the like, integrated GPUs.
//!
//! The GPU's attributes say that it walks the CPU's page tables. Whether the CPU finds the GPU's memory there depends
//! on how the memory was allocated. So the kernel is asked to read a byte of it: it reports an unmapped address as an
//! error, where a load of our own would end the process.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::cuda::{Attributes, DeviceMemory};
use crate::error::{Error, Result};

const WHAT: &str = "GPU memory at its own address";

/// An address in this process, of memory that is never accessed through references.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(pub(super) NonNull<u8>);

// SAFETY: only an address; code that reaches the memory behind it says why it may.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Checks that the GPU and the CPU share page tables.
///
/// # Errors
/// [`Error::Unavailable`] if they do not.
pub(super) fn check(attributes: &Attributes) -> Result<()> {
    if attributes.pageable_memory_access && attributes.host_page_tables {
        return Ok(());
    }
    let why = "the GPU does not walk the CPU's page tables, so the CPU and devices do not find its memory there";
    Err(Error::unavailable(
        WHAT,
        why,
        "take another way; this one is for GPUs that are coherent with the CPU",
    ))
}

/// Returns the memory's address in this process.
///
/// # Errors
/// [`Error::Unavailable`] if the CPU cannot access it.
pub(super) fn address(memory: &DeviceMemory) -> Result<Address> {
    let last = memory.address() + memory.bytes() - 1;
    for probed in [memory.address(), last] {
        is_readable(probed).map_err(|why| {
            let why = format!("the CPU finds nothing at the address of the GPU's memory: {why}");
            Error::unavailable(WHAT, why, "take another way, or allocate on the GPU's NUMA node")
        })?;
    }
    let at = std::ptr::with_exposed_provenance_mut::<u8>(memory.address() as usize);
    Ok(Address(NonNull::new(at).expect("memory is not at address zero")))
}

/// Makes the kernel read the byte at `address`.
fn is_readable(address: u64) -> io::Result<()> {
    let (_reader, writer) = io::pipe()?;
    let at = std::ptr::with_exposed_provenance::<libc::c_void>(address as usize);
    // SAFETY: `write` copies one byte from whatever is mapped there, and fails where nothing is.
    let written = unsafe { libc::write(writer.as_raw_fd(), at, 1) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_mapped() {
        let byte = 7u8;
        is_readable((&raw const byte).expose_provenance() as u64).expect("a byte of ours");
        for nothing in [0, 8, 1 << 46, u64::MAX] {
            is_readable(nothing).expect_err("nothing is mapped there");
        }
    }
}
