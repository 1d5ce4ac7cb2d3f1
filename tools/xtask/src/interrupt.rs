//! Turns Ctrl-C (SIGINT), SIGTERM and SIGHUP into a flag, so that a guest is killed and its files are removed
//! before exit.
//!
//! The flag is checked between steps and while a guest runs. Programs started here, except QEMU, stay in the
//! terminal's process group and get the signal themselves.

use crate::failure::{Context, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// Installs the signal handlers. Call it once, first.
pub(crate) fn install() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&REQUESTED))
            .context("cannot catch signals")?;
    }
    Ok(())
}

/// Returns whether the user wants to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails if the user wants to stop.
pub(crate) fn check() -> Result<()> {
    if requested() { Err(Failure::interrupted()) } else { Ok(()) }
}
