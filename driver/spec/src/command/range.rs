//! Range entries that Dataset Management and Copy read from host memory (NVM 3.2.3 and 3.2.2).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{Lba, LbaCount};

/// One range of a Dataset Management command (NVM 3.2.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// Context Attributes; hints that may be 0.
    pub cattr: U32,
    /// Length in logical blocks, **not** zero-based; 0 is an empty range.
    pub nlb: U32,
    /// Starting LBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

impl DsmRange {
    /// Creates a range of `lbas` logical blocks from `slba`, without context attributes.
    pub const fn new(slba: Lba, lbas: u32) -> DsmRange {
        DsmRange { cattr: U32::ZERO, nlb: U32::new(lbas), slba: U64::new(slba.0) }
    }

    /// Starting LBA.
    pub const fn slba(&self) -> Lba {
        Lba(self.slba.get())
    }

    /// Length in logical blocks.
    pub const fn lbas(&self) -> u32 {
        self.nlb.get()
    }
}

/// One source range of a Copy command, descriptor format 0h (NVM 3.2.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    reserved0: [u8; 8],
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks, zero-based.
    pub nlb_z: U16,
    reserved18: [u8; 6],
    /// Expected Initial Logical Block Reference Tag.
    pub eilbrt: U32,
    /// Expected Logical Block Application Tag.
    pub elbat: U16,
    /// Expected Logical Block Application Tag Mask.
    pub elbatm: U16,
}

const _: () = assert!(size_of::<CopyRange>() == 32);

impl CopyRange {
    /// Creates a range of `nlb` logical blocks from `slba`, without protection information.
    pub const fn new(slba: Lba, nlb: LbaCount) -> CopyRange {
        CopyRange {
            reserved0: [0; 8],
            slba: U64::new(slba.0),
            nlb_z: U16::new(nlb.z()),
            reserved18: [0; 6],
            eilbrt: U32::ZERO,
            elbat: U16::ZERO,
            elbatm: U16::ZERO,
        }
    }

    /// Starting LBA.
    pub const fn slba(&self) -> Lba {
        Lba(self.slba.get())
    }

    /// Number of logical blocks.
    pub const fn nlb(&self) -> LbaCount {
        LbaCount::from_z(self.nlb_z.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dsm_range_bytes() {
        let range = DsmRange::new(Lba(0x1122), 0x33);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 0x33, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!((range.slba(), range.lbas()), (Lba(0x1122), 0x33));
    }

    #[test]
    fn copy_range_bytes() {
        let range = CopyRange::new(Lba(0x0102_0304), LbaCount::new(8).unwrap());
        let bytes = range.as_bytes();
        assert_eq!(&bytes[8..18], [4, 3, 2, 1, 0, 0, 0, 0, 7, 0]);
        assert!(bytes[..8].iter().chain(&bytes[18..]).all(|&byte| byte == 0));
        let parsed = CopyRange::ref_from_bytes(bytes).unwrap();
        assert_eq!((parsed.slba(), parsed.nlb().get()), (Lba(0x0102_0304), 8));
    }
}
