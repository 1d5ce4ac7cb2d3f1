//! `adit gpu doctor`: shows which ways of sharing data a GPU, this machine and a drive support, and what would
//! enable the others.
//!
//! [`super`] makes the findings; this module turns them into a table or JSON, and an exit code.

use super::{self as doctor, Report, Row, Section, Usual};
use adit_driver::Target;
use adit_gpu::MemoryPath;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::human;
use crate::options::{GpuArg, check_ordinal, check_queues, open};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  The GPU alone:
    adit gpu doctor
  The second GPU and a drive: also what lies between them, and each way to memory, tried:
    adit gpu doctor --gpu 1 vfio:0000:01:00.0

Exit codes:
  0 rings can be made, if need be over host memory, which has to be asked for
  1 the drive cannot be opened
  2 the command line is wrong, or names no drive that has queues
  3 rings cannot be made here: no GPU, no NVRTC that compiles for it, no doorbell, no memory for both";

/// Shows what a GPU and a drive support together, what is missing, and what would change that
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// The drive: a controller of its own, as in vfio:0000:01:00.0 or soft:mem=64M
    target: Option<Target>,

    #[command(flatten)]
    gpu: GpuArg,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no GPU, or no usable path; why the drive cannot be opened. The report is printed all the same.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    check_ordinal(args.gpu.ordinal)?;
    args.target.as_ref().map_or(Ok(()), check_queues)?;
    let opened = args.target.as_ref().map(open).transpose();
    let device = opened.as_ref().ok().and_then(Option::as_ref);
    let report = doctor::examine(args.gpu.ordinal, device);
    output::report(args.json, || json(args, &report), || table(&report))?;
    opened?;
    end(&report)
}

/// # Errors
/// The missing fact, if rings are not possible.
fn end(report: &Report) -> Result<()> {
    let why = match (report.obstacle(), report.path) {
        (Some(row), _) => reasoned(row),
        (None, MemoryPath::CpuOnly) => "no way to memory works".to_owned(),
        (None, _) => return Ok(()),
    };
    Err(Failure::unavailable(format!("rings cannot be made: {why}")))
}

