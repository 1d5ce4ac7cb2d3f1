//! Features (NVMe Base 2.0 section 5.27): values that the host sets and reads back.
//!
//! All features have controller scope, and none survives a controller reset.

use crate::command::Command;
use crate::controller::Controller;
use crate::memory::Dma;
use crate::options::Options;
use crate::status::{
    Answer, COMMAND_SEQUENCE_ERROR, DONE, FEATURE_NOT_NAMESPACE_SPECIFIC, FEATURE_NOT_SAVEABLE,
    INVALID_FIELD, Reply, WRITE_FAULT,
};
use adit_shared::Time;
use adit_spec::Status;

const ARBITRATION: u8 = 0x01;
const POWER_MANAGEMENT: u8 = 0x02;
const TEMPERATURE_THRESHOLD: u8 = 0x04;
const ERROR_RECOVERY: u8 = 0x05;
const VOLATILE_WRITE_CACHE: u8 = 0x06;
const NUMBER_OF_QUEUES: u8 = 0x07;
const INTERRUPT_COALESCING: u8 = 0x08;
const INTERRUPT_VECTOR: u8 = 0x09;
const WRITE_ATOMICITY: u8 = 0x0a;
const ASYNC_EVENTS: u8 = 0x0b;
const TIMESTAMP: u8 = 0x0e;
const HOST_BEHAVIOR: u8 = 0x16;

const SELECT_CURRENT: u32 = 0;
const SELECT_DEFAULT: u32 = 1;
const SELECT_SAVED: u32 = 2;
const SELECT_SUPPORTED: u32 = 3;
/// Supported capabilities: the feature can be changed.
const CHANGEABLE: u32 = 1 << 2;
const SAVE: u32 = 1 << 31;

/// Default over-temperature threshold: 85 degrees Celsius.
const DEFAULT_THRESHOLD_KELVIN: u32 = 358;
const TIMESTAMP_WAS_SET: u8 = 1 << 1;
/// Bytes of Host Behavior Support. The first is ACRE, which permits retry delays in statuses.
const HOST_BEHAVIOR_BYTES: usize = 512;
const COALESCING_DISABLED: u32 = 1 << 16;

/// Plain features: identifier, default, settable bits.
const PLAIN: [(u8, u32, u32); 7] = [
    (ARBITRATION, 6, 0xffff_ff07),
    (POWER_MANAGEMENT, 0, 0xe0),
    (ERROR_RECOVERY, 0, 0x1_ffff),
    (VOLATILE_WRITE_CACHE, 1, 1),
    (INTERRUPT_COALESCING, 0, 0xffff),
    (WRITE_ATOMICITY, 0, 1),
    (ASYNC_EVENTS, 0, 0x3ff),
];

/// Current values of the features.
#[derive(Debug)]
pub(crate) struct Features {
    io_queue_count: u16,
    /// Whether a volatile write cache exists.
    has_cache: bool,
    /// Advanced Command Retry Enable of Host Behavior Support.
    retries_advanced: bool,
    plain: [u32; PLAIN.len()],
    over_kelvin: u16,
    under_kelvin: u16,
    /// Whether interrupt coalescing is disabled, by vector.
    uncoalesced: Vec<bool>,
    /// The host's clock in milliseconds, and when the host set it.
    timestamp: Option<(u64, Time)>,
}

impl Features {
    pub(crate) fn new(options: &Options) -> Features {
        let io_queue_count = options.io_queue_count;
        let mut features = Features {
            io_queue_count,
            has_cache: options.has_write_cache(),
            retries_advanced: false,
            plain: [0; PLAIN.len()],
            over_kelvin: 0,
            under_kelvin: 0,
            uncoalesced: vec![false; usize::from(io_queue_count) + 1],
            timestamp: None,
        };
        features.reset();
        features
    }

    /// Restores all defaults, as after a controller reset; the timestamp keeps counting.
    pub(crate) fn reset(&mut self) {
        for (value, (_, default, _)) in self.plain.iter_mut().zip(PLAIN) {
            *value = default;
        }
        self.over_kelvin = DEFAULT_THRESHOLD_KELVIN as u16;
        self.under_kelvin = 0;
        self.uncoalesced.fill(false);
        self.retries_advanced = false;
    }

    /// Forgets the host's clock.
    pub(crate) fn forget_time(&mut self) {
        self.timestamp = None;
    }

