//! Shows the progress of a bench, and ends it at the user's interrupt.

use adit_tools_common::meter::Meter;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// Shows progress, and heeds the user's interrupt.
pub(super) struct Watch {
    interrupt: Interrupt,
    meter: Meter,
}

impl Watch {
    pub(super) fn new(interrupt: Interrupt) -> Watch {
        Watch { interrupt, meter: Meter::new() }
    }

    /// Shows the current step.
    ///
    /// # Errors
    /// The user's interrupt.
    pub(super) fn step(&mut self, what: impl Into<String>) -> Result<()> {
        if self.interrupt.requested() {
            return Err(Failure::interrupted());
        }
        self.meter.show(|_| what.into());
        Ok(())
    }
}
