//! Asynchronous events: their configuration, and dword 0 of a completed request (Base 5.2 and 5.27.1.8).

use core::fmt;

use crate::bits::bit_flags;
use crate::log::{CriticalWarning, Lid};

bit_flags! {
    /// Asynchronous Event Configuration (FID 0Bh, Base 5.27.1.8); bits 7:0 are [`AsyncEventConfig::critical_warning`].
    /// The notice bits match [`crate::identify::Oaes`].
    AsyncEventConfig(u32) {
        8 namespace_attribute with_namespace_attribute, "Namespace Attribute Notices";
        9 firmware_activation with_firmware_activation, "Firmware Activation Notices";
    }
}

impl AsyncEventConfig {
    /// The critical warnings that raise an event.
    pub const fn critical_warning(self) -> CriticalWarning {
        CriticalWarning(self.0 as u8)
    }

    /// Sets the critical warnings that raise an event.
    pub const fn with_critical_warning(self, warnings: CriticalWarning) -> AsyncEventConfig {
        AsyncEventConfig(self.0 & !0xff | warnings.0 as u32)
    }
}

/// Asynchronous Event Type (Base 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEventType {
    /// 000b: error status.
    Error,
    /// 001b: SMART / health status.
    SmartHealth,
    /// 010b: notice.
    Notice,
    /// 011b: immediate.
    Immediate,
    /// 110b: I/O command specific status.
    IoCommandSpecific,
    /// 111b: vendor specific.
    VendorSpecific,
    /// Any other value.
    Reserved(u8),
}

impl AsyncEventType {
    const fn from_raw(raw: u8) -> AsyncEventType {
        match raw {
            0 => AsyncEventType::Error,
            1 => AsyncEventType::SmartHealth,
            2 => AsyncEventType::Notice,
            3 => AsyncEventType::Immediate,
            6 => AsyncEventType::IoCommandSpecific,
            7 => AsyncEventType::VendorSpecific,
            raw => AsyncEventType::Reserved(raw),
        }
    }

    const fn raw(self) -> u8 {
        match self {
            AsyncEventType::Error => 0,
            AsyncEventType::SmartHealth => 1,
            AsyncEventType::Notice => 2,
            AsyncEventType::Immediate => 3,
            AsyncEventType::IoCommandSpecific => 6,
            AsyncEventType::VendorSpecific => 7,
            AsyncEventType::Reserved(raw) => raw & 7,
        }
    }
}

/// Dword 0 of a completed Asynchronous Event Request (Base 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type.
    pub event_type: AsyncEventType,
    /// Asynchronous Event Information; its meaning depends on the type.
    pub info: u8,
    /// The log page to read, which also re-arms the event.
    pub log_page: Lid,
}

impl AsyncEvent {
    /// A namespace was added or removed, or its Identify data changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: AsyncEvent = AsyncEvent {
        event_type: AsyncEventType::Notice,
        info: 0,
        log_page: Lid::CHANGED_NAMESPACES,
    };

    /// Decodes dword 0 of the completion.
    pub const fn from_dword(dword: u32) -> AsyncEvent {
        let [event_type, info, log_page, _] = dword.to_le_bytes();
        AsyncEvent {
            event_type: AsyncEventType::from_raw(event_type & 7),
            info,
            log_page: Lid(log_page),
        }
    }

    /// Encodes dword 0 of the completion.
    pub const fn into_dword(self) -> u32 {
        u32::from_le_bytes([self.event_type.raw(), self.info, self.log_page.0, 0])
    }

    /// Returns the specification's name of the event, or `None` for an undefined one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.event_type, self.info) {
            (AsyncEventType::Error, 0) => "Write to Invalid Doorbell Register",
            (AsyncEventType::Error, 1) => "Invalid Doorbell Write Value",
            (AsyncEventType::Error, 2) => "Diagnostic Failure",
            (AsyncEventType::Error, 3) => "Persistent Internal Error",
            (AsyncEventType::Error, 4) => "Transient Internal Error",
            (AsyncEventType::Error, 5) => "Firmware Image Load Error",
            (AsyncEventType::SmartHealth, 0) => "NVM subsystem Reliability",
            (AsyncEventType::SmartHealth, 1) => "Temperature Threshold",
            (AsyncEventType::SmartHealth, 2) => "Spare Below Threshold",
            (AsyncEventType::Notice, 0) => "Namespace Attribute Changed",
            (AsyncEventType::Notice, 1) => "Firmware Activation Starting",
            (AsyncEventType::Notice, 2) => "Telemetry Log Changed",
            (AsyncEventType::Notice, 3) => "Asymmetric Namespace Access Change",
            (AsyncEventType::Notice, 4) => "Predictable Latency Event Aggregate Log Change",
            (AsyncEventType::Notice, 5) => "LBA Status Information Alert",
            (AsyncEventType::Notice, 6) => "Endurance Group Event Aggregate Log Page Change",
            (AsyncEventType::Immediate, 0) => "Normal NVM Subsystem Shutdown",
            (AsyncEventType::IoCommandSpecific, 0) => "Reservation Log Page Available",
            (AsyncEventType::IoCommandSpecific, 1) => "Sanitize Operation Completed",
            (AsyncEventType::IoCommandSpecific, 2) => {
                "Sanitize Operation Completed With Unexpected Deallocation"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{:?} event {:02X}h", self.event_type, self.info)?,
        }
        write!(f, " (see {})", self.log_page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_namespace_change() {
        assert_eq!(AsyncEvent::from_dword(0x0004_0002), AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
        let text = "Namespace Attribute Changed (see Changed Namespace List)";
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.to_string(), text);
    }

    #[test]
    fn configuration_keeps_warnings_and_notices_apart() {
        let warnings = CriticalWarning(1 << 1);
        let config = AsyncEventConfig::default()
            .with_namespace_attribute(true)
            .with_critical_warning(warnings);
        assert_eq!(config, AsyncEventConfig(0x102));
        assert_eq!(config.critical_warning(), warnings);
    }

    proptest! {
        #[test]
        fn events_round_trip(dword: u32) {
            let event = AsyncEvent::from_dword(dword);
            prop_assert_eq!(event.into_dword(), dword & 0x00ff_ff07);
            let _ = event.to_string();
        }
    }
}
