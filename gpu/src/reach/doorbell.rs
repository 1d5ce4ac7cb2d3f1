//! How the GPU rings doorbells: through registers mapped for it, or through words that a thread turns into register
//! writes.
//!
//! Mapped registers are whole pages of the device's BAR, registered with CUDA. No attribute tells whether a GPU's store
//! then reaches the device, possibly across a root complex, an IOMMU or a virtual machine: [`super::self_test`] finds
//! out.

mod pages;

use std::sync::Arc;

use adit_driver::Controller;
use adit_driver::controller::RawQueuePair;

use crate::cuda::Gpu;
use crate::error::Result;
use crate::reach::proxy::{ProxyThread, Slot};

pub(crate) use pages::MappedPages;
use pages::Page;

const PAGE_BYTES: usize = 4096;
pub(super) const WHAT: &str = "doorbells mapped for the GPU";

/// How doorbells are rung, for the queues of one controller.
#[derive(Clone, Debug)]
pub enum Doorbells {
    /// By the GPU's stores to the registers.
    Mapped(Arc<MappedPages>),
    Proxy(Arc<ProxyThread>),
}

/// The doorbells of one queue at the GPU's addresses; valid while this lives.
#[derive(Debug)]
pub struct Bells {
    /// The submission queue's tail.
    pub sq: u64,
    /// The completion queue's head.
    pub cq: u64,
    _held: Held,
}

#[derive(Debug)]
enum Held {
    /// The pages that hold the two registers.
    Pages(#[allow(dead_code, reason = "held, not read")] [Arc<Page>; 2]),
    /// The proxy's words.
    Slot(#[allow(dead_code, reason = "held, not read")] Slot),
}

impl Doorbells {
    /// Maps a controller's registers for the GPU, page by page as queues need them.
    pub fn mapped(gpu: &Arc<Gpu>, controller: &Controller) -> Doorbells {
        Doorbells::mapped_as(gpu, has_registers(controller))
    }

    /// Maps pages that are a device's registers, or memory shared with a software controller.
    pub(super) fn mapped_as(gpu: &Arc<Gpu>, is_device: bool) -> Doorbells {
        Doorbells::Mapped(Arc::new(MappedPages::new(gpu, is_device)))
    }

    /// Makes a queue's doorbells usable.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for registers that no store reaches; CUDA's refusal of their page; the proxy's when it is
    /// full.
    pub fn attach(&self, raw: &RawQueuePair) -> Result<Bells> {
        let (sq, cq) = raw.doorbells();
        match self {
            Doorbells::Proxy(proxy) => {
                let slot = proxy.add([sq.clone(), cq.clone()], raw.depths())?;
                let [sq, cq] = slot.addresses();
                Ok(Bells { sq, cq, _held: Held::Slot(slot) })
            }
            Doorbells::Mapped(pages) => {
                let ((sq, first), (cq, second)) = (pages.map(sq)?, pages.map(cq)?);
                Ok(Bells { sq, cq, _held: Held::Pages([first, second]) })
            }
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Doorbells::Mapped(_) => "mapped",
            Doorbells::Proxy(_) => "proxy",
        }
    }
}

/// Returns whether a controller's pages are registers: those of a PCIe function are, those of a software controller are
/// memory.
fn has_registers(controller: &Controller) -> bool {
    controller.locality().pci_address.is_some()
}

#[cfg(test)]
mod tests;
