//! Submission queue entry: the 64-byte command (Base 3.3.3.1).
//!
//! Builders ([`Sqe::read`], [`Sqe::identify`], ...) leave the command identifier 0 and the data pointer empty; the
//! queue that posts the entry sets them with [`Sqe::with_cid`] and [`Sqe::with_dptr`]. Accessors never fail. Checks
//! against a controller or namespace do not belong here.

mod admin;
mod io;
mod opcode;
mod range;

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

pub use admin::{AttachmentSelect, Cns, FeatureSelect, QueuePriority};
pub use opcode::{AdminOpcode, IoOpcode};
pub use range::{CopyRange, DsmRange};

use super::ids::{Cid, Iova, Nsid};
use super::sgl::SglDescriptor;

/// Submission queue entry, common command format (Base 3.3.3.1).
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// Bits 7:0 opcode, 9:8 fused operation, 15:14 PSDT, 31:16 command identifier.
    pub cdw0: U32,
    /// Namespace Identifier.
    pub nsid: U32,
    /// Command specific.
    pub cdw2: U32,
    /// Command specific.
    pub cdw3: U32,
    /// Metadata Pointer.
    pub mptr: U64,
    /// Data Pointer: PRP1 and PRP2, or one SGL descriptor.
    pub dptr: [U64; 2],
    /// Command specific.
    pub cdw10: U32,
    /// Command specific.
    pub cdw11: U32,
    /// Command specific.
    pub cdw12: U32,
    /// Command specific.
    pub cdw13: U32,
    /// Command specific.
    pub cdw14: U32,
    /// Command specific.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Sqe>() == 64);

/// Where a command's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// The command transfers no data.
    None,
    /// Two PRP entries (Base 4.1.1).
    Prp {
        /// The first page.
        prp1: Iova,
        /// The second page, the list of the remaining pages, or 0.
        prp2: Iova,
    },
    /// One SGL descriptor (Base 4.1.2).
    Sgl(SglDescriptor),
}

const PSDT_MASK: u32 = 3 << 14;
const PSDT_SGL: u32 = 1 << 14;

impl Sqe {
    /// Creates an entry with only opcode and namespace set.
    #[inline]
    pub const fn new(opcode: u8, nsid: Nsid) -> Sqe {
        const ZERO: U32 = U32::ZERO;
        Sqe {
            cdw0: U32::new(opcode as u32),
            nsid: U32::new(nsid.0),
            cdw2: ZERO,
            cdw3: ZERO,
            mptr: U64::ZERO,
            dptr: [U64::ZERO; 2],
            cdw10: ZERO,
            cdw11: ZERO,
            cdw12: ZERO,
            cdw13: ZERO,
            cdw14: ZERO,
            cdw15: ZERO,
        }
    }

    /// Sets the command identifier.
    #[inline]
    pub const fn with_cid(self, cid: Cid) -> Sqe {
        let cdw0 = self.cdw0.get() & 0xffff | (cid.0 as u32) << 16;
        Sqe { cdw0: U32::new(cdw0), ..self }
    }

    /// Sets the data pointer and PSDT.
    #[inline]
    pub const fn with_dptr(self, dptr: DataPointer) -> Sqe {
        let cdw0 = self.cdw0.get() & !PSDT_MASK;
        let (psdt, dptr) = match dptr {
            DataPointer::None => (0, [U64::ZERO; 2]),
            DataPointer::Prp { prp1, prp2 } => (0, [U64::new(prp1.0), U64::new(prp2.0)]),
            DataPointer::Sgl(sgl) => (PSDT_SGL, sgl.to_words()),
        };
        Sqe { cdw0: U32::new(cdw0 | psdt), dptr, ..self }
    }

    /// Builds an entry from its dwords in host byte order, unchecked, for raw passthrough.
    #[inline]
    pub fn from_dwords(dwords: [u32; 16]) -> Sqe {
        transmute!(dwords.map(U32::new))
    }

    /// Returns the dwords in host byte order.
    #[inline]
    pub fn to_dwords(self) -> [u32; 16] {
        let dwords: [U32; 16] = transmute!(self);
        dwords.map(U32::get)
    }

    /// Returns the entry as qwords in host byte order: dword `2n` is the lower half of qword `n`.
    #[inline]
    pub fn to_qwords(self) -> [u64; 8] {
        let qwords: [U64; 8] = transmute!(self);
        qwords.map(U64::get)
    }

