//! Signals as flags: SIGINT, SIGTERM, SIGHUP and SIGUSR1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::failure::{Failure, INTERRUPTED, Result};

/// Set once the user or the system asks the process to end. A second Ctrl-C ends the process at once; the
/// kernel then takes the device back, without a clean shutdown.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    end: Arc<AtomicBool>,
    status: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Order matters: the first signal sets the flag, and the second finds it set.
            flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                Arc::clone(&interrupt.end),
            )
            .and_then(|_| flag::register(signal, Arc::clone(&interrupt.end)))
            .map_err(refused)?;
        }
        Ok(interrupt)
    }

    /// Installs a handler for SIGUSR1, which then requests an intermediate report instead of ending the
    /// process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn hear_status(&self) -> Result<()> {
        flag::register(SIGUSR1, Arc::clone(&self.status)).map(drop).map_err(refused)
    }

    /// Returns whether SIGUSR1 came since the last call.
    pub fn takes_status(&self) -> bool {
        self.status.swap(false, Ordering::Relaxed)
    }

    /// Returns the flag itself, for frequent checks.
    pub fn flag(&self) -> &AtomicBool {
        &self.end
    }

    /// Requests the end.
    pub fn request(&self) {
        self.end.store(true, Ordering::Relaxed);
    }

    /// Returns whether to end.
    #[inline]
    pub fn requested(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }
}

fn refused(error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot handle signals: {error}"))
}
