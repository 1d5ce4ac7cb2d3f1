//! A namespace as the driver uses it: its size and the limits of its commands.
//!
//! Holds everything needed to check and plan a command, converted and validated once when the namespace is
//! opened.

mod limits;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::DomainId;
use crate::protection::{Prinfo, Protection, ProtectionChecks};
use crate::spec::Nsid;
use crate::spec::identify::{Ctratt, IdentifyNamespace, IdentifyNvmNamespace};
use crate::transfer::{LIST_PAGES_PER_COMMAND, Limits, PAGE_BYTES, SglSupport};

pub use self::limits::OverLimit;
pub(crate) use self::limits::{CommandLimits, Ranges};

/// An active namespace of a controller. Its methods (`read`, `write`, `flush`, ...) build commands, which any
/// queue pair of the same controller takes.
#[derive(Clone, Debug)]
pub struct Namespace {
    nsid: Nsid,
    /// Shared by all handles; follows the controller's reports.
    lba_count: Arc<AtomicU64>,
    limits: Limits,
    command_limits: CommandLimits,
    /// Neither SGLs, nor a boundary, nor protection: a command says as little as it can.
    is_plain: bool,
    /// The most LBAs of one command.
    max_lbas: u64,
    /// Whether the controller takes SGLs.
    takes_sgls: bool,
    /// The address or length bits that rule out an SGL data block if set.
    sgl_mask: u64,
    prinfo: Prinfo,
    protection: Option<Protection>,
    domain: DomainId,
    /// Prevents reuse of the domain's number for another controller.
    _bus: Weak<dyn Bus>,
    identify: Box<IdentifyNamespace>,
}

/// The controller's part of a namespace's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControllerLimits<'a> {
    pub(crate) device: &'a str,
    pub(crate) bus: &'a Arc<dyn Bus>,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) sgl: SglSupport,
    pub(crate) commands: CommandLimits,
}

impl Namespace {
    /// Validates and converts a namespace's Identify data; `extended` is its CNS 05h, if any. `share` returns
    /// the LBA count that all handles of the namespace share, given its shape and count.
    ///
    /// # Errors
    /// [`Error::Device`] for an inactive namespace, an MDTS smaller than one LBA, and unsupported formats:
    /// LBAs other than 512 to 4096 bytes, metadata other than 8 bytes of protection information.
    pub(crate) fn new(
        nsid: Nsid,
        identify: Box<IdentifyNamespace>,
        extended: Option<&IdentifyNvmNamespace>,
        controller: ControllerLimits<'_>,
        share: impl FnOnce(Shape, u64) -> Arc<AtomicU64>,
    ) -> Result<Namespace> {
        let Format { lba_bytes, protection } =
            format(nsid, &identify, extended, controller.device)?;
        let lba_shift = lba_bytes.trailing_zeros();
        let most = u64::from(lba_bytes) << 16;
        let max_bytes = controller.max_transfer_bytes.min(most);
        if max_bytes < u64::from(lba_bytes) {
            let what = format!(
                "one transfer holds {max_bytes} bytes (MDTS), which is less than the {lba_bytes}-byte LBA of namespace {nsid}"
            );
            return Err(Error::device(controller.device, what, FORMAT_FIX));
        }
        let mut limits = Limits {
            lba_shift,
            max_bytes: max_bytes & !u64::from(lba_bytes - 1),
            boundary_lbas: boundary_lbas(&identify, lba_bytes),
            sgl: controller.sgl,
            list_pages: LIST_PAGES_PER_COMMAND,
            bounce_bytes: PAGE_BYTES,
        };
        if controller.sgl == SglSupport::None {
            limits.max_bytes = limits.max_bytes.min(limits.max_prp_entries() * PAGE_BYTES);
        }
        let shape = Shape::of(&identify).expect("a format that is taken is valid");
        let lba_count = share(shape, identify.nsze_lbas.get());
        Ok(Namespace {
            nsid,
            lba_count,
            limits,
            command_limits: controller.commands,
            is_plain: controller.sgl == SglSupport::None
                && limits.boundary_lbas == 0
                && protection.is_none(),
            max_lbas: limits.max_bytes >> lba_shift,
            takes_sgls: controller.sgl != SglSupport::None,
            sgl_mask: match controller.sgl {
                SglSupport::None | SglSupport::Byte => 0,
                SglSupport::Dword => 3,
            },
            prinfo: Prinfo::of(protection),
            protection,
            domain: DomainId::of(controller.bus),
            _bus: Arc::downgrade(controller.bus),
            identify,
        })
    }

    /// Returns the namespace's identifier.
    #[inline(always)]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Returns the LBAs of the namespace (NSZE) as last seen by [`crate::Controller::poll`]; 0 once it is
    /// gone.
    #[inline(always)]
    pub fn lba_count(&self) -> u64 {
        self.lba_count.load(Ordering::Relaxed)
    }

    /// Returns the data bytes of one LBA: 512 to 4096, a power of two.
    pub fn lba_bytes(&self) -> u32 {
        1 << self.limits.lba_shift
    }

    /// Returns how the controller protects the data, if it does. The device then checks every read; a failed
    /// check ends the command with [`crate::spec::Status::GUARD_CHECK_ERROR`] or
    /// [`crate::spec::Status::REFERENCE_TAG_CHECK_ERROR`].
    pub fn protection(&self) -> Option<Protection> {
        self.protection
    }

