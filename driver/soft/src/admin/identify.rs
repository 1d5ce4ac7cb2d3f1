//! Identify (NVMe Base 2.0 section 5.17, NVM Command Set 1.0 section 4.1.5).
//!
//! Writes the structures field by field at the specification's offsets, independently of the driver's views.

use crate::command::Command;
use crate::controller::Controller;
use crate::io::{COPY_LBAS_MAX, COPY_RANGE_LBAS_MAX, COPY_RANGES_MAX};
use crate::memory::Dma;
use crate::namespace::Namespace;
use crate::options::{NAMESPACES_MAX, Options, PCI_VENDOR, SglSupport};
use crate::page::{put, put_text};
use crate::state::events::REQUESTS_MAX;
use crate::state::statistics::ERROR_ENTRIES;
use crate::status::{Answer, INVALID_FIELD, INVALID_NAMESPACE};
use adit_spec::Status;

pub(super) const FIRMWARE_REVISION: &str = "1.0";
const MODEL: &str = "Adit Software Controller";
/// A locally administered identifier, as there is no vendor.
const IEEE_OUI: [u8; 3] = [0x02, 0xad, 0x17];

const OACS_NAMESPACES: u16 = 1 << 3;
const OACS_DBBUF: u16 = 1 << 8;
/// Compare, Dataset Management, Write Zeroes, Select in Get Features, Timestamp, Verify, Copy.
const ONCS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8;
/// Flush supports the broadcast namespace.
const VWC_FLUSH_ALL: u8 = 0b110;
/// Volatile write cache present.
const VWC_PRESENT: u8 = 1;
/// Namespace attribute notices, firmware activation notices.
const OAES: u32 = 1 << 8 | 1 << 9;
/// Supported-commands log, log offsets, supported-logs log.
const LPA: u8 = 1 << 1 | 1 << 2 | 1 << 5;
/// Index of the first LBA format with protection information.
const PROTECTED_FORMATS: u8 = 2;
const MC_SEPARATE: u8 = 1 << 1;
const DPC_ALL: u8 = 0b11111;
/// Extended LBA formats: CNS 05h reports the guard width, which is 16 bits (all zeroes).
const CTRATT_ELBAS: u32 = 1 << 15;
/// Flexible Data Placement.
const CTRATT_FDPS: u32 = 1 << 19;
const WARNING_KELVIN: u16 = 358;
const CRITICAL_KELVIN: u16 = 368;
const CSI_NVM: u8 = 0;
const NIDT_NGUID: u8 = 2;
const NIDT_CSI: u8 = 4;

impl Controller {
    pub(super) fn identify(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        self.page.fill(0);
        let csi = (command.cdw(11) >> 24) as u8;
        let nsid = command.nsid;
        let cns = command.low(10) as u8;
        match cns {
            0x00 => self.identify_namespace(nsid, true)?,
            0x01 => self.identify_controller(),
            0x02 => self.list_namespaces(nsid, true)?,
            0x03 => self.describe_namespace(nsid)?,
            0x05 if csi == CSI_NVM => drop(self.namespace(nsid)?),
            0x06 if csi == CSI_NVM => self.identify_nvm(),
            0x07 if csi == CSI_NVM => self.list_namespaces(nsid, true)?,
            0x08 => self.identify_independent(nsid)?,
            0x10 => self.list_namespaces(nsid, false)?,
            0x11 => self.identify_namespace(nsid, false)?,
            0x12 => self.list_controllers_of(nsid, command.high(10))?,
            0x13 => self.list_controllers(command.high(10)),
            // I/O command sets: one combination, the NVM command set alone.
            0x1c => put(&mut self.page[..], 0, 1u64.to_le_bytes()),
            _ => return Err(INVALID_FIELD),
        }
        if let Some(alter) = &mut self.watch.identity {
            alter(cns, &mut self.page);
        }
        self.send_page(command, 4096, dma)
    }

    fn identify_controller(&mut self) {
        let (namespaces, page) = (&self.namespaces, &mut self.page[..]);
        put_controller(page, &self.options);
        put(page, 280, u128::from(namespaces.capacity()).to_le_bytes());
        put(page, 296, u128::from(namespaces.unallocated()).to_le_bytes());
    }

