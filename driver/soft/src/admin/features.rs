//! Get and Set Features (NVMe Base 2.0 section 5.27).

use crate::command::Command;
use crate::controller::Controller;
use crate::memory::Dma;
use crate::state::features::{NUMBER_OF_QUEUES, VOLATILE_WRITE_CACHE};
use crate::status::{
    Answer, COMMAND_SEQUENCE_ERROR, DONE, FEATURE_NOT_NAMESPACE_SPECIFIC, FEATURE_NOT_SAVEABLE,
    INVALID_FIELD, Reply, WRITE_FAULT,
};
const TIMESTAMP: u8 = 0x0e;
const HOST_BEHAVIOR: u8 = 0x16;

const SELECT_CURRENT: u32 = 0;
const SELECT_DEFAULT: u32 = 1;
const SELECT_SAVED: u32 = 2;
const SELECT_SUPPORTED: u32 = 3;
/// Supported capabilities: the feature can be changed.
const CHANGEABLE: u32 = 1 << 2;
const SAVE: u32 = 1 << 31;
const TIMESTAMP_WAS_SET: u8 = 1 << 1;
/// Bytes of Host Behavior Support. The first is ACRE, which permits retry delays in statuses.
const HOST_BEHAVIOR_BYTES: usize = 512;
impl Controller {
    pub(super) fn get_features(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let fid = command.low(10) as u8;
        let value = match command.cdw(10) >> 8 & 7 {
            SELECT_SUPPORTED => {
                let is_known = matches!(fid, TIMESTAMP | HOST_BEHAVIOR)
                    || self.features.get(fid, 0, true).is_ok();
                if is_known { CHANGEABLE } else { return Err(INVALID_FIELD) }
            }
            select @ (SELECT_CURRENT | SELECT_DEFAULT | SELECT_SAVED) => {
                match fid {
                    TIMESTAMP => return self.get_timestamp(command, select == SELECT_CURRENT, dma),
                    HOST_BEHAVIOR => {
                        return self.get_host_behavior(command, select == SELECT_CURRENT, dma);
                    }
                    _ => {}
                }
                self.features.get(fid, command.cdw(11), select != SELECT_CURRENT)?
            }
            _ => return Err(INVALID_FIELD),
        };
        Ok(Reply::Done(value))
    }

    fn get_timestamp(&mut self, command: &Command, is_current: bool, dma: &Dma<'_>) -> Answer {
        let ms = if is_current { self.features.timestamp_ms(self.now) } else { 0 };
        let was_set = is_current && self.features.timestamp.is_some();
        let mut data = (ms & 0xffff_ffff_ffff).to_le_bytes();
        data[6] = if was_set { TIMESTAMP_WAS_SET } else { 0 };
        let rules = self.rules();
        self.transfer.send(command, &data, rules, dma)?;
        DONE
    }

    pub(super) fn set_features(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let fid = command.low(10) as u8;
        if command.cdw(10) & SAVE != 0 {
            return Err(FEATURE_NOT_SAVEABLE);
        }
        if !matches!(command.nsid, 0 | u32::MAX) {
            return Err(FEATURE_NOT_NAMESPACE_SPECIFIC);
        }
        match fid {
            TIMESTAMP => return self.set_timestamp(command, dma),
            HOST_BEHAVIOR => return self.set_host_behavior(command, dma),
            VOLATILE_WRITE_CACHE if command.cdw(11) & 1 == 0 => {
                // Earlier writes become as durable as later ones.
                self.media.flush().map_err(|_| WRITE_FAULT)?;
            }
            _ => {}
        }
        let queue_count = self.queues.submission_ids.len() + self.queues.completion_ids.len();
        if fid == NUMBER_OF_QUEUES && queue_count > 2 {
            return Err(COMMAND_SEQUENCE_ERROR);
        }
        self.features.set(fid, command.cdw(11)).map(Reply::Done)
    }

    fn get_host_behavior(&mut self, command: &Command, is_current: bool, dma: &Dma<'_>) -> Answer {
        let mut data = [0; HOST_BEHAVIOR_BYTES];
        data[0] = u8::from(is_current && self.features.retries_advanced);
        let rules = self.rules();
        self.transfer.send(command, &data, rules, dma)?;
        DONE
    }

    fn set_host_behavior(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let mut data = [0; HOST_BEHAVIOR_BYTES];
        let rules = self.rules();
        self.transfer.receive(command, &mut data, rules, dma)?;
        // Byte 0 is ACRE. Bytes 1 and 2, extended telemetry and LBA formats, have no effect without their support.
        if data[0] > 1 {
            return Err(INVALID_FIELD);
        }
        self.features.retries_advanced = data[0] == 1;
        DONE
    }

    fn set_timestamp(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let mut data = [0; 8];
        let rules = self.rules();
        self.transfer.receive(command, &mut data, rules, dma)?;
        let ms = u64::from_le_bytes(data) & 0xffff_ffff_ffff;
        self.features.timestamp = Some((ms, self.now));
        DONE
    }
}
