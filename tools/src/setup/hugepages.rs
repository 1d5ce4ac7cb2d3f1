//! Hugepages: set, checked, given back.

use super::args::HugepagesArgs;
use super::operation::Operation;
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup hugepages`.
pub(crate) fn run(_: &Root, _: &HugepagesArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// Puts the numbers of hugepages back to what was recorded, if anything was; says whether there was something to do.
///
/// # Errors
/// When a change fails.
pub(crate) fn release(_: &mut Operation) -> Result<bool> {
    Ok(false)
}