    /// CNS 00h, and 11h for unattached namespaces. A valid identifier without an active namespace yields zeros.
    fn identify_namespace(&mut self, nsid: u32, only_active: bool) -> Result<(), Status> {
        let is_common = nsid == u32::MAX && only_active;
        if !is_common && !(1..=NAMESPACES_MAX).contains(&nsid) {
            return Err(INVALID_NAMESPACE);
        }
        let options = &self.options;
        let page = &mut self.page[..];
        if is_common {
            put_formats(page, 0, options.protection > 0);
            return Ok(());
        }
        if let Some(namespace) = self.namespaces.find(nsid)
            && (namespace.is_attached || !only_active)
        {
            put_namespace(page, namespace, options);
        }
        Ok(())
    }

    fn list_namespaces(&mut self, after: u32, only_active: bool) -> Result<(), Status> {
        if after >= u32::MAX - 1 {
            return Err(INVALID_NAMESPACE);
        }
        let listed = self.namespaces.all().iter().filter(|namespace| {
            namespace.nsid.0 > after && (namespace.is_attached || !only_active)
        });
        for (slot, namespace) in self.page.chunks_exact_mut(4).zip(listed) {
            put(slot, 0, namespace.nsid.0.to_le_bytes());
        }
        Ok(())
    }

    fn describe_namespace(&mut self, nsid: u32) -> Result<(), Status> {
        self.namespace(nsid)?;
        let page = &mut self.page[..];
        put(page, 0, [NIDT_NGUID, 16]);
        put(page, 4, nguid(nsid));
        put(page, 20, [NIDT_CSI, 1]);
        put(page, 24, [CSI_NVM]);
        Ok(())
    }

    /// CNS 06h: limits of commands without a transfer.
    fn identify_nvm(&mut self) {
        let (limits, page) = (&self.options.limits, &mut self.page[..]);
        put(page, 0, [limits.vsl, limits.wzsl]);
        put(page, 3, [limits.dmrl]);
        put(page, 4, limits.dmrsl_lbas.to_le_bytes());
        put(page, 8, limits.dmsl_lbas.to_le_bytes());
    }

    /// CNS 08h: NSTAT says ready.
    fn identify_independent(&mut self, nsid: u32) -> Result<(), Status> {
        self.namespace(nsid)?;
        put(&mut self.page[..], 14, [1]);
        Ok(())
    }

    fn list_controllers_of(&mut self, nsid: u32, from: u16) -> Result<(), Status> {
        match self.namespaces.find(nsid) {
            None => Err(INVALID_FIELD),
            Some(namespace) => {
                if namespace.is_attached {
                    self.list_controllers(from);
                }
                Ok(())
            }
        }
    }

    /// Lists the controllers from identifier `from`: this one, 0.
    fn list_controllers(&mut self, from: u16) {
        put(&mut self.page[..], 0, u16::from(from == 0).to_le_bytes());
    }
}

fn put_controller(page: &mut [u8], options: &Options) {
    // VID and SSVID.
    put(page, 0, PCI_VENDOR.to_le_bytes());
    put(page, 2, PCI_VENDOR.to_le_bytes());
    put_text(page, 4, 20, &options.serial);
    put_text(page, 24, 40, MODEL);
    put_text(page, 64, 8, FIRMWARE_REVISION);
    // RAB: recommended arbitration burst, a power of two.
    put(page, 72, [6]);
    put(page, 73, IEEE_OUI);
    put(page, 77, [options.mdts]);
    put(page, 80, 0x0002_0000u32.to_le_bytes());
    put(page, 92, OAES.to_le_bytes());
    let ctratt =
        [(options.protection > 0, CTRATT_ELBAS), (options.placement_handles > 0, CTRATT_FDPS)];
    let ctratt = ctratt.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit);
    put(page, 96, ctratt.to_le_bytes());
    // CNTRLTYPE: an I/O controller.
    put(page, 111, [1]);
    for (index, delay) in options.crdt_100ms.iter().enumerate() {
        put(page, 128 + index * 2, delay.to_le_bytes());
    }
    let oacs = OACS_NAMESPACES | if options.dbbuf { OACS_DBBUF } else { 0 };
    put(page, 256, oacs.to_le_bytes());
    // ACL and AERL, zero-based.
    put(page, 258, [3, REQUESTS_MAX as u8 - 1]);
    // FRMW: one slot, read-only.
    put(page, 260, [1 << 1 | 1]);
    put(page, 261, [LPA, ERROR_ENTRIES as u8 - 1]);
    put(page, 266, WARNING_KELVIN.to_le_bytes());
    put(page, 268, CRITICAL_KELVIN.to_le_bytes());
    put_io(page, options);
    // Power state 0: 1 W.
    put(page, 2048, 100u16.to_le_bytes());
}

