//! Handles controllers' asynchronous events while jobs run, and recovers failed controllers.
//!
//! The driver has no thread of its own. The thread that shows progress polls it regularly, so that requests to
//! return the device, controller failures and health warnings are handled promptly rather than at the next
//! deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::spec::log::CriticalWarning;
use adit_driver::{Controller, Error, Event};

/// Polling interval.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a device may stay unresponsive; long enough to restart a server.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Communication between the supervisor and the jobs.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Whether to recover failed controllers.
    is_wanted: bool,
    /// Number of recoveries.
    count: AtomicU64,
    /// When the current series of failed attempts began.
    away_since: Mutex<Option<Instant>>,
    /// Why recovery is impossible.
    lost: OnceLock<String>,
}

impl Recovery {
    pub(crate) fn new(is_wanted: bool) -> Recovery {
        Recovery { is_wanted, ..Recovery::default() }
    }

    /// Returns whether to wait for a controller that is out of service.
    pub(crate) fn is_in_sight(&self) -> bool {
        self.is_wanted && self.lost.get().is_none()
    }

    /// Returns the number of recoveries.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether to retry after a failed attempt at `now`; reports the first failure.
    fn goes_on_trying(&self, now: Instant, error: &Error) -> bool {
        let mut since = self.away_since.lock().unwrap_or_else(PoisonError::into_inner);
        if since.is_none() {
            tracing::warn!("{error}; waiting up to {} s for it to come back", AWAY_MAX.as_secs());
        }
        now.duration_since(*since.get_or_insert(now)) < AWAY_MAX
    }

    fn came_back(&self) {
        *self.away_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns why a recovery failed.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }
}

/// Reports the controller's events, and recovers it if requested. Retries an unresponsive one at each call, for
/// [`AWAY_MAX`].
pub(crate) fn look(controller: &Controller, recovery: &Recovery) {
    while let Some(event) = controller.poll(controller.now()) {
        if let Some(text) = describe(controller, event) {
            tracing::warn!("{}: {text}", controller.info().device);
        }
    }
    if recovery.is_in_sight() && controller.check().is_err() {
        match controller.recover() {
            Ok(()) => recovery.came_back(),
            Err(error)
                if controller.may_come_back()
                    && recovery.goes_on_trying(Instant::now(), &error) => {}
            Err(error) => drop(recovery.lost.set(error.to_string())),
        }
    }
}

/// Describes an event; `None` if the driver has already reported it.
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
        // It takes the controller out of service, which is reported with the reason.
        Event::Bus(_) => return None,
        event => format!("{event:?}"),
    })
}

/// Describes a critical warning.
fn told(warning: CriticalWarning) -> String {
    match warning.0 {
        0 => "no critical warning any more".to_owned(),
        _ => warning.names().collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_says_everything_that_is_wrong() {
        let both = CriticalWarning(1 << 2 | 1 << 3);
        assert_eq!(
            told(both),
            "The NVM subsystem's reliability is degraded, All media are read only"
        );
        assert_eq!(told(CriticalWarning(0)), "no critical warning any more");
    }

    #[test]
    fn a_device_that_is_away_is_tried_for_a_bounded_time_each_time() {
        let (recovery, start) = (Recovery::new(true), Instant::now());
        let error = Error::device("vfio-user:x", "it is gone", "start the server again");
        assert!(recovery.goes_on_trying(start, &error));
        assert!(recovery.goes_on_trying(start + AWAY_MAX / 2, &error));
        assert!(!recovery.goes_on_trying(start + AWAY_MAX, &error));
        recovery.came_back();
        assert!(recovery.goes_on_trying(start + AWAY_MAX, &error), "it is another time");
        assert_eq!(recovery.count(), 1);
    }

    #[test]
    fn recovery_is_in_sight_until_it_failed() {
        let recovery = Recovery::new(true);
        assert!(recovery.is_in_sight() && !Recovery::new(false).is_in_sight());
        recovery.lost.set("gone".to_owned()).expect("for the first time");
        assert_eq!((recovery.is_in_sight(), recovery.lost()), (false, Some("gone")));
    }
}
