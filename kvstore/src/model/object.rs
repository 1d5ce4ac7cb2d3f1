//! An object's properties other than its key.
//!
//! An object consists of pieces, each with a CRC-32C of its own: the tensors of a KV block, or runs of
//! [`piece_bytes`] of anything else. A part of an object can therefore be read and verified without the rest. There
//! are 1 to 512 pieces, so that a record with all checksums fits in a journal block.

use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::model::place::{Place, units};
pub use crate::version::Version;

/// Maximum checksums, and so pieces, of one object.
pub const CHECKSUMS_MAX: usize = 512;
/// Bytes of a piece, except in very long objects.
const PIECE_BYTES: u64 = 128 << 10;

/// Identifies an object in a shard: an index into its tables, stable while the object exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// Identifies a layout of the store; 0 for none: one contiguous extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutId(pub u8);

impl LayoutId {
    /// One contiguous extent, cut into pieces by length.
    pub const PLAIN: LayoutId = LayoutId(0);
}

/// Identifies the tenant of an object; 0 for the default tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u8);

/// Reserves the number of a tenant or a layout while this or a clone lives.
#[derive(Clone, Debug, Default)]
pub struct Hold(Arc<()>);

impl Hold {
    /// Returns whether there is no clone. Only its owner can make one then.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Hold) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Hold {}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Version> {
        let fix = "a version is a number, as 'adit kv info' shows it";
        text.parse().map(Version).map_err(|_| Error::invalid("the version", text, fix))
    }
}

/// An object's properties other than its key and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it starts: its extent, or the first run of its slot in a slab.
    pub place: Place,
    /// Its length without padding, up to 2^40 - 1 bytes. An empty object takes a unit, whose contents are ignored.
    pub bytes: u64,
    /// Its layout from there.
    pub layout: LayoutId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its version.
    pub version: Version,
}

impl Object {
    /// One past the maximum bytes of an object.
    pub const BYTES_END: u64 = 1 << 40;

    /// Returns the units that it takes as one contiguous extent.
    pub fn units(&self) -> u64 {
        plain_units(self.bytes)
    }
}

/// Returns the units of a plain object of this length: at least one, so that each object has a place of its own.
pub(crate) const fn plain_units(bytes: u64) -> u64 {
    if bytes == 0 { 1 } else { units(bytes) }
}

/// Returns the bytes of each piece but the last of a plain object: 128 KiB, or for long objects the power of two that
/// leaves at most 512 pieces.
pub const fn piece_bytes(bytes: u64) -> u64 {
    let least = bytes.div_ceil(CHECKSUMS_MAX as u64).next_power_of_two();
    if least > PIECE_BYTES { least } else { PIECE_BYTES }
}

/// Returns the number of pieces of a plain object: one without bytes for an empty one. By a shift: an opening counts them for millions of objects, and
/// a division by a variable is slow.
pub(crate) const fn piece_count(bytes: u64) -> u64 {
    let piece = piece_bytes(bytes);
    let count = (bytes + piece - 1) >> piece.trailing_zeros();
    if count == 0 { 1 } else { count }
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
            assert_eq!(piece_count(bytes), bytes.div_ceil(piece), "{bytes} bytes");
        }
        assert_eq!((piece_bytes(64 << 20), piece_bytes((64 << 20) + 1)), (128 << 10, 256 << 10));
    }
}
