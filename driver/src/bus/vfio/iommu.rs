//! Opens a device and its IOMMU.
//!
//! Through a container and the device's group (type 1 version 2), which every kernel has, or through iommufd
//! and the device's own file if this build has the feature `iommufd` and the kernel offers both.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioOps};

use super::admission::Admitted;
use super::explain;
use super::ioctl::{self, IommuInfo};
use crate::error::{Error, Result};

pub(super) struct Opened {
    pub(super) device: VfioDevice,
    pub(super) iommu: Arc<dyn VfioOps>,
    pub(super) info: IommuInfo,
}

pub(super) fn open(name: &str, admitted: &Admitted) -> Result<Opened> {
    let sysfs = admitted.function.directory();
    #[cfg(feature = "iommufd")]
    if super::iommufd::is_offered(sysfs) {
        return super::iommufd::open(name, sysfs);
    }
    let refused = |error: VfioError| explain::open_failed(name, &admitted.group_file, &error);
    let container = Arc::new(VfioContainer::new(None).map_err(refused)?);
    let iommu: Arc<dyn VfioOps> = Arc::<VfioContainer>::clone(&container);
    let device = open_device(sysfs, &iommu).map_err(refused)?;
    let info = ioctl::iommu_info(ioctl::borrow(&*container)).map_err(|why| {
        Error::refused(name, "cannot ask the IOMMU for its ranges", why, "see dmesg for vfio")
    })?;
    Ok(Opened { device, iommu, info })
}

/// Maps `len` bytes from `offset` of `file` at `iova`; only iommufd can.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::Unsupported`] without iommufd.
pub(super) fn map_file(
    iommu: &dyn VfioOps,
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    iova: u64,
) -> io::Result<()> {
    #[cfg(feature = "iommufd")]
    if let Some(mapped) = super::iommufd::map_file(iommu, file, offset, len, iova) {
        return mapped;
    }
    let _ = (iommu, file, offset, len, iova);
    let why =
        "the device was opened through a VFIO container, which maps no files; only iommufd does";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

fn open_device(sysfs: &Path, iommu: &Arc<dyn VfioOps>) -> vfio_ioctls::Result<VfioDevice> {
    VfioDevice::new(sysfs, Arc::clone(iommu), false)
}
