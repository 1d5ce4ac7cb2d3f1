//! The device's view of host memory: an IOMMU, its free addresses, its mappings.
//!
//! One mapping per region, however large: the container limits the number of mappings. Addresses come from
//! the ranges that the IOMMU reports, never from virtual addresses, so a 39-bit IOMMU needs nothing special.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vfio_ioctls::VfioOps;

use super::explain;
use super::ioctl::{self, IommuInfo};
use crate::bus::iova::IovaSpace;
use crate::error::{Error, Result};
use crate::sys::HostRange;

/// Range for kernels that report none (before 5.4): above every platform's interrupt window, and within the
/// smallest VT-d address width.
const FALLBACK: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;
/// Smallest page a bus maps.
const PAGE: u64 = 4096;

pub(super) struct Dma {
    device: String,
    iommu: Arc<dyn VfioOps>,
    /// Bit n: the IOMMU has pages of 2^n bytes.
    page_sizes: u64,
    state: Mutex<Mappings>,
}

struct Mappings {
    space: IovaSpace,
    /// Address -> length of each mapping.
    live: BTreeMap<u64, u64>,
    /// Nothing is mapped any more, nor can be.
    is_cut_off: bool,
}

impl Dma {
    pub(super) fn new(device: &str, iommu: Arc<dyn VfioOps>, info: &IommuInfo) -> Dma {
        let fallback = [FALLBACK];
        let ranges = if info.ranges.is_empty() { &fallback } else { info.ranges.as_slice() };
        let granule = granule(info.page_sizes);
        let state = Mappings {
            space: IovaSpace::new(ranges, granule),
            live: BTreeMap::new(),
            is_cut_off: false,
        };
        Dma {
            device: device.to_owned(),
            iommu,
            page_sizes: info.page_sizes,
            state: Mutex::new(state),
        }
    }

    /// Maps memory; see [`crate::bus::Bus::map`].
    pub(super) fn map(&self, memory: HostRange<'_>) -> Result<u64> {
        let len = memory.len as u64;
        self.check_shape(memory)?;
        let mut state = self.connected()?;
        let iova = self.take(&mut state, len)?;
        // SAFETY: a host range is DMA memory that its owner keeps mapped and reaches only as shared memory
        // until `unmap` succeeded, which is the contract of `Bus::map`.
        let result = unsafe { ioctl::map(&*self.iommu, iova, memory) };
        if let Err(error) = result {
            state.space.free(iova, len);
            let mapped = state.live.values().sum();
            return Err(explain::map_failed(&self.device, len, mapped, &error));
        }
        state.live.insert(iova, len);
        Ok(iova)
    }

    /// Maps a file; see [`crate::bus::Bus::map_file`].
    pub(super) fn map_file(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64> {
        self.check_alignment("a file", offset, len)?;
        let mut state = self.connected()?;
        let iova = self.take(&mut state, len)?;
        if let Err(error) = super::iommu::map_file(&*self.iommu, file, offset, len, iova) {
            state.space.free(iova, len);
            return Err(explain::map_file_failed(&self.device, len, &error));
        }
        state.live.insert(iova, len);
        Ok(iova)
    }

    /// Removes a mapping; its address may be reused only on success.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> Result<()> {
        let mut state = self.state();
        if state.is_cut_off {
            return Ok(());
        }
        if state.live.get(&iova) != Some(&len) {
            return Err(Error::invalid(
                format!("unmapping {len} bytes at device address {iova:#x}"),
                "no such mapping was made",
            ));
        }
        self.unmap_now(iova, len)?;
        state.live.remove(&iova);
        state.space.free(iova, len);
        Ok(())
    }

    /// Reserves addresses; see [`crate::bus::Bus::reserve`].
    pub(super) fn reserve(&self, len: u64) -> Result<u64> {
        self.take(&mut self.state(), len)
    }

    /// Unmaps everything for good; see [`crate::bus::Bus::cut_off`].
    pub(super) fn cut_off(&self) -> Result<()> {
        let mut state = self.state();
        while let Some((&iova, &len)) = state.live.first_key_value() {
            self.unmap_now(iova, len)?;
            state.live.remove(&iova);
        }
        state.is_cut_off = true;
        Ok(())
    }

