//! `cargo xtask demo`: shows the driver on the software controller, on a machine with nothing but Rust.

use crate::deps;
use crate::failure::Result;
use crate::process;
use crate::workspace;
use std::process::Command;

/// Builds the demonstration alone, runs it and returns its exit code.
pub(crate) fn run() -> Result<u8> {
    deps::ensure(&deps::TO_LINK)?;
    process::exit_code(&mut Command::new(workspace::build_demo()?))
}
