//! Reports what this machine has for a GPU's rings, what it lacks, and how to fix that.
//!
//! Reads the facts of CUDA and of the system, and tries the memory paths and doorbells with small allocations that it
//! releases. A machine without any of it gets a report as well, which leaves the CPU's path.

pub(crate) mod command;
mod facts;
#[cfg(test)]
mod fake_sysfs;
mod pcie;
mod report;
#[cfg(test)]
mod tests;
mod topology;

use std::path::Path;
use std::sync::Arc;

use adit_gpu::internals::try_path;
use adit_gpu::{Carried, Device, Error, Gpu, MemoryPath};

pub use report::{Report, Row, Section, Usual, Verdict};

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