    /// Unmaps everything left. A mapping that cannot be removed stays with the container, which ends with the
    /// device file.
    pub(super) fn unmap_all(&self) {
        for (iova, len) in std::mem::take(&mut self.state().live) {
            let _ = self.unmap_now(iova, len);
        }
    }

    fn unmap_now(&self, iova: u64, len: u64) -> Result<()> {
        let bytes = usize::try_from(len).expect("mapped from a range of this process");
        self.iommu.vfio_dma_unmap(iova, bytes).map_err(|error| {
            Error::refused(
                &self.device,
                format!("cannot unmap {len} bytes at device address {iova:#x}"),
                error,
                "the memory stays reserved; look for vfio in the kernel log (dmesg)",
            )
        })
    }

    fn take(&self, state: &mut Mappings, len: u64) -> Result<u64> {
        state.space.place(&self.device, len, alignment(self.page_sizes, len))
    }

    fn check_shape(&self, memory: HostRange<'_>) -> Result<()> {
        self.check_alignment("memory", memory.at.addr().get() as u64, memory.len as u64)
    }

    fn check_alignment(&self, what: &str, start: u64, len: u64) -> Result<()> {
        let granule = granule(self.page_sizes);
        if start.is_multiple_of(granule) && len > 0 && len.is_multiple_of(granule) {
            return Ok(());
        }
        Err(Error::invalid(
            format!("mapping {len} bytes of {what} at {start:#x}"),
            format!("address and length must be multiples of the IOMMU's page of {granule} bytes"),
        ))
    }

    /// Returns the state, unless the device was cut off.
    fn connected(&self) -> Result<MutexGuard<'_, Mappings>> {
        let state = self.state();
        if state.is_cut_off {
            let why = "it could not be reset";
            let fix = "close it and open it again";
            return Err(Error::refused(&self.device, "cut off from all memory", why, fix));
        }
        Ok(state)
    }

    fn state(&self) -> MutexGuard<'_, Mappings> {
        // The lock is never held across a panic that leaves the maps half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the smallest unit of address space that can be mapped.
fn granule(page_sizes: u64) -> u64 {
    (1u64 << page_sizes.trailing_zeros().min(63)).max(PAGE)
}

