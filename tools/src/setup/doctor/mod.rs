//! The chain from the firmware to one read.

use super::args::DoctorArgs;
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup doctor`.
pub(crate) fn run(_: &Root, _: &DoctorArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}
