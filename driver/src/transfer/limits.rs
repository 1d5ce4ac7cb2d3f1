//! Limits that a controller and namespace set for one command.

use super::{PAGE_BYTES, PRPS_PER_PAGE};

/// Scatter-gather lists as the controller takes them (Identify Controller, SGLS bits 1:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglSupport {
    /// PRPs only.
    None,
    /// Data blocks at any byte address and of any length.
    Byte,
    /// Data blocks whose address and length are multiples of 4.
    Dword,
}

/// The limits of one command, constant while a namespace is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Log2 of the LBA's data size in bytes.
    pub lba_shift: u32,
    /// The most data bytes of one command, by MDTS, NLB and, without SGLs, the longest list; a multiple of the LBA
    /// size.
    pub max_bytes: u64,
    /// Commands should not cross a multiple of this many LBAs (NOIOB); 0 for no boundary.
    pub boundary_lbas: u32,
    /// Whether SGLs may be used.
    pub sgl: SglSupport,
    /// The most list pages one command may take.
    pub list_pages: usize,
    /// Bytes one command may bounce; at least one LBA.
    pub bounce_bytes: u64,
}

impl Limits {
    /// Returns the bytes of one LBA.
    #[inline]
    pub fn lba_bytes(&self) -> u64 {
        1 << self.lba_shift
    }

    /// Returns the most entries of a PRP list of `list_pages`: each page but the last ends with a chain
    /// pointer.
    pub fn max_prp_entries(&self) -> u64 {
        match self.list_pages as u64 {
            0 => 1,
            pages => pages * (PRPS_PER_PAGE - 1) + 1,
        }
    }

    /// Returns the most data descriptors of an SGL of `list_pages`; one, inline, without a list.
    pub fn max_sgl_descriptors(&self) -> u64 {
        let per_page = PAGE_BYTES / 16;
        match self.list_pages as u64 {
            0 => 1,
            pages => pages * (per_page - 1) + 1,
        }
    }

    /// Returns the bytes from `lba` to the next boundary, or `u64::MAX` without one.
    pub fn to_boundary_bytes(&self, lba: u64) -> u64 {
        match u64::from(self.boundary_lbas) {
            0 => u64::MAX,
            boundary => (boundary - lba % boundary) << self.lba_shift,
        }
    }

    /// Checks the invariants of a constructed value.
    ///
    /// # Panics
    /// If a limit contradicts itself: a bug of this crate in reading Identify data.
    pub(crate) fn assert_sound(&self) {
        assert!((9..=16).contains(&self.lba_shift), "LBA size was checked at open");
        assert!(self.max_bytes >= self.lba_bytes(), "a command holds at least one LBA");
        assert!(self.max_bytes.is_multiple_of(self.lba_bytes()), "a command holds whole LBAs");
        assert!(self.bounce_bytes >= self.lba_bytes(), "one LBA can be bounced");
    }
}
