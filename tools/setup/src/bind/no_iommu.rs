//! VFIO without an IOMMU: a machine-wide switch. Only `--unsafe-no-iommu` turns it on; returning the last
//! device turns it off.

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::failure::{Failure, Result};
use crate::operation::Operation;
use crate::record::{self, STATE, boot_id};

/// The switch; it exists once `vfio` is loaded, in kernels with `CONFIG_VFIO_NOIOMMU`.
const SWITCH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

/// The switch's previous value.
#[derive(Serialize, Deserialize)]
struct SwitchRecord {
    before: String,
    /// The boot in which it was turned on; a reboot resets the switch.
    boot_id: String,
}

fn file() -> String {
    format!("{STATE}/no-iommu.json")
}

/// Returns the warning to show before it is turned on.
pub(super) fn warning(bdf: &str) -> String {
    format!(
        "warning: {bdf} is bound without an IOMMU: the device, and every program that may open it, can read and \
         overwrite all memory of this machine; adit's own driver refuses it; only other programs can use it"
    )
}

/// Records the switch's value and turns it on. `vfio` must be loaded.
///
/// # Errors
/// When the kernel has no such switch, or a change fails.
pub(super) fn allow(operation: &mut Operation) -> Result<()> {
    // In a dry run, the module that provides the switch may not be loaded.
    let before = match operation.root.text(SWITCH) {
        None if operation.is_dry() => "N".to_owned(),
        None => {
            return Err(Failure::failed(
                "this kernel cannot do VFIO without an IOMMU (it was built without CONFIG_VFIO_NOIOMMU): \
                 turn the IOMMU on in the firmware and on the kernel's command line",
            ));
        }
        Some(on) if on == "Y" => return Ok(()),
        Some(before) => before,
    };
    let record = SwitchRecord { before, boot_id: boot_id(operation.root) };
    operation.change(record::written(file(), &record))?;
    operation.change(Change::Write { path: SWITCH.into(), value: "Y".into() })
}

/// Restores the switch if no device is recorded any more; returns whether there was anything to do.
///
/// # Errors
/// As [`put_back`].
pub(super) fn put_back_if_unused(operation: &mut Operation) -> Result<bool> {
    if record::addresses(operation.root).is_empty() { put_back(operation) } else { Ok(false) }
}

/// Restores the recorded value, if there is one; returns whether there was anything to do.
///
/// # Errors
/// When the record is damaged, or a change fails.
fn put_back(operation: &mut Operation) -> Result<bool> {
    let root = operation.root;
    let remedy = format!("put {SWITCH} back, then remove it");
    let odd = |record: &SwitchRecord| {
        let is_switch = matches!(record.before.as_str(), "Y" | "N");
        (!is_switch).then(|| "the switch is neither Y nor N".to_owned())
    };
    let Some(record) = record::read(root, &file(), &remedy, odd)? else {
        return Ok(false);
    };
    let now = root.text(SWITCH);
    if record.boot_id == boot_id(root) && now.is_some_and(|now| now != record.before) {
        operation.change(Change::Write { path: SWITCH.into(), value: record.before })?;
    }
    operation.change(Change::remove(file()))?;
    Ok(true)
}
