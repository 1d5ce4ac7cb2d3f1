//! Identify Namespace of the NVM command set (CNS 00h, NVM 4.1.5.1).

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identify Namespace data structure (CNS 00h, NVM 4.1.5.1). All zeroes for an inactive namespace.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size in logical blocks.
    pub nsze_lbas: U64,
    /// Namespace Capacity in logical blocks.
    pub ncap_lbas: U64,
    /// Namespace Utilization in logical blocks.
    pub nuse_lbas: U64,
    /// Namespace Features.
    pub nsfeat: u8,
    /// Number of LBA Formats, zero-based.
    pub nlbaf_z: u8,
    /// Formatted LBA Size: bits 3:0 and 6:5 format index, bit 4 metadata at the end of each logical block.
    pub flbas: u8,
    /// Metadata Capabilities: bit 0 extended LBA, bit 1 separate buffer.
    pub mc: u8,
    /// End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings: bits 2:0 type, bit 3 position.
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities: bit 0 may be shared.
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator: bit 7 supported, bits 6:0 percent that remains.
    pub fpi: u8,
    /// Deallocate Logical Block Features.
    pub dlfeat: u8,
    /// Namespace Atomic Write Unit Normal in logical blocks, zero-based.
    pub nawun_z: U16,
    /// Namespace Atomic Write Unit Power Fail in logical blocks, zero-based.
    pub nawupf_z: U16,
    /// Namespace Atomic Compare and Write Unit in logical blocks, zero-based.
    pub nacwu_z: U16,
    /// Namespace Atomic Boundary Size Normal in logical blocks, zero-based; 0 for no boundary.
    pub nabsn_z: U16,
    /// Namespace Atomic Boundary Offset: LBA of the first boundary.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail in logical blocks, zero-based; 0 for no boundary.
    pub nabspf_z: U16,
    /// Namespace Optimal I/O Boundary in logical blocks; 0 for not reported.
    pub noiob_lbas: U16,
    /// NVM Capacity in bytes.
    pub nvmcap_bytes: U128,
    /// Namespace Preferred Write Granularity in logical blocks, zero-based; valid if bit 4 of `nsfeat`.
    pub npwg_z: U16,
    /// Namespace Preferred Write Alignment in logical blocks, zero-based; valid if bit 4 of `nsfeat`.
    pub npwa_z: U16,
    /// Namespace Preferred Deallocate Granularity in logical blocks, zero-based; valid if bit 4 of `nsfeat`.
    pub npdg_z: U16,
    /// Namespace Preferred Deallocate Alignment in logical blocks, zero-based; valid if bit 4 of `nsfeat`.
    pub npda_z: U16,
    /// Namespace Optimal Write Size in logical blocks, zero-based; valid if bit 4 of `nsfeat`.
    pub nows_z: U16,
    /// Maximum Single Source Range Length of Copy in logical blocks.
    pub mssrl_lbas: U16,
    /// Maximum Copy Length in logical blocks.
    pub mcl_lbas: U32,
    /// Maximum Source Range Count of Copy, zero-based.
    pub msrc_z: u8,
    reserved81: [u8; 11],
    /// ANA Group Identifier.
    pub anagrpid: U32,
    reserved96: [u8; 3],
    /// Namespace Attributes: bit 0 write protected.
    pub nsattr: u8,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Globally Unique Identifier, big-endian; 0 for none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian; 0 for none.
    pub eui64: [u8; 8],
    /// LBA Formats; the first `nlbaf_z + 1` are valid.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor_specific: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == super::IDENTIFY_BYTES);

impl fmt::Debug for IdentifyNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("IdentifyNamespace");
        debug
            .field("nsze_lbas", &self.nsze_lbas.get())
            .field("flbas", &self.flbas)
            .finish_non_exhaustive()
    }
}

impl IdentifyNamespace {
    /// Returns whether the namespace is active: an inactive one is all zeroes.
    pub const fn is_active(&self) -> bool {
        self.nsze_lbas.get() != 0
    }

    /// Returns whether writes are refused for now (NSATTR bit 0, Base 2.0 section 8.12).
    pub const fn is_write_protected(&self) -> bool {
        self.nsattr & 1 != 0
    }

