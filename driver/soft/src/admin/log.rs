//! Log pages (NVMe Base 2.0 section 5.16).

use super::identify::FIRMWARE_REVISION;
use super::opcode::{DOORBELL_BUFFER_CONFIG, NAMES};
use crate::command::Command;
use crate::controller::Controller;
use crate::io;
use crate::memory::Dma;
use crate::page::{put, put_text};
use crate::state::statistics::{ERROR_ENTRIES, ERROR_ENTRY_BYTES};
use crate::status::{Answer, DATA_TRANSFER_ERROR, DONE, INVALID_FIELD, INVALID_LOG_PAGE};
use adit_spec::{Iova, Status};

const SUPPORTED_LOGS: u8 = 0x00;
const ERRORS: u8 = 0x01;
const SMART: u8 = 0x02;
const FIRMWARE: u8 = 0x03;
const CHANGED_NAMESPACES: u8 = 0x04;
const EFFECTS: u8 = 0x05;
const LOGS: [u8; 6] = [SUPPORTED_LOGS, ERRORS, SMART, FIRMWARE, CHANGED_NAMESPACES, EFFECTS];
const CHANGED_NAMESPACES_MAX: usize = 1024;
/// Effects: supported; changes data; changes the namespace inventory.
const EFFECT_SUPPORTED: u32 = 1;
const EFFECT_DATA: u32 = 1 << 1;
impl Controller {
    pub(super) fn get_log_page(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let log = command.low(10) as u8;
        let retains_event = command.cdw(10) >> 15 & 1 != 0;
        let dwords_z = u64::from(command.high(10)) | u64::from(command.low(11)) << 16;
        let len = (dwords_z + 1) * 4;
        let offset = command.qword(12);
        let is_by_index = command.cdw(14) >> 23 & 1 != 0;
        if is_by_index || !offset.is_multiple_of(4) || len > self.rules().bytes_max {
            return Err(INVALID_FIELD);
        }
        let log_bytes = self.build_log(log)?;
        let start = usize::try_from(offset).ok().filter(|start| *start < log_bytes);
        let start = start.ok_or(INVALID_FIELD)?;
        self.send_log(command, start, len, dma)?;
        if !retains_event {
            self.events.log_was_read(log);
        }
        DONE
    }

    /// Sends `len` bytes of the page from `start`, padded with zeros past its end.
    fn send_log(
        &mut self,
        command: &Command,
        start: usize,
        len: u64,
        dma: &Dma<'_>,
    ) -> Result<(), Status> {
        let rules = self.rules();
        let mut rest = &self.page[start..];
        for piece in self.transfer.map(command, len, rules, dma)? {
            let mut at = piece.at.0;
            let mut left = piece.len as usize;
            while left > 0 {
                let now = if rest.is_empty() { &[0; 512] } else { rest };
                let now = &now[..left.min(now.len())];
                dma.write(Iova(at), now).map_err(|_| DATA_TRANSFER_ERROR)?;
                rest = rest.get(now.len()..).unwrap_or_default();
                at = at.wrapping_add(now.len() as u64);
                left -= now.len();
            }
        }
        Ok(())
    }

    /// Builds a log in the page; returns its length in bytes.
    fn build_log(&mut self, log: u8) -> Result<usize, Status> {
        let page = &mut self.page[..];
        page.fill(0);
        Ok(match log {
            SUPPORTED_LOGS => {
                for log in LOGS {
                    put(page, usize::from(log) * 4, 1u32.to_le_bytes());
                }
                1024
            }
            ERRORS => {
                self.statistics.put_errors(page);
                ERROR_ENTRIES * ERROR_ENTRY_BYTES
            }
            SMART => {
                self.statistics.put_smart(page, self.features.temperature_threshold());
                512
            }
            FIRMWARE => {
                // Slot 1 is active.
                page[0] = 1;
                put_text(page, 8, 8, FIRMWARE_REVISION);
                512
            }
            CHANGED_NAMESPACES => {
                put_changed(page, &self.events.changed);
                4096
            }
            EFFECTS => {
                put_effects(page, self.options.dbbuf, self.options.placement_handles > 0);
                4096
            }
            _ => return Err(INVALID_LOG_PAGE),
        })
    }
}

fn put_changed(page: &mut [u8], changed: &[u32]) {
    if changed.len() > CHANGED_NAMESPACES_MAX {
        return put(page, 0, u32::MAX.to_le_bytes());
    }
    for (slot, nsid) in page.chunks_exact_mut(4).zip(changed) {
        put(slot, 0, nsid.to_le_bytes());
    }
}

fn put_effects(page: &mut [u8], has_dbbuf: bool, has_placement: bool) {
    for (opcode, _) in NAMES {
        if opcode != DOORBELL_BUFFER_CONFIG || has_dbbuf {
            put(page, usize::from(opcode) * 4, EFFECT_SUPPORTED.to_le_bytes());
        }
    }
    for (opcode, _, changes_data) in io::COMMANDS {
        if opcode == io::IO_MANAGEMENT_RECEIVE && !has_placement {
            continue;
        }
        let effects = EFFECT_SUPPORTED | if changes_data { EFFECT_DATA } else { 0 };
        put(page, 1024 + usize::from(opcode) * 4, effects.to_le_bytes());
    }
}
