//! What a child tells: a JSON object in each line of its standard output.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::measured::Measured;
use crate::options::Phase;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// How far a phase is, from 0 to 1.
    Far { phase: Phase, done: f64 },
    /// A phase is over.
    Measured(Measured),
    /// All is over.
    Ended(Ended),
}

/// What is known of an engine at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The most memory that was resident.
    pub(crate) resident_bytes_max: u64,
    /// How it was set up, in words.
    pub(crate) setup: String,
    /// What it promises of what was put, and what it verifies.
    pub(crate) promise: String,
}

impl Message {
    /// # Errors
    /// When nobody reads it any more.
    pub(crate) fn tell(&self) -> Result<()> {
        let line = serde_json::to_string(self)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }
}
