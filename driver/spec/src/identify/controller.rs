//! Identify Controller (CNS 01h, Base 5.17.2.1).

use core::fmt;

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::controller_flags::{Cmic, Ctratt, Lpa, Oacs, Oaes, Oncs, Sgls, Vwc};
use super::limit_bytes;
use crate::view::Ascii;

/// Identify Controller data structure (CNS 01h, Base 5.17.2.1).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: U16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// Serial Number.
    pub sn: Ascii<20>,
    /// Model Number.
    pub mn: Ascii<40>,
    /// Firmware Revision.
    pub fr: Ascii<8>,
    /// Recommended Arbitration Burst, `2^rab` commands.
    pub rab: u8,
    /// IEEE OUI Identifier, least significant byte first.
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities.
    pub cmic: u8,
    /// Maximum Data Transfer Size, `2^mdts` pages of CAP.MPSMIN; 0 for no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: U16,
    /// Version.
    pub ver: U32,
    /// RTD3 Resume Latency in microseconds.
    pub rtd3r_us: U32,
    /// RTD3 Entry Latency in microseconds: how long a shutdown may take; 0 for not reported.
    pub rtd3e_us: U32,
    /// Optional Asynchronous Events Supported.
    pub oaes: U32,
    /// Controller Attributes.
    pub ctratt: U32,
    /// Read Recovery Levels Supported.
    pub rrls: U16,
    reserved102: [u8; 9],
    /// Controller Type: 1 I/O, 2 discovery, 3 administrative.
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3, in units of 100 ms.
    pub crdt_100ms: [U16; 3],
    reserved134: [u8; 119],
    /// NVM Subsystem Report.
    pub nvmsr: u8,
    /// VPD Write Cycle Information.
    pub vwci: u8,
    /// Management Endpoint Capabilities.
    pub mec: u8,
    /// Optional Admin Command Support.
    pub oacs: U16,
    /// Abort Command Limit, zero-based.
    pub acl_z: u8,
    /// Asynchronous Event Request Limit, zero-based.
    pub aerl_z: u8,
    /// Firmware Updates.
    pub frmw: u8,
    /// Log Page Attributes.
    pub lpa: u8,
    /// Error Log Page Entries, zero-based.
    pub elpe_z: u8,
    /// Number of Power States Support, zero-based.
    pub npss_z: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold in Kelvin.
    pub wctemp_k: U16,
    /// Critical Composite Temperature Threshold in Kelvin.
    pub cctemp_k: U16,
    /// Maximum Time for Firmware Activation in units of 100 ms.
    pub mtfa_100ms: U16,
    /// Host Memory Buffer Preferred Size in units of 4 KiB.
    pub hmpre_4kib: U32,
    /// Host Memory Buffer Minimum Size in units of 4 KiB.
    pub hmmin_4kib: U32,
    /// Total NVM Capacity in bytes.
    pub tnvmcap_bytes: U128,
    /// Unallocated NVM Capacity in bytes.
    pub unvmcap_bytes: U128,
    /// Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// Extended Device Self-test Time in minutes.
    pub edstt_minutes: U16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity in units of 4 KiB.
    pub fwug_4kib: u8,
    /// Keep Alive Support: granularity in units of 100 ms; 0 for not supported.
    pub kas_100ms: U16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// Minimum Thermal Management Temperature in Kelvin.
    pub mntmt_k: U16,
    /// Maximum Thermal Management Temperature in Kelvin.
    pub mxtmt_k: U16,
    /// Sanitize Capabilities.
    pub sanicap: U32,
    /// Host Memory Buffer Minimum Descriptor Entry Size in units of 4 KiB.
    pub hmminds_4kib: U32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANA Transition Time in seconds.
    pub anatt_s: u8,
    /// Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// Persistent Event Log Size in units of 64 KiB.
    pub pels_64kib: U32,
    /// Domain Identifier.
    pub domainid: U16,
    reserved358: [u8; 10],
    /// Max Endurance Group Capacity in bytes.
    pub megcap_bytes: U128,
    reserved384: [u8; 128],
    /// Submission Queue Entry Size: bits 7:4 maximum, 3:0 required, as powers of two.
    pub sqes: u8,
    /// Completion Queue Entry Size: bits 7:4 maximum, 3:0 required, as powers of two.
    pub cqes: u8,
    /// Maximum Outstanding Commands; 0 for not reported.
    pub maxcmd: U16,
    /// Number of Namespaces: the largest valid NSID.
    pub nn: U32,
    /// Optional NVM Command Support.
    pub oncs: U16,
    /// Fused Operation Support: bit 0 Compare and Write.
    pub fuses: U16,
    /// Format NVM Attributes.
    pub fna: u8,
    /// Volatile Write Cache.
    pub vwc: u8,
    /// Atomic Write Unit Normal in logical blocks, zero-based.
    pub awun_z: U16,
    /// Atomic Write Unit Power Fail in logical blocks, zero-based.
    pub awupf_z: U16,
    /// I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Atomic Compare and Write Unit in logical blocks, zero-based.
    pub acwu_z: U16,
    /// Copy Descriptor Formats Supported: bit n for format n.
    pub ocfs: U16,
    /// SGL Support.
    pub sgls: U32,
    /// Maximum Number of Allowed Namespaces; 0 for as many as `nn`.
    pub mnan: U32,
    /// Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    reserved564: [u8; 204],
    /// NVM Subsystem NVMe Qualified Name, NUL terminated.
    pub subnqn: Ascii<256>,
    reserved1024: [u8; 768],
    /// NVMe over Fabrics fields.
    pub fabrics: [u8; 256],
    /// Power State Descriptors, 32 bytes each.
    pub psd: [u8; 1024],
    /// Vendor specific.
    pub vendor_specific: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == super::IDENTIFY_BYTES);

