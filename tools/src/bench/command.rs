//! The command: from what was asked for to what is told.

use super::options::{OutputFormat, Request};
use super::outcome::RunOutcome;
use super::{report, run};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Runs what was asked for and tells what it came to.
///
/// # Errors
/// What the device, the data or the words of the request did wrong; the report was written where there was something to
/// report.
pub(crate) fn execute(request: &Request) -> Result<()> {
    let mut output = Output::open(request.run.output.as_deref())?;
    let interrupt = Interrupt::install()?;
    if request.run.formats.contains(&OutputFormat::Normal) {
        output.write(&report::head(request))?;
    }
    let outcome = {
        let mut on_status = |outcome: &RunOutcome| tell(request, outcome, &mut output);
        run::run(request, &interrupt, &mut on_status)?
    };
    tell(request, &outcome, &mut output)?;
    verdict(&outcome)
}

/// Whether the request is one for [`side`].
fn is_side_by_side(request: &Request) -> bool {
    let run = &request.run;
    !run.targets.is_empty() || run.rounds > 1 || !run.sweep.is_empty() || run.ceiling
}

fn tell(request: &Request, outcome: &RunOutcome, output: &mut Output) -> Result<()> {
    request
        .run
        .formats
        .iter()
        .try_for_each(|format| output.write(&report::render(*format, outcome)))
}

/// An error if any job failed, or the user ended the run.
///
/// # Errors
/// The first failure of all jobs, with how many there were.
pub(crate) fn verdict(outcome: &RunOutcome) -> Result<()> {
    let failed = || outcome.jobs.iter().filter_map(|job| Some((job, job.failure.as_ref()?)));
    if let Some((job, first)) = failed().next() {
        let count: u64 = failed().map(|(_, failure)| failure.count).sum();
        let others = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        return Err(Failure::failed(format!("{}: {}{others}", job.target, first.first)));
    }
    if outcome.interrupted { Err(Failure::interrupted()) } else { Ok(()) }
}
