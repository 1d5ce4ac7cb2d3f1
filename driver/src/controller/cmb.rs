//! The controller memory buffer (NVMe Base 2.0 section 8.5) as a location for submission queues: the device
//! then fetches commands from its own memory.
//!
//! Completion queues stay in host memory: a poller must not read device memory across PCIe.

use std::sync::Arc;

use super::registers::{read, write};
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::spec::Iova;
use crate::spec::register::{CAP, CMBLOC, CMBMSC, CMBSTS, CMBSZ, Cap, Cmbmsc};
use crate::sys::{Atomics, Window};
use crate::transfer::PAGE_BYTES;

/// The most bytes of the buffer in use: a thousand queues of a thousand entries. A device can claim any size.
const USABLE_MAX: u64 = 64 << 20;

/// Removes the controller's buffer from the address space.
pub(super) fn switch_off(bus: &dyn Bus, cap: Cap) {
    if cap.cmbs() {
        write(bus, CMBMSC, Cmbmsc(0));
    }
}

/// Assigns the buffer's device addresses and enables it.
fn place(bus: &dyn Bus, base: Iova) -> Result<()> {
    let enabled =
        Cmbmsc::enabled_at(base).ok_or_else(|| lacks(bus, "its memory buffer cannot be placed"))?;
    write(bus, CMBMSC, enabled);
    if read(bus, CMBSTS).cbai() {
        switch_off(bus, read(bus, CAP));
        return Err(lacks(bus, "it refuses the address of its memory buffer"));
    }
    Ok(())
}

fn lacks(bus: &dyn Bus, what: &str) -> Error {
    Error::device(bus.device(), what, "place the queues in host memory (queues=host)")
}

/// An enabled controller memory buffer, allocated by the page.
#[derive(Debug)]
pub(crate) struct Cmb {
    device: String,
    window: Window,
    base: Iova,
    /// Pages in use.
    used: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct CmbPages {
    first: usize,
    count: usize,
}

impl Cmb {
    /// Enables the buffer at its own address range and maps it.
    ///
    /// # Errors
    /// [`Error::Device`] if there is none, it takes no submission queues, or it refuses the address.
    #[allow(unsafe_code)]
    pub(super) fn enable(bus: &Arc<dyn Bus>) -> Result<Cmb> {
        let lacks = |what: &str| lacks(&**bus, what);
        if !read(&**bus, CAP).cmbs() {
            return Err(lacks("it has no controller memory buffer"));
        }
        write(&**bus, CMBMSC, Cmbmsc::CAPABILITIES_ENABLED);
        let (location, size) = (read(&**bus, CMBLOC), read(&**bus, CMBSZ));
        let offset = location
            .offset_bytes(size)
            .ok_or_else(|| lacks("its controller memory buffer's place is invalid"))?;
        let bytes = size.size_bytes().filter(|&bytes| bytes >= PAGE_BYTES);
        let bytes = bytes.ok_or_else(|| lacks("its controller memory buffer is empty"))?;
        if !size.sqs() {
            return Err(lacks("its controller memory buffer takes no submission queues"));
        }
        let usable = bytes.min(USABLE_MAX);
        // SAFETY: the buffer is handed out as rings, which hold what the driver wrote.
        let window = unsafe { bus.bar_window(location.bir(), offset, usable)? };
        let base = bus.reserve(bytes)?;
        place(&**bus, base)?;
        let used = vec![false; (usable / PAGE_BYTES) as usize];
        Ok(Cmb { device: bus.device().to_owned(), window, base, used })
    }

    /// Enables the buffer again at the same addresses, after a reset.
    ///
    /// # Errors
    /// [`Error::Device`] if the controller now refuses them.
    pub(super) fn place_again(&self, bus: &dyn Bus) -> Result<()> {
        place(bus, self.base)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.used.len() as u64 * PAGE_BYTES
    }

    /// Takes `bytes`, zeroed, from the lowest free run of pages.
    ///
    /// # Errors
    /// [`Error::Device`] if no run of pages is free.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(CmbPages, Atomics, Iova)> {
        let page = PAGE_BYTES as usize;
        let count = bytes.div_ceil(page);
        let first = self.used.windows(count).position(|run| run.iter().all(|used| !used));
        let first = first.ok_or_else(|| {
            let what =
                format!("its controller memory buffer has no {bytes} bytes left for a queue");
            Error::device(&self.device, what, "make the queue smaller or place it in host memory")
        })?;
        self.used[first..first + count].fill(true);
        let window = self.window.slice(first * page, count * page).expect("inside the buffer");
        let atomics = window.atomics();
        atomics.clear();
        Ok((CmbPages { first, count }, atomics, Iova(self.base.0 + (first * page) as u64)))
    }

    pub(super) fn give_back(&mut self, pages: &CmbPages) {
        self.used[pages.first..pages.first + pages.count].fill(false);
    }
}
