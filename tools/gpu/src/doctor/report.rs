//! A report of facts: rows in sections, and what follows from them.

use adit_gpu::{Error, MemoryPath};
use serde::Serialize;

/// State of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    #[serde(rename = "ok")]
    Good,
    /// Works, but could be better.
    Warning,
    /// Not there.
    Missing,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Subject.
    pub name: &'static str,
    /// State.
    pub verdict: Verdict,
    /// Finding.
    pub value: String,
    /// Reason for the state, unless good.
    pub reason: Option<String>,
    /// The remedy, if there is one.
    pub fix: Option<String>,
}

/// Related facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// The facts, in order.
    pub rows: Vec<Row>,
}

/// Facts that rings require.
const ESSENTIAL: [&str; 5] =
    ["GPU", "compute capability", "NVRTC", "host registration", "doorbells"];

/// The default engine, with [`adit_gpu::Options::default`] and [`adit_gpu::Pool::allocate`] without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Usual {
    /// The GPU: pool and rings lie in its memory.
    Rings,
    /// CPU threads, through pinned memory. Rings over pinned memory may work, but only on request.
    Staged,
    /// The driver's own queue pairs, without the GPU.
    #[serde(rename = "CPU only")]
    CpuOnly,
}

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In order.
    pub sections: Vec<Section>,
    /// The best working memory path; without a drive none was tried, and this is the least demanding one.
    pub path: MemoryPath,
    /// How doorbells would be rung: `mapped` or `proxy`; `None` if no GPU rings any.
    pub doorbells: Option<&'static str>,
}

impl Report {
    /// Returns the fact called `name`, from any section.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.sections.iter().flat_map(|section| &section.rows).find(|row| row.name == name)
    }

    /// Returns a missing fact that rings require.
    pub fn obstacle(&self) -> Option<&Row> {
        let rows = ESSENTIAL.iter().filter_map(|name| self.row(name));
        rows.into_iter().find(|row| row.verdict == Verdict::Missing)
    }

    /// Returns the default engine; `None` if it depends on the drive, and none was given.
    pub fn usual(&self) -> Option<Usual> {
        let instead = if self.can_stage() { Usual::Staged } else { Usual::CpuOnly };
        match self.path {
            _ if self.obstacle().is_some() => Some(instead),
            MemoryPath::CpuOnly => Some(Usual::CpuOnly),
            MemoryPath::PinnedHost => self.doorbells.map(|_| instead),
            _ => Some(Usual::Rings),
        }
    }

    /// Returns whether CPU threads could stage transfers, which needs pinned memory registered with CUDA.
    fn can_stage(&self) -> bool {
        let registers = |name| self.row(name).is_none_or(|row| row.verdict != Verdict::Missing);
        ["GPU", "host registration", MemoryPath::PinnedHost.name()].into_iter().all(registers)
    }
}

impl Row {
    pub(super) fn good(name: &'static str, value: impl ToString) -> Row {
        let value = value.to_string();
        Row { name, value, verdict: Verdict::Good, reason: None, fix: None }
    }

    pub(super) fn bad(
        name: &'static str,
        verdict: Verdict,
        value: impl ToString,
        reason: impl ToString,
        fix: impl ToString,
    ) -> Row {
        let (reason, fix) = (Some(reason.to_string()), Some(fix.to_string()));
        Row { name, value: value.to_string(), verdict, reason, fix }
    }

    pub(super) fn warning(
        name: &'static str,
        value: impl ToString,
        reason: &str,
        fix: &str,
    ) -> Row {
        Row::bad(name, Verdict::Warning, value, reason, fix)
    }

    /// Creates a missing fact from the error.
    pub(super) fn missing(name: &'static str, error: &Error) -> Row {
        Row::by(name, Verdict::Missing, "no", error)
    }

    /// Creates a fact whose state follows from an error.
    pub(super) fn by(name: &'static str, verdict: Verdict, value: &str, error: &Error) -> Row {
        let (reason, fix) = match error {
            Error::Unavailable { why, fix, .. } | Error::Refused { why, fix, .. } => {
                (why.clone(), Some(fix.clone()))
            }
            Error::Cuda { call, name, fix, .. } => {
                (format!("{call} failed: {name}"), Some(fix.clone()))
            }
            other => (other.to_string(), None),
        };
        Row { name, value: value.to_owned(), verdict, reason: Some(reason), fix }
    }

    /// Creates a fact with the value `good` of a finding, or the reason it is missing.
    pub(super) fn of<T>(
        name: &'static str,
        found: &Result<T, Error>,
        good: impl FnOnce(&T) -> String,
    ) -> Row {
        match found {
            Ok(found) => Row::good(name, good(found)),
            Err(error) => Row::missing(name, error),
        }
    }
}
