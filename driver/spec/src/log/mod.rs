//! Log pages that Get Log Page returns (Base 5.16.1).
//!
//! Structures are views; 16-byte counters stay 128-bit. All values come from the device and are checked before they
//! serve as a size or an index.

mod error;
mod firmware;
mod namespaces;
mod smart;

pub use error::ErrorInfo;
pub use firmware::FirmwareSlotLog;
pub use namespaces::ChangedNamespaces;
pub use smart::{CriticalWarning, SmartHealth};

use crate::codes::named_codes;

named_codes! {
    /// Log Page Identifier (LID, Base 5.16.1).
    Lid, "log page" {
        SUPPORTED_LOG_PAGES = 0x00, "Supported Log Pages";
        ERROR_INFORMATION = 0x01, "Error Information";
        SMART_HEALTH = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
        COMMANDS_SUPPORTED = 0x05, "Commands Supported and Effects";
        SELF_TEST = 0x06, "Device Self-test";
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        PREDICTABLE_LATENCY = 0x0a, "Predictable Latency Per NVM Set";
        PREDICTABLE_LATENCY_EVENTS = 0x0b, "Predictable Latency Event Aggregate";
        ANA = 0x0c, "Asymmetric Namespace Access";
        PERSISTENT_EVENT = 0x0d, "Persistent Event Log";
        LBA_STATUS = 0x0e, "LBA Status Information";
        ENDURANCE_GROUP_EVENTS = 0x0f, "Endurance Group Event Aggregate";
        MEDIA_UNIT_STATUS = 0x10, "Media Unit Status";
        CAPACITY_CONFIGURATIONS = 0x11, "Supported Capacity Configuration List";
        FEATURES_SUPPORTED = 0x12, "Feature Identifiers Supported and Effects";
        MI_COMMANDS_SUPPORTED = 0x13, "NVMe-MI Commands Supported and Effects";
        LOCKDOWN = 0x14, "Command and Feature Lockdown";
        BOOT_PARTITION = 0x15, "Boot Partition";
        ROTATIONAL_MEDIA = 0x16, "Rotational Media Information";
        DISCOVERY = 0x70, "Discovery Log Page";
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_pages_have_names() {
        assert_eq!(Lid::SMART_HEALTH.to_string(), "SMART / Health Information");
        assert_eq!(Lid(0xc0).to_string(), "log page C0h");
    }
}
