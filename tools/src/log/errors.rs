//! Error Information (NVMe Base 2.0 section 5.16.1.2).

use adit_driver::Controller;
use adit_driver::spec::log::ErrorInfo;
use adit_driver::spec::{Lid, Nsid, View};
use serde::Serialize;

use super::page::{Row, row};
use crate::failure::Result;

const ENTRY_BYTES: u32 = size_of::<ErrorInfo>() as u32;

/// The entries that describe an error, newest first.
#[derive(Debug, Serialize)]
pub(super) struct ErrorReport {
    /// Entries the controller keeps (Identify Controller, ELPE).
    entries_max: u32,
    entries: Vec<LoggedError>,
}

#[derive(Debug, Serialize)]
struct LoggedError {
    number: u64,
    /// The specification's name, with type and code.
    status: String,
    status_code_type: u8,
    status_code: u8,
    do_not_retry: bool,
    /// `null` for an error not related to a command; 0 is the admin queue.
    queue: Option<u16>,
    command_id: Option<u16>,
    /// `null` for an error not related to a namespace.
    namespace: Option<u32>,
    lba: u64,
    parameter_byte: Option<u8>,
    parameter_bit: Option<u8>,
    /// Vendor-specific log page with details; `null` for none.
    vendor_log: Option<u8>,
    command_specific: u64,
}

impl ErrorReport {
    /// Reads as many entries as the controller keeps, at most what fits into one transfer.
    ///
    /// # Errors
    /// As [`Controller::log_page`].
    pub(super) fn read(controller: &Controller) -> Result<ErrorReport> {
        let (info, kept) = (controller.info(), controller.info().identify.elpe());
        let held = info.max_transfer_bytes / u64::from(ENTRY_BYTES);
        let count = kept.min(u32::try_from(held).unwrap_or(u32::MAX));
        let page = controller.log_page(Lid::ERROR_INFORMATION, Nsid::ALL, count * ENTRY_BYTES)?;
        Ok(ErrorReport::of(kept, &page))
    }

    pub(super) fn of(entries_max: u32, page: &[u8]) -> ErrorReport {
        let entries = page.chunks_exact(ENTRY_BYTES as usize).filter_map(ErrorInfo::view);
        let entries = entries.filter(|error| error.is_valid()).map(LoggedError::of).collect();
        ErrorReport { entries_max, entries }
    }

    /// Returns a row for each entry.
    pub(super) fn rows(&self) -> Vec<Row> {
        let kept = format!("{} of up to {} entries", self.entries.len(), self.entries_max);
        let entries = self
            .entries
            .iter()
            .map(|entry| row(format!("Error {}", entry.number), entry.describe()));
        std::iter::once(row("Kept", kept)).chain(entries).collect()
    }
}

impl LoggedError {
    fn of(error: &ErrorInfo) -> LoggedError {
        let status = error.status();
        LoggedError {
            number: error.error_count.get(),
            status: status.to_string(),
            status_code_type: status.sct(),
            status_code: status.sc(),
            do_not_retry: status.dnr(),
            queue: error.sqid().map(|qid| qid.0),
            command_id: error.cid().map(|cid| cid.0),
            namespace: Some(error.nsid().0).filter(|nsid| *nsid != 0),
            lba: error.lba().0,
            parameter_byte: error.parameter_byte(),
            parameter_bit: error.parameter_bit(),
            vendor_log: Some(error.vendor_log).filter(|lid| *lid != 0),
            command_specific: error.command_specific.get(),
        }
    }

    /// Describes status, queue, command, namespace and LBA, as far as present.
    fn describe(&self) -> String {
        let queue = match self.queue {
            Some(0) => Some("admin queue".to_owned()),
            other => other.map(|qid| format!("I/O queue {qid}")),
        };
        // The LBA is only meaningful for commands on I/O queues.
        let lba = self.queue.is_some_and(|qid| qid > 0).then(|| format!("LBA {}", self.lba));
        let parameter = self.parameter_byte.zip(self.parameter_bit);
        let parts = [
            Some(self.status.clone()),
            queue,
            self.command_id.map(|cid| format!("command {cid:#06x}")),
            self.namespace.map(|nsid| match nsid {
                u32::MAX => "all namespaces".to_owned(),
                nsid => format!("namespace {nsid}"),
            }),
            lba,
            parameter.map(|(byte, bit)| format!("parameter at byte {byte} bit {bit}")),
            self.vendor_log.map(|lid| format!("more in log page {lid:02X}h")),
        ];
        parts.into_iter().flatten().collect::<Vec<String>>().join(", ")
    }
}
