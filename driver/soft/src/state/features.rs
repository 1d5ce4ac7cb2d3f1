//! Current values of the features (NVMe Base 2.0 section 5.27).
//!
//! All features have controller scope, and none survives a controller reset.

use crate::options::Options;
use crate::status::INVALID_FIELD;
use adit_shared::Time;
use adit_spec::Status;

const ARBITRATION: u8 = 0x01;
const POWER_MANAGEMENT: u8 = 0x02;
const TEMPERATURE_THRESHOLD: u8 = 0x04;
const ERROR_RECOVERY: u8 = 0x05;
pub(crate) const VOLATILE_WRITE_CACHE: u8 = 0x06;
pub(crate) const NUMBER_OF_QUEUES: u8 = 0x07;
const INTERRUPT_COALESCING: u8 = 0x08;
const INTERRUPT_VECTOR: u8 = 0x09;
const WRITE_ATOMICITY: u8 = 0x0a;
const ASYNC_EVENTS: u8 = 0x0b;

/// Default over-temperature threshold: 85 degrees Celsius.
const DEFAULT_THRESHOLD_KELVIN: u32 = 358;
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
    pub(crate) retries_advanced: bool,
    plain: [u32; PLAIN.len()],
    over_kelvin: u16,
    under_kelvin: u16,
    /// Whether interrupt coalescing is disabled, by vector.
    uncoalesced: Vec<bool>,
    /// The host's clock in milliseconds, and when the host set it.
    pub(crate) timestamp: Option<(u64, Time)>,
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

    /// Returns whether writes may stay volatile: a write cache exists and is enabled.
    pub(crate) fn has_write_cache(&self) -> bool {
        self.value(VOLATILE_WRITE_CACHE) & 1 != 0
    }

    pub(crate) fn event_config(&self) -> u32 {
        self.value(ASYNC_EVENTS)
    }

    /// Returns the composite temperature's upper threshold in kelvin.
    pub(crate) fn temperature_threshold(&self) -> u16 {
        self.over_kelvin
    }

    /// Milliseconds of the host's clock at `now`.
    pub(crate) fn timestamp_ms(&self, now: Time) -> u64 {
        self.timestamp.map_or(now.as_ns() / 1_000_000, |(ms, set)| {
            ms.wrapping_add(now.since(set).as_millis() as u64)
        })
    }

    /// Returns NSQA and NCQA, both zero-based.
    fn queue_counts(&self) -> u32 {
        let count_z = u32::from(self.io_queue_count - 1);
        count_z | count_z << 16
    }

    /// Returns dword 0 of Get Features; `cdw11` selects the sensor or the vector.
    pub(crate) fn get(&self, fid: u8, cdw11: u32, wants_default: bool) -> Result<u32, Status> {
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
    pub(crate) fn set(&mut self, fid: u8, value: u32) -> Result<u32, Status> {
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
