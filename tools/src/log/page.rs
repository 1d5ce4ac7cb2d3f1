//! A log page: read as a structure, and shown as lines of a table.

use adit_driver::spec::{Lid, Nsid, View};
use adit_driver::{Buffer, Controller};

use crate::failure::Result;

/// A line of a table: the specification's name, and the value.
pub(super) type Row = (String, String);

/// Returns a line.
pub(super) fn row(name: impl Into<String>, value: impl ToString) -> Row {
    (name.into(), value.to_string())
}

/// Reads a log that consists of one structure.
pub(super) fn read_log<T: View>(controller: &Controller, lid: Lid, nsid: Nsid) -> Result<Box<T>> {
    let page: Buffer = controller.log_page(lid, nsid, size_of::<T>() as u32)?;
    Ok(Box::new(T::read_from_bytes(&page).expect("a page is as long as the structure")))
}
