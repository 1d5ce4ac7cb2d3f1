//! VFIO calls that vfio-ioctls lacks: the container's address ranges, and whether a reset worked.
//!
//! Answers are parsed from bytes with every offset checked. Linux `include/uapi/linux/vfio.h`.
#![allow(unsafe_code)]

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES,
    VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_TYPE, vfio_iommu_type1_dma_map,
};
use vfio_ioctls::{VfioContainer, VfioError, VfioOps};
use vmm_sys_util::errno::Error as Errno;

use crate::sys::HostRange;

const DEVICE_RESET: u32 = ((VFIO_TYPE as u32) << 8) | (VFIO_BASE + 11);
const IOMMU_GET_INFO: u32 = ((VFIO_TYPE as u32) << 8) | (VFIO_BASE + 12);
const IOMMU_MAP_DMA: u32 = ((VFIO_TYPE as u32) << 8) | (VFIO_BASE + 13);
/// `struct vfio_iommu_type1_info`: argsz, flags, iova_pgsizes (u64), cap_offset, pad.
const INFO_LEN: usize = 24;
/// Far beyond any real answer (a few dozen ranges of 16 bytes).
const INFO_LEN_MAX: usize = 64 << 10;
const SMALL_PAGE: u64 = 4096;

/// The device addresses an IOMMU accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IommuInfo {
    /// Page sizes as a bitmap: bit 12 for 4 KiB.
    pub(super) page_sizes: u64,
    /// The usable address ranges; empty if the kernel reports none.
    pub(super) ranges: Vec<RangeInclusive<u64>>,
}

/// Queries a type 1 container's IOMMU.
pub(super) fn iommu_info(container: BorrowedFd<'_>) -> io::Result<IommuInfo> {
    let mut answer = vec![0u8; INFO_LEN];
    ask(container, &mut answer)?;
    let needed = u32_at(&answer, 0).unwrap_or(0) as usize;
    if needed > INFO_LEN {
        answer.resize(needed.min(INFO_LEN_MAX), 0);
        ask(container, &mut answer)?;
    }
    Ok(parse_info(&answer))
}

fn ask(container: BorrowedFd<'_>, answer: &mut [u8]) -> io::Result<()> {
    // `argsz` tells the kernel how much it may write.
    let argsz = u32::try_from(answer.len()).expect("bounded by INFO_LEN_MAX");
    answer[..4].copy_from_slice(&argsz.to_ne_bytes());
    // SAFETY: the kernel writes at most `argsz` bytes, which is the buffer's length.
    let result =
        unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO.into(), answer.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn parse_info(answer: &[u8]) -> IommuInfo {
    let flags = u32_at(answer, 4).unwrap_or(0);
    let page_sizes = u64_at(answer, 8).filter(|sizes| *sizes != 0);
    let page_sizes =
        page_sizes.filter(|_| flags & VFIO_IOMMU_INFO_PGSIZES != 0).unwrap_or(SMALL_PAGE);
    let first = u32_at(answer, 16).filter(|_| flags & VFIO_IOMMU_INFO_CAPS != 0).unwrap_or(0);
    IommuInfo { page_sizes, ranges: parse_ranges(answer, first as usize) }
}

/// Follows the capability chain to the address ranges. Offsets must grow, so a loop ends.
fn parse_ranges(answer: &[u8], first: usize) -> Vec<RangeInclusive<u64>> {
    let (mut at, mut previous) = (first, 0);
    while at > previous {
        let Some(id) = u32_at(answer, at) else { break };
        // struct vfio_info_cap_header: id u16, version u16, next u32.
        if id & 0xffff == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            let count = u32_at(answer, at + 8).unwrap_or(0) as usize;
            return (0..count).map_while(|index| range_at(answer, at + 16 + 16 * index)).collect();
        }
        previous = at;
        at = u32_at(answer, at + 4).unwrap_or(0) as usize;
    }
    Vec::new()
}

