//! Binding again at each boot.

use super::args::PersistArgs;
use super::operation::Operation;
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup persist`.
pub(crate) fn run(_: &Root, _: &PersistArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// Removes the unit and its files, if they are there; says whether there was something to do.
///
/// # Errors
/// When a change fails.
pub(crate) fn remove(_: &mut Operation) -> Result<bool> {
    Ok(false)
}
