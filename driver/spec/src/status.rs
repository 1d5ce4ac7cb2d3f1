//! Status field of a completion: every status code of the two specifications, by name (Base 3.3.3.2.1, NVM 3.1).
//!
//! One table drives the constants, the names and retryability. A [`Status`] holds all 15 bits above the phase tag:
//! code, code type, retry delay, MORE and DNR. Compare codes with [`Status::is`]; `==` compares the flags as well. The
//! table omits other command sets and fabrics, whose codes overlap with those of the NVM command set.

use core::fmt;

/// Status field without the phase tag (Base 3.3.3.2.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status Code Type (SCT, Base 3.3.3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCodeType {
    /// 0h: generic command status.
    Generic,
    /// 1h: command specific status.
    CommandSpecific,
    /// 2h: media and data integrity errors.
    MediaAndDataIntegrity,
    /// 3h: path related status.
    PathRelated,
    /// 7h: vendor specific.
    VendorSpecific,
    /// Any other value.
    Reserved(u8),
}

impl StatusCodeType {
    const fn from_raw(raw: u8) -> StatusCodeType {
        match raw {
            0 => StatusCodeType::Generic,
            1 => StatusCodeType::CommandSpecific,
            2 => StatusCodeType::MediaAndDataIntegrity,
            3 => StatusCodeType::PathRelated,
            7 => StatusCodeType::VendorSpecific,
            raw => StatusCodeType::Reserved(raw),
        }
    }
}

/// Whether the same command may succeed later when DNR is clear.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// The cause is transient.
    Worth,
    /// The command or the state it met is the cause; a retry fails the same way.
    Useless,
}

use Retry::{Useless, Worth};

const DNR: u16 = 1 << 14;
const MORE: u16 = 1 << 13;
const CRD_SHIFT: u32 = 11;
const CODE_MASK: u16 = 0x7ff;

impl Status {
    /// Creates a status from its code type and code, all flags clear; only the low 3 bits of `sct` count.
    #[inline]
    pub const fn new(sct: u8, sc: u8) -> Status {
        Status((sct as u16 & 7) << 8 | sc as u16)
    }

    /// Takes the 15 bits above the phase tag; bit 15 is ignored.
    #[inline]
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// Returns the 15 bits above the phase tag.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Status Code.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Status Code Type as its number.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Status Code Type.
    pub const fn code_type(self) -> StatusCodeType {
        StatusCodeType::from_raw(self.sct())
    }

    /// Command Retry Delay: 0 for none, else the index of CRDT1 to CRDT3 in Identify Controller.
    pub const fn crd(self) -> u8 {
        (self.0 >> CRD_SHIFT) as u8 & 3
    }

    /// More: the Error Information log has details.
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Do Not Retry: the same command is expected to fail again.
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Sets or clears Do Not Retry.
    pub const fn with_dnr(self, dnr: bool) -> Status {
        Status(if dnr { self.0 | DNR } else { self.0 & !DNR })
    }

    /// Sets or clears More.
    pub const fn with_more(self, more: bool) -> Status {
        Status(if more { self.0 | MORE } else { self.0 & !MORE })
    }

    /// Sets Command Retry Delay; only the low 2 bits count.
    pub const fn with_crd(self, crd: u8) -> Status {
        Status(self.0 & !(3 << CRD_SHIFT) | (crd as u16 & 3) << CRD_SHIFT)
    }

    /// Returns the status with all flags clear, comparable with the constants.
    pub const fn code(self) -> Status {
        Status(self.0 & CODE_MASK)
    }

    /// Returns whether code type and code equal those of `other`; ignores the flags.
    pub const fn is(self, other: Status) -> bool {
        self.0 & CODE_MASK == other.0 & CODE_MASK
    }

    /// Returns whether the command completed without error.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// Returns whether a retry may succeed.
    ///
    /// Never after success or with DNR set. The table decides for the codes it holds; other codes (vendor specific,
    /// other command sets) are retryable, since DNR is clear.
    pub fn is_retryable(self) -> bool {
        if self.is_success() || self.dnr() {
            return false;
        }
        self.entry().is_none_or(|entry| entry.retry == Worth)
    }