impl fmt::Debug for IdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("IdentifyController");
        debug
            .field("mn", &self.mn)
            .field("sn", &self.sn)
            .field("fr", &self.fr)
            .finish_non_exhaustive()
    }
}

impl IdentifyController {
    /// Returns the largest transfer of one command in bytes for CAP's smallest page; `None` for no limit.
    pub const fn max_transfer_bytes(&self, page_size_min: u64) -> Option<u64> {
        limit_bytes(self.mdts, page_size_min)
    }

    /// Multi-path and sharing capabilities.
    pub const fn cmic(&self) -> Cmic {
        Cmic(self.cmic)
    }

    /// Optional asynchronous events.
    pub const fn oaes(&self) -> Oaes {
        Oaes(self.oaes.get())
    }

    /// Controller attributes.
    pub const fn ctratt(&self) -> Ctratt {
        Ctratt(self.ctratt.get())
    }

    /// Optional admin commands.
    pub const fn oacs(&self) -> Oacs {
        Oacs(self.oacs.get())
    }

    /// Number of Abort commands that may be outstanding: 1 to 256.
    pub const fn acl(&self) -> u32 {
        self.acl_z as u32 + 1
    }

    /// Number of Asynchronous Event Requests that may be outstanding: 1 to 256.
    pub const fn aerl(&self) -> u32 {
        self.aerl_z as u32 + 1
    }

    /// Number of entries of the Error Information log: 1 to 256.
    pub const fn elpe(&self) -> u32 {
        self.elpe_z as u32 + 1
    }

    /// Log page attributes.
    pub const fn lpa(&self) -> Lpa {
        Lpa(self.lpa)
    }

    /// Returns the delay in milliseconds for Command Retry Delay `crd`; 0 for none.
    pub fn retry_delay_ms(&self, crd: u8) -> u64 {
        let index = usize::from(crd).checked_sub(1);
        let delay = index.and_then(|index| self.crdt_100ms.get(index));
        delay.map_or(0, |delay| u64::from(delay.get()) * 100)
    }

    /// Required (smallest) submission queue entry size as a power of two.
    pub const fn sqes_min(&self) -> u8 {
        self.sqes & 0xf
    }

    /// Largest submission queue entry size as a power of two.
    pub const fn sqes_max(&self) -> u8 {
        self.sqes >> 4
    }

    /// Required (smallest) completion queue entry size as a power of two.
    pub const fn cqes_min(&self) -> u8 {
        self.cqes & 0xf
    }

    /// Largest completion queue entry size as a power of two.
    pub const fn cqes_max(&self) -> u8 {
        self.cqes >> 4
    }

    /// Optional I/O commands.
    pub const fn oncs(&self) -> Oncs {
        Oncs(self.oncs.get())
    }

    /// Volatile write cache.
    pub const fn vwc(&self) -> Vwc {
        Vwc(self.vwc)
    }

    /// SGL support.
    pub const fn sgls(&self) -> Sgls {
        Sgls(self.sgls.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use core::mem::offset_of;
    use zerocopy::FromZeros;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        type C = IdentifyController;
        assert_eq!(offset_of!(C, mdts), 77);
        assert_eq!(offset_of!(C, ver), 80);
        assert_eq!(offset_of!(C, ctratt), 96);
        assert_eq!(offset_of!(C, cntrltype), 111);
        assert_eq!(offset_of!(C, crdt_100ms), 128);
        assert_eq!(offset_of!(C, oacs), 256);
        assert_eq!(offset_of!(C, npss_z), 263);
        assert_eq!(offset_of!(C, wctemp_k), 266);
        assert_eq!(offset_of!(C, hmpre_4kib), 272);
        assert_eq!(offset_of!(C, tnvmcap_bytes), 280);
        assert_eq!(offset_of!(C, rpmbs), 312);
        assert_eq!(offset_of!(C, sanicap), 328);
        assert_eq!(offset_of!(C, hmminds_4kib), 332);
        assert_eq!(offset_of!(C, nanagrpid), 348);
        assert_eq!(offset_of!(C, megcap_bytes), 368);
        assert_eq!(offset_of!(C, sqes), 512);
        assert_eq!(offset_of!(C, nn), 516);
        assert_eq!(offset_of!(C, oncs), 520);
        assert_eq!(offset_of!(C, vwc), 525);
        assert_eq!(offset_of!(C, awupf_z), 528);
        assert_eq!(offset_of!(C, ocfs), 534);
        assert_eq!(offset_of!(C, sgls), 536);
        assert_eq!(offset_of!(C, mnan), 540);
        assert_eq!(offset_of!(C, subnqn), 768);
        assert_eq!(offset_of!(C, fabrics), 1792);
        assert_eq!(offset_of!(C, psd), 2048);
        assert_eq!(offset_of!(C, vendor_specific), 3072);
    }

    #[test]
    fn a_built_structure_reads_back() {
        let mut built = IdentifyController::new_zeroed();
        built.sn = Ascii::padded("SN1");
        built.mdts = 5;
        built.oncs = Oncs(1 << 2).0.into();
        built.crdt_100ms[1] = 7.into();
        built.ocfs = 1.into();
        let view = IdentifyController::view(built.as_bytes()).unwrap();
        assert_eq!(view.sn.to_string(), "SN1");
        assert_eq!(view.max_transfer_bytes(4096), Some(128 << 10));
        assert!(view.oncs().dataset_management() && !view.oncs().copy());
        assert_eq!([0, 1, 2, 3, 4].map(|crd| view.retry_delay_ms(crd)), [0, 0, 700, 0, 0]);
    }
}