/// Writes Identify Controller from SQES on: the I/O command fields.
fn put_io(page: &mut [u8], options: &Options) {
    put(page, 512, [0x66, 0x44]);
    put(page, 516, NAMESPACES_MAX.to_le_bytes());
    put(page, 520, ONCS.to_le_bytes());
    let present = if options.has_write_cache() { VWC_PRESENT } else { 0 };
    put(page, 525, [VWC_FLUSH_ALL | present]);
    // AWUN and AWUPF stay zero: one LBA is atomic, also across a power failure. OCFS: copy descriptor format 0.
    put(page, 534, 1u16.to_le_bytes());
    let sgls: u32 = match options.sgl {
        SglSupport::Off => 0,
        SglSupport::Byte => 1,
        SglSupport::Dword => 2,
    };
    put(page, 536, sgls.to_le_bytes());
    let subnqn = format!("nqn.2024-01.io.adit:soft:{}", options.serial);
    page[768..768 + subnqn.len()].copy_from_slice(subnqn.as_bytes());
}

fn put_namespace(page: &mut [u8], namespace: &Namespace, options: &Options) {
    let lba_count = namespace.lba_count().to_le_bytes();
    for field in [0, 8, 16] {
        put(page, field, lba_count);
    }
    let plain_format = u8::from(namespace.lba_shift == 12);
    let kind = namespace.protection.map_or(0, |protection| protection.kind);
    let format = if kind > 0 { plain_format + PROTECTED_FORMATS } else { plain_format };
    put_formats(page, format, options.protection > 0);
    put(page, 29, [kind]);
    put(page, 46, options.noiob_lbas.to_le_bytes());
    put(page, 48, u128::from(namespace.bytes).to_le_bytes());
    // ENDGID: with placement, all namespaces are in one endurance group.
    put(page, 102, u16::from(options.placement_handles > 0).to_le_bytes());
    put(page, 104, nguid(namespace.nsid.0));
}

/// Writes the fields that all namespaces share: formats and limits.
fn put_formats(page: &mut [u8], format: u8, has_protection: bool) {
    // NLBAF is zero-based; FLBAS selects the format.
    put(page, 25, [1, format]);
    // DLFEAT: deallocated LBAs read as zeros, Write Zeroes may deallocate.
    put(page, 33, [0b1001]);
    put(page, 74, COPY_RANGE_LBAS_MAX.to_le_bytes());
    put(page, 76, COPY_LBAS_MAX.to_le_bytes());
    put(page, 80, [COPY_RANGES_MAX as u8 - 1]);
    // LBA formats: no metadata, 2^9 and 2^12 bytes; the second performs better.
    put(page, 128, [0, 0, 9, 1]);
    put(page, 132, [0, 0, 12, 0]);
    if has_protection {
        // The same formats with 8 bytes of metadata in a separate buffer (MC), for types 1 to 3, first or last (DPC).
        put(page, 25, [3, format, MC_SEPARATE, DPC_ALL]);
        put(page, 136, [8, 0, 9, 1]);
        put(page, 140, [8, 0, 12, 0]);
    }
}

/// Returns a globally unique identifier for namespace `nsid` of this controller.
fn nguid(nsid: u32) -> [u8; 16] {
    let mut id = *b"\x02\xad\x17soft-ns-\0\0\0\0\0";
    id[12..].copy_from_slice(&nsid.to_be_bytes());
    id
}
