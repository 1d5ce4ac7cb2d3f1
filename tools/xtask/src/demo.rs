//! `cargo xtask demo`: shows the driver on the software controller, on a machine with nothing but Rust.

use crate::deps;
use crate::failure::Result;
use crate::process;
use crate::workspace;
use std::process::Command;

/// Builds adit, runs `adit demo` and returns its exit code.
pub(crate) fn run() -> Result<u8> {
    deps::ensure(&deps::TO_LINK)?;
    let adit = workspace::build_demo()?;
    process::exit_code(Command::new(adit).arg("demo"))
}
