//! `adit gpu lab`: everything that only a machine with a GPU can tell, step by step, into one report.
//!
//! Each step is a process of its own within a time limit, so that one that crashes or hangs does not end the lab. Steps
//! run in the order of what they tell, and the report is written anew before and after each: one that is cut off tells
//! what was found, and which step ran.
//!
//! | module | holds |
//! |---|---|
//! | `steps` | the steps, and the value expected of each |
//! | `child` | a step's process |
//! | `report` | the report |
//! | `measures` | measurements of steps that no other command makes |

mod child;
mod measures;
mod report;
mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use adit_driver::Target;
use clap::Args;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::options::GpuArg;
use crate::output::Output;
use adit_tools_common::meter::Meter;
use measures::Measure;
use report::{Report, StepReport, StepState};
use steps::{Machine, Plan, Step};

const EXAMPLES: &str = "\
Examples:
  All steps, within eight minutes:
    adit gpu lab --out gpu-lab.json
  The shorter ones, within three:
    adit gpu lab --quick
  One of them:
    adit gpu lab --only 'host copies'
  Also what lies between the GPU and a drive bound to vfio-pci:
    adit gpu lab vfio:0000:01:00.0

No drive is needed, and none is written: software controllers serve the rings. The report is written before and after each step. \
'cargo xtask gpu-lab --bundle DIR' makes a folder that runs this on a machine without Rust, and 'cargo xtask gpu -- lab' \
runs it without a GPU, where it measures no times.

Exit codes: 0 nothing failed and each figure that was measured is as expected, 1 otherwise, or the report cannot be \
written, 2 an option cannot be, 3 no GPU, 130 interrupted.";

/// Time for all steps.
const WHOLE: Duration = Duration::from_secs(8 * 60);
const QUICK: Duration = Duration::from_secs(3 * 60);
/// Part of that for the end of a process that was killed and does not go.
const GRACE: Duration = Duration::from_secs(15);
/// A step that has less time than this does not begin.
const LEAST: Duration = Duration::from_secs(5);

/// Runs and measures, step by step, what only a machine with a GPU can tell
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LabArgs {
    /// A drive for the first step, which only looks at it
    target: Option<Target>,

    #[command(flatten)]
    gpu: GpuArg,

    /// The report
    #[arg(long, value_name = "FILE", default_value = "gpu-lab.json")]
    out: PathBuf,

    /// Takes three minutes at most instead of eight
    #[arg(long)]
    quick: bool,

    /// Seconds of the stress of one queue's doorbells, and as much more for all steps [default: 60, or 15 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    stress_seconds: Option<u64>,

    /// Runs only the steps of these names, and the first, which examines the machine
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,

    /// Runs one measurement in this process, and prints it as JSON
    #[arg(long, value_enum, hide = true)]
    measure: Option<Measure>,
}

/// Runs the command.
///
/// # Errors
/// The report cannot be written; no GPU; a step failed; a figure is not as expected; an interrupt by the user.
pub(crate) fn run(args: &LabArgs) -> Result<()> {
    if let Some(measure) = args.measure {
        let figures = measure.make(args.gpu.ordinal)?;
        return Output::Standard.write(&format!("{figures:#}\n"));
    }
    let (whole, stress_s) = if args.quick { (QUICK, 15) } else { (WHOLE, 60) };
    let plan = Plan {
        gpu: args.gpu.ordinal,
        target: args.target.as_ref().map(ToString::to_string).unwrap_or_default(),
        is_quick: args.quick,
        stress_s: args.stress_seconds.unwrap_or(stress_s),
    };
    plan.check_names(&args.only)?;
    let whole = whole + Duration::from_secs(plan.stress_s.saturating_sub(stress_s));
    let interrupt = Interrupt::install()?;
    let mut lab = Lab { args, deadline: Instant::now() + whole - GRACE, interrupt };
    let mut report = Report::new(&args.out, args.quick, whole);
    lab.run(&plan, &mut report)
}

struct Lab<'a> {
    args: &'a LabArgs,
    deadline: Instant,
    interrupt: Interrupt,
}

impl Lab<'_> {
    fn run(&mut self, plan: &Plan, report: &mut Report) -> Result<()> {
        let examined = plan.machine();
        report.add_all([&examined]);
        report.save()?;
        let entry = self.step(examined, report, 0)?;
        let machine = Machine::of(&entry.report);
        let why = entry.said.trim_start_matches("adit: ");
        let is_over = match entry.state {
            StepState::Lacks if !machine.has_gpu => Some(Failure::unavailable(why)),
            _ if entry.is_usage() => Some(Failure::usage(why)),
            _ => None,
        };
        if let Some(failure) = is_over {
            report.end()?;
            return Err(failure);
        }
        report.is_emulated = machine.is_emulated;
        let is_wanted = |step: &Step| {
            self.args.only.is_empty() || self.args.only.iter().any(|name| name == step.name)
        };
        let steps: Vec<Step> = plan.steps(&machine).into_iter().filter(is_wanted).collect();
        report.add_all(&steps);
        for (index, step) in steps.into_iter().enumerate() {
            self.step(step, report, index + 1)?;
        }
        report.end()?;
        self.tell(report)
    }

    /// Runs one step, and returns its entry in the report.
    fn step(&mut self, step: Step, report: &mut Report, index: usize) -> Result<StepReport> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left >= LEAST {
            report.begin(index)?;
            let mut meter = Meter::new();
            let limit = step.limit.min(left);
            let ended = step.run(limit, &self.interrupt, &mut || meter.show(|_| step.name.into()));
            drop(meter);
            report.set(index, &step, ended)?;
        }
        if self.interrupt.requested() {
            return Err(Failure::stopped(format!(
                "interrupted; {} has the steps so far",
                self.args.out.display()
            )));
        }
        let entry = report.entry(index).clone();
        Output::Standard.write(&entry.line())?;
        Ok(entry)
    }

    /// Prints where the report is.
    ///
    /// # Errors
    /// The faults of the lab.
    fn tell(&self, report: &Report) -> Result<()> {
        Output::Standard.write(&format!("report: {}\n", self.args.out.display()))?;
        let faults = report.faults();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Failure::list("the lab found faults:", &faults))
        }
    }
}
