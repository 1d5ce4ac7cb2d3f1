//! `cargo xtask sim`: builds the simulation and runs it with its own arguments.

use crate::deps;
use crate::failure::Result;
use crate::process;
use crate::workspace;
use std::process::Command;

/// Arguments passed on; see `cargo xtask sim --help`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct SimArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// Builds the simulation, runs it and returns its exit code.
pub(crate) fn run(arguments: &SimArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    let program = workspace::build_checked("adit-sim")?;
    process::exit_code(Command::new(program).args(&arguments.arguments))
}
