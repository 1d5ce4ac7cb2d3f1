//! Runs `adit bench`: from the request to the report.

use std::io::{self, IsTerminal};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use super::options::{BenchArgs, OutputFormat, Request};
use super::outcome::RunOutcome;
use super::side::{self, Bench, CompareArgs, ReportArgs};
use super::{report, run};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{self, Output};

/// `adit bench`: runs jobs, or looks at the reports of earlier ones.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchCommand {
    #[command(subcommand)]
    of_reports: Option<OfReports>,
    #[command(flatten)]
    args: BenchArgs,
}

/// Commands on JSON reports.
#[derive(Debug, Subcommand)]
enum OfReports {
    Compare(CompareArgs),
    Report(ReportArgs),
}

/// Runs the command.
///
/// # Errors
/// An error of the device, the data or the command line; the report is written if there is anything to report.
pub fn command(command: &BenchCommand) -> Result<()> {
    match &command.of_reports {
        Some(OfReports::Compare(args)) => side::compare(args),
        Some(OfReports::Report(args)) => side::report(args),
        None => jobs(&command.args),
    }
}

fn jobs(args: &BenchArgs) -> Result<()> {
    if args.run.version {
        return Output::Standard.write(concat!("adit-", env!("CARGO_PKG_VERSION"), "\n"));
    }
    // Standard input may be a job file, which is read once.
    if args.run.showcmd {
        return Output::Standard.write(&args.showcmd()?);
    }
    let request = args.request()?;
    if request.run.parse_only {
        return Ok(());
    }
    execute(&request.with_iologs()?)
}

fn execute(request: &Request) -> Result<()> {
    let mut output = Output::open(request.run.output.as_deref())?;
    let interrupt = Interrupt::install()?;
    interrupt.hear_status()?;
    if is_side_by_side(request) {
        return side_by_side(request, &interrupt, &mut output);
    }
    let request = &request.seeded(fresh_seed());
    if request.run.shows_seeds() {
        output.write(&report::seeds(&run::seeds(request)))?;
    }
    if request.run.formats().contains(&OutputFormat::Normal) {
        output.write(&report::head(request))?;
    }
    let outcome = {
        let mut on_status = |outcome: &RunOutcome| tell(request, outcome, &mut output);
        run::run(request, &interrupt, &mut on_status)?
    };
    let told = tell(request, &outcome, &mut output);
    verdict(&outcome)?;
    told
}

/// Returns a seed that differs in each run.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Returns whether the jobs run more than once.
fn is_side_by_side(request: &Request) -> bool {
    let side = &request.run.side;
    !side.targets.is_empty() || side.rounds > 1 || !side.sweep.is_empty() || side.ceiling
}

fn tell(request: &Request, outcome: &RunOutcome, output: &mut Output) -> Result<()> {
    let mut formats = request.run.formats().into_iter();
    formats.try_for_each(|format| output.write(&report::render(format, outcome)))
}

fn side_by_side(request: &Request, interrupt: &Interrupt, output: &mut Output) -> Result<()> {
    if request.run.formats().contains(&OutputFormat::Terse) {
        return Err(Failure::usage(
            "--output-format=terse has no form for several runs; use normal or json",
        ));
    }
    let shows = request.run.eta.is_shown(io::stderr().is_terminal());
    let comparison = side::run(
        request,
        &mut Bench {
            run_one: &mut |request| {
                run::run(&request.seeded(fresh_seed()), interrupt, &mut |_| Ok(()))
            },
            progress: &mut |line| {
                if shows {
                    output::remark(line);
                }
            },
        },
    )?;
    for format in request.run.formats() {
        output.write(&match format {
            OutputFormat::Normal | OutputFormat::Terse => side::table(&comparison),
            OutputFormat::Json | OutputFormat::JsonPlus => {
                format!("{:#}\n", side::json(&comparison))
            }
        })?;
    }
    match comparison.failure {
        Some(failure) => Err(failure),
        None if comparison.interrupted => Err(Failure::interrupted()),
        None => Ok(()),
    }
}

/// Returns an error if a job failed or the user interrupted the run.
///
/// # Errors
/// The first failure, with the number of failures of all jobs.
pub(crate) fn verdict(outcome: &RunOutcome) -> Result<()> {
    let failed = || outcome.jobs.iter().filter_map(|job| Some((job, job.failure.as_ref()?)));
    if let Some((job, first)) = failed().next() {
        let count: u64 = failed().map(|(_, failure)| failure.count).sum();
        let others = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        return Err(Failure::failed(format!("{}: {}{others}", job.target, first.first)));
    }
    if outcome.interrupted { Err(Failure::interrupted()) } else { Ok(()) }
}