    /// Returns the specification's name of the code, or the kind of an unknown code.
    pub fn name(self) -> &'static str {
        if let Some(entry) = self.entry() {
            return entry.name;
        }
        match self.code_type() {
            StatusCodeType::Generic => "Unknown Generic Command Status",
            StatusCodeType::CommandSpecific => "Unknown Command Specific Status",
            StatusCodeType::MediaAndDataIntegrity => "Unknown Media and Data Integrity Error",
            StatusCodeType::PathRelated => "Unknown Path Related Status",
            StatusCodeType::VendorSpecific => "Vendor Specific Status",
            StatusCodeType::Reserved(_) => "Reserved Status Code Type",
        }
    }

    fn entry(self) -> Option<&'static NamedStatus> {
        TABLE.iter().find(|entry| entry.status.is(self))
    }

    /// Iterates over every named status, in order of type and code.
    pub fn all_named() -> impl Iterator<Item = Status> {
        TABLE.iter().map(|entry| entry.status)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SCT {:X}h SC {:02X}h", self.name(), self.sct(), self.sc())?;
        if self.dnr() {
            f.write_str(" DNR")?;
        }
        if self.more() {
            f.write_str(" MORE")?;
        }
        if self.crd() != 0 {
            write!(f, " CRD {}", self.crd())?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

struct NamedStatus {
    status: Status,
    name: &'static str,
    retry: Retry,
}

/// Makes a constant of [`Status`] and a table row from each line.
macro_rules! status_table {
    ($($sct:literal, $sc:literal, $constant:ident, $name:literal, $retry:ident;)+) => {
        impl Status {$(
            #[doc = concat!($name, " (SCT ", stringify!($sct), ", SC ", stringify!($sc), ").")]
            pub const $constant: Status = Status::new($sct, $sc);
        )+}

        static TABLE: &[NamedStatus] = &[$(
            NamedStatus { status: Status::$constant, name: $name, retry: $retry },
        )+];
    };
}

status_table! {
    0, 0x00, SUCCESS, "Successful Completion", Useless;
    0, 0x01, INVALID_COMMAND_OPCODE, "Invalid Command Opcode", Useless;
    0, 0x02, INVALID_FIELD_IN_COMMAND, "Invalid Field in Command", Useless;
    0, 0x03, COMMAND_ID_CONFLICT, "Command ID Conflict", Useless;
    0, 0x04, DATA_TRANSFER_ERROR, "Data Transfer Error", Worth;
    0, 0x05, ABORTED_POWER_LOSS, "Commands Aborted due to Power Loss Notification", Worth;
    0, 0x06, INTERNAL_ERROR, "Internal Error", Worth;
    0, 0x07, COMMAND_ABORT_REQUESTED, "Command Abort Requested", Worth;
    0, 0x08, ABORTED_SQ_DELETION, "Command Aborted due to SQ Deletion", Worth;
    0, 0x09, ABORTED_FAILED_FUSED, "Command Aborted due to Failed Fused Command", Worth;
    0, 0x0a, ABORTED_MISSING_FUSED, "Command Aborted due to Missing Fused Command", Useless;
    0, 0x0b, INVALID_NAMESPACE_OR_FORMAT, "Invalid Namespace or Format", Useless;
    0, 0x0c, COMMAND_SEQUENCE_ERROR, "Command Sequence Error", Useless;
    0, 0x0d, INVALID_SGL_SEGMENT_DESCRIPTOR, "Invalid SGL Segment Descriptor", Useless;
    0, 0x0e, INVALID_NUMBER_OF_SGL_DESCRIPTORS, "Invalid Number of SGL Descriptors", Useless;
    0, 0x0f, DATA_SGL_LENGTH_INVALID, "Data SGL Length Invalid", Useless;
    0, 0x10, METADATA_SGL_LENGTH_INVALID, "Metadata SGL Length Invalid", Useless;
    0, 0x11, SGL_DESCRIPTOR_TYPE_INVALID, "SGL Descriptor Type Invalid", Useless;
    0, 0x12, INVALID_USE_OF_CMB, "Invalid Use of Controller Memory Buffer", Useless;
    0, 0x13, PRP_OFFSET_INVALID, "PRP Offset Invalid", Useless;
    0, 0x14, ATOMIC_WRITE_UNIT_EXCEEDED, "Atomic Write Unit Exceeded", Useless;
    0, 0x15, OPERATION_DENIED, "Operation Denied", Useless;
    0, 0x16, SGL_OFFSET_INVALID, "SGL Offset Invalid", Useless;
    0, 0x18, HOST_IDENTIFIER_INCONSISTENT_FORMAT, "Host Identifier Inconsistent Format", Useless;
    0, 0x19, KEEP_ALIVE_TIMER_EXPIRED, "Keep Alive Timer Expired", Useless;
    0, 0x1a, KEEP_ALIVE_TIMEOUT_INVALID, "Keep Alive Timeout Invalid", Useless;
    0, 0x1b, ABORTED_PREEMPT_AND_ABORT, "Command Aborted due to Preempt and Abort", Useless;
    0, 0x1c, SANITIZE_FAILED, "Sanitize Failed", Useless;
    0, 0x1d, SANITIZE_IN_PROGRESS, "Sanitize In Progress", Worth;
    0, 0x1e, SGL_DATA_BLOCK_GRANULARITY_INVALID, "SGL Data Block Granularity Invalid", Useless;
    0, 0x1f, COMMAND_NOT_SUPPORTED_IN_CMB, "Command Not Supported for Queue in CMB", Useless;
    0, 0x20, NAMESPACE_IS_WRITE_PROTECTED, "Namespace is Write Protected", Useless;
    0, 0x21, COMMAND_INTERRUPTED, "Command Interrupted", Worth;
    0, 0x22, TRANSIENT_TRANSPORT_ERROR, "Transient Transport Error", Worth;
    0, 0x23, PROHIBITED_BY_LOCKDOWN, "Command Prohibited by Command and Feature Lockdown", Useless;
    0, 0x24, ADMIN_COMMAND_MEDIA_NOT_READY, "Admin Command Media Not Ready", Worth;
    0, 0x80, LBA_OUT_OF_RANGE, "LBA Out of Range", Useless;
    0, 0x81, CAPACITY_EXCEEDED, "Capacity Exceeded", Useless;
    0, 0x82, NAMESPACE_NOT_READY, "Namespace Not Ready", Worth;
    0, 0x83, RESERVATION_CONFLICT, "Reservation Conflict", Useless;
    0, 0x84, FORMAT_IN_PROGRESS, "Format In Progress", Worth;

    1, 0x00, COMPLETION_QUEUE_INVALID, "Completion Queue Invalid", Useless;
    1, 0x01, INVALID_QUEUE_IDENTIFIER, "Invalid Queue Identifier", Useless;
    1, 0x02, INVALID_QUEUE_SIZE, "Invalid Queue Size", Useless;
    1, 0x03, ABORT_COMMAND_LIMIT_EXCEEDED, "Abort Command Limit Exceeded", Worth;
    1, 0x05, ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED, "Asynchronous Event Request Limit Exceeded", Useless;
    1, 0x06, INVALID_FIRMWARE_SLOT, "Invalid Firmware Slot", Useless;
    1, 0x07, INVALID_FIRMWARE_IMAGE, "Invalid Firmware Image", Useless;
    1, 0x08, INVALID_INTERRUPT_VECTOR, "Invalid Interrupt Vector", Useless;
    1, 0x09, INVALID_LOG_PAGE, "Invalid Log Page", Useless;
    1, 0x0a, INVALID_FORMAT, "Invalid Format", Useless;
    1, 0x0b, FIRMWARE_NEEDS_CONVENTIONAL_RESET, "Firmware Activation Requires Conventional Reset", Useless;
    1, 0x0c, INVALID_QUEUE_DELETION, "Invalid Queue Deletion", Useless;
    1, 0x0d, FEATURE_IDENTIFIER_NOT_SAVEABLE, "Feature Identifier Not Saveable", Useless;
    1, 0x0e, FEATURE_NOT_CHANGEABLE, "Feature Not Changeable", Useless;
    1, 0x0f, FEATURE_NOT_NAMESPACE_SPECIFIC, "Feature Not Namespace Specific", Useless;
    1, 0x10, FIRMWARE_NEEDS_SUBSYSTEM_RESET, "Firmware Activation Requires NVM Subsystem Reset", Useless;
    1, 0x11, FIRMWARE_NEEDS_CONTROLLER_LEVEL_RESET, "Firmware Activation Requires Controller Level Reset", Useless;
    1, 0x12, FIRMWARE_NEEDS_MAXIMUM_TIME_VIOLATION, "Firmware Activation Requires Maximum Time Violation", Useless;
    1, 0x13, FIRMWARE_ACTIVATION_PROHIBITED, "Firmware Activation Prohibited", Useless;
    1, 0x14, OVERLAPPING_RANGE, "Overlapping Range", Useless;
    1, 0x15, NAMESPACE_INSUFFICIENT_CAPACITY, "Namespace Insufficient Capacity", Useless;
    1, 0x16, NAMESPACE_IDENTIFIER_UNAVAILABLE, "Namespace Identifier Unavailable", Useless;
    1, 0x18, NAMESPACE_ALREADY_ATTACHED, "Namespace Already Attached", Useless;
    1, 0x19, NAMESPACE_IS_PRIVATE, "Namespace Is Private", Useless;
    1, 0x1a, NAMESPACE_NOT_ATTACHED, "Namespace Not Attached", Useless;
    1, 0x1b, THIN_PROVISIONING_NOT_SUPPORTED, "Thin Provisioning Not Supported", Useless;
    1, 0x1c, CONTROLLER_LIST_INVALID, "Controller List Invalid", Useless;
    1, 0x1d, DEVICE_SELF_TEST_IN_PROGRESS, "Device Self-test In Progress", Worth;
    1, 0x1e, BOOT_PARTITION_WRITE_PROHIBITED, "Boot Partition Write Prohibited", Useless;
    1, 0x1f, INVALID_CONTROLLER_IDENTIFIER, "Invalid Controller Identifier", Useless;
    1, 0x20, INVALID_SECONDARY_CONTROLLER_STATE, "Invalid Secondary Controller State", Useless;
    1, 0x21, INVALID_NUMBER_OF_CONTROLLER_RESOURCES, "Invalid Number of Controller Resources", Useless;
    1, 0x22, INVALID_RESOURCE_IDENTIFIER, "Invalid Resource Identifier", Useless;
    1, 0x23, SANITIZE_PROHIBITED_PMR_ENABLED,
        "Sanitize Prohibited While Persistent Memory Region is Enabled", Useless;
    1, 0x24, ANA_GROUP_IDENTIFIER_INVALID, "ANA Group Identifier Invalid", Useless;
    1, 0x25, ANA_ATTACH_FAILED, "ANA Attach Failed", Useless;
    1, 0x26, INSUFFICIENT_CAPACITY, "Insufficient Capacity", Useless;
    1, 0x27, NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED, "Namespace Attachment Limit Exceeded", Useless;
    1, 0x28, PROHIBITION_NOT_SUPPORTED, "Prohibition of Command Execution Not Supported", Useless;
    1, 0x29, IO_COMMAND_SET_NOT_SUPPORTED, "I/O Command Set Not Supported", Useless;
    1, 0x2a, IO_COMMAND_SET_NOT_ENABLED, "I/O Command Set Not Enabled", Useless;
    1, 0x2b, IO_COMMAND_SET_COMBINATION_REJECTED, "I/O Command Set Combination Rejected", Useless;
    1, 0x2c, INVALID_IO_COMMAND_SET, "Invalid I/O Command Set", Useless;
    1, 0x2d, IDENTIFIER_UNAVAILABLE, "Identifier Unavailable", Useless;
    1, 0x80, CONFLICTING_ATTRIBUTES, "Conflicting Attributes", Useless;
    1, 0x81, INVALID_PROTECTION_INFORMATION, "Invalid Protection Information", Useless;
    1, 0x82, ATTEMPTED_WRITE_TO_READ_ONLY_RANGE, "Attempted Write to Read Only Range", Useless;
    1, 0x83, COMMAND_SIZE_LIMIT_EXCEEDED, "Command Size Limit Exceeded", Useless;

    2, 0x80, WRITE_FAULT, "Write Fault", Worth;
    2, 0x81, UNRECOVERED_READ_ERROR, "Unrecovered Read Error", Worth;
    2, 0x82, GUARD_CHECK_ERROR, "End-to-end Guard Check Error", Useless;
    2, 0x83, APPLICATION_TAG_CHECK_ERROR, "End-to-end Application Tag Check Error", Useless;
    2, 0x84, REFERENCE_TAG_CHECK_ERROR, "End-to-end Reference Tag Check Error", Useless;
    2, 0x85, COMPARE_FAILURE, "Compare Failure", Useless;
    2, 0x86, ACCESS_DENIED, "Access Denied", Useless;
    2, 0x87, DEALLOCATED_OR_UNWRITTEN_BLOCK, "Deallocated or Unwritten Logical Block", Useless;
    2, 0x88, STORAGE_TAG_CHECK_ERROR, "End-to-End Storage Tag Check Error", Useless;

    3, 0x00, INTERNAL_PATH_ERROR, "Internal Path Error", Worth;
    3, 0x01, ANA_PERSISTENT_LOSS, "Asymmetric Access Persistent Loss", Useless;
    3, 0x02, ANA_INACCESSIBLE, "Asymmetric Access Inaccessible", Useless;
    3, 0x03, ANA_TRANSITION, "Asymmetric Access Transition", Worth;
    3, 0x60, CONTROLLER_PATHING_ERROR, "Controller Pathing Error", Worth;
    3, 0x70, HOST_PATHING_ERROR, "Host Pathing Error", Worth;
    3, 0x71, COMMAND_ABORTED_BY_HOST, "Command Aborted By Host", Worth;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_the_specification_name() {
        let status = Status::INVALID_FIELD_IN_COMMAND.with_dnr(true);
        assert_eq!(status.to_string(), "Invalid Field in Command (SCT 0h SC 02h DNR)");
        let status = Status::NAMESPACE_NOT_READY.with_more(true).with_crd(2);
        assert_eq!(status.to_string(), "Namespace Not Ready (SCT 0h SC 82h MORE CRD 2)");
        assert_eq!(Status::new(7, 0xab).to_string(), "Vendor Specific Status (SCT 7h SC ABh)");
        assert_eq!(Status::new(4, 1).name(), "Reserved Status Code Type");
    }

    #[test]
    fn the_table_is_in_order_and_has_no_duplicates() {
        let codes: Vec<u16> = Status::all_named().map(Status::bits).collect();
        assert!(codes.is_sorted_by(|a, b| a < b));
        let mut names: Vec<&str> = Status::all_named().map(Status::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), codes.len());
    }

    #[test]
    fn dnr_and_success_are_never_retried() {
        for status in Status::all_named() {
            assert!(!status.with_dnr(true).is_retryable());
        }
        assert!(!Status::SUCCESS.is_retryable());
        assert!(Status::COMMAND_INTERRUPTED.is_retryable());
        assert!(!Status::LBA_OUT_OF_RANGE.is_retryable());
        assert!(Status::new(7, 0).is_retryable());
        // The stored data does not match its protection information, and a retry reads the same data.
        assert!(!Status::GUARD_CHECK_ERROR.is_retryable());
        assert!(!Status::REFERENCE_TAG_CHECK_ERROR.is_retryable());
    }

    #[test]
    fn success_with_flags_is_success() {
        assert!(Status::SUCCESS.with_more(true).is_success());
        assert!(!Status::WRITE_FAULT.is_success());
        assert!(Status::WRITE_FAULT.with_crd(3).is(Status::WRITE_FAULT));
    }

    proptest! {
        #[test]
        fn fields_round_trip(bits: u16) {
            let status = Status::from_bits(bits);
            prop_assert_eq!(status.bits(), bits & 0x7fff);
            let rebuilt = Status::new(status.sct(), status.sc())
                .with_crd(status.crd())
                .with_more(status.more())
                .with_dnr(status.dnr());
            prop_assert_eq!(rebuilt, status);
            prop_assert_eq!(status.code().bits(), bits & 0x7ff);
            let _ = (status.to_string(), status.code_type(), status.is_retryable());
        }
    }
}
