//! Firmware Slot Information (NVMe Base 2.0 section 5.16.1.4).

use adit_driver::Controller;
use adit_driver::spec::log::FirmwareSlotLog;
use adit_driver::spec::{Lid, Nsid};
use serde::Serialize;

use super::page::{Row, read_log, row};
use crate::failure::Result;

/// The possible slots.
const SLOTS: std::ops::RangeInclusive<u8> = 1..=7;

/// The current firmware, the next one, and all revisions.
#[derive(Debug, Serialize)]
pub(super) struct FirmwareReport {
    active_slot: u8,
    active_revision: Option<String>,
    /// The slot that becomes active at the next Controller Level Reset; `null` if not set.
    next_slot: Option<u8>,
    /// Slots with a revision.
    slots: Vec<Slot>,
}

#[derive(Debug, Serialize)]
struct Slot {
    slot: u8,
    revision: String,
}

impl FirmwareReport {
    /// Reads the log.
    ///
    /// # Errors
    /// As [`Controller::log_page`].
    pub(super) fn read(controller: &Controller) -> Result<FirmwareReport> {
        Ok(FirmwareReport::of(&*read_log(controller, Lid::FIRMWARE_SLOT, Nsid::ALL)?))
    }

    pub(super) fn of(log: &FirmwareSlotLog) -> FirmwareReport {
        let slot = |slot| Some(Slot { slot, revision: log.revision(slot)?.to_string() });
        FirmwareReport {
            active_slot: log.active_slot(),
            active_revision: log.active_revision().map(|revision| revision.to_string()),
            next_slot: log.next_slot(),
            slots: SLOTS.filter_map(slot).collect(),
        }
    }

    /// Returns rows for the active and the next slot, then for each slot's revision.
    pub(super) fn rows(&self) -> Vec<Row> {
        let revision = self.active_revision.as_deref().unwrap_or("unknown revision");
        let next =
            self.next_slot.map_or("the active one".to_owned(), |slot| format!("slot {slot}"));
        let mut rows = vec![
            row("Active Firmware", format!("slot {}, {revision}", self.active_slot)),
            row("Firmware after the next reset", next),
        ];
        let slots = self.slots.iter();
        rows.extend(
            slots.map(|slot| {
                row(format!("Firmware Revision for Slot {}", slot.slot), &slot.revision)
            }),
        );
        rows
    }
}
