//! Completion queue entry: the 16 bytes that a controller writes when a command ends (Base 3.3.3.2).
//!
//! A [`Cqe`] is a copy. The queue reads the entry from ring memory in the right order and validates SQID, CID and SQHD.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::ids::{Cid, Qid};
use super::status::Status;

/// Completion queue entry (Base 3.3.3.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// Command specific.
    pub dw0: U32,
    /// Command specific.
    pub dw1: U32,
    /// SQ Head Pointer: entries before it have been consumed.
    pub sqhd: U16,
    /// SQ Identifier: the submission queue of the command.
    pub sqid: U16,
    /// Command Identifier.
    pub cid: U16,
    /// Bit 0 phase tag, bits 15:1 status field.
    pub status_word: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// Builds the entry that a controller writes.
    #[inline]
    pub const fn new(dw0: u32, sqhd: u16, sqid: Qid, cid: Cid, status: Status, phase: bool) -> Cqe {
        Cqe {
            dw0: U32::new(dw0),
            dw1: U32::ZERO,
            sqhd: U16::new(sqhd),
            sqid: U16::new(sqid.0),
            cid: U16::new(cid.0),
            status_word: U16::new(status.bits() << 1 | phase as u16),
        }
    }

    /// Builds an entry from its four dwords, each in host byte order.
    #[inline]
    pub fn from_dwords(dwords: [u32; 4]) -> Cqe {
        transmute!(dwords.map(U32::new))
    }

    /// Returns the four dwords, each in host byte order.
    #[inline]
    pub fn to_dwords(self) -> [u32; 4] {
        let dwords: [U32; 4] = transmute!(self);
        dwords.map(U32::get)
    }

    /// Phase Tag: the controller inverts it on each pass through the queue.
    #[inline]
    pub const fn phase(&self) -> bool {
        self.status_word.get() & 1 != 0
    }

    /// Status field, without the phase tag.
    #[inline]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_word.get() >> 1)
    }

    /// Command Identifier.
    #[inline]
    pub const fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// SQ Identifier.
    #[inline]
    pub const fn sqid(&self) -> Qid {
        Qid(self.sqid.get())
    }

    /// SQ Head Pointer.
    #[inline]
    pub const fn sqhd(&self) -> u16 {
        self.sqhd.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let status = Status::INVALID_FIELD_IN_COMMAND.with_dnr(true);
        let cqe = Cqe::new(0xdead_beef, 5, Qid(3), Cid(0x1234), status, true);
        let bytes = [0xef, 0xbe, 0xad, 0xde, 0, 0, 0, 0, 5, 0, 3, 0, 0x34, 0x12, 0x05, 0x80];
        assert_eq!(cqe.as_bytes(), bytes);
        assert_eq!(Cqe::read_from_bytes(&bytes).unwrap(), cqe);
        assert!(Cqe::ref_from_bytes(&bytes[..15]).is_err());
    }

    proptest! {
        #[test]
        fn fields_round_trip(dw0: u32, sqhd: u16, sqid: u16, cid: u16, bits in 0u16..0x8000, phase: bool) {
            let status = Status::from_bits(bits);
            let cqe = Cqe::new(dw0, sqhd, Qid(sqid), Cid(cid), status, phase);
            prop_assert_eq!(cqe.status(), status);
            prop_assert_eq!((cqe.sqhd(), cqe.sqid(), cqe.cid(), cqe.phase()), (sqhd, Qid(sqid), Cid(cid), phase));
            prop_assert_eq!(cqe.dw0.get(), dw0);
            prop_assert_eq!(Cqe::from_dwords(cqe.to_dwords()), cqe);
        }

        #[test]
        fn dwords_are_the_bytes(bytes: [u8; 16]) {
            let cqe = Cqe::read_from_bytes(&bytes).unwrap();
            for (dword, chunk) in cqe.to_dwords().into_iter().zip(bytes.chunks(4)) {
                prop_assert_eq!(&dword.to_le_bytes(), chunk);
            }
        }
    }
}
