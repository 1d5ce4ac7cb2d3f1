//! The devices that stores of this process are releasing. Opening one of them waits, so that a store can be opened as
//! soon as the last handle of its predecessor was dropped.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::runtime::lock;
use adit_driver::{Device, Target};

/// How long opening a device waits for its release.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The names of a store's devices.
pub(crate) type DeviceNames = Arc<[String]>;

static RELEASING: (Mutex<Vec<DeviceNames>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

/// Returns the names of a store's devices: of those that are open, or else of the targets.
pub(crate) fn names(targets: &[Target], devices: &[Device]) -> DeviceNames {
    if devices.is_empty() {
        return targets.iter().map(ToString::to_string).collect();
    }
    devices.iter().map(|device| device.info().device.clone()).collect()
}

/// Notes that the devices of these names are being released.
pub(crate) fn begin(names: &DeviceNames) {
    lock(&RELEASING.0).push(Arc::clone(names));
}

/// Notes that the release which [`begin`] was called for, if it was, is complete.
pub(crate) fn end(names: &DeviceNames) {
    lock(&RELEASING.0).retain(|other| !Arc::ptr_eq(other, names));
    RELEASING.1.notify_all();
}

/// Waits until no store of this process is releasing one of these devices, at most [`WAIT_MAX`]. After that, opening
/// them fails and names the holder.
pub(crate) fn wait(targets: &[Target], devices: &[Device]) {
    let names = names(targets, devices);
    let until = Instant::now() + WAIT_MAX;
    let is_releasing =
        |all: &[DeviceNames]| all.iter().flat_map(|of| of.iter()).any(|name| names.contains(name));
    let mut releasing = lock(&RELEASING.0);
    while is_releasing(&releasing) {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => {
                let woken = RELEASING.1.wait_timeout(releasing, left);
                releasing = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
