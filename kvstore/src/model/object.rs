//! What is known of an object beside its key.
//!
//! An object is cut into pieces, each with a CRC-32C of its own: the tensors of a KV block, or runs of
//! [`piece_bytes`] of anything else. So a part of an object can be read and checked without the rest. One to 512
//! pieces: a record with all checksums fits a block of the journal.

use crate::model::place::{Place, units};

/// Most checksums, and so pieces, of one object.
pub const CHECKSUMS_MAX: usize = 512;
/// Bytes of a piece of an object that is not long.
const PIECE_BYTES: u64 = 128 << 10;

/// Which object of a shard: an index into its tables, stable while the object exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// Which layout of the store's an object has; 0 is none: one contiguous extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutId(pub u8);

impl LayoutId {
    /// One contiguous extent, cut into pieces by length.
    pub const PLAIN: LayoutId = LayoutId(0);
}

/// Whose object it is; 0 is nobody's in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u8);

/// What is known of an object beside its key and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it starts: its extent, or its slot's first run in a slab.
    pub place: Place,
    /// How long it is, 1 to 2^40 - 1 bytes, without padding.
    pub bytes: u64,
    /// How it lies from there.
    pub layout: LayoutId,
    /// Whose it is.
    pub tenant: TenantId,
}

impl Object {
    /// One past the most bytes an object may have.
    pub const BYTES_END: u64 = 1 << 40;

    /// Units that it takes as one contiguous extent.
    pub fn units(&self) -> u64 {
        units(self.bytes)
    }
}

/// Bytes of each piece but the last of a plain object of `bytes`: 128 KiB, or of long objects the power of two that
/// leaves at most 512 pieces.
pub const fn piece_bytes(bytes: u64) -> u64 {
    let least = bytes.div_ceil(CHECKSUMS_MAX as u64).next_power_of_two();
    if least > PIECE_BYTES { least } else { PIECE_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_few_whole_units_and_cover_the_object() {
        for bytes in
            [1, 4096, PIECE_BYTES, PIECE_BYTES + 1, 64 << 20, (64 << 20) + 1, (1 << 40) - 1]
        {
            let piece = piece_bytes(bytes);
            assert!(piece.is_multiple_of(crate::UNIT_BYTES) && piece >= PIECE_BYTES);
            assert!(bytes.div_ceil(piece) <= CHECKSUMS_MAX as u64, "{bytes} bytes");
        }
        assert_eq!((piece_bytes(64 << 20), piece_bytes((64 << 20) + 1)), (128 << 10, 256 << 10));
    }
}