fn range_at(answer: &[u8], at: usize) -> Option<RangeInclusive<u64>> {
    Some(u64_at(answer, at)?..=u64_at(answer, at + 8)?)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no argument and touches no memory of this process.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_RESET.into()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the soft limit on locked memory in bytes; `None` if unlimited.
pub(super) fn memlock_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// Maps this process's memory at `iova`. A type 1 container prevents the device from writing memory it only
/// needs to read; vfio-ioctls has no call for that.
///
/// # Safety
/// The memory stays mapped until [`VfioOps::vfio_dma_unmap`] succeeded for it, and is meanwhile reached only
/// as atomics or raw memory.
pub(super) unsafe fn map(
    iommu: &dyn VfioOps,
    iova: u64,
    memory: HostRange<'_>,
) -> vfio_ioctls::Result<()> {
    let container = iommu.as_any().downcast_ref::<VfioContainer>();
    match container.filter(|_| !memory.is_writable) {
        // SAFETY: the caller promises what the call requires.
        None => unsafe { iommu.vfio_dma_map(iova, memory.len, memory.at.as_ptr()) },
        Some(container) => map_read_only(container, iova, memory),
    }
}

fn map_read_only(
    container: &VfioContainer,
    iova: u64,
    memory: HostRange<'_>,
) -> vfio_ioctls::Result<()> {
    let ask = vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
        flags: VFIO_DMA_MAP_FLAG_READ,
        vaddr: memory.at.as_ptr().expose_provenance() as u64,
        iova,
        size: memory.len as u64,
    };
    // SAFETY: the kernel reads the structure; the device does not write the memory it names.
    let result =
        unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_MAP_DMA.into(), &raw const ask) };
    if result < 0 { Err(VfioError::IommuDmaMap(Errno::last())) } else { Ok(()) }
}

pub(super) fn duplicate(device: &impl AsRawFd) -> io::Result<OwnedFd> {
    borrow(device).try_clone_to_owned()
}

/// Borrows the descriptor of an owner whose type lacks `AsFd`.
pub(super) fn borrow(owner: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: the owner keeps its descriptor open for as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of kernel 6.1 behind a 39-bit VT-d: ranges around the MSI window.
    fn recorded() -> Vec<u8> {
        let mut answer = Vec::new();
        for word in [24 + 48 + 12u32, 3] {
            answer.extend(word.to_ne_bytes());
        }
        answer.extend(0x4020_1000u64.to_ne_bytes());
        answer.extend([24u32, 0].into_iter().flat_map(u32::to_ne_bytes));
        // Capability 3 (mappings left), version 1, next at 40; then padding.
        answer.extend([3 | 1 << 16, 40, 65535, 0].into_iter().flat_map(u32::to_ne_bytes));
        answer.extend([1 | 1 << 16, 0, 2, 0].into_iter().flat_map(u32::to_ne_bytes));
        for bound in [0u64, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff] {
            answer.extend(bound.to_ne_bytes());
        }
        answer
    }

    #[test]
    fn ranges_are_found_behind_another_capability() {
        let info = parse_info(&recorded());
        assert_eq!(info.page_sizes, 0x4020_1000);
        assert_eq!(info.ranges, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn absent_capabilities_and_sizes_fall_back() {
        let mut answer = recorded();
        answer[4..8].fill(0);
        let info = parse_info(&answer);
        assert_eq!(info, IommuInfo { page_sizes: SMALL_PAGE, ranges: Vec::new() });
        assert_eq!(parse_info(&[]).page_sizes, SMALL_PAGE);
    }

    #[test]
    fn truncated_and_looping_chains_end() {
        let whole = recorded();
        for len in 0..whole.len() {
            let info = parse_info(&whole[..len]);
            assert!(info.ranges.len() < 2, "{len} bytes hold only part of the list");
        }
        let mut looping = recorded();
        looping[28..32].copy_from_slice(&24u32.to_ne_bytes());
        assert!(parse_info(&looping).ranges.is_empty());
        looping[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(parse_info(&looping).ranges.is_empty());
    }

    #[test]
    fn the_memlock_limit_is_readable() {
        assert!(memlock_limit().is_none_or(|limit| limit > 0));
    }
}
