//! `adit man`: manual pages, one for each command, made of the same words as `--help`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::failure::{Failure, Result};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit man | man -l -
  sudo adit man --output /usr/local/share/man/man1 && man adit-setup-bind";

/// Prints adit's manual page, or writes those of all its commands
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Writes adit.1, adit-setup.1, adit-setup-bind.1, … into DIR
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Runs the command; `command` is all of adit.
///
/// # Errors
/// When a page cannot be written.
pub(crate) fn run(args: &ManArgs, mut command: Command) -> Result<()> {
    command.build();
    let Some(directory) = &args.output else { return Output::Standard.write(&page(&command)?) };
    fs::create_dir_all(directory)
        .map_err(|why| Failure::failed(format!("{}: {why}", directory.display())))?;
    write_all(directory, &command)
}

/// The page of `command` and those of its subcommands, to any depth.
fn write_all(directory: &Path, command: &Command) -> Result<()> {
    let file = directory.join(Man::new(command.clone()).get_filename());
    fs::write(&file, page(command)?)
        .map_err(|why| Failure::failed(format!("{}: {why}", file.display())))?;
    command.get_subcommands().try_for_each(|command| write_all(directory, command))
}

fn page(command: &Command) -> Result<String> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).map_err(Failure::failed)?;
    // What follows the options is explanation and examples; the generator's name for it says nothing.
    Ok(String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH EXAMPLES\n"))
}
