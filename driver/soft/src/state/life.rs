//! The controller's transitions between states.

use std::time::Duration;

use adit_shared::Time;

/// Whether the device is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    #[default]
    Here,
    /// It has no power.
    Unpowered,
    /// It was pulled out.
    Removed,
}

/// The controller's transitions between states, and which of them it refuses.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) presence: Presence,
    pub(crate) hangs_enable: bool,
    pub(crate) refuses_disable: bool,
    pub(crate) refuses_reset: bool,
    pub(crate) refuses_subsystem_reset: bool,
    pub(crate) enable_delay: Duration,
    pub(crate) disable_delay: Duration,
    /// CC.EN was cleared and the controller has not yet followed.
    pub(crate) must_disable: bool,
    /// When CSTS.RDY will be set, once decided.
    pub(crate) enable_at: Option<Time>,
    /// When CSTS.RDY will be cleared, once decided.
    pub(crate) disable_at: Option<Time>,
    /// How long to pause commands, from the next step on.
    pub(crate) pause_next: Option<Duration>,
    /// End of the pause (CSTS.PP).
    pub(crate) paused_until: Option<Time>,
}

impl Life {
    /// Returns whether the device does not answer: unpowered or removed.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.presence != Presence::Here
    }

    /// Pauses commands from the next step on.
    pub(crate) fn pause_next(&mut self, duration: Duration) {
        self.pause_next = Some(duration);
    }

    /// Returns whether commands are paused for firmware activation.
    pub(crate) fn is_pausing(&self) -> bool {
        self.paused_until.is_some()
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        let disable_at = self.disable_at.filter(|_| !self.refuses_disable);
        let times = [self.enable_at, disable_at, self.paused_until];
        times.into_iter().flatten().filter(|time| *time != Time::NEVER).min()
    }
}
