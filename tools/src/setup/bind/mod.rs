//! From the kernel's driver to vfio-pci, and back.

use super::args::{BindArgs, RestoreArgs, UnbindArgs};
use super::root::Root;
use crate::failure::{Failure, Result};

/// `adit setup bind`.
pub(crate) fn bind(_: &Root, _: &BindArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// `adit setup unbind`.
pub(crate) fn unbind(_: &Root, _: &UnbindArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}

/// `adit setup restore`.
pub(crate) fn restore(_: &Root, _: &RestoreArgs, _: bool) -> Result<()> {
    Err(Failure::failed("not there"))
}
