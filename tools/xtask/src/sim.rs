//! `cargo xtask sim`: builds the simulation and runs it with its own arguments.

use crate::deps;
use crate::failure::{Context, Result};
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
    let status = Command::new(&program)
        .args(&arguments.arguments)
        .status()
        .context(format_args!("cannot run {}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
