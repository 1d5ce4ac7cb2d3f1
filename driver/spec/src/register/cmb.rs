//! Registers of the Controller Memory Buffer: CMBLOC, CMBSZ, CMBMSC, CMBSTS (Base 3.1.3.11, .12, .16, .17; 8.5).
//!
//! The mapping checks that the reported buffer lies inside the BAR.

use super::{bit_fields, reg_value};
use crate::ids::Iova;

bit_fields! {
    /// Controller Memory Buffer Location (CMBLOC, Base 3.1.3.11).
    Cmbloc(u32) {
        2:0 bir: u8, "Base Indicator Register: the BAR that holds the buffer (0, 2, 3, 4 or 5)";
        31:12 ofst: u32, "Offset of the buffer into its BAR, in units of [`Cmbsz::unit_bytes`]";
    }
}

impl Cmbloc {
    /// Offset of the buffer into its BAR in bytes; `None` if CMBSZ.SZU is reserved.
    pub const fn offset_bytes(self, cmbsz: Cmbsz) -> Option<u64> {
        match cmbsz.unit_bytes() {
            Some(unit) => (self.ofst() as u64).checked_mul(unit),
            None => None,
        }
    }
}

bit_fields! {
    /// Controller Memory Buffer Size (CMBSZ, Base 3.1.3.12).
    Cmbsz(u32) {
        0:0 sqs: bool, "Submission Queue Support";
        1:1 cqs: bool, "Completion Queue Support";
        2:2 lists: bool, "PRP and SGL List Support";
        3:3 rds: bool, "Read Data Support: the controller may write data into the buffer";
        4:4 wds: bool, "Write Data Support: the controller may read data from the buffer";
        11:8 szu: u8, "Size Units: a unit is `4 KiB << (4 * szu)`; 0 to 6 are defined";
        31:12 sz: u32, "Size in units of [`Cmbsz::unit_bytes`]";
    }
}

impl Cmbsz {
    /// The unit of CMBSZ.SZ and CMBLOC.OFST in bytes: 4 KiB to 64 GiB; `None` for a reserved SZU.
    pub const fn unit_bytes(self) -> Option<u64> {
        match self.szu() {
            szu @ 0..=6 => Some(4096 << (4 * szu)),
            _ => None,
        }
    }

    /// Size of the buffer in bytes; `None` for a reserved SZU, zero for no buffer.
    pub const fn size_bytes(self) -> Option<u64> {
        match self.unit_bytes() {
            Some(unit) => (self.sz() as u64).checked_mul(unit),
            None => None,
        }
    }
}

/// Controller Memory Buffer Memory Space Control (CMBMSC, Base 3.1.3.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cmbmsc(pub u64);

impl Cmbmsc {
    /// Makes CMBLOC and CMBSZ readable (CRE) without enabling the memory space.
    pub const CAPABILITIES_ENABLED: Cmbmsc = Cmbmsc(1);

    /// Enables the buffer at controller base address `base`; `None` unless `base` is 4 KiB aligned.
    pub const fn enabled_at(base: Iova) -> Option<Cmbmsc> {
        if !base.is_aligned(4096) {
            return None;
        }
        Some(Cmbmsc(base.0 | 0b11))
    }
}

/// Controller Memory Buffer Status (CMBSTS, Base 3.1.3.17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cmbsts(pub u32);

impl Cmbsts {
    /// Controller Base Address Invalid: enabling the buffer failed because of the address in CMBMSC.
    pub const fn cbai(self) -> bool {
        self.0 & 1 != 0
    }
}

reg_value!(Cmbloc: u32, Cmbsz: u32, Cmbmsc: u64, Cmbsts: u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_offset_use_the_same_unit() {
        let cmbsz = Cmbsz(64 << 12 | 2 << 8 | 0b11111);
        assert_eq!(cmbsz.size_bytes(), Some(64 << 20));
        assert!(cmbsz.sqs() && cmbsz.cqs() && cmbsz.lists() && cmbsz.rds() && cmbsz.wds());
        assert_eq!(Cmbloc(3 << 12 | 2).offset_bytes(cmbsz), Some(3 << 20));
        assert_eq!(Cmbloc(3 << 12 | 2).bir(), 2);
    }

    #[test]
    fn reserved_units_have_no_size() {
        let cmbsz = Cmbsz(1 << 12 | 7 << 8);
        assert_eq!((cmbsz.unit_bytes(), cmbsz.size_bytes()), (None, None));
        assert_eq!(Cmbloc(u32::MAX).offset_bytes(cmbsz), None);
    }

    #[test]
    fn the_largest_size_does_not_overflow() {
        let cmbsz = Cmbsz(0xffff_f000 | 6 << 8);
        assert_eq!(cmbsz.size_bytes(), Some(0xf_ffff << 36));
    }

    #[test]
    fn memory_space_control() {
        assert_eq!(Cmbmsc::enabled_at(Iova(0x1234)), None);
        assert_eq!(Cmbmsc::enabled_at(Iova(0x10_0000)), Some(Cmbmsc(0x10_0003)));
        assert!(Cmbsts(1).cbai());
    }
}
