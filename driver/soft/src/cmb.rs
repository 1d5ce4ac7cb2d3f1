//! The controller memory buffer (NVMe Base 2.0 section 8.5).
//!
//! Controller memory that the host maps as a BAR and may use for queues, lists and data. The host chooses its place in
//! the device's address space (CMBMSC.CBA). Both sides share it, so every access is atomic.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::shared_pages;
use crate::error::Result;
use adit_shared::SharedPages;
use adit_spec::Iova;

/// The BAR that holds the buffer.
pub const CMB_BAR: u8 = 2;

const NOWHERE: u64 = u64::MAX;

/// The buffer and its place in the device's address space.
#[derive(Debug)]
pub struct Cmb {
    pages: SharedPages,
    /// The host's choice of base; [`NOWHERE`] while disabled.
    base: AtomicU64,
}

impl Cmb {
    pub(super) fn new(bytes: u64) -> Result<Cmb> {
        Ok(Cmb { pages: shared_pages(bytes as usize)?, base: AtomicU64::new(NOWHERE) })
    }

    /// Returns the memory, for the bus to map to the host.
    pub fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Places the buffer at `base` of the device's address space, or disables it. Returns false if the range does not
    /// fit.
    pub(super) fn place(&self, base: Option<u64>) -> bool {
        let fits = base.is_none_or(|base| base.checked_add(self.bytes()).is_some());
        self.base.store(base.filter(|_| fits).unwrap_or(NOWHERE), Ordering::Release);
        fits
    }

    #[inline]
    pub(super) fn offset_of(&self, iova: Iova, len: usize) -> Option<usize> {
        let offset = iova.0.checked_sub(self.base.load(Ordering::Acquire))?;
        let end = offset.checked_add(len as u64)?;
        (end <= self.bytes()).then_some(offset as usize)
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let words = self.pages.atomics();
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let word = words.words()[at / 8].load(Ordering::Acquire).to_ne_bytes();
            let skip = at % 8;
            let len = rest.len().min(8 - skip);
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&word[skip..skip + len]);
            at += len;
            rest = tail;
        }
    }

    /// Stores each whole word once; the last store releases the earlier ones.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        let words = self.pages.atomics();
        let mut at = offset;
        let mut rest = from;
        while !rest.is_empty() {
            let slot = &words.words()[at / 8];
            let skip = at % 8;
            let len = rest.len().min(8 - skip);
            let mut word =
                if len == 8 { [0; 8] } else { slot.load(Ordering::Relaxed).to_ne_bytes() };
            word[skip..skip + len].copy_from_slice(&rest[..len]);
            slot.store(u64::from_ne_bytes(word), Ordering::Release);
            at += len;
            rest = &rest[len..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_alignment_reads_back() {
        let cmb = Cmb::new(4096).expect("memory");
        let data: Vec<u8> = (0..61).collect();
        for offset in 0..9 {
            cmb.write(offset, &data);
            let mut back = vec![0; data.len()];
            cmb.read(offset, &mut back);
            assert_eq!(back, data);
        }
        assert!(cmb.place(Some(1 << 40)));
        assert_eq!(cmb.offset_of(Iova((1 << 40) + 4088), 8), Some(4088));
        assert_eq!(cmb.offset_of(Iova((1 << 40) + 4089), 8), None);
        assert!(!cmb.place(Some(u64::MAX - 5)));
    }
}
