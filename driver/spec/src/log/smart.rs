//! SMART / Health Information log (LID 02h, Base 5.16.1.3).

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::bit_flags;

/// SMART / Health Information log (Base 5.16.1.3).
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SmartHealth {
    /// Critical Warning.
    pub critical_warning: u8,
    /// Composite Temperature in Kelvin.
    pub composite_temperature_k: U16,
    /// Available Spare in percent.
    pub available_spare_percent: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold_percent: u8,
    /// Percentage Used: may exceed 100, up to 255.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    reserved7: [u8; 25],
    /// Data Units Read, in thousands of 512 bytes.
    pub data_units_read: U128,
    /// Data Units Written, in thousands of 512 bytes.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries over the life of the controller.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_minutes: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature Sensors 1 to 8 in Kelvin; 0 for not implemented.
    pub temperature_sensors_k: [U16; 8],
    /// Thermal Management Temperature 1 and 2 Transition Counts.
    pub thermal_transitions: [U32; 2],
    /// Total Time For Thermal Management Temperature 1 and 2 in seconds.
    pub thermal_total_s: [U32; 2],
    reserved232: [u8; 280],
}

const _: () = assert!(size_of::<SmartHealth>() == 512);

bit_flags! {
    /// Critical Warning; Asynchronous Event Configuration enables the same bits (Base 5.16.1.3).
    CriticalWarning(u8) {
        0 spare_below_threshold, "Available spare is below its threshold";
        1 temperature, "A temperature is past its threshold";
        2 reliability_degraded, "The NVM subsystem's reliability is degraded";
        3 read_only, "All media are read only";
        4 backup_failed, "The backup of the volatile memory has failed";
        5 pmr_unreliable, "The Persistent Memory Region is read only or unreliable";
    }
}

/// Meaning of each bit of Critical Warning, bit 0 first.
const WARNINGS: [&str; 8] = [
    "Available spare is below its threshold",
    "A temperature is past its threshold",
    "The NVM subsystem's reliability is degraded",
    "All media are read only",
    "The backup of the volatile memory has failed",
    "The Persistent Memory Region is read only or unreliable",
    "reserved bit 6",
    "reserved bit 7",
];

impl CriticalWarning {
    /// Iterates over the meanings of the set warnings, reserved bits included.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..).zip(WARNINGS).filter(move |(bit, _)| self.0 & 1 << bit != 0).map(|(_, name)| name)
    }
}

const DATA_UNIT_BYTES: u128 = 512_000;
const ZERO_C_IN_K: i32 = 273;

impl SmartHealth {
    /// Critical warnings.
    pub const fn critical_warning(&self) -> CriticalWarning {
        CriticalWarning(self.critical_warning)
    }

    /// Composite temperature in degrees Celsius; `None` if not reported (0 K).
    pub const fn temperature_c(&self) -> Option<i32> {
        match self.composite_temperature_k.get() {
            0 => None,
            kelvin => Some(kelvin as i32 - ZERO_C_IN_K),
        }
    }

    /// Iterates over the implemented sensors: number (1 to 8) and degrees Celsius.
    pub fn sensors_c(&self) -> impl Iterator<Item = (usize, i32)> {
        let sensors = self.temperature_sensors_k.iter().map(|kelvin| i32::from(kelvin.get()));
        (1..)
            .zip(sensors)
            .filter(|(_, kelvin)| *kelvin != 0)
            .map(|(number, kelvin)| (number, kelvin - ZERO_C_IN_K))
    }

    /// Bytes read by the host, in the log's resolution of 512,000.
    pub const fn data_read_bytes(&self) -> u128 {
        self.data_units_read.get().saturating_mul(DATA_UNIT_BYTES)
    }

    /// Bytes written by the host, in the log's resolution of 512,000.
    pub const fn data_written_bytes(&self) -> u128 {
        self.data_units_written.get().saturating_mul(DATA_UNIT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use core::mem::offset_of;
    use zerocopy::FromZeros;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        assert_eq!(offset_of!(SmartHealth, data_units_read), 32);
        assert_eq!(offset_of!(SmartHealth, media_errors), 160);
        assert_eq!(offset_of!(SmartHealth, warning_temperature_minutes), 192);
        assert_eq!(offset_of!(SmartHealth, temperature_sensors_k), 200);
        assert_eq!(offset_of!(SmartHealth, thermal_total_s), 224);
    }

    #[test]
    fn each_warning_has_its_name() {
        let one = |warning: CriticalWarning| warning.names().collect::<Vec<_>>();
        let none = CriticalWarning(0);
        assert_eq!(one(none), [""; 0]);
        assert_eq!(one(CriticalWarning(1 << 1)), ["A temperature is past its threshold"]);
        assert_eq!(one(CriticalWarning(1 << 3)), ["All media are read only"]);
        assert_eq!(
            one(CriticalWarning(1 << 5)),
            ["The Persistent Memory Region is read only or unreliable"]
        );
        assert_eq!(CriticalWarning(0xff).names().count(), 8);
    }

    #[test]
    fn units_are_converted() {
        let mut built = SmartHealth::new_zeroed();
        built.composite_temperature_k = 323.into();
        built.temperature_sensors_k[2] = 300.into();
        built.data_units_read = 2.into();
        built.data_units_written = u128::MAX.into();
        built.critical_warning = 0b1001;
        let view = SmartHealth::view(built.as_bytes()).unwrap();
        assert_eq!(view.temperature_c(), Some(50));
        assert_eq!(view.sensors_c().collect::<Vec<_>>(), [(3, 27)]);
        assert_eq!((view.data_read_bytes(), view.data_written_bytes()), (1_024_000, u128::MAX));
        assert!(view.critical_warning().read_only() && !view.critical_warning().temperature());
    }
}