/// Returns the largest IOMMU page that fits in `len` bytes, so that the mapping can use it.
fn alignment(page_sizes: u64, len: u64) -> u64 {
    let fitting = (12..=30).rev().map(|bit| 1u64 << bit);
    fitting.into_iter().find(|size| page_sizes & size != 0 && *size <= len).unwrap_or(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Backing, HostMemory};
    use std::any::Any;
    use std::os::fd::AsFd;
    use vfio_ioctls::VfioError;
    use vmm_sys_util::errno::Error as Errno;

    const SIZES: u64 = 1 << 12 | 1 << 21 | 1 << 30;

    /// An IOMMU that records mappings, or refuses with an error number.
    #[derive(Default)]
    struct Fake {
        mapped: Mutex<Vec<(u64, usize)>>,
        refuse_map: i32,
        refuse_unmap: bool,
    }

    impl VfioOps for Fake {
        unsafe fn vfio_dma_map(
            &self,
            iova: u64,
            len: usize,
            _: *mut u8,
        ) -> vfio_ioctls::Result<()> {
            if self.refuse_map != 0 {
                return Err(VfioError::IommuDmaMap(Errno::new(self.refuse_map)));
            }
            self.mapped.lock().expect("lock").push((iova, len));
            Ok(())
        }

        fn vfio_dma_unmap(&self, iova: u64, len: usize) -> vfio_ioctls::Result<()> {
            if self.refuse_unmap {
                return Err(VfioError::InvalidDmaUnmapSize);
            }
            self.mapped.lock().expect("lock").retain(|mapping| *mapping != (iova, len));
            Ok(())
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn dma(fake: Fake) -> (Arc<Fake>, Dma) {
        let fake = Arc::new(fake);
        let info = IommuInfo { page_sizes: SIZES, ranges: vec![0..=0xfedf_ffff] };
        let iommu: Arc<dyn VfioOps> = Arc::<Fake>::clone(&fake);
        (fake, Dma::new("vfio:test", iommu, &info))
    }

    fn memory(len: usize) -> HostMemory {
        HostMemory::allocate(len, Backing::Any, &|_, _| ()).expect("memory")
    }

    #[test]
    fn a_mapping_comes_and_goes_and_its_address_is_reused() {
        let (fake, dma) = dma(Fake::default());
        let memory = memory(8192);
        let iova = dma.map(memory.range()).expect("mapped");
        assert_eq!(*fake.mapped.lock().expect("lock"), [(iova, 8192)]);
        assert!(dma.unmap(iova, 4096).is_err(), "half a mapping is not one");
        dma.unmap(iova, 8192).expect("unmapped");
        assert!(dma.unmap(iova, 8192).is_err(), "gone already");
        assert_eq!(dma.map(memory.range()).expect("again"), iova);
        dma.unmap_all();
        assert!(fake.mapped.lock().expect("lock").is_empty());
    }

    #[test]
    fn a_refused_mapping_takes_no_addresses() {
        let (_, dma) = dma(Fake { refuse_map: libc::ENOSPC, ..Fake::default() });
        let before = dma.state().space.free_bytes();
        let error = dma.map(memory(4096).range()).expect_err("refused").to_string();
        assert!(error.contains("dma_entry_limit"), "{error}");
        assert_eq!(dma.state().space.free_bytes(), before);
    }

    #[test]
    fn a_container_maps_no_files_and_keeps_its_addresses() {
        let (_, dma) = dma(Fake::default());
        let before = dma.state().space.free_bytes();
        let file = std::fs::File::open("/dev/null").expect("a file");
        let error = dma.map_file(file.as_fd(), 0, 4096).expect_err("refused").to_string();
        assert!(error.contains("iommufd"), "{error}");
        assert!(dma.map_file(file.as_fd(), 8, 4096).is_err(), "not a page's start");
        assert_eq!(dma.state().space.free_bytes(), before);
    }

    #[test]
    fn a_failed_unmap_keeps_the_address_taken() {
        let (_, dma) = dma(Fake { refuse_unmap: true, ..Fake::default() });
        let memory = memory(4096);
        let iova = dma.map(memory.range()).expect("mapped");
        assert!(dma.unmap(iova, 4096).is_err());
        assert_ne!(dma.map(memory.range()).expect("elsewhere"), iova);
    }

    #[test]
    fn cut_off_unmaps_everything_for_good_or_fails() {
        let (fake, cut) = dma(Fake::default());
        let memory = memory(8192);
        let (first, _) = (cut.map(memory.range()).expect("mapped"), cut.map(memory.range()));
        cut.cut_off().expect("unmapped");
        assert!(fake.mapped.lock().expect("lock").is_empty());
        cut.unmap(first, 8192).expect("nothing is mapped there");
        let error = cut.map(memory.range()).expect_err("for good").to_string();
        assert!(error.contains("cut off"), "{error}");
        let (_, stuck) = dma(Fake { refuse_unmap: true, ..Fake::default() });
        stuck.map(memory.range()).expect("mapped");
        stuck.cut_off().expect_err("what cannot be unmapped can still be written");
        stuck.map(memory.range()).expect("not cut off");
    }

    #[test]
    fn large_mappings_lie_so_that_large_pages_fit() {
        assert_eq!(alignment(SIZES, 4096), 4096);
        assert_eq!(alignment(SIZES, 3 << 20), 2 << 20);
        assert_eq!(alignment(SIZES, 5 << 30), 1 << 30);
        assert_eq!(alignment(1 << 12, 5 << 30), 4096);
        assert_eq!(granule(1 << 16 | 1 << 29), 1 << 16);
        assert_eq!(granule(0xffff_ffff_ffff_f000), 4096);
    }

    #[test]
    fn without_room_or_ranges_the_space_is_what_it_must_be() {
        let (_, dma) = dma(Fake::default());
        let error = dma.reserve(1 << 40).expect_err("too much").to_string();
        assert!(error.contains("address space"), "{error}");
        let unknown = IommuInfo { page_sizes: SIZES, ranges: Vec::new() };
        let dma = Dma::new("vfio:test", Arc::new(Fake::default()), &unknown);
        assert!(FALLBACK.contains(&dma.reserve(4096).expect("room")));
    }
}
