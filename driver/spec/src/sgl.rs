//! SGL descriptor: 16 bytes that describe a piece of memory or the next segment of the list (Base 4.1.2).
//!
//! Builds data block, segment and last segment descriptors, and tells all types apart when parsing. The planner builds
//! lists and the software controller walks them, each with its own code.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::ids::Iova;

/// SGL descriptor (Base 4.1.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address: of the data for a data block, of the next segment for a segment.
    pub address: U64,
    /// Length in bytes: of the data, or of the next segment (a multiple of 16).
    pub length: U32,
    /// Reserved for the types built here.
    pub reserved: [u8; 3],
    /// Bits 7:4 type, bits 3:0 sub type.
    pub identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

impl SglDescriptor {
    /// Size of a descriptor in bytes.
    pub const BYTES: u32 = 16;

    #[inline]
    const fn new(address: Iova, len_bytes: u32, identifier: u8) -> SglDescriptor {
        SglDescriptor {
            address: U64::new(address.0),
            length: U32::new(len_bytes),
            reserved: [0; 3],
            identifier,
        }
    }

    /// Builds a data block: `len_bytes` of data at `iova`. Zero length is valid and transfers nothing.
    #[inline]
    pub const fn data_block(iova: Iova, len_bytes: u32) -> SglDescriptor {
        SglDescriptor::new(iova, len_bytes, 0x00)
    }

    /// Builds a segment: the next `len_bytes` of descriptors lie at `iova`, and more segments follow.
    ///
    /// The specification requires `iova` to be qword aligned and `len_bytes` a nonzero multiple of
    /// [`SglDescriptor::BYTES`].
    #[inline]
    pub const fn segment(iova: Iova, len_bytes: u32) -> SglDescriptor {
        SglDescriptor::new(iova, len_bytes, 0x20)
    }

    /// Builds a last segment: the last `len_bytes` of descriptors lie at `iova`; limits as [`SglDescriptor::segment`].
    #[inline]
    pub const fn last_segment(iova: Iova, len_bytes: u32) -> SglDescriptor {
        SglDescriptor::new(iova, len_bytes, 0x30)
    }

    /// Returns the two qwords of a command's data pointer.
    #[inline]
    pub const fn to_words(self) -> [U64; 2] {
        transmute!(self)
    }

    /// Address of the data or of the next segment.
    #[inline]
    pub const fn iova(&self) -> Iova {
        Iova(self.address.get())
    }

    /// Length of the data or of the next segment in bytes.
    #[inline]
    pub const fn len_bytes(&self) -> u32 {
        self.length.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let bytes = SglDescriptor::last_segment(Iova(0x1122_3344_5566_7788), 0x90);
        let wire = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x90, 0, 0, 0, 0, 0, 0, 0x30];
        assert_eq!(bytes.as_bytes(), wire);
    }

    proptest! {
        #[test]
        fn constructors_round_trip(iova: u64, len: u32) {
            let built = [
                (SglDescriptor::data_block(Iova(iova), len), 0x00),
                (SglDescriptor::segment(Iova(iova), len), 0x20),
                (SglDescriptor::last_segment(Iova(iova), len), 0x30),
            ];
            for (descriptor, identifier) in built {
                let parsed = SglDescriptor::read_from_bytes(descriptor.as_bytes()).unwrap();
                prop_assert_eq!(parsed.identifier, identifier);
                prop_assert_eq!((parsed.iova(), parsed.len_bytes()), (Iova(iova), len));
            }
        }
    }
}
