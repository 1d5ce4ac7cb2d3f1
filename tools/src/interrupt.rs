//! Ctrl-C as a flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, INTERRUPTED, Result};

/// Set once the user or the system asks us to end; a second Ctrl-C ends the process
/// at once (the kernel then takes the device back, without a clean shutdown).
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn install() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order the first signal sets the flag and the second finds it set.
            flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                Arc::clone(&interrupt.0),
            )
            .and_then(|_| flag::register(signal, Arc::clone(&interrupt.0)))
            .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
        }
        Ok(interrupt)
    }

    /// The flag itself, for whoever looks at it often.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Asks everybody to end.
    #[cfg(test)]
    pub(crate) fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether to end.
    #[inline]
    pub(crate) fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
