//! What this machine has for rings of a GPU, what it lacks, and what would change that.
//!
//! The facts of CUDA and of the system are read; the ways to memory and the doorbells are tried, with small pieces that are given
//! back. Nothing installed is a report like any other: then only the CPU's way is left.

mod facts;
mod pcie;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use crate::cuda::Gpu;
use crate::error::Error;
use crate::paths::{self, MemoryPath};
use crate::uring::Device;

/// How a fact stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, and could be better.
    Warning,
    /// Not there.
    Missing,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is about.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// How it stands.
    pub verdict: Verdict,
    /// Why it stands so, where it is not good.
    pub reason: Option<String>,
    /// What would change it, where something would.
    pub fix: Option<String>,
}

/// Facts that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// The facts, in order.
    pub rows: Vec<Row>,
}

/// What rings cannot do without, by its fact.
const ESSENTIAL: [&str; 5] =
    ["GPU", "compute capability", "NVRTC", "host registration", "doorbells"];

/// Who would carry transfers out where nothing is asked for: [`crate::Options::default`] and [`crate::Pool::allocate`]
/// without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// The GPU: pool and rings lie in its memory.
    Rings,
    /// CPU threads, through pinned memory. Rings over pinned memory may work, and have to be asked for.
    Staged,
    /// The driver's own queue pairs, without the GPU.
    CpuOnly,
    /// That is for the drive to say, and none was there.
    Open,
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In order.
    pub sections: Vec<Section>,
    /// The best way to memory that works; without a drive none was tried, and it is the one that needs the least.
    pub path: MemoryPath,
    /// How doorbells would be rung: `mapped` or `proxy`; `None` where no GPU rings any.
    pub doorbells: Option<&'static str>,
}

impl Report {
    /// The fact of a name, wherever it is.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.sections.iter().flat_map(|section| &section.rows).find(|row| row.name == name)
    }

    /// What rings cannot do without and is missing here.
    pub fn obstacle(&self) -> Option<&Row> {
        let rows = ESSENTIAL.iter().filter_map(|name| self.row(name));
        rows.into_iter().find(|row| row.verdict == Verdict::Missing)
    }
}

impl Report {
    /// Who would carry transfers out where nothing is asked for.
    pub fn usual(&self) -> Usual {
        let instead = if self.can_stage() { Usual::Staged } else { Usual::CpuOnly };
        if self.obstacle().is_some() {
            return instead;
        }
        match self.path {
            MemoryPath::CpuOnly => Usual::CpuOnly,
            MemoryPath::PinnedHost if self.doorbells.is_none() => Usual::Open,
            MemoryPath::PinnedHost => instead,
            _ => Usual::Rings,
        }
    }

    /// Whether CPU threads could stage transfers: through pinned memory, which CUDA has to register.
    fn can_stage(&self) -> bool {
        let registers = |name| self.row(name).is_none_or(|row| row.verdict != Verdict::Missing);
        ["GPU", "host registration", MemoryPath::PinnedHost.name()].into_iter().all(registers)
    }
}

impl Row {
    fn good(name: &'static str, value: impl ToString) -> Row {
        let value = value.to_string();
        Row { name, value, verdict: Verdict::Good, reason: None, fix: None }
    }

    fn bad(
        name: &'static str,
        verdict: Verdict,
        value: impl ToString,
        reason: impl ToString,
        fix: impl ToString,
    ) -> Row {
        let (reason, fix) = (Some(reason.to_string()), Some(fix.to_string()));
        Row { name, value: value.to_string(), verdict, reason, fix }
    }

    fn warning(name: &'static str, value: impl ToString, reason: &str, fix: &str) -> Row {
        Row::bad(name, Verdict::Warning, value, reason, fix)
    }

    /// What is not there, by the error that says so.
    fn missing(name: &'static str, error: &Error) -> Row {
        Row::by(name, Verdict::Missing, "no", error)
    }

    /// What stands so because of an error.
    fn by(name: &'static str, verdict: Verdict, value: &str, error: &Error) -> Row {
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

    /// `good` where something is there, or why it is not.
    fn of<T>(name: &'static str, found: &Result<T, Error>, good: impl FnOnce(&T) -> String) -> Row {
        match found {
            Ok(found) => Row::good(name, good(found)),
            Err(error) => Row::missing(name, error),
        }
    }
}

/// Looks at a GPU by its number, and at a device with it, from whose namespace one LBA is read.
pub fn examine(ordinal: u32, device: Option<&Device>) -> Report {
    examine_below(Path::new("/sys"), ordinal, device)
}

/// The same with the sysfs at `root`.
fn examine_below(root: &Path, ordinal: u32, device: Option<&Device>) -> Report {
    let gpu = Gpu::open(ordinal);
    let controller = device.map(|device| &device.controller);
    let mut sections = vec![Section { title: "GPU", rows: facts::gpu(&gpu) }];
    sections.push(Section { title: "System", rows: facts::system(gpu.as_ref().ok(), controller) });
    let Ok(gpu) = gpu else {
        return Report { sections, path: MemoryPath::CpuOnly, doorbells: None };
    };
    sections.push(Section { title: "PCIe", rows: pcie::rows(root, &gpu, controller) });
    let Some(device) = device else {
        return Report { sections, path: MemoryPath::PinnedHost, doorbells: None };
    };
    let (rows, path) = ways(&gpu, &device.controller);
    sections.push(Section { title: "Ways to memory", rows });
    let (row, doorbells) = facts::doorbells(&gpu, device);
    sections.push(Section { title: "Doorbells", rows: vec![row] });
    Report { sections, path, doorbells }
}

/// How each way fares, and the best that works.
fn ways(gpu: &Arc<Gpu>, controller: &Arc<adit_driver::Controller>) -> (Vec<Row>, MemoryPath) {
    let controllers = [Arc::clone(controller)];
    let mut best = None;
    let try_one = |path: MemoryPath| {
        let tried = paths::try_path(path, gpu, &controllers);
        if tried.is_ok() {
            best.get_or_insert(path);
        }
        let is_translated = facts::is_vfio(controller) || path == MemoryPath::CpuOnly;
        let works = if is_translated { "works" } else { "works; no IOMMU takes part" };
        Row::of(path.name(), &tried, |()| works.to_owned())
    };
    let rows = MemoryPath::ALL.into_iter().map(try_one).collect();
    (rows, best.unwrap_or(MemoryPath::CpuOnly))
}
