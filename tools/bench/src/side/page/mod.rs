//! `adit bench report`: one self-contained page of all results.
//!
//! The drawing is in the feature `report`, without which the command says what is missing.

#[cfg(feature = "report")]
mod data;
#[cfg(feature = "report")]
mod draw;
#[cfg(feature = "report")]
mod html;
#[cfg(feature = "report")]
mod plot;

use std::path::PathBuf;

use clap::Args;

use super::figures::{LatencyKind, ReportEntry};
use super::file::Report;
use crate::failure::Result;
use crate::output::Output;

#[cfg(feature = "report")]
use html::page;

/// Makes a page of reports in JSON, ours or fio's: latencies, rates over time, depths, paths compared
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  adit bench jobs.fio --output-format=json --rounds 6 --output out.json
  adit bench report out.json -o report.html")]
pub(crate) struct ReportArgs {
    /// Reports; with several, the others are compared with the first
    #[arg(required = true, value_name = "FILE")]
    reports: Vec<PathBuf>,
    /// File for the page instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The page's heading
    #[arg(long, default_value = "Benchmark report")]
    title: String,
}

/// Runs the command.
///
/// # Errors
/// A usage error if a file is no report; a failure when the page cannot be written, or if this build draws none.
pub(crate) fn report(args: &ReportArgs) -> Result<()> {
    let page = page(&args.title, &alike(&args.reports)?)?;
    Output::open(args.output.as_deref())?.write(&page)
}

#[cfg(not(feature = "report"))]
fn page(_title: &str, _reports: &[Report]) -> Result<String> {
    Err(crate::failure::Failure::failed(
        "this adit was built without drawing; build it with the feature `report`, or compare reports as text with \
         'adit bench compare'",
    ))
}

/// Reads the reports; several use the same kind of latency if they have one in common.
fn alike(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let mut reports = paths.iter().map(|path| Report::open(path)).collect::<Result<Vec<_>>>()?;
    if reports.len() < 2 {
        return Ok(reports);
    }
    let by_kind = paths.iter().map(|path| Report::by_kind(path)).collect::<Result<Vec<_>>>()?;
    let is_in_all = |kind: &LatencyKind| {
        let mut ways =
            by_kind.iter().flat_map(|of| &of[*kind as usize]).flat_map(ReportEntry::done);
        ways.all(|(_, figures)| !figures.percentiles.is_empty())
    };
    if let Some(kind) = LatencyKind::ALL.into_iter().find(is_in_all) {
        for (report, mut entries) in reports.iter_mut().zip(by_kind) {
            report.entries = std::mem::take(&mut entries[kind as usize]);
        }
    }
    Ok(reports)
}
