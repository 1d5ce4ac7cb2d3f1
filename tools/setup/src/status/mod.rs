//! `adit setup status`: shows the machine as a table or JSON.

mod text;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::args::StatusArgs;
use super::inventory::Inventory;
use crate::failure::{Failure, Result};
use crate::human::printable_lines;
use crate::output::{self, Output};
use adit_guard::root::Root;

/// The header of a recording.
const HEADER: &str = "\
# A machine as 'adit setup status' saw it; 'adit setup status --sysroot THIS_FILE' shows it again.
# Serial numbers of its drives, mount points and names of processes are in it.
";

/// Runs the command.
///
/// # Errors
/// When the recording's file exists already or cannot be written.
pub(crate) fn run(root: &Root, args: &StatusArgs, json: bool) -> Result<()> {
    let inventory = Inventory::read(root);
    if json {
        Output::Standard.json(&inventory)?;
    } else {
        Output::Standard.write(&text::of(&inventory))?;
    }
    args.record.as_deref().map_or(Ok(()), |file| record(root, file))
}

fn record(root: &Root, file: &Path) -> Result<()> {
    let name = file.display();
    let created = OpenOptions::new().write(true).create_new(true).open(file);
    let mut created = created.map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => {
            Failure::usage(format!("{name} is there already; choose another name"))
        }
        _ => Failure::failed(format!("{name}: {why}")),
    })?;
    let text = format!("{HEADER}{}", root.recording());
    let written = created.write_all(printable_lines(&text).as_bytes());
    written.map_err(|why| Failure::failed(format!("{name}: {why}")))?;
    output::remark(&format!("recorded in {name}; serial numbers and mount points are in it"));
    Ok(())
}
