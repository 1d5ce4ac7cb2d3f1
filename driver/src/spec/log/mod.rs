//! Log pages that Get Log Page returns (Base 5.16.1).
//!
//! Structures are views; counters that have 16 bytes on the wire stay 128-bit. All of it comes from the device and
//! none of it is used as a size or an index without a check.

mod effects;
mod error;
mod firmware;
mod namespaces;
mod smart;

use core::fmt;

pub use effects::{CommandEffects, CommandsSupported};
pub use error::ErrorInfo;
pub use firmware::FirmwareSlotLog;
pub use namespaces::ChangedNamespaces;
pub use smart::{CriticalWarning, SmartHealth};

/// Makes the log page identifiers and their names from one table.
macro_rules! log_pages {
    ($($constant:ident = $value:literal, $name:literal;)+) => {
        impl Lid {
            $(
                #[doc = concat!($name, " (", stringify!($value), ").")]
                pub const $constant: Lid = Lid($value);
            )+

            /// The specification's name, or `None` for an identifier it does not define.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)+
                    _ => None,
                }
            }
        }
    };
}

/// Log Page Identifier (LID, Base 5.16.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lid(pub u8);

log_pages! {
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

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "log page {:02X}h", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::identify::{
        IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
        NamespaceDescriptors, NamespaceList,
    };
    use crate::spec::ids::Nsid;
    use crate::spec::view::View;
    use proptest::prelude::*;

    #[test]
    fn log_pages_have_names() {
        assert_eq!(Lid::SMART_HEALTH.to_string(), "SMART / Health Information");
        assert_eq!(Lid(0xc0).to_string(), "log page C0h");
    }

    fn read_identify(bytes: &[u8]) {
        if let Some(controller) = IdentifyController::view(bytes) {
            let _ = format!(
                "{} {} {} {}",
                controller.sn, controller.mn, controller.fr, controller.subnqn
            );
            let _ = (
                controller.max_transfer_bytes(4096),
                controller.ver().to_string(),
                controller.oui(),
            );
            let _ = (0..=u8::MAX)
                .map(|crd| controller.retry_delay_ms(crd))
                .max();
            let _ = (0..=u8::MAX)
                .filter(|&format| controller.supports_copy_format(format))
                .count();
            let _: u64 = controller
                .power_states()
                .iter()
                .map(|state| state.max_power_uw())
                .sum();
        }
        if let Some(namespace) = IdentifyNamespace::view(bytes) {
            let _ = namespace.lba_format().map(|format| format.lba_bytes());
            let _ = (
                namespace.lba_formats().len(),
                namespace.deallocated_read(),
                namespace.noiob(),
            );
            let _ = (
                namespace.npwg(),
                namespace.npda(),
                namespace.nows(),
                namespace.msrc(),
            );
        }
        if let Some(controller) = IdentifyNvmController::view(bytes) {
            let _ = (
                controller.verify_bytes_max(1 << 27),
                controller.write_zeroes_bytes_max(1 << 27),
            );
        }
        if let Some(namespace) = IdentifyNvmNamespace::view(bytes) {
            let _ = (0..=u8::MAX)
                .filter_map(|index| namespace.storage_tag_bits(index))
                .max();
        }
        if let Some(list) = NamespaceList::view(bytes) {
            assert!(list.iter(Nsid::NONE).count() <= 1024);
        }
        for descriptor in NamespaceDescriptors::new(bytes).flatten() {
            let _ = descriptor.to_string();
        }
    }

    fn read_logs(bytes: &[u8]) {
        if let Some(smart) = SmartHealth::view(bytes) {
            let _ = (
                smart.temperature_c(),
                smart.data_read_bytes(),
                smart.data_written_bytes(),
            );
            let _ = smart.sensors_c().count();
        }
        if let Some(error) = ErrorInfo::view(bytes) {
            let _ = (
                error.to_string(),
                error.parameter_byte(),
                error.parameter_bit(),
            );
        }
        if let Some(slots) = FirmwareSlotLog::view(bytes) {
            let _ = (
                slots.active_slot(),
                slots.next_slot(),
                slots.active_revision().map(|text| text.to_string()),
            );
        }
        if let Some(changed) = ChangedNamespaces::view(bytes) {
            assert!(changed.overflowed() || changed.iter().count() <= 1024);
        }
        if let Some(effects) = CommandsSupported::view(bytes) {
            let _ = (0..=u8::MAX)
                .filter(|&opcode| effects.io(opcode).csupp())
                .count();
        }
    }

    proptest! {
        #[test]
        fn any_bytes_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 4096), cut in 0usize..=4096) {
            read_identify(&bytes);
            read_logs(&bytes);
            read_identify(&bytes[..cut]);
            read_logs(&bytes[..cut]);
        }

        #[test]
        fn uniform_bytes_read_without_panic(byte: u8) {
            read_identify(&[byte; 4096]);
            read_logs(&[byte; 4096]);
        }
    }
}
