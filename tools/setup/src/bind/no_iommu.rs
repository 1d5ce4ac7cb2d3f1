//! VFIO without an IOMMU: a switch of the whole machine, turned on by `--unsafe-no-iommu` only, and back off with the
//! last device.

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::failure::{Failure, Result};
use crate::operation::Operation;
use crate::record::{self, STATE, boot_id};

/// The switch; it is there once `vfio` is loaded, in kernels with `CONFIG_VFIO_NOIOMMU`.
const SWITCH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

/// What the switch was before.
#[derive(Serialize, Deserialize)]
struct Record {
    before: String,
    /// The boot that it was turned on in; each boot begins with its own.
    boot_id: String,
}

fn file() -> String {
    format!("{STATE}/no-iommu.json")
}

/// What the person must know before it is done.
pub(super) fn warning(bdf: &str) -> String {
    format!(
        "warning: {bdf} is bound without an IOMMU: the device, and every program that may open it, can read and \
         overwrite all memory of this machine; adit's own driver refuses it, it is for others"
    )
}

/// Turns it on, having recorded what it was. `vfio` is loaded.
///
/// # Errors
/// When the kernel has no such switch, or a change fails.
pub(super) fn allow(operation: &mut Operation) -> Result<()> {
    // In a dry run the module that brings the switch may not be loaded.
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
    let record = Record { before, boot_id: boot_id(operation.root) };
    let content = serde_json::to_string_pretty(&record).expect("a record is plain data") + "\n";
    operation.change(Change::File { path: file().into(), content, mode: 0o644 })?;
    operation.change(Change::Write { path: SWITCH.into(), value: "Y".into() })
}

/// Puts it back once no device is recorded any more; says whether there was something to do.
///
/// # Errors
/// As [`put_back`].
pub(super) fn put_back_if_unused(operation: &mut Operation) -> Result<bool> {
    if record::addresses(operation.root).is_empty() { put_back(operation) } else { Ok(false) }
}

/// Puts it back to what was recorded, if anything was; says whether there was something to do.
///
/// # Errors
/// When the record is damaged, or a change fails.
fn put_back(operation: &mut Operation) -> Result<bool> {
    let root = operation.root;
    let Some(text) = root.text(file()) else { return Ok(false) };
    let record: Record = serde_json::from_str(&text).map_err(|why| {
        Failure::failed(format!("{} is damaged ({why}); put {SWITCH} back, then remove it", file()))
    })?;
    let now = root.text(SWITCH);
    if record.boot_id == boot_id(root) && now.is_some_and(|now| now != record.before) {
        operation.change(Change::Write { path: SWITCH.into(), value: record.before })?;
    }
    operation.change(Change::Remove { path: file().into() })?;
    Ok(true)
}
