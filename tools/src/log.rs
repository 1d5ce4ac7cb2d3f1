//! `adit log`: shows a controller's logs of health, errors and firmware.

mod errors;
mod firmware;
mod page;
mod smart;

use adit_driver::spec::Nsid;
use adit_driver::{Controller, ControllerOptions, Target};
use clap::Args;
use serde::Serialize;

use self::errors::ErrorReport;
use self::firmware::FirmwareReport;
use self::smart::SmartReport;
use crate::failure::{Failure, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  Everything, of a controller bound to vfio-pci:
    adit log vfio:0000:01:00.0
  Its health only, for a program to read:
    adit log vfio:0000:01:00.0 --smart --json
  The software controller's errors:
    adit log soft:mem=1G --errors";

/// Shows a controller's SMART, error and firmware logs
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogArgs {
    /// The controller, as in vfio:0000:01:00.0, vfio-user:/run/x/cntrl or soft:mem=1G; ',ns=N' asks for one namespace's health
    target: Target,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// Prints SMART / Health Information; without any of these three, all are printed
    #[arg(long)]
    smart: bool,

    /// Prints the Error Information entries, newest first
    #[arg(long)]
    errors: bool,

    /// Prints Firmware Slot Information
    #[arg(long)]
    firmware: bool,
}

/// Runs the command.
///
/// # Errors
/// As [`Controller::open`], when the controller does not provide a log, and when a namespace's health is
/// requested but the controller keeps none by namespace.
pub(crate) fn run(args: &LogArgs) -> Result<()> {
    let controller = Controller::open(&args.target, &ControllerOptions::default())?;
    let report = LogReport::of(&controller, args)?;
    output::report(args.json, || &report, || report.table())
}

/// The logs asked for. Field names are those of the JSON; logs that were not requested are omitted.
#[derive(Debug, Serialize)]
struct LogReport {
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    smart: Option<SmartReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<ErrorReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    firmware: Option<FirmwareReport>,
}

impl LogReport {
    fn of(controller: &Controller, args: &LogArgs) -> Result<LogReport> {
        let all = !(args.smart || args.errors || args.firmware);
        let nsid = smart_namespace(controller, &args.target)?;
        Ok(LogReport {
            target: args.target.to_string(),
            smart: (all || args.smart).then(|| SmartReport::read(controller, nsid)).transpose()?,
            errors: (all || args.errors).then(|| ErrorReport::read(controller)).transpose()?,
            firmware: (all || args.firmware)
                .then(|| FirmwareReport::read(controller))
                .transpose()?,
        })
    }

    fn table(&self) -> String {
        let mut out = format!("{}\n", self.target);
        let sections = [
            self.smart.as_ref().map(|smart| ("SMART / Health Information", smart.rows())),
            self.errors.as_ref().map(|errors| ("Error Information", errors.rows())),
            self.firmware.as_ref().map(|slots| ("Firmware Slot Information", slots.rows())),
        ];
        for (title, rows) in sections.into_iter().flatten() {
            out += &format!("\n{title}\n");
            for (name, value) in rows {
                out += &format!("  {name:<40}{value}\n");
            }
        }
        out
    }
}

/// Returns the namespace for the health log: all, or the requested one if the controller keeps health by
/// namespace (Identify Controller, LPA bit 0).
fn smart_namespace(controller: &Controller, target: &Target) -> Result<Nsid> {
    let Some(nsid) = target.settings().namespace else { return Ok(Nsid::ALL) };
    match controller.info().identify.lpa().smart_per_namespace() {
        true => Ok(nsid),
        false => Err(Failure::usage(format!(
            "{}: it keeps no health by namespace; leave ',ns={nsid}' out",
            controller.info().device
        ))),
    }
}

#[cfg(test)]
mod tests;
