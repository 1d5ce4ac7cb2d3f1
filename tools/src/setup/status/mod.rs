//! What there is, as a table or JSON.

use super::args::StatusArgs;
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup status`.
pub(crate) fn run(_: &Root, _: &StatusArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}
