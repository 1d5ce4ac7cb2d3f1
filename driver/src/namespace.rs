//! A namespace as the driver uses it: its size and the limits of its commands.
//!
//! Everything a command needs to be checked and planned is here, converted and
//! validated once when the namespace was opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::DomainId;
use crate::spec::Nsid;
use crate::spec::identify::IdentifyNamespace;
use crate::transfer::{LIST_PAGES_PER_COMMAND, Limits, PAGE_BYTES, SglSupport};

/// An active namespace of a controller. Commands are made by its methods
/// (`read`, `write`, `flush`, ...) and sent through any queue pair of the same controller.
#[derive(Clone, Debug)]
pub struct Namespace {
    nsid: Nsid,
    /// Shared by all handles; follows what the controller reports.
    lba_count: Arc<AtomicU64>,
    limits: Limits,
    /// The bits of a length that is not whole LBAs.
    lba_mask: u64,
    /// The bits of an address or length that keep a buffer from being an SGL data block.
    sgl_mask: u64,
    domain: DomainId,
    /// Keeps the domain's number from being used again for another controller.
    _bus: Weak<dyn Bus>,
    identify: Box<IdentifyNamespace>,
}

/// What the controller contributes to a namespace's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControllerLimits<'a> {
    pub(crate) device: &'a str,
    pub(crate) bus: &'a Arc<dyn Bus>,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) sgl: SglSupport,
}

impl Namespace {
    /// Checks what Identify says of a namespace and converts it.
    /// `share` gives the count that all handles of the namespace share, for its LBA size and count.
    ///
    /// # Errors
    /// [`Error::Device`] for an inactive namespace and for a format this driver does not read or write:
    /// LBAs other than 512 to 4096 bytes, metadata, protection information, or an
    /// MDTS that does not hold one LBA.
    pub(crate) fn new(
        nsid: Nsid,
        identify: Box<IdentifyNamespace>,
        controller: ControllerLimits<'_>,
        share: impl FnOnce(u32, u64) -> Arc<AtomicU64>,
    ) -> Result<Namespace> {
        let lba_bytes = lba_bytes(nsid, &identify, controller.device)?;
        let lba_shift = lba_bytes.trailing_zeros();
        let most = u64::from(lba_bytes) << 16;
        let max_bytes = controller.max_transfer_bytes.min(most);
        if max_bytes < u64::from(lba_bytes) {
            let what = format!(
                "one transfer holds {max_bytes} bytes (MDTS), which is less than the {lba_bytes}-byte LBA of namespace {nsid}"
            );
            return Err(Error::device(controller.device, what, FORMAT_FIX));
        }
        let limits = Limits {
            lba_shift,
            max_bytes: max_bytes & !u64::from(lba_bytes - 1),
            boundary_lbas: identify.noiob().unwrap_or(0),
            sgl: controller.sgl,
            list_pages: LIST_PAGES_PER_COMMAND,
            bounce_bytes: PAGE_BYTES,
        };
        let lba_count = share(lba_bytes, identify.nsze_lbas.get());
        Ok(Namespace {
            nsid,
            lba_count,
            limits,
            lba_mask: u64::from(lba_bytes - 1),
            sgl_mask: match controller.sgl {
                SglSupport::None => u64::MAX,
                SglSupport::Byte => 0,
                SglSupport::Dword => 3,
            },
            domain: DomainId::of(controller.bus),
            _bus: Arc::downgrade(controller.bus),
            identify,
        })
    }

    /// The namespace's identifier.
    #[inline(always)]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// LBAs of the namespace (NSZE), as [`crate::Controller::poll`] last learned: 0 once it is gone.
    #[inline(always)]
    pub fn lba_count(&self) -> u64 {
        self.lba_count.load(Ordering::Relaxed)
    }

    /// Data bytes of one LBA: 512 to 4096, a power of two.
    pub fn lba_bytes(&self) -> u32 {
        1 << self.limits.lba_shift
    }

    /// Bytes of the namespace.
    pub fn bytes(&self) -> u64 {
        self.lba_count() << self.limits.lba_shift
    }

    /// The bounds of one command to this namespace.
    #[inline(always)]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Identify Namespace as the controller gave it when it was opened (NVM Command Set 1.0 section 4.1.5.1).
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.identify
    }

    #[inline(always)]
    pub(crate) fn lba_mask(&self) -> u64 {
        self.lba_mask
    }

    #[inline(always)]
    pub(crate) fn sgl_mask(&self) -> u64 {
        self.sgl_mask
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.domain
    }
}

const FORMAT_FIX: &str = "choose another namespace (ns=N), or format it under the kernel's driver with `nvme format`, which erases it";

/// Bytes of an LBA of a namespace that this driver can read and write.
///
/// # Errors
/// [`Error::Device`] for one it cannot.
pub(crate) fn lba_bytes(nsid: Nsid, identify: &IdentifyNamespace, device: &str) -> Result<u32> {
    let refuse =
        |what: String| Err(Error::device(device, format!("namespace {nsid}: {what}"), FORMAT_FIX));
    if !identify.is_active() || identify.nsze_lbas.get() >= 1 << 52 {
        return refuse(format!("not an active namespace ({} LBAs)", identify.nsze_lbas));
    }
    let Some(format) = identify.lba_format() else {
        return refuse(format!("its LBA format {} is not in its table", identify.format_index()));
    };
    if format.ms_bytes.get() != 0 || identify.protection_type() != 0 {
        return refuse(format!(
            "{} bytes of metadata for each LBA, which this driver does not carry",
            format.ms_bytes
        ));
    }
    match format.lba_bytes() {
        Some(bytes @ 512..=4096) if bytes.is_power_of_two() => Ok(bytes),
        _ => refuse(format!("LBAs of 2^{} bytes; this driver takes 512 to 4096", format.lbads)),
    }
}
