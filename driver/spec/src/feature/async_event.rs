//! Asynchronous events: their configuration, and dword 0 of a completed request (Base 5.2 and 5.27.1.8).

use core::fmt;

use crate::bits::{bit_fields, bit_flags};
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

bit_fields! {
    /// An asynchronous event: dword 0 of a completed request, without its reserved bits.
    AsyncEvent(u32) {
        2:0 event_type: u8, "Asynchronous Event Type";
        15:8 info: u8, "Asynchronous Event Information: what happened, by event type";
        23:16 log: u8, "Log Page Identifier";
    }
}

impl AsyncEvent {
    /// Type of an error of the host's or the controller's.
    pub const ERROR: u8 = 0;
    /// Type of a SMART or health status.
    pub const SMART_HEALTH: u8 = 1;
    /// Type of a notice.
    pub const NOTICE: u8 = 2;
    /// A namespace was attached, detached or changed; the log page lists those affected.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: AsyncEvent = AsyncEvent(0x0004_0002);

    /// Parses dword 0 of a completion.
    pub const fn from_dword(dword: u32) -> AsyncEvent {
        AsyncEvent(dword & 0x00ff_ff07)
    }

    /// The log page that says more; reading it lets the controller report further events of this type.
    pub const fn log_page(self) -> Lid {
        Lid(self.log())
    }

    /// Returns the specification's name of the event, or `None` for an undefined one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.event_type(), self.info()) {
            (0, 0) => "Write to Invalid Doorbell Register",
            (0, 1) => "Invalid Doorbell Write Value",
            (0, 2) => "Diagnostic Failure",
            (0, 3) => "Persistent Internal Error",
            (0, 4) => "Transient Internal Error",
            (0, 5) => "Firmware Image Load Error",
            (1, 0) => "NVM subsystem Reliability",
            (1, 1) => "Temperature Threshold",
            (1, 2) => "Spare Below Threshold",
            (2, 0) => "Namespace Attribute Changed",
            (2, 1) => "Firmware Activation Starting",
            (2, 2) => "Telemetry Log Changed",
            (2, 3) => "Asymmetric Namespace Access Change",
            (2, 4) => "Predictable Latency Event Aggregate Log Change",
            (2, 5) => "LBA Status Information Alert",
            (2, 6) => "Endurance Group Event Aggregate Log Page Change",
            (3, 0) => "Normal NVM Subsystem Shutdown",
            (6, 0) => "Reservation Log Page Available",
            (6, 1) => "Sanitize Operation Completed",
            (6, 2) => "Sanitize Operation Completed With Unexpected Deallocation",
            _ => return None,
        })
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "event {:02X}h of type {}", self.info(), self.event_type())?,
        }
        write!(f, " (see {})", self.log_page())
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
            prop_assert_eq!(event.0, dword & 0x00ff_ff07);
            let _ = event.to_string();
        }
    }
}
