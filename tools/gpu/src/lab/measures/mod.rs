//! Measurements of the lab's steps that no other command makes, each in a process of its own. Times of the emulated GPU
//! are left out.

mod checksums;
mod foreign_streams;
mod host_copies;

use std::sync::Arc;

use adit_gpu::Gpu;
use clap::ValueEnum;
use serde_json::Value;

use crate::failure::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Measure {
    HostCopies,
    Checksums,
    ForeignStreams,
}

impl Measure {
    /// Measures on a GPU, and returns the figures.
    ///
    /// # Errors
    /// No GPU or NVRTC; CUDA's; what the rings say.
    pub(super) fn make(self, ordinal: u32) -> Result<Value> {
        crate::check(ordinal)?;
        let gpu = Gpu::open(ordinal)?;
        match self {
            Measure::HostCopies => host_copies::measure(&gpu),
            Measure::Checksums => checksums::measure(&gpu),
            Measure::ForeignStreams => foreign_streams::measure(&gpu),
        }
    }
}

/// Returns a time, or a rate, as JSON; null on the emulated GPU.
fn timed(gpu: &Arc<Gpu>, value: f64) -> Value {
    if crate::is_emulated(&gpu.info().name) { Value::Null } else { value.into() }
}

/// Returns a large number on a GPU, or a small one on the emulated GPU, whose memory is the machine's and whose threads
/// are few.
fn sized(gpu: &Arc<Gpu>, on_gpu: u64, emulated: u64) -> u64 {
    if crate::is_emulated(&gpu.info().name) { emulated } else { on_gpu }
}

/// Returns bytes that differ from place to place.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
