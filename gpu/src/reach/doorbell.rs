//! How the GPU rings doorbells: through registers mapped for it, or through words that a thread turns into register
//! writes.
//!
//! Mapped registers are whole pages of the device's BAR, registered with CUDA. No attribute tells whether a GPU's store
//! then reaches the device, possibly across a root complex, an IOMMU or a virtual machine: [`super::self_test`] finds
//! out.

mod pages;

use std::fs;
use std::sync::Arc;

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
    /// Maps registers for the GPU, page by page as queues need them.
    pub fn mapped(gpu: &Arc<Gpu>) -> Doorbells {
        Doorbells::mapped_where(gpu, is_device_memory)
    }

    /// Maps registers, with `is_device` to tell device pages from memory.
    pub(super) fn mapped_where(gpu: &Arc<Gpu>, is_device: fn(usize) -> bool) -> Doorbells {
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

/// Whether the page at `at` belongs to a device, by the flags of its mapping (proc(5), `VmFlags`). Memory if there are
/// none.
pub(crate) fn is_device_memory(at: usize) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else { return false };
    flags_of(&maps, at)
        .is_some_and(|flags| flags.split(' ').any(|flag| flag == "io" || flag == "pf"))
}

fn flags_of(maps: &str, at: usize) -> Option<&str> {
    let mut lines = maps.lines();
    lines.find(|line| range_of(line).is_some_and(|(start, end)| (start..end).contains(&at)))?;
    let mut of_this = lines.take_while(|line| range_of(line).is_none());
    of_this.find_map(|line| line.strip_prefix("VmFlags:")).map(str::trim)
}

/// Parses the addresses in the first line of a mapping: `7f00-7f10 rw-s ...`.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod flag_tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000004000 rw-s 00000000 00:0e 1 anon_inode:[vfio-device]
Size:                 16 kB
VmFlags: rd wr sh mr mw me ms pf io de dd
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
Size:                  4 kB
VmFlags: rd wr mr mw me ac
7f0000006000-7f0000007000 rw-p 00000000 00:00 0
";

    #[test]
    fn a_mapping_of_a_device_is_told_from_memory() {
        assert_eq!(flags_of(MAPS, 0x7f00_0000_1000), Some("rd wr sh mr mw me ms pf io de dd"));
        assert_eq!(flags_of(MAPS, 0x7f00_0000_4000), Some("rd wr mr mw me ac"));
        assert_eq!(flags_of(MAPS, 0x7f00_0000_5000), None, "between two mappings");
        assert_eq!(flags_of(MAPS, 0x7f00_0000_6000), None, "an older kernel says nothing");
    }

    #[test]
    fn memory_of_this_process_is_no_device() {
        let word = 0u64;
        assert!(!is_device_memory((&raw const word).addr()));
        assert!(!is_device_memory(0));
    }
}
