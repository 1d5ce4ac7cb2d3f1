//! Reports what this machine has for a GPU's rings, what it lacks, and how to fix that.
//!
//! Reads the facts of CUDA and of the system, and tries the memory paths and doorbells with small allocations that it
//! releases. A machine without any of it gets a report as well, which leaves the CPU's path.

pub(crate) mod command;
mod facts;
mod pcie;
#[cfg(test)]
mod tests;
mod topology;

use std::path::Path;
use std::sync::Arc;

use adit_gpu::internals::try_path;
use adit_gpu::{Carried, Device, Error, Gpu, MemoryPath};

/// State of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but could be better.
    Warning,
    /// Not there.
    Missing,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Subject.
    pub name: &'static str,
    /// Finding.
    pub value: String,
    /// State.
    pub verdict: Verdict,
    /// Reason for the state, unless good.
    pub reason: Option<String>,
    /// How to improve it, if possible.
    pub fix: Option<String>,
}

/// Related facts.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// The GPU: pool and rings lie in its memory.
    Rings,
    /// CPU threads, through pinned memory. Rings over pinned memory may work, but only on request.
    Staged,
    /// The driver's own queue pairs, without the GPU.
    CpuOnly,
    /// Depends on the drive, and none was given.
    Open,
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
}

impl Report {
    /// Returns the default engine.
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

    /// Whether CPU threads could stage transfers, which needs pinned memory registered with CUDA.
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

    /// Creates a missing fact from the error.
    fn missing(name: &'static str, error: &Error) -> Row {
        Row::by(name, Verdict::Missing, "no", error)
    }

    /// Creates a fact whose state follows from an error.
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

    /// Creates a fact with the value `good` of a finding, or the reason it is missing.
    fn of<T>(name: &'static str, found: &Result<T, Error>, good: impl FnOnce(&T) -> String) -> Row {
        match found {
            Ok(found) => Row::good(name, good(found)),
            Err(error) => Row::missing(name, error),
        }
    }
}

/// Examines a GPU by its number, and a device with it, reading one LBA of the device's namespace.
pub fn examine(ordinal: u32, device: Option<&Device>) -> Report {
    examine_below(Path::new("/sys"), ordinal, device)
}

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

/// Tries each memory path; returns the results and the best path that works.
fn ways(gpu: &Arc<Gpu>, controller: &Arc<adit_driver::Controller>) -> (Vec<Row>, MemoryPath) {
    let controllers = [Arc::clone(controller)];
    let mut best = None;
    let try_one = |path: MemoryPath| {
        let tried = try_path(path, gpu, &controllers);
        if tried.is_ok() {
            best.get_or_insert(path);
        }
        way(path, &tried, facts::is_vfio(controller))
    };
    let rows = MemoryPath::ALL.into_iter().map(try_one).collect();
    (rows, best.unwrap_or(MemoryPath::CpuOnly))
}

/// Describes what a path carried.
fn way(path: MemoryPath, tried: &Result<Carried, Error>, is_translated: bool) -> Row {
    let name = path.name();
    if path == MemoryPath::CpuOnly {
        return Row::good(name, "works");
    }
    let iommu = if is_translated { "" } else { "; no IOMMU takes part" };
    match tried {
        Ok(Carried::BothWays) => Row::good(name, format!("carried data{iommu}")),
        Ok(Carried::FromDrive) => {
            Row::good(name, format!("carried data from the drive, none to it{iommu}"))
        }
        Ok(Carried::Nothing) => {
            let why = "the drive has no LBA that the host can read, or no queue for it";
            Row::warning(
                name,
                format!("maps, not tried{iommu}"),
                why,
                "open it with dbbuf=off, and see that it has a namespace",
            )
        }
        Err(error) => Row::missing(name, error),
    }
}
