//! The child's reports: a JSON object per line of its standard output.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::measured::Measured;
use crate::options::Phase;
use crate::usage::OpenFiles;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The progress of a phase, from 0 to 1.
    Far { phase: Phase, done: f64 },
    /// A phase has ended.
    Measured(Measured),
    /// The child has ended.
    Ended(Ended),
}

/// Facts about an engine at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Peak resident memory.
    pub(crate) resident_bytes_max: u64,
    /// Its files that are open at the end.
    pub(crate) open_files: OpenFiles,
    /// Its setup, in words.
    pub(crate) setup: String,
    /// Its guarantees for what was put, and what it verifies.
    pub(crate) promise: String,
}

impl Message {
    /// # Errors
    /// If there is no reader any more.
    pub(crate) fn tell(&self) -> Result<()> {
        let line = serde_json::to_string(self)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }
}