    /// Returns the namespace's size in bytes.
    pub fn bytes(&self) -> u64 {
        self.lba_count() << self.limits.lba_shift
    }

    /// Returns the limits of one command to this namespace.
    #[inline(always)]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the limits of commands without a transfer.
    pub(crate) fn command_limits(&self) -> &CommandLimits {
        &self.command_limits
    }

    /// Returns Identify Namespace as read when it was opened (NVM Command Set 1.0 section 4.1.5.1).
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.identify
    }

    #[inline(always)]
    pub(crate) fn max_lbas(&self) -> u64 {
        self.max_lbas
    }

    /// Returns whether commands use PRPs only, cross no boundary and have no tags.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    #[inline(always)]
    pub(crate) fn takes_sgls(&self) -> bool {
        self.takes_sgls
    }

    /// Returns the bits that must be clear in the address and length of an SGL data block.
    #[inline(always)]
    pub(crate) fn sgl_mask(&self) -> u64 {
        self.sgl_mask
    }

    /// Returns the dword 12 bits that reads and writes must set for the protection in use, for an agent that
    /// builds its own commands; 0 without protection.
    pub fn protection_control(&self) -> u32 {
        self.prinfo.control
    }

    /// Makes all commands of this handle request these checks, if the namespace is protected.
    pub(crate) fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        if let Some(protection) = self.protection {
            let fua = self.prinfo.control & FUA;
            self.prinfo = Prinfo::with(protection, checks);
            self.prinfo.control |= fua;
        }
    }

    /// Sets or clears Force Unit Access for all reads and writes of this handle.
    pub(crate) fn force_unit_access(&mut self, fua: bool) {
        self.prinfo.control = (self.prinfo.control & !FUA) | if fua { FUA } else { 0 };
    }

    #[inline(always)]
    pub(crate) fn prinfo(&self) -> Prinfo {
        self.prinfo
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.domain
    }
}

/// CDW12 bit 30 of reads and writes (NVM Command Set 1.0, Read and Write): Force Unit Access.
const FUA: u32 = 1 << 30;

const FORMAT_FIX: &str = "choose another namespace (ns=N), or format it under the kernel's driver with `nvme format`, which erases it: \
     to a format with ms:0, or with ms:8 and --pi=1";

/// The layout of a namespace's LBAs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Data bytes.
    pub(crate) lba_bytes: u32,
    /// Protection information beside the data.
    pub(crate) protection: Option<Protection>,
}

/// The properties that decide how LBAs are transferred: a different shape means a different namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    lba_bytes: u32,
    metadata_bytes: u16,
    flbas: u8,
    dps: u8,
}

impl Shape {
    /// Returns `None` for an inactive namespace or an invalid format.
    pub(crate) fn of(identify: &IdentifyNamespace) -> Option<Shape> {
        let format = identify.lba_format().filter(|_| identify.is_active())?;
        let (lba_bytes, metadata_bytes) = (format.lba_bytes()?, format.ms_bytes.get());
        Some(Shape { lba_bytes, metadata_bytes, flbas: identify.flbas, dps: identify.dps })
    }
}

/// Returns a namespace's format if the driver supports it. `extended` is its CNS 05h, if any.
///
/// # Errors
/// [`Error::Device`] for an unsupported format.
pub(crate) fn format(
    nsid: Nsid,
    identify: &IdentifyNamespace,
    extended: Option<&IdentifyNvmNamespace>,
    device: &str,
) -> Result<Format> {
    let refusal =
        |what: String| Error::device(device, format!("namespace {nsid}: {what}"), FORMAT_FIX);
    if !identify.is_active() || identify.nsze_lbas.get() >= 1 << 52 {
        return Err(refusal(format!("not an active namespace ({} LBAs)", identify.nsze_lbas)));
    }
    let Some(format) = identify.lba_format() else {
        let what = format!("its LBA format {} is not in its table", identify.format_index());
        return Err(refusal(what));
    };
    let protection = Protection::of(identify, extended).map_err(refusal)?;
    match format.lba_bytes() {
        Some(lba_bytes @ 512..=4096) if lba_bytes.is_power_of_two() => {
            Ok(Format { lba_bytes, protection })
        }
        _ => {
            let what = format!("LBAs of 2^{} bytes; this driver takes 512 to 4096", format.lbads);
            Err(refusal(what))
        }
    }
}

/// Returns the boundary of a namespace's commands, or 0. One that is no multiple of 4 KiB is none: it is advice for speed
/// (NVM Command Set 1.0 section 4.1.5.1, NOIOB), no medium has such stripes, and a command for each costs more.
fn boundary_lbas(identify: &IdentifyNamespace, lba_bytes: u32) -> u32 {
    let is_kept = |lbas: &u32| (u64::from(*lbas) * u64::from(lba_bytes)).is_multiple_of(PAGE_BYTES);
    identify.noiob().filter(is_kept).unwrap_or(0)
}

/// Returns whether the format depends on CNS 05h: the namespace is protected and the controller has extended
/// formats.
pub(crate) fn needs_extended(identify: &IdentifyNamespace, controller: Ctratt) -> bool {
    identify.protection_type() != 0 && controller.extended_lba_formats()
}