/// Says what is missing, why, and what to do.
fn reasoned(row: &Row) -> String {
    let parts = [Some(format!("{}: {}", row.name, row.value)), row.reason.clone(), row.fix.clone()];
    human::printable(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn table(report: &Report) -> String {
    let rows = report.sections.iter().flat_map(|section| &section.rows);
    let width = rows.map(|row| row.name.len()).max().unwrap_or(0);
    let sections = report.sections.iter().map(|section| section_lines(section, width));
    format!("{}\n{}\n", sections.collect::<String>(), summary(report))
}

fn section_lines(section: &Section, width: usize) -> String {
    let rows = section.rows.iter().map(|row| row_lines(row, width));
    format!("{}\n{}", section.title, rows.collect::<String>())
}

/// Formats a fact, with the reason and the fix below it.
fn row_lines(row: &Row, width: usize) -> String {
    let (verdict, name, value) =
        (output::word(&row.verdict), row.name, human::printable(&row.value));
    let mut lines = format!("  {verdict:<9}{name:<width$}  {value}\n");
    for (what, text) in [("why", &row.reason), ("fix", &row.fix)] {
        if let Some(text) = text {
            let text = human::printable(text);
            lines += &format!("{:indent$}{what}: {text}\n", "", indent = width + 13);
        }
    }
    lines
}

/// How to request rings where they are not the default.
const ASKING: &str = "Pool::allocate with Some(Place::Host), or adit gpu trace --placement host";

/// Summarizes what carries transfers out by default, and the alternatives.
fn summary(report: &Report) -> String {
    let (path, how) = (report.path.name(), report.doorbells.unwrap_or("not tried"));
    let why = report.obstacle().map(|row| row.name).filter(|name| *name != "GPU");
    let why = why.map(|name| format!(" ({name})")).unwrap_or_default();
    match (report.usual(), report.obstacle()) {
        (Some(Usual::CpuOnly), _) => format!("Rings cannot be made here{why}: CPU only."),
        (Some(Usual::Staged), Some(_)) => {
            format!("Rings cannot be made here{why}: CPU threads would stage transfers.")
        }
        (Some(Usual::Staged), None) => format!(
            "No way to the GPU's memory works: by default CPU threads would stage transfers.\n\
             Rings over {path}, doorbells {how}, have to be asked for: {ASKING}."
        ),
        (Some(Usual::Rings), _) => format!("Rings would use {path}, doorbells {how}."),
        (None, _) => format!(
            "Name a drive to have the ways to the GPU's memory tried.\n\
             Where none works, rings over {path} have to be asked for: {ASKING}."
        ),
    }
}

fn json(args: &DoctorArgs, report: &Report) -> Value {
    json!({
        "gpu": args.gpu.ordinal,
        "target": args.target.as_ref().map(ToString::to_string),
        "sections": report.sections,
        "default": report.usual(),
        "path": report.path.name(),
        "doorbells": report.doorbells,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn row(verdict: Verdict, reason: Option<&str>) -> Row {
        let (reason, fix) = (reason.map(str::to_owned), reason.map(|_| "add one".to_owned()));
        Row { name: "bridge", value: "no\u{1b}[2J".to_owned(), verdict, reason, fix }
    }

    fn report(path: MemoryPath, verdict: Verdict) -> Report {
        let rows = vec![row(verdict, (verdict != Verdict::Good).then_some("there is none"))];
        Report { sections: vec![Section { title: "PCIe", rows }], path, doorbells: None }
    }

    #[test]
    fn what_is_missing_has_its_reason_and_its_remedy_below_it() {
        let text = table(&report(MemoryPath::PinnedHost, Verdict::Missing));
        let expected = "PCIe\n  missing  bridge  no?[2J\n                   why: there is none\n                   fix: add one\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("\nName a drive to have"), "{text}");
    }

    #[test]
    fn where_only_the_cpu_is_left_the_code_is_that_of_what_is_unavailable() {
        let report = report(MemoryPath::CpuOnly, Verdict::Missing);
        let failure = end(&report).expect_err("nothing is left");
        assert_eq!(failure.code(), crate::failure::UNAVAILABLE);
        assert!(failure.to_string().ends_with("no way to memory works"), "{failure}");
        assert!(table(&report).ends_with("CPU only.\n"));
    }

    #[test]
    fn what_rings_cannot_do_without_is_the_reason_whatever_way_to_memory_works() {
        let mut report = report(MemoryPath::PinnedHost, Verdict::Missing);
        report.sections[0].rows[0].name = "NVRTC";
        let failure = end(&report).expect_err("nothing to compile with");
        assert_eq!(failure.code(), crate::failure::UNAVAILABLE);
        let told = failure.to_string();
        assert!(told.ends_with("NVRTC: no?[2J; there is none; add one"), "{told}");
        assert!(table(&report).ends_with("(NVRTC): CPU threads would stage transfers.\n"));
    }

    #[test]
    fn rings_over_host_memory_have_to_be_asked_for() {
        let mut report = report(MemoryPath::PinnedHost, Verdict::Warning);
        report.doorbells = Some("mapped");
        assert!(end(&report).is_ok());
        let text = table(&report);
        assert!(text.contains("by default CPU threads would stage transfers"), "{text}");
        assert!(text.contains("pinned host memory, doorbells mapped, have to be asked"), "{text}");
        assert!(text.contains("--placement host"), "{text}");
        assert_eq!(report.usual(), Some(Usual::Staged));
    }

    #[test]
    fn without_pinned_memory_nothing_is_staged_either() {
        let mut report = report(MemoryPath::CpuOnly, Verdict::Missing);
        report.sections[0].rows[0].name = "host registration";
        assert!(table(&report).ends_with("(host registration): CPU only.\n"));
        assert_eq!(report.usual(), Some(Usual::CpuOnly));
    }

    #[test]
    fn where_a_way_works_nothing_has_failed() {
        let report = report(MemoryPath::DmaBufMmap, Verdict::Warning);
        assert!(end(&report).is_ok());
        let args = DoctorArgs { target: None, gpu: GpuArg { ordinal: 2 }, json: true };
        let json = json(&args, &report);
        assert_eq!((&json["gpu"], &json["path"]), (&2.into(), &"dma-buf mapped here".into()));
        assert_eq!(json["sections"][0]["rows"][0]["verdict"], "warning");
    }
}
