//! Measurements of the lab's steps that no other command makes, each in a process of its own. Times of the emulated GPU
//! are left out.

mod checksums;
mod figures;
mod foreign_streams;
mod host_copies;

use adit_gpu::Gpu;
use clap::ValueEnum;
use serde_json::Value;

use crate::failure::Result;
use crate::options::check_ordinal;

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
        check_ordinal(ordinal)?;
        let gpu = Gpu::open(ordinal)?;
        match self {
            Measure::HostCopies => host_copies::measure(&gpu),
            Measure::Checksums => checksums::measure(&gpu),
            Measure::ForeignStreams => foreign_streams::measure(&gpu),
        }
    }
}
