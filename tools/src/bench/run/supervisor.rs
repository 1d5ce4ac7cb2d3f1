//! What is seen to while the jobs run: what the controller reports unasked, and bringing it back.
//!
//! The driver has no thread of its own. The thread that shows progress asks it every now and then, so that a request
//! to give the device back, a failed controller and a health warning are met at once and not at the next deadline.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::spec::log::CriticalWarning;
use adit_driver::{Controller, Event};

/// Between two looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the supervisor and the jobs tell each other.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Whether a controller that is out of service is to be brought back.
    is_wanted: bool,
    /// How often it was.
    count: AtomicU64,
    /// Why it cannot be.
    lost: OnceLock<String>,
}

impl Recovery {
    pub(crate) fn new(is_wanted: bool) -> Recovery {
        Recovery { is_wanted, ..Recovery::default() }
    }

    /// Whether it is worth waiting for a controller that is out of service.
    pub(crate) fn is_in_sight(&self) -> bool {
        self.is_wanted && self.lost.get().is_none()
    }

    /// How often it was brought back.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Why the controller did not come back, where that was tried.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }
}

/// Looks at what happened, tells it, and brings the controller back if that is wanted.
pub(crate) fn look(controller: &Controller, recovery: &Recovery) {
    while let Some(event) = controller.poll(controller.now()) {
        if let Some(text) = describe(controller, event) {
            tracing::warn!("{}: {text}", controller.info().device);
        }
    }
    if recovery.is_in_sight() && controller.check().is_err() {
        match controller.recover() {
            Ok(()) => drop(recovery.count.fetch_add(1, Ordering::Relaxed)),
            Err(error) => drop(recovery.lost.set(error.to_string())),
        }
    }
}

/// What an event means for a run; `None` for what the driver has told already.
fn describe(controller: &Controller, event: Event) -> Option<String> {
    Some(match event {
        Event::Health { event, warnings } => format!("health: {event}: {}", told(warnings)),
        Event::NamespaceResized { nsid, lba_count } => {
            format!("namespace {} has {lba_count} LBAs now", nsid.0)
        }
        Event::NamespaceRemoved { nsid } => format!("namespace {} is gone", nsid.0),
        Event::NamespaceAdded { nsid } => format!("namespace {} appeared or changed", nsid.0),
        Event::FirmwareActivation { until } => format!(
            "it activates new firmware, and may pause for {} s",
            until.since(controller.now()).as_secs_f32().ceil()
        ),
        Event::Other(event) => event.to_string(),
        // It takes the controller out of service, which is told with the reason.
        Event::Bus(_) => return None,
        event => format!("{event:?}"),
    })
}

/// All that a critical warning says.
fn told(warning: CriticalWarning) -> String {
    let texts = [
        (warning.spare_below_threshold(), "available spare is below its threshold"),
        (warning.temperature(), "a temperature is past its threshold"),
        (warning.reliability_degraded(), "reliability is degraded"),
        (warning.read_only(), "all media are read only"),
        (warning.backup_failed(), "the backup of the volatile memory has failed"),
        (warning.pmr_unreliable(), "the persistent memory region is unreliable"),
    ];
    let said: Vec<&str> =
        texts.iter().filter(|(is_set, _)| *is_set).map(|(_, text)| *text).collect();
    if said.is_empty() { "no critical warning any more".to_owned() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_says_everything_that_is_wrong() {
        let both = CriticalWarning(0).with_reliability_degraded(true).with_read_only(true);
        assert_eq!(told(both), "reliability is degraded, all media are read only");
        assert_eq!(told(CriticalWarning(0)), "no critical warning any more");
    }

    #[test]
    fn recovery_is_in_sight_until_it_failed() {
        let recovery = Recovery::new(true);
        assert!(recovery.is_in_sight() && !Recovery::new(false).is_in_sight());
        recovery.lost.set("gone".to_owned()).expect("for the first time");
        assert_eq!((recovery.is_in_sight(), recovery.lost()), (false, Some("gone")));
    }
}
