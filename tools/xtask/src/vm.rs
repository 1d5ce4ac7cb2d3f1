//! `cargo xtask vm`: runs one command in a guest.

use crate::failure::Result;
use crate::guest::{self, GuestArgs, Waiting};
use std::io::stdout;

/// Runs the command and returns its exit code, or 1 after DMA faults.
pub(crate) fn run(arguments: &GuestArgs) -> Result<u8> {
    let outcome = guest::run(arguments, Waiting::UntilBooted, &mut stdout())?;
    if outcome.faults.is_empty() {
        return Ok(outcome.exit);
    }
    eprintln!(
        "xtask: a device accessed memory that the IOMMU does not let it (the command's exit code was {}):",
        outcome.exit
    );
    for fault in &outcome.faults {
        eprintln!("    {fault}");
    }
    eprintln!("xtask: if the command provokes this, pass --allow-dmar");
    Ok(1)
}
