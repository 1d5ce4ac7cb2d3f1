//! `cargo xtask demo`: shows the driver on the software controller, on a machine with nothing but Rust.

use crate::deps;
use crate::failure::{Context, Result};
use crate::workspace;
use std::process::Command;

/// Builds adit, runs `adit demo` and returns its exit code.
pub(crate) fn run() -> Result<u8> {
    deps::ensure(&deps::TO_LINK)?;
    let adit = workspace::build_demo()?;
    let status = Command::new(&adit)
        .arg("demo")
        .status()
        .context(format_args!("cannot run {}", adit.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