    /// Index of the LBA format in use. Bits 6:5 count only with more than 16 formats.
    pub const fn format_index(&self) -> u8 {
        let low = self.flbas & 0xf;
        if self.nlbaf_z < 16 { low } else { low | self.flbas >> 1 & 0x30 }
    }

    /// The LBA format in use; `None` if its index is invalid.
    pub fn lba_format(&self) -> Option<LbaFormat> {
        let index = self.format_index();
        if index > self.nlbaf_z {
            return None;
        }
        self.lbaf.get(usize::from(index)).copied()
    }

    /// Protection information type in use: 0 for none, 1 to 3.
    pub const fn protection_type(&self) -> u8 {
        self.dps & 7
    }

    /// Optimal I/O boundary in logical blocks; `None` if not reported.
    pub const fn noiob(&self) -> Option<u32> {
        match self.noiob_lbas.get() {
            0 => None,
            lbas => Some(lbas as u32),
        }
    }
}

/// LBA Format (NVM 4.1.5.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size in bytes per logical block.
    pub ms_bytes: U16,
    /// LBA Data Size as a power of two: 9 or more; 0 if the format is not currently available.
    pub lbads: u8,
    /// Bits 1:0 Relative Performance; 0 is best.
    pub rp: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// Creates a format of `2^lbads` data bytes and `ms_bytes` of metadata per logical block.
    pub const fn new(lbads: u8, ms_bytes: u16) -> LbaFormat {
        LbaFormat { ms_bytes: U16::new(ms_bytes), lbads, rp: 0 }
    }

    /// Data bytes of a logical block, 512 to 2 GiB; `None` for other sizes.
    pub const fn lba_bytes(&self) -> Option<u32> {
        match self.lbads {
            9..=31 => Some(1 << self.lbads),
            _ => None,
        }
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
        type N = IdentifyNamespace;
        assert_eq!(offset_of!(N, nsfeat), 24);
        assert_eq!(offset_of!(N, flbas), 26);
        assert_eq!(offset_of!(N, dlfeat), 33);
        assert_eq!(offset_of!(N, noiob_lbas), 46);
        assert_eq!(offset_of!(N, nvmcap_bytes), 48);
        assert_eq!(offset_of!(N, npwg_z), 64);
        assert_eq!(offset_of!(N, nows_z), 72);
        assert_eq!(offset_of!(N, mssrl_lbas), 74);
        assert_eq!(offset_of!(N, msrc_z), 80);
        assert_eq!(offset_of!(N, anagrpid), 92);
        assert_eq!(offset_of!(N, nsattr), 99);
        assert_eq!(offset_of!(N, nguid), 104);
        assert_eq!(offset_of!(N, eui64), 120);
        assert_eq!(offset_of!(N, lbaf), 128);
        assert_eq!(offset_of!(N, vendor_specific), 384);
    }

    #[test]
    fn the_format_in_use() {
        let mut built = IdentifyNamespace::new_zeroed();
        built.nlbaf_z = 1;
        built.flbas = 0x61;
        built.lbaf[1] = LbaFormat::new(12, 8);
        let view = IdentifyNamespace::view(built.as_bytes()).unwrap();
        assert_eq!(view.lba_format(), Some(LbaFormat::new(12, 8)));
        assert_eq!(view.lba_format().and_then(|format| format.lba_bytes()), Some(4096));
    }

    #[test]
    fn a_format_index_past_the_list_is_refused() {
        let mut built = IdentifyNamespace::new_zeroed();
        (built.nlbaf_z, built.flbas) = (1, 2);
        assert_eq!(built.lba_format(), None);
        (built.nlbaf_z, built.flbas) = (63, 0x6f);
        assert_eq!(built.format_index(), 63);
        assert!(built.lba_format().is_some());
    }

    #[test]
    fn lba_sizes_out_of_range_are_refused() {
        for lbads in [0, 1, 8, 32, 63, 255] {
            assert_eq!(LbaFormat::new(lbads, 0).lba_bytes(), None);
        }
        assert_eq!(LbaFormat::new(9, 0).lba_bytes(), Some(512));
    }
}
