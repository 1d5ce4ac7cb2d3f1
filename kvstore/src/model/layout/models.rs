//! Layouts of well-known models, from their published configurations.

use super::{BlockShape, Dtype, Layout, Order};
use crate::error::{Error, Result};

/// Longest command, in bytes, that the slabs of named layouts are made for.
const COMMAND_BYTES: u64 = 1 << 20;

/// The names of the models.
pub const MODELS: [&str; 7] =
    ["llama-3-8b", "llama-3-70b", "qwen3-8b", "qwen3-32b", "mistral-7b", "opt-6.7b", "deepseek-v3"];

/// Returns the layers, tensors per layer, heads, numbers per head and dtype of a model.
fn published(model: &str) -> Option<(u32, u8, u32, u32, Dtype)> {
    Some(match model {
        "llama-3-8b" => (32, 2, 8, 128, Dtype::Bf16),
        "llama-3-70b" => (80, 2, 8, 128, Dtype::Bf16),
        "qwen3-8b" => (36, 2, 8, 128, Dtype::Bf16),
        "qwen3-32b" => (64, 2, 8, 128, Dtype::Bf16),
        "mistral-7b" => (32, 2, 8, 128, Dtype::Bf16),
        "opt-6.7b" => (32, 2, 32, 128, Dtype::F16),
        // MLA: a latent of 512 and 64 rotated numbers per token, shared by all heads.
        "deepseek-v3" => (61, 1, 1, 576, Dtype::Bf16),
        _ => return None,
    })
}

impl BlockShape {
    /// Returns the block shape of a well-known model: one of [`MODELS`], in any case.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name; the error lists the names.
    pub fn named(model: &str, tokens: u32) -> Result<BlockShape> {
        let Some(found) = published(&model.to_ascii_lowercase()) else {
            return Err(Error::invalid("model", model, format!("use {}", MODELS.join(", "))));
        };
        let (layers, tensors_per_layer, kv_heads, head_dim, dtype) = found;
        Ok(BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens })
    }
}

impl Layout {
    /// Returns the layout of a well-known model, one of [`MODELS`], for blocks of `tokens` tokens that are read layer
    /// by layer in commands of up to 1 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name, or an impossible number of tokens.
    pub fn named(model: &str, tokens: u32) -> Result<Layout> {
        let block = BlockShape::named(model, tokens)?;
        Layout::new(block, Order::LayerMajor { slots: block.slots(COMMAND_BYTES)? })
    }
}
