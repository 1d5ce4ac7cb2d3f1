//! How much may be written per day so that drives endure it: from the endurance that their logs say is left.

use std::time::Duration;

use adit_driver::spec::log::SmartHealth;
use adit_driver::spec::{Lid, Nsid, View};
use adit_driver::{Controller, Device};

use crate::error::{Error, Result};
use crate::policy::budget::Budget;

/// Returns the bytes per day, over all devices, with which their remaining endurance lasts for `lifetime` from now.
///
/// Objects are spread evenly, so the drive with the least endurance limits all of them. The endurance log belongs to a
/// controller: devices that are namespaces of one controller share its endurance.
///
/// # Errors
/// [`Error::Invalid`] if a device has no controller of the driver's to read the log from; otherwise as
/// [`Controller::log_page`].
pub(super) fn bytes_per_day(devices: &[Device], lifetime: Duration) -> Result<u64> {
    let of = |device| device_bytes_per_day(device, devices, lifetime);
    let each = devices.iter().map(of).collect::<Result<Vec<u64>>>()?;
    Ok(of_all(&each))
}

/// Returns the total daily limit when writes are spread evenly over devices with these limits.
fn of_all(each: &[u64]) -> u64 {
    each.iter().min().map_or(0, |least| least.saturating_mul(each.len() as u64))
}

/// Returns a device's share of its drive's remaining endurance per day.
fn device_bytes_per_day(device: &Device, all: &[Device], lifetime: Duration) -> Result<u64> {
    let controller = controller_of(device)?;
    let name = &controller.info().device;
    let is_same = |other: &&Device| other.controller().is_some_and(|c| c.info().device == *name);
    let sharing: Vec<&Device> = all.iter().filter(is_same).collect();
    let capacity_bytes = sharing.iter().map(|device| device.info().bytes).sum();
    let log = smart_log(controller)?;
    let budget = Budget::from_endurance(device.now(), &log, capacity_bytes, lifetime);
    Ok(budget.bytes_per_day() / sharing.len() as u64)
}

fn controller_of(device: &Device) -> Result<&Controller> {
    device.controller().ok_or_else(|| {
        let name = &device.info().device;
        let fix =
            "its log cannot be read there: give write_bytes_per_day, or open the drive as vfio:";
        Error::invalid("the device of a store with a lifetime", name, fix)
    })
}

fn smart_log(controller: &Controller) -> Result<SmartHealth> {
    let bytes = size_of::<SmartHealth>() as u32;
    let page = controller.log_page(Lid::SMART_HEALTH, Nsid::ALL, bytes)?;
    Ok(SmartHealth::view(&page).expect("the log is as long as the structure").clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drive_that_endures_least_counts_for_all() {
        assert_eq!(of_all(&[7, 5, 9]), 15);
        assert_eq!(of_all(&[u64::MAX, u64::MAX]), u64::MAX);
        assert_eq!(of_all(&[3, 0]), 0, "one is worn out");
    }
}
