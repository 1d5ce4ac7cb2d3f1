//! Access to an IOMMU through iommufd and the device's own file.
//!
//! Offered if the kernel has `/dev/iommu` and the function a directory `vfio-dev` in sysfs (Linux 6.6,
//! `CONFIG_VFIO_DEVICE_CDEV`). It has no limit on the number of mappings. vfio-ioctls does not query the
//! usable ranges, so this module does (Linux `include/uapi/linux/iommufd.h`).
#![allow(unsafe_code)]

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use iommufd_ioctls::{IommuFd, IommufdError};
use vfio_ioctls::{VfioDevice, VfioError, VfioIommufd, VfioOps};

use super::explain;
use super::ioctl::IommuInfo;
use super::iommu::Opened;
use crate::error::{Error, Result};

const DEVICE: &str = "/dev/iommu";
const IOAS_IOVA_RANGES: u32 = 0x3b84;
/// More ranges than any platform leaves between its reserved ones.
const RANGES_MAX: usize = 256;
/// iommufd picks the IOMMU's page sizes itself; alignment to these helps it.
const LARGE_PAGES: u64 = 1 << 21 | 1 << 30;

/// `struct iommu_ioas_iova_ranges`.
#[repr(C)]
struct IovaRanges {
    size: u32,
    ioas_id: u32,
    count: u32,
    reserved: u32,
    allowed: u64,
    alignment: u64,
}

const _: () = assert!(size_of::<IovaRanges>() == 32);

/// Returns whether this kernel offers iommufd for the function described at `sysfs`.
pub(super) fn is_offered(sysfs: &Path) -> bool {
    Path::new(DEVICE).exists() && sysfs.join("vfio-dev").is_dir()
}

/// Opens the device, bound and attached to its own address space.
pub(super) fn open(name: &str, sysfs: &Path) -> Result<Opened> {
    let refused = |error: VfioError| explain::open_failed(name, Path::new(DEVICE), &error);
    let iommufd = Arc::new(IommuFd::new().map_err(|why| refused(VfioError::NewVfioIommufd(why)))?);
    let space = Arc::new(VfioIommufd::new(Arc::clone(&iommufd), None, None).map_err(refused)?);
    let iommu: Arc<dyn VfioOps> = Arc::<VfioIommufd>::clone(&space);
    let device = VfioDevice::new(sysfs, Arc::clone(&iommu), true).map_err(refused)?;
    let info = iova_ranges(&iommufd, space.ioas().id()).map_err(|why| {
        Error::refused(name, "cannot ask the IOMMU for its ranges", why, "see dmesg for iommufd")
    })?;
    Ok(Opened { device, iommu, info })
}

/// Maps a file (`IOMMU_IOAS_MAP_FILE`, Linux 6.13); `None` if `iommu` is not an iommufd.
pub(super) fn map_file(
    iommu: &dyn VfioOps,
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    iova: u64,
) -> Option<io::Result<()>> {
    let space = iommu.as_any().downcast_ref::<VfioIommufd>()?.ioas();
    let mapped = space.map_file(file.as_raw_fd(), offset, len, iova, true);
    Some(mapped.map_err(|error| match error {
        IommufdError::IommuIoasMapFile(why) => io::Error::from_raw_os_error(why.errno()),
        other => io::Error::other(other),
    }))
}

fn iova_ranges(iommufd: &IommuFd, ioas_id: u32) -> io::Result<IommuInfo> {
    let mut allowed = [[0u64; 2]; RANGES_MAX];
    let mut request = IovaRanges {
        size: size_of::<IovaRanges>() as u32,
        ioas_id,
        count: RANGES_MAX as u32,
        reserved: 0,
        allowed: allowed.as_mut_ptr().expose_provenance() as u64,
        alignment: 0,
    };
    // SAFETY: the kernel writes the request and at most `count` pairs at `allowed`, both alive here.
    let result =
        unsafe { libc::ioctl(iommufd.as_raw_fd(), IOAS_IOVA_RANGES.into(), &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let count = (request.count as usize).min(RANGES_MAX);
    let ranges: Vec<RangeInclusive<u64>> =
        allowed[..count].iter().map(|&[start, last]| start..=last).collect();
    let granule = request.alignment.max(1).next_power_of_two();
    Ok(IommuInfo { page_sizes: granule | LARGE_PAGES, ranges })
}