    /// Opcode as a number; its meaning depends on the queue.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.cdw0.get() as u8
    }

    /// Opcode of an entry from the admin queue.
    pub const fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode())
    }

    /// Opcode of an entry from an I/O queue.
    pub const fn io_opcode(&self) -> IoOpcode {
        IoOpcode(self.opcode())
    }

    /// PRP or SGL for Data Transfer: 0 for PRPs, 1 for an SGL.
    pub const fn psdt(&self) -> u8 {
        (self.cdw0.get() >> 14) as u8 & 3
    }

    /// Command identifier.
    #[inline]
    pub const fn cid(&self) -> Cid {
        Cid((self.cdw0.get() >> 16) as u16)
    }

    /// Namespace identifier.
    pub const fn nsid(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// First PRP entry; valid if PSDT is PRP.
    pub const fn prp1(&self) -> Iova {
        Iova(self.dptr[0].get())
    }

    /// Second PRP entry; valid if PSDT is PRP.
    pub const fn prp2(&self) -> Iova {
        Iova(self.dptr[1].get())
    }

    const fn with_cdw10(self, cdw10: u32) -> Sqe {
        Sqe { cdw10: U32::new(cdw10), ..self }
    }

    const fn with_cdw11(self, cdw11: u32) -> Sqe {
        Sqe { cdw11: U32::new(cdw11), ..self }
    }

    const fn with_cdw12(self, cdw12: u32) -> Sqe {
        Sqe { cdw12: U32::new(cdw12), ..self }
    }
}

impl fmt::Debug for Sqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Sqe(opcode {:#04x}, command {}, namespace {}",
            self.opcode(),
            self.cid(),
            self.nsid()
        )?;
        write!(f, ", PSDT {} {:#x} {:#x}", self.psdt(), self.dptr[0].get(), self.dptr[1].get())?;
        let dwords = self.to_dwords();
        write!(f, ", cdw10.. {:x?})", &dwords[10..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dptr_sets_psdt_and_clears_it_again() {
        let sgl = SglDescriptor::data_block(Iova(0x1000), 512);
        let sqe = Sqe::new(2, Nsid(1)).with_cid(Cid(0xffff)).with_dptr(DataPointer::Sgl(sgl));
        assert_eq!((sqe.psdt(), sqe.dptr, sqe.cid()), (1, sgl.to_words(), Cid(0xffff)));
        let sqe = sqe.with_dptr(DataPointer::Prp { prp1: Iova(1), prp2: Iova(2) });
        assert_eq!((sqe.psdt(), sqe.prp1(), sqe.prp2()), (0, Iova(1), Iova(2)));
        let sqe = sqe.with_dptr(DataPointer::None);
        assert_eq!((sqe.prp1(), sqe.prp2(), sqe.opcode()), (Iova(0), Iova(0), 2));
    }

    #[test]
    fn short_and_long_buffers_are_refused() {
        assert!(Sqe::ref_from_bytes(&[0; 63]).is_err());
        assert!(Sqe::ref_from_bytes(&[0; 65]).is_err());
    }

    proptest! {
        #[test]
        fn dwords_are_the_bytes(bytes in proptest::array::uniform32(any::<u16>())) {
            let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
            let sqe = Sqe::read_from_bytes(&bytes).unwrap();
            for (dword, chunk) in sqe.to_dwords().into_iter().zip(bytes.chunks(4)) {
                prop_assert_eq!(&dword.to_le_bytes(), chunk);
            }
            for (qword, chunk) in sqe.to_qwords().into_iter().zip(bytes.chunks(8)) {
                prop_assert_eq!(&qword.to_le_bytes(), chunk);
            }
            prop_assert_eq!(Sqe::from_dwords(sqe.to_dwords()), sqe);
            let _ = format!("{sqe:?}");
        }

        #[test]
        fn setters_touch_only_their_bits(dwords: [u32; 16], cid: u16, iova: u64, len: u32) {
            let before = Sqe::from_dwords(dwords);
            let descriptor = SglDescriptor::segment(Iova(iova), len);
            let after = before.with_cid(Cid(cid)).with_dptr(DataPointer::Sgl(descriptor));
            prop_assert_eq!((after.cid(), after.dptr, after.psdt()), (Cid(cid), descriptor.to_words(), 1));
            prop_assert_eq!(after.cdw0.get() & 0x3fff, before.cdw0.get() & 0x3fff);
            prop_assert_eq!(&after.to_dwords()[1..6], &before.to_dwords()[1..6]);
            prop_assert_eq!(&after.to_dwords()[10..], &before.to_dwords()[10..]);
        }
    }
}
