//! `adit bench report`: one self-contained page of all results.
//!
//! The drawing is in the feature `report`, without which the command says what is missing.

#[cfg(feature = "report")]
mod html;

use std::path::{Path, PathBuf};

use clap::Args;

use super::file;
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
    let paths: Vec<&Path> = args.reports.iter().map(PathBuf::as_path).collect();
    let page = page(&args.title, &file::alike(&paths)?.0)?;
    Output::open(args.output.as_deref())?.write(&page)
}

#[cfg(not(feature = "report"))]
fn page(_title: &str, _reports: &[file::Report]) -> Result<String> {
    Err(crate::failure::Failure::failed(
        "this adit was built without drawing; build it with the feature `report`, or compare reports as text with \
         'adit bench compare'",
    ))
}