    /// Returns `status`, without its retry delay unless the host enabled those (Base 2.0 section 3.3.3.2.1, CRD).
    pub(crate) fn with_retry_delay(&self, status: Status) -> Status {
        if self.retries_advanced { status } else { status.with_crd(0) }
    }

    fn plain(&self, fid: u8) -> Option<(usize, u32, u32)> {
        let is_there = fid != VOLATILE_WRITE_CACHE || self.has_cache;
        let at = PLAIN.iter().position(|(id, ..)| *id == fid && is_there)?;
        let (_, default, mask) = PLAIN[at];
        Some((at, default, mask))
    }

    fn value(&self, fid: u8) -> u32 {
        self.plain(fid).map_or(0, |(at, ..)| self.plain[at])
    }

    /// Whether writes may stay volatile: a write cache exists and is enabled.
    pub(crate) fn has_write_cache(&self) -> bool {
        self.value(VOLATILE_WRITE_CACHE) & 1 != 0
    }

    pub(super) fn event_config(&self) -> u32 {
        self.value(ASYNC_EVENTS)
    }

    /// The composite temperature's upper threshold in kelvin.
    pub(super) fn temperature_threshold(&self) -> u16 {
        self.over_kelvin
    }

    /// Milliseconds of the host's clock at `now`.
    fn timestamp_ms(&self, now: Time) -> u64 {
        self.timestamp.map_or(now.as_ns() / 1_000_000, |(ms, set)| {
            ms.wrapping_add(now.since(set).as_millis() as u64)
        })
    }

    /// NSQA and NCQA, both zero-based.
    fn queue_counts(&self) -> u32 {
        let count_z = u32::from(self.io_queue_count - 1);
        count_z | count_z << 16
    }

    /// Returns dword 0 of Get Features; `cdw11` selects the sensor or the vector.
    fn get(&self, fid: u8, cdw11: u32, wants_default: bool) -> Result<u32, Status> {
        if let Some((at, default, _)) = self.plain(fid) {
            return Ok(if wants_default { default } else { self.plain[at] });
        }
        match fid {
            NUMBER_OF_QUEUES => Ok(self.queue_counts()),
            TEMPERATURE_THRESHOLD => self.threshold(cdw11, wants_default),
            INTERRUPT_VECTOR => {
                let vector = cdw11 & 0xffff;
                let off = self.uncoalesced.get(vector as usize).ok_or(INVALID_FIELD)?;
                Ok(vector | if *off && !wants_default { COALESCING_DISABLED } else { 0 })
            }
            _ => Err(INVALID_FIELD),
        }
    }

    fn threshold(&self, cdw11: u32, wants_default: bool) -> Result<u32, Status> {
        match (cdw11 >> 16 & 0x3f, wants_default) {
            (0, true) => Ok(DEFAULT_THRESHOLD_KELVIN),
            (0x10, true) => Ok(0),
            (0, false) => Ok(u32::from(self.over_kelvin)),
            (0x10, false) => Ok(u32::from(self.under_kelvin)),
            _ => Err(INVALID_FIELD),
        }
    }

    /// Executes Set Features without data; returns dword 0.
    fn set(&mut self, fid: u8, value: u32) -> Result<u32, Status> {
        if let Some((at, _, mask)) = self.plain(fid) {
            if value & !mask != 0 {
                return Err(INVALID_FIELD);
            }
            self.plain[at] = value;
            return Ok(0);
        }
        match fid {
            NUMBER_OF_QUEUES if value as u16 == u16::MAX || value >> 16 == 0xffff => {
                Err(INVALID_FIELD)
            }
            NUMBER_OF_QUEUES => Ok(self.queue_counts()),
            TEMPERATURE_THRESHOLD => self.set_threshold(value),
            INTERRUPT_VECTOR => {
                let vector = (value & 0xffff) as usize;
                let off = self.uncoalesced.get_mut(vector).ok_or(INVALID_FIELD)?;
                *off = value & COALESCING_DISABLED != 0;
                Ok(0)
            }
            _ => Err(INVALID_FIELD),
        }
    }

    fn set_threshold(&mut self, value: u32) -> Result<u32, Status> {
        match value >> 16 & 0x3f {
            // Sensor 0 is the composite temperature, Fh all sensors; 10h and 1Fh are their lower thresholds.
            0 | 0xf => self.over_kelvin = value as u16,
            0x10 | 0x1f => self.under_kelvin = value as u16,
            _ => return Err(INVALID_FIELD),
        }
        Ok(0)
    }
}

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
