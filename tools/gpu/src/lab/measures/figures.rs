//! Figures of a GPU, and what replaces them on the emulated one.

use std::sync::Arc;

use adit_gpu::Gpu;
use serde_json::Value;

use crate::options::is_emulated;

/// Returns a time, or a rate, as JSON; null on the emulated GPU.
pub(super) fn timed(gpu: &Arc<Gpu>, value: f64) -> Value {
    if is_emulated(&gpu.info().name) { Value::Null } else { value.into() }
}

/// Returns a large number on a GPU, or a small one on the emulated GPU, whose memory is the machine's and whose threads
/// are few.
pub(super) fn sized(gpu: &Arc<Gpu>, on_gpu: u64, emulated: u64) -> u64 {
    if is_emulated(&gpu.info().name) { emulated } else { on_gpu }
}
