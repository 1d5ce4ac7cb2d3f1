//! Identify structures specific to the NVM command set (CNS 05h and 06h with CSI 00h, NVM 4.1.5).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::limit_bytes;

/// I/O Command Set specific Identify Controller (CNS 06h, CSI 00h, NVM 4.1.5.4).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// Verify Size Limit, `2^vsl` pages of CAP.MPSMIN; 0 for no limit.
    pub vsl: u8,
    /// Write Zeroes Size Limit, `2^wzsl` pages of CAP.MPSMIN; 0 for no limit.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit, `2^wusl` pages of CAP.MPSMIN; 0 for no limit.
    pub wusl: u8,
    /// Dataset Management Ranges Limit; 0 for no limit.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit in logical blocks; 0 for no limit.
    pub dmrsl_lbas: U32,
    /// Dataset Management Size Limit in logical blocks; 0 for no limit.
    pub dmsl_lbas: U64,
    reserved16: [u8; 4080],
}

const _: () = assert!(size_of::<IdentifyNvmController>() == super::IDENTIFY_BYTES);

impl IdentifyNvmController {
    /// Returns the largest Verify in bytes for CAP's smallest page; `None` for no limit.
    pub const fn verify_bytes_max(&self, page_size_min: u64) -> Option<u64> {
        limit_bytes(self.vsl, page_size_min)
    }

    /// Returns the largest Write Zeroes in bytes for CAP's smallest page; `None` for no limit.
    pub const fn write_zeroes_bytes_max(&self, page_size_min: u64) -> Option<u64> {
        limit_bytes(self.wzsl, page_size_min)
    }
}

/// I/O Command Set specific Identify Namespace (CNS 05h, CSI 00h, NVM 4.1.5.3).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmNamespace {
    /// Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// Protection Information Capabilities.
    pub pic: u8,
    reserved9: [u8; 3],
    /// Extended LBA Formats, in the order of the LBA formats: bits 8:7 protection information format, 6:0 storage tag
    /// size in bits.
    pub elbaf: [U32; 64],
    reserved268: [u8; 3828],
}

const _: () = assert!(size_of::<IdentifyNvmNamespace>() == super::IDENTIFY_BYTES);

impl IdentifyNvmNamespace {
    /// Protection information format of LBA format `index`: 0 16-bit guard, 1 32-bit, 2 64-bit.
    pub fn protection_format(&self, index: u8) -> Option<u8> {
        let format = self.elbaf.get(usize::from(index))?;
        Some((format.get() >> 7) as u8 & 3)
    }

    /// Storage tag size of LBA format `index` in bits.
    pub fn storage_tag_bits(&self, index: u8) -> Option<u8> {
        let format = self.elbaf.get(usize::from(index))?;
        Some(format.get() as u8 & 0x7f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use zerocopy::FromZeros;

    #[test]
    fn controller_limits() {
        let mut bytes = [0; 4096];
        bytes[..9].copy_from_slice(&[1, 2, 255, 8, 0, 1, 0, 0, 5]);
        let view = IdentifyNvmController::view(&bytes).unwrap();
        assert_eq!(view.verify_bytes_max(4096), Some(8192));
        assert_eq!(view.write_zeroes_bytes_max(4096), Some(16384));
        assert_eq!((view.dmrl, view.dmrsl_lbas.get(), view.dmsl_lbas.get()), (8, 256, 5));
    }

    #[test]
    fn namespace_formats() {
        let mut built = IdentifyNvmNamespace::new_zeroed();
        built.elbaf[63] = (2 << 7 | 48).into();
        let view = IdentifyNvmNamespace::view(built.as_bytes()).unwrap();
        assert_eq!((view.protection_format(63), view.storage_tag_bits(63)), (Some(2), Some(48)));
        assert_eq!(view.protection_format(64), None);
    }
}
