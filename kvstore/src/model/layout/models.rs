//! Layouts of models that are well known, by their published configurations.

use super::{BlockShape, Dtype, Layout, Order};
use crate::error::{Error, Result};

/// Bytes of the longest commands that slabs of named layouts are made for.
const COMMAND_BYTES: u64 = 1 << 20;

/// Models by name.
pub const MODELS: [&str; 7] =
    ["llama-3-8b", "llama-3-70b", "qwen3-8b", "qwen3-32b", "mistral-7b", "opt-6.7b", "deepseek-v3"];

/// Layers, tensors per layer, heads, numbers of a head and dtype of a model.
fn published(model: &str) -> Option<(u32, u8, u32, u32, Dtype)> {
    Some(match model {
        "llama-3-8b" => (32, 2, 8, 128, Dtype::Bf16),
        "llama-3-70b" => (80, 2, 8, 128, Dtype::Bf16),
        "qwen3-8b" => (36, 2, 8, 128, Dtype::Bf16),
        "qwen3-32b" => (64, 2, 8, 128, Dtype::Bf16),
        "mistral-7b" => (32, 2, 8, 128, Dtype::Bf16),
        "opt-6.7b" => (32, 2, 32, 128, Dtype::F16),
        // MLA: a latent of 512 and 64 rotated numbers for a token, which all heads share.
        "deepseek-v3" => (61, 1, 1, 576, Dtype::Bf16),
        _ => return None,
    })
}

impl BlockShape {
    /// The blocks of a model that is well known: one of [`MODELS`], in any case.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name; it has the names.
    pub fn named(model: &str, tokens: u32) -> Result<BlockShape> {
        let Some(found) = published(&model.to_ascii_lowercase()) else {
            return Err(Error::invalid("model", model, format!("use {}", MODELS.join(", "))));
        };
        let (layers, tensors_per_layer, kv_heads, head_dim, dtype) = found;
        Ok(BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens })
    }
}

impl Layout {
    /// The layout of a model that is well known, one of [`MODELS`], for blocks of so many tokens that are read layer
    /// by layer in commands of up to 1 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name, or a number of tokens that no layout can have.
    pub fn named(model: &str, tokens: u32) -> Result<Layout> {
        let block = BlockShape::named(model, tokens)?;
        Layout::new(block, Order::LayerMajor { slots: block.slots(COMMAND_BYTES)? })
    }
}
