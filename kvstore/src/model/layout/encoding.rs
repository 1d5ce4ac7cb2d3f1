//! The encoding of layouts in the journal: 24 bytes, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | order: 0 block-major, 1 layer-major |
//! | 2 | 1 | dtype: 0 F32, 1 F16, 2 BF16, 3 FP8, 4 INT8 |
//! | 3 | 1 | tensors per layer |
//! | 4 | 4 | layers |
//! | 8 | 4 | heads |
//! | 12 | 4 | numbers per head |
//! | 16 | 4 | tokens |
//! | 20 | 4 | slots; 0 if block-major |
//!
//! There is no checksum, because the block around it has one. Decoding still checks every value.

use super::{BlockShape, Dtype, Layout, Order};
use crate::error::{Error, Result};

/// Bytes of an encoded layout.
pub const ENCODED_BYTES: usize = 24;

const VERSION: u8 = 1;
const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Fp8, Dtype::Int8];

impl Layout {
    /// Encodes it.
    pub fn encode(&self) -> [u8; ENCODED_BYTES] {
        let (order, slots) = match self.order {
            Order::BlockMajor => (0, 0),
            Order::LayerMajor { slots } => (1, slots),
        };
        let dtype = DTYPES.iter().position(|dtype| *dtype == self.block.dtype);
        let dtype = dtype.expect("each has a number") as u8;
        let BlockShape { layers, tensors_per_layer, kv_heads, head_dim, tokens, .. } = self.block;
        let mut bytes = [0; ENCODED_BYTES];
        bytes[..4].copy_from_slice(&[VERSION, order, dtype, tensors_per_layer]);
        for (at, field) in [layers, kv_heads, head_dim, tokens, slots].iter().enumerate() {
            bytes[4 + at * 4..][..4].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a layout.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another version, and for bytes that no layout encodes to.
    pub fn decode(bytes: &[u8; ENCODED_BYTES]) -> Result<Layout> {
        let invalid = |what: String, fix: &str| Error::invalid("stored layout", what, fix);
        let field = |at: usize| {
            let four = bytes[4 + at * 4..][..4].try_into().expect("a field has four bytes");
            u32::from_le_bytes(four)
        };
        if bytes[0] != VERSION {
            let what = format!("of version {}", bytes[0]);
            return Err(invalid(what, "open the store with the version that wrote it"));
        }
        let order = match (bytes[1], field(4)) {
            (0, 0) => Order::BlockMajor,
            (1, slots) => Order::LayerMajor { slots },
            (order, slots) => {
                let what = format!("of order {order} with {slots} slots");
                return Err(invalid(what, "the bytes are damaged: check the store"));
            }
        };
        let Some(&dtype) = DTYPES.get(usize::from(bytes[2])) else {
            let what = format!("of dtype {}", bytes[2]);
            return Err(invalid(what, "the bytes are damaged: check the store"));
        };
        let (layers, kv_heads) = (field(0), field(1));
        let (head_dim, tokens, tensors_per_layer) = (field(2), field(3), bytes[3]);
        let block = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
        Layout::new(block, order)
    }
}
