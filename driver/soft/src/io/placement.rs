//! Flexible Data Placement (NVMe Base 2.1 section 3.2.4): writes name a reclaim unit handle by a placement identifier.
//!
//! All namespaces share the handles, which are numbered from 0, as are their identifiers; there is one reclaim group. A
//! write without a directive goes to handle 0. Log pages and features of placement are not supported: a host learns the
//! handles by I/O Management Receive.

use crate::command::Command;
use crate::controller::Controller;
use crate::memory::Dma;
use crate::page::put;
use crate::status::{Answer, DONE, INVALID_FIELD, INVALID_OPCODE};
use adit_spec::Status;

/// LBAs of a reclaim unit.
const UNIT_LBAS: u64 = 32_768;
/// Directive Type of data placement.
const DATA_PLACEMENT: u32 = 2;
const HEADER_BYTES: usize = 16;
const HANDLE_BYTES: usize = 32;

impl Controller {
    /// Returns the handle that a write names.
    #[inline]
    pub(super) fn handle_of(&self, command: &Command) -> Result<usize, Status> {
        if self.placements.0.is_empty() {
            return Ok(0);
        }
        let handle = usize::from(command.high(13));
        match command.cdw(12) >> 20 & 0xf {
            0 => Ok(0),
            DATA_PLACEMENT if handle < self.placements.0.len() => Ok(handle),
            _ => Err(INVALID_FIELD),
        }
    }

    /// Sends the Reclaim Unit Handle Status: for each handle, how many LBAs its unit still takes (RUAMW).
    pub(super) fn handles(&mut self, command: &Command, bytes: u64, dma: &Dma<'_>) -> Answer {
        if self.placements.0.is_empty() {
            return Err(INVALID_OPCODE);
        }
        self.namespace(command.nsid)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.page.len());
        let bytes = bytes.ok_or(INVALID_FIELD)?;
        let (handles, page) = (&self.placements.0, &mut self.page[..]);
        page.fill(0);
        put(page, HEADER_BYTES - 2, (handles.len() as u16).to_le_bytes());
        for (index, written) in handles.iter().enumerate() {
            let at = HEADER_BYTES + index * HANDLE_BYTES;
            // PID and RUHID.
            put(page, at, (index as u16).to_le_bytes());
            put(page, at + 2, (index as u16).to_le_bytes());
            put(page, at + 8, (UNIT_LBAS - written % UNIT_LBAS).to_le_bytes());
        }
        let rules = self.rules();
        self.transfer.send(command, &self.page[..bytes], rules, dma)?;
        DONE
    }
}
