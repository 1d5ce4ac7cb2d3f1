//! One region of the device (a BAR or its configuration space).
//!
//! Mapped as far as allowed; the rest is read and written through the device file. A failing access reads as
//! all ones, as on PCIe.

use std::ops::Range;
use std::sync::Arc;

use vfio_bindings::bindings::vfio::{VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_WRITE};
use vfio_ioctls::{VfioDevice, VfioRegionInfoCap};

use super::config::MsixTable;
use super::ioctl;
use crate::bus::mapped::MappedRuns;
use crate::sys::Window;

const PAGE: u64 = 4096;

/// A region by its index; BARs come first.
pub(super) struct VfioRegion {
    device: Arc<VfioDevice>,
    index: u32,
    len: u64,
    mapped: MappedRuns,
}

impl VfioRegion {
    /// Returns the region, accessed through the device file alone.
    pub(super) fn unmapped(device: &Arc<VfioDevice>, index: u32) -> VfioRegion {
        let len = device.get_region_size(index);
        VfioRegion { device: Arc::clone(device), index, len, mapped: MappedRuns::default() }
    }

    /// Returns the region with all its mappable runs mapped.
    pub(super) fn mapped(
        device: &Arc<VfioDevice>,
        index: u32,
        msix: Option<MsixTable>,
    ) -> std::io::Result<VfioRegion> {
        let mut region = VfioRegion::unmapped(device, index);
        for area in region.mappable(msix) {
            let window = region.map(area.start, area.end - area.start)?;
            region.mapped.push(area.start, window);
        }
        Ok(region)
    }

    /// Maps a run of the region, which must be mappable.
    pub(super) fn map(&self, offset: u64, len: u64) -> std::io::Result<Window> {
        let at = self.device.get_region_offset(self.index) + offset;
        let len = usize::try_from(len).map_err(std::io::Error::other)?;
        Window::map(ioctl::borrow(&*self.device), at, len)
    }

    pub(super) fn mappable(&self, msix: Option<MsixTable>) -> Vec<Range<u64>> {
        let flags = self.device.get_region_flags(self.index);
        let both = VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_WRITE;
        if flags & both != both {
            return Vec::new();
        }
        let table = msix.filter(|table| u32::from(table.bar) == self.index);
        mappable(self.len, &self.device.get_region_caps(self.index), table)
    }

    /// Returns the length in bytes; 0 for an absent region.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the window that holds `width` bytes at `offset`, and their offset in it.
    pub(super) fn window(&self, offset: u64, width: u64) -> Option<(&Window, usize)> {
        self.mapped.find(offset, width)
    }

    pub(super) fn read16(&self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }

    pub(super) fn write16(&self, offset: u64, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }

    pub(super) fn read32(&self, offset: u64) -> u32 {
        match self.window(offset, 4) {
            Some((window, inside)) => window.read32(inside),
            None => u32::from_le_bytes(self.read(offset)),
        }
    }

    pub(super) fn write32(&self, offset: u64, value: u32) {
        match self.window(offset, 4) {
            Some((window, inside)) => window.write32(inside, value),
            None => self.write(offset, &value.to_le_bytes()),
        }
    }

    pub(super) fn read64(&self, offset: u64) -> u64 {
        match self.window(offset, 8) {
            Some((window, inside)) => window.read64(inside),
            None => u64::from_le_bytes(self.read(offset)),
        }
    }

    pub(super) fn write64(&self, offset: u64, value: u64) {
        match self.window(offset, 8) {
            Some((window, inside)) => window.write64(inside, value),
            None => self.write(offset, &value.to_le_bytes()),
        }
    }

    /// Reads through the device file. On failure, vfio-ioctls leaves the buffer unchanged.
    pub(super) fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [u8::MAX; N];
        self.device.region_read(self.index, &mut bytes, offset);
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.device.region_write(self.index, bytes, offset);
    }
}

/// Returns the page-aligned runs that may be mapped in a region of `len` bytes.
///
/// A sparse-mmap capability lists them; a kernel that can map the MSI-X table says so; an older one cannot
/// map the table's pages.
fn mappable(len: u64, caps: &[VfioRegionInfoCap], table: Option<MsixTable>) -> Vec<Range<u64>> {
    let sparse = caps.iter().find_map(|cap| match cap {
        VfioRegionInfoCap::SparseMmap(sparse) => Some(&sparse.areas),
        _ => None,
    });
    if let Some(areas) = sparse {
        let ends = areas.iter().map(|area| area.offset..area.offset.saturating_add(area.size));
        let mut runs: Vec<_> = ends.filter_map(|area| whole_pages(area, len)).collect();
        runs.sort_unstable_by_key(|run| run.start);
        return runs;
    }
    let whole = whole_pages(0..len, len);
    match table {
        Some(table) if !caps.contains(&VfioRegionInfoCap::MsixMappable) => {
            let first = table.offset / PAGE * PAGE;
            let past = (table.offset + table.len).next_multiple_of(PAGE);
            [0..first, past..len].into_iter().filter_map(|run| whole_pages(run, len)).collect()
        }
        _ => whole.into_iter().collect(),
    }
}

fn whole_pages(run: Range<u64>, len: u64) -> Option<Range<u64>> {
    let start = run.start.checked_next_multiple_of(PAGE)?;
    let end = run.end.min(len) / PAGE * PAGE;
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

    use super::*;
    use vfio_ioctls::{VfioRegionInfoCapSparseMmap, VfioRegionSparseMmapArea};

    const TABLE: MsixTable = MsixTable { bar: 0, offset: 0x2000, len: 65 * 16 };

    fn sparse(areas: &[(u64, u64)]) -> VfioRegionInfoCap {
        let areas =
            areas.iter().map(|&(offset, size)| VfioRegionSparseMmapArea { offset, size }).collect();
        VfioRegionInfoCap::SparseMmap(VfioRegionInfoCapSparseMmap { areas })
    }

    #[test]
    fn everything_is_mapped_where_the_kernel_allows_it() {
        assert_eq!(mappable(0x4000, &[], None), [0..0x4000]);
        assert_eq!(mappable(0x4000, &[VfioRegionInfoCap::MsixMappable], Some(TABLE)), [0..0x4000]);
    }

    #[test]
    fn the_table_pages_are_left_out_on_older_kernels() {
        assert_eq!(mappable(0x4000, &[], Some(TABLE)), [0..0x2000, 0x3000..0x4000]);
        let at_the_end = MsixTable { offset: 0x3800, len: 0x800, bar: 0 };
        assert_eq!(mappable(0x4000, &[], Some(at_the_end)), [0..0x3000]);
        let at_the_start = MsixTable { offset: 0, len: 16, bar: 0 };
        assert_eq!(mappable(0x1000, &[], Some(at_the_start)), []);
    }

    #[test]
    fn sparse_areas_are_clipped_to_whole_pages_of_the_region() {
        let caps = [sparse(&[(0x3000, 0x9000), (0x800, 0x1800), (u64::MAX, 2), (0x1000, 0)])];
        assert_eq!(mappable(0x4000, &caps, Some(TABLE)), [0x1000..0x2000, 0x3000..0x4000]);
        assert_eq!(mappable(0x4000, &[sparse(&[])], None), []);
    }
}
