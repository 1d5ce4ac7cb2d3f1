//! Picking a namespace.

use adit_driver::spec::Nsid;
use adit_driver::{Controller, Namespace, Target};

use crate::failure::{Failure, Result};

/// The namespace that `target` means: the one it names, or the first.
///
/// # Errors
/// When there is none, or it cannot be used.
pub(crate) fn namespace(controller: &Controller, target: &Target) -> Result<Namespace> {
    let nsid: Nsid = match target.settings().namespace {
        Some(nsid) => nsid,
        None => first(controller)?,
    };
    Ok(controller.namespace(nsid)?)
}

fn first(controller: &Controller) -> Result<Nsid> {
    controller.namespace_ids()?.first().copied().ok_or_else(|| {
        Failure::failed(format!(
            "{}: it has no namespace; create one under the kernel's driver with `nvme create-ns` and `nvme attach-ns`",
            controller.info().device
        ))
    })
}
