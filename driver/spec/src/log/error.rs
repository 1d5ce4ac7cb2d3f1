//! Error Information log (LID 01h, Base 5.16.1.2): newest entry first, 64 bytes each.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{Cid, Lba, Nsid, Qid};
use crate::status::Status;

/// Error Information Log Entry (Base 5.16.1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorInfo {
    /// Error Count: unique per error; 0 for an unused entry.
    pub error_count: U64,
    /// Submission Queue ID.
    pub sqid: U16,
    /// Command ID.
    pub cid: U16,
    /// Status field of the completion, bit 0 the phase tag.
    pub status_word: U16,
    /// Parameter Error Location: bits 7:0 byte of the command, 10:8 bit; FFFFh for none.
    pub parameter_error_location: U16,
    /// First LBA with an error, if the command has one.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Identifier of a vendor specific log page with more information; 0 for none.
    pub vendor_log: u8,
    /// Transport Type.
    pub trtype: u8,
    reserved30: [u8; 2],
    /// Command specific information.
    pub command_specific: U64,
    /// Transport type specific information.
    pub transport_specific: U16,
    reserved42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorInfo>() == 64);

impl ErrorInfo {
    /// Returns whether the entry describes an error.
    pub const fn is_valid(&self) -> bool {
        self.error_count.get() != 0
    }

    /// Submission queue of the command; `None` if the error concerns no single command.
    pub const fn sqid(&self) -> Option<Qid> {
        match self.sqid.get() {
            0xffff => None,
            qid => Some(Qid(qid)),
        }
    }

    /// Identifier of the command; `None` if the error concerns no single command.
    pub const fn cid(&self) -> Option<Cid> {
        match self.cid.get() {
            0xffff => None,
            cid => Some(Cid(cid)),
        }
    }

    /// Status of the command.
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_word.get() >> 1)
    }

    /// First LBA with an error.
    pub const fn lba(&self) -> Lba {
        Lba(self.lba.get())
    }

    /// Namespace of the command.
    pub const fn nsid(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// Byte of the submission queue entry that is in error.
    pub const fn parameter_byte(&self) -> Option<u8> {
        match self.parameter_error_location.get() {
            0xffff => None,
            location => Some(location as u8),
        }
    }

    /// Bit within [`ErrorInfo::parameter_byte`].
    pub const fn parameter_bit(&self) -> Option<u8> {
        match self.parameter_error_location.get() {
            0xffff => None,
            location => Some((location >> 8) as u8 & 7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use zerocopy::FromZeros;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        assert_eq!(offset_of!(ErrorInfo, lba), 16);
        assert_eq!(offset_of!(ErrorInfo, nsid), 24);
        assert_eq!(offset_of!(ErrorInfo, trtype), 29);
        assert_eq!(offset_of!(ErrorInfo, command_specific), 32);
    }

    #[test]
    fn all_ones_means_no_command() {
        let entry = ErrorInfo::read_from_bytes(&[0xff; 64]).unwrap();
        assert_eq!((entry.sqid(), entry.cid(), entry.parameter_byte()), (None, None, None));
        assert!(!ErrorInfo::new_zeroed().is_valid());
    }
}
