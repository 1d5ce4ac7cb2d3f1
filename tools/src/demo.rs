//! `adit demo`: shows everything without a device, in well under a minute.

use adit_driver::Target;
use clap::Args;

use crate::failure::Result;

/// Writes and reads a software controller, then kills a process that uses the store, and shows what survives;
/// needs no device
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  adit demo")]
pub(crate) struct DemoArgs {
    /// Acts as the process that is killed
    #[arg(long, hide = true, value_name = "TARGET")]
    put_into: Option<Target>,
}

/// Runs the command.
///
/// # Errors
/// As [`adit_demo::run`].
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    match &args.put_into {
        Some(target) => adit_demo::put_into(target),
        None => adit_demo::run(),
    }
}
