//! Typed values of one-dword features (Base 5.27.1, NVM 4.1.3).

use super::feature_value;
use crate::bits::{bit_flags, bits, with_bits};

/// Arbitration (FID 01h, Base 5.27.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arbitration(pub u32);

impl Arbitration {
    /// The Arbitration Burst that means no limit.
    pub const BURST_UNLIMITED: u8 = 7;

    /// Creates a burst of `2^burst` commands (0 to 6, or [`Arbitration::BURST_UNLIMITED`]) with zero-based weights.
    pub const fn new(burst: u8, low_z: u8, medium_z: u8, high_z: u8) -> Arbitration {
        Arbitration(u32::from_le_bytes([burst & 7, low_z, medium_z, high_z]))
    }

    /// Arbitration Burst as a power of two; [`Arbitration::BURST_UNLIMITED`] for no limit.
    pub const fn burst(self) -> u8 {
        self.0 as u8 & 7
    }

    /// Low Priority Weight, zero-based.
    pub const fn low_z(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Medium Priority Weight, zero-based.
    pub const fn medium_z(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// High Priority Weight, zero-based.
    pub const fn high_z(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// Power Management (FID 02h, Base 5.27.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerManagement(pub u32);

impl PowerManagement {
    /// Selects power state `power_state` (0 to 31) for workload `workload_hint` (0 for unknown).
    pub const fn new(power_state: u8, workload_hint: u8) -> PowerManagement {
        PowerManagement((workload_hint as u32 & 7) << 5 | power_state as u32 & 0x1f)
    }

    /// Power State.
    pub const fn power_state(self) -> u8 {
        self.0 as u8 & 0x1f
    }

    /// Workload Hint.
    pub const fn workload_hint(self) -> u8 {
        (self.0 >> 5) as u8 & 7
    }
}

/// Temperature Threshold (FID 04h, Base 5.27.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemperatureThreshold(pub u32);

/// Side of a temperature threshold that raises an event (THSEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdType {
    /// 00b: at or over the threshold.
    Over,
    /// 01b: at or under the threshold.
    Under,
    /// Any other value.
    Reserved,
}

impl TemperatureThreshold {
    /// Selects the composite temperature; 1 to 8 select sensors.
    pub const COMPOSITE: u8 = 0;

    /// Creates a threshold of `kelvin` for temperature `select`; [`ThresholdType::Reserved`] encodes as 10b.
    pub const fn new(kelvin: u16, select: u8, threshold: ThresholdType) -> TemperatureThreshold {
        TemperatureThreshold((threshold as u32) << 20 | (select as u32 & 0xf) << 16 | kelvin as u32)
    }

    /// Temperature Threshold in Kelvin.
    pub const fn threshold_k(self) -> u16 {
        self.0 as u16
    }

    /// Threshold Temperature Select: 0 composite, 1 to 8 sensors.
    pub const fn select(self) -> u8 {
        (self.0 >> 16) as u8 & 0xf
    }

    /// Threshold Type Select.
    pub const fn threshold_type(self) -> ThresholdType {
        match bits(self.0 as u64, 21, 20) {
            0 => ThresholdType::Over,
            1 => ThresholdType::Under,
            _ => ThresholdType::Reserved,
        }
    }
}

/// Error Recovery (FID 05h, NVM 4.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecovery(pub u32);

impl ErrorRecovery {
    /// Creates a value from the time limit in units of 100 ms (0 for none) and DULBE.
    pub const fn new(tler_100ms: u16, dulbe: bool) -> ErrorRecovery {
        ErrorRecovery((dulbe as u32) << 16 | tler_100ms as u32)
    }

    /// Time Limited Error Recovery in units of 100 ms; 0 for no limit.
    pub const fn tler_100ms(self) -> u16 {
        self.0 as u16
    }

    /// Deallocated or Unwritten Logical Block Error Enable.
    pub const fn dulbe(self) -> bool {
        self.0 & 1 << 16 != 0
    }
}

bit_flags! {
    /// Volatile Write Cache (FID 06h, Base 5.27.1.4).
    VolatileWriteCache(u32) {
        0 wce with_wce, "Volatile Write Cache Enable";
    }
}

/// Number of Queues (FID 07h, Base 5.27.1.5): the request; in the completion, the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues(pub u32);

impl NumberOfQueues {
    /// Largest number of queues of each kind in a request.
    pub const MAX: u32 = 65535;

    /// Requests I/O submission and completion queues; `None` for 0 and above [`NumberOfQueues::MAX`].
    pub const fn new(submission: u32, completion: u32) -> Option<NumberOfQueues> {
        match (submission, completion) {
            (1..=NumberOfQueues::MAX, 1..=NumberOfQueues::MAX) => {
                Some(NumberOfQueues((completion - 1) << 16 | (submission - 1)))
            }
            _ => None,
        }
    }

    /// Number of I/O submission queues: 1 to 65536.
    pub const fn submission(self) -> u32 {
        (self.0 & 0xffff) + 1
    }

    /// Number of I/O completion queues: 1 to 65536.
    pub const fn completion(self) -> u32 {
        (self.0 >> 16) + 1
    }

    /// Number of queue pairs they allow, at most [`NumberOfQueues::MAX`].
    pub const fn pairs(self) -> u16 {
        let (sq_z, cq_z) = (self.0 as u16, (self.0 >> 16) as u16);
        let pairs_z = if sq_z < cq_z { sq_z } else { cq_z };
        pairs_z.saturating_add(1)
    }
}

/// Interrupt Coalescing (FID 08h, Base 5.27.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCoalescing(pub u32);

impl InterruptCoalescing {
    /// Creates a value from the zero-based threshold in completions and the time in units of 100 µs (0 for no delay).
    pub const fn new(threshold_z: u8, time_100us: u8) -> InterruptCoalescing {
        InterruptCoalescing((time_100us as u32) << 8 | threshold_z as u32)
    }

    /// Aggregation Threshold in completions, zero-based.
    pub const fn threshold_z(self) -> u8 {
        self.0 as u8
    }

    /// Aggregation Time in units of 100 µs.
    pub const fn time_100us(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

/// Interrupt Vector Configuration (FID 09h, Base 5.27.1.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptVectorConfig(pub u32);

impl InterruptVectorConfig {
    /// Sets whether `vector` is exempt from coalescing.
    pub const fn new(vector: u16, coalescing_disabled: bool) -> InterruptVectorConfig {
        InterruptVectorConfig(with_bits(vector as u64, 16, 16, coalescing_disabled as u64) as u32)
    }

    /// Interrupt Vector; also CDW11 of Get Features.
    pub const fn vector(self) -> u16 {
        self.0 as u16
    }

    /// Coalescing Disable.
    pub const fn coalescing_disabled(self) -> bool {
        self.0 & 1 << 16 != 0
    }
}

bit_flags! {
    /// Write Atomicity Normal (FID 0Ah, NVM 4.1.3).
    WriteAtomicity(u32) {
        0 dn with_dn, "Disable Normal: only the power fail atomic write units hold";
    }
}

feature_value! {
    Arbitration: ARBITRATION,
    PowerManagement: POWER_MANAGEMENT,
    TemperatureThreshold: TEMPERATURE_THRESHOLD,
    ErrorRecovery: ERROR_RECOVERY,
    VolatileWriteCache: VOLATILE_WRITE_CACHE,
    NumberOfQueues: NUMBER_OF_QUEUES,
    InterruptCoalescing: INTERRUPT_COALESCING,
    InterruptVectorConfig: INTERRUPT_VECTOR_CONFIG,
    WriteAtomicity: WRITE_ATOMICITY,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_queues_is_zero_based() {
        assert_eq!(NumberOfQueues::new(8, 4), Some(NumberOfQueues(0x0003_0007)));
        assert_eq!((NumberOfQueues::new(0, 1), NumberOfQueues::new(1, 65536)), (None, None));
        let queues = NumberOfQueues(0x0003_0007);
        assert_eq!((queues.submission(), queues.completion(), queues.pairs()), (8, 4, 4));
        let lie = NumberOfQueues(u32::MAX);
        assert_eq!((lie.submission(), lie.pairs()), (65536, 65535));
    }

    #[test]
    fn arbitration_bytes() {
        let arbitration = Arbitration::new(Arbitration::BURST_UNLIMITED, 1, 2, 3);
        assert_eq!(arbitration.0, 0x0302_0107);
        assert_eq!((arbitration.burst(), arbitration.low_z()), (7, 1));
        assert_eq!((arbitration.medium_z(), arbitration.high_z()), (2, 3));
    }

    #[test]
    fn temperature_threshold_bits() {
        let threshold = TemperatureThreshold::new(343, 2, ThresholdType::Under);
        assert_eq!(threshold.0, 0x0012_0157);
        assert_eq!((threshold.threshold_k(), threshold.select()), (343, 2));
        assert_eq!(threshold.threshold_type(), ThresholdType::Under);
    }

    #[test]
    fn small_features() {
        assert_eq!(PowerManagement::new(3, 1), PowerManagement(0x23));
        assert_eq!(
            (PowerManagement(0x23).power_state(), PowerManagement(0x23).workload_hint()),
            (3, 1)
        );
        assert_eq!(ErrorRecovery::new(10, true), ErrorRecovery(0x1_000a));
        assert!(ErrorRecovery(0x1_000a).dulbe() && ErrorRecovery(0x1_000a).tler_100ms() == 10);
        assert_eq!(InterruptCoalescing::new(7, 2), InterruptCoalescing(0x0207));
        assert_eq!(
            (InterruptCoalescing(0x0207).threshold_z(), InterruptCoalescing(0x0207).time_100us()),
            (7, 2)
        );
        assert_eq!(InterruptVectorConfig::new(5, true), InterruptVectorConfig(0x1_0005));
        assert!(InterruptVectorConfig(0x1_0005).coalescing_disabled());
        assert_eq!(InterruptVectorConfig(0x1_0005).vector(), 5);
        assert!(VolatileWriteCache::default().with_wce(true).wce() && WriteAtomicity(1).dn());
    }
}
