//! Features: identifiers, and typed values of those that the driver sets or reads (Base 5.27.1).
//!
//! A value type is a newtype over the dword that is both CDW11 of Set Features and dword 0 of Get Features' completion.
//! Only [`Timestamp`] travels as data.

mod async_event;
mod timestamp;
mod values;

pub use async_event::{AsyncEvent, AsyncEventConfig};
pub use timestamp::Timestamp;
pub use values::NumberOfQueues;

use crate::codes::named_codes;

named_codes! {
    /// Feature Identifier (FID, Base 5.27.1).
    Fid, "feature" {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR_CONFIG = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIG = 0x0b, "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0c, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER_STATE_CONFIG = 0x11, "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL_CONFIG = 0x12, "Read Recovery Level Config";
        PREDICTABLE_LATENCY_MODE_CONFIG = 0x13, "Predictable Latency Mode Config";
        PREDICTABLE_LATENCY_MODE_WINDOW = 0x14, "Predictable Latency Mode Window";
        LBA_STATUS_INTERVAL = 0x15, "LBA Status Information Report Interval";
        HOST_BEHAVIOR_SUPPORT = 0x16, "Host Behavior Support";
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        ENDURANCE_GROUP_EVENT_CONFIG = 0x18, "Endurance Group Event Configuration";
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        SPINUP_CONTROL = 0x1a, "Spinup Control";
        SOFTWARE_PROGRESS_MARKER = 0x80, "Software Progress Marker";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_names() {
        assert_eq!(Fid::NUMBER_OF_QUEUES.to_string(), "Number of Queues");
        assert_eq!(Fid(0xc0).to_string(), "feature C0h");
    }
}
