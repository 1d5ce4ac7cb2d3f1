//! I/O commands of the NVM command set: builders, and accessors for the controller's side (Base 7.1, NVM 3.2).
//!
//! Builders run once per I/O; each is a handful of stores.

use zerocopy::little_endian::U32;

use super::{IoOpcode, Sqe};
use crate::ids::{Lba, LbaCount, Nsid, RangeCount};

const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;
const DSM_AD: u32 = 1 << 2;
const RECLAIM_UNIT_HANDLES: u32 = 1;

impl Sqe {
    #[inline]
    const fn lba_range(opcode: IoOpcode, nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe {
            cdw10: U32::new(slba.0 as u32),
            cdw11: U32::new((slba.0 >> 32) as u32),
            cdw12: U32::new(nlb.z() as u32),
            ..Sqe::new(opcode.0, nsid)
        }
    }

    /// Read (NVM 3.2.4).
    #[inline]
    pub const fn read(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::READ, nsid, slba, nlb)
    }

    /// Write (NVM 3.2.6).
    #[inline]
    pub const fn write(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::WRITE, nsid, slba, nlb)
    }

    /// Compare (NVM 3.2.1).
    #[inline]
    pub const fn compare(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::COMPARE, nsid, slba, nlb)
    }

    /// Verify (NVM 3.2.5): the controller reads and checks, without a transfer.
    #[inline]
    pub const fn verify(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::VERIFY, nsid, slba, nlb)
    }

    /// Write Zeroes (NVM 3.2.8).
    #[inline]
    pub const fn write_zeroes(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::WRITE_ZEROES, nsid, slba, nlb)
    }

    /// Write Uncorrectable (NVM 3.2.7): reads of the range fail until it is written again.
    #[inline]
    pub const fn write_uncorrectable(nsid: Nsid, slba: Lba, nlb: LbaCount) -> Sqe {
        Sqe::lba_range(IoOpcode::WRITE_UNCORRECTABLE, nsid, slba, nlb)
    }

    /// Flush (Base 7.1): makes writes that completed before it durable.
    #[inline]
    pub const fn flush(nsid: Nsid) -> Sqe {
        Sqe::new(IoOpcode::FLUSH.0, nsid)
    }

    /// Dataset Management (NVM 3.2.3); the data is an array of `ranges` [`super::DsmRange`]s.
    #[inline]
    pub const fn dataset_management(nsid: Nsid, ranges: RangeCount, deallocate: bool) -> Sqe {
        Sqe {
            cdw10: U32::new(ranges.z() as u32),
            cdw11: U32::new(if deallocate { DSM_AD } else { 0 }),
            ..Sqe::new(IoOpcode::DATASET_MANAGEMENT.0, nsid)
        }
    }

    /// I/O Management Receive of the Reclaim Unit Handle Status (Base 2.1, 7.3): the handles through which a namespace
    /// with Flexible Data Placement takes writes. The data is a header of 16 bytes, whose last two hold the number of
    /// handles, then 32 bytes for each, of which the first two are its placement identifier; `bytes` of it are returned, a
    /// multiple of 4.
    pub const fn reclaim_unit_handles(nsid: Nsid, bytes: u32) -> Sqe {
        assert!(bytes >= 4 && bytes.is_multiple_of(4), "a length in whole dwords");
        Sqe {
            cdw10: U32::new(RECLAIM_UNIT_HANDLES),
            cdw11: U32::new(bytes / 4 - 1),
            ..Sqe::new(IoOpcode::IO_MANAGEMENT_RECEIVE.0, nsid)
        }
    }

    /// Copy (NVM 3.2.2) to `sdlba` onwards; the data is an array of `ranges` [`super::CopyRange`]s (format 0h).
    #[inline]
    pub const fn copy(nsid: Nsid, sdlba: Lba, ranges: RangeCount) -> Sqe {
        Sqe {
            cdw10: U32::new(sdlba.0 as u32),
            cdw11: U32::new((sdlba.0 >> 32) as u32),
            cdw12: U32::new(ranges.z() as u32),
            ..Sqe::new(IoOpcode::COPY.0, nsid)
        }
    }

    #[inline]
    const fn with_cdw12_flag(self, flag: u32, set: bool) -> Sqe {
        let cdw12 = self.cdw12.get();
        self.with_cdw12(if set { cdw12 | flag } else { cdw12 & !flag })
    }

    /// Sets Force Unit Access (Read, Write, Compare, Verify, Write Zeroes, Copy).
    #[inline]
    pub const fn with_fua(self, fua: bool) -> Sqe {
        self.with_cdw12_flag(FUA, fua)
    }

    /// Sets Deallocate of Write Zeroes: the controller should deallocate the range if it then reads as zeroes.
    #[inline]
    pub const fn with_deac(self, deac: bool) -> Sqe {
        self.with_cdw12_flag(DEAC, deac)
    }

    /// Starting LBA; for Copy, the starting destination LBA.
    #[inline]
    pub const fn slba(&self) -> Lba {
        Lba(self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32)
    }

    /// Number of logical blocks.
    #[inline]
    pub const fn nlb(&self) -> LbaCount {
        LbaCount::from_z(self.cdw12.get() as u16)
    }

    /// Force Unit Access.
    pub const fn fua(&self) -> bool {
        self.cdw12.get() & FUA != 0
    }

    /// Protection Information (PRINFO): bit 3 PRACT, bits 2:0 PRCHK.
    pub const fn prinfo(&self) -> u8 {
        (self.cdw12.get() >> 26) as u8 & 0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn read_golden_dwords() {
        let sqe = Sqe::read(Nsid(1), Lba(0x1_0000_0002), LbaCount::new(8).unwrap()).with_fua(true);
        let mut expected = [0; 16];
        expected[0] = 0x02;
        expected[1] = 1;
        expected[10..13].copy_from_slice(&[2, 1, 0x4000_0007]);
        assert_eq!(sqe.to_dwords(), expected);
    }

    #[test]
    fn builders_are_const() {
        const SQE: Sqe = Sqe::flush(Nsid::ALL);
        assert_eq!((SQE.io_opcode(), SQE.nsid()), (IoOpcode::FLUSH, Nsid::ALL));
    }

    #[test]
    fn dataset_management_and_copy() {
        let dsm = Sqe::dataset_management(Nsid(1), RangeCount::MAX, true);
        assert_eq!((dsm.cdw10.get(), dsm.cdw11.get()), (255, 4));
        let copy = Sqe::copy(Nsid(1), Lba(99), RangeCount::new(3).unwrap()).with_fua(true);
        assert_eq!((copy.slba(), copy.cdw12.get()), (Lba(99), 2 | FUA));
        assert!(copy.fua());
    }

    #[test]
    fn the_handles_of_a_namespace_are_received_in_dwords() {
        let sqe = Sqe::reclaim_unit_handles(Nsid(3), 4096);
        let mut expected = [0; 16];
        (expected[0], expected[1], expected[10], expected[11]) = (0x12, 3, 1, 1023);
        assert_eq!(sqe.to_dwords(), expected);
        assert!(!sqe.io_opcode().may_write());
    }

    type Builder = fn(Nsid, Lba, LbaCount) -> Sqe;
    const BUILDERS: [(Builder, IoOpcode); 6] = [
        (Sqe::read, IoOpcode::READ),
        (Sqe::write, IoOpcode::WRITE),
        (Sqe::compare, IoOpcode::COMPARE),
        (Sqe::verify, IoOpcode::VERIFY),
        (Sqe::write_zeroes, IoOpcode::WRITE_ZEROES),
        (Sqe::write_uncorrectable, IoOpcode::WRITE_UNCORRECTABLE),
    ];

    proptest! {
        #[test]
        fn range_commands_round_trip(nsid: u32, slba: u64, nlb_z: u16, fua: bool, deac: bool) {
            for (build, opcode) in BUILDERS {
                let sqe = build(Nsid(nsid), Lba(slba), LbaCount::from_z(nlb_z))
                    .with_fua(fua)
                    .with_deac(deac);
                prop_assert_eq!((sqe.io_opcode(), sqe.nsid(), sqe.slba()), (opcode, Nsid(nsid), Lba(slba)));
                prop_assert_eq!(sqe.nlb().z(), nlb_z);
                prop_assert_eq!((sqe.fua(), sqe.cdw12.get() & DEAC != 0), (fua, deac));
                prop_assert_eq!((sqe.cid().0, sqe.prp1().0, sqe.prp2().0), (0, 0, 0));
            }
        }
    }
}
