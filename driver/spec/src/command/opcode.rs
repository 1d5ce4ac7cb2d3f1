//! Opcodes of admin and I/O commands, with their names (Base 5, Base 7, NVM 3.2).

use crate::codes::named_codes;

named_codes! {
    /// Opcode of an admin command (Base 5).
    AdminOpcode, "opcode" {
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1c, "Virtualization Management";
        NVME_MI_SEND = 0x1d, "NVMe-MI Send";
        NVME_MI_RECEIVE = 0x1e, "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        LOCKDOWN = 0x24, "Lockdown";
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        FABRICS = 0x7f, "Fabrics Commands";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

named_codes! {
    /// Opcode of an I/O command of the NVM command set (Base 7, NVM 3.2).
    IoOpcode, "opcode" {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        COPY = 0x19, "Copy";
    }
}

impl IoOpcode {
    /// Returns whether the command can change the medium; `true` for undefined opcodes.
    pub const fn may_write(self) -> bool {
        !matches!(
            self,
            IoOpcode::FLUSH
                | IoOpcode::READ
                | IoOpcode::COMPARE
                | IoOpcode::VERIFY
                | IoOpcode::RESERVATION_REGISTER
                | IoOpcode::RESERVATION_REPORT
                | IoOpcode::RESERVATION_ACQUIRE
                | IoOpcode::RESERVATION_RELEASE
                | IoOpcode::IO_MANAGEMENT_RECEIVE
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_names() {
        assert_eq!(AdminOpcode::IDENTIFY.to_string(), "Identify");
        assert_eq!(IoOpcode(0x19).to_string(), "Copy");
        assert_eq!(IoOpcode(0xfe).to_string(), "opcode FEh");
        assert_eq!(AdminOpcode(0xc0).name(), None);
    }

    #[test]
    fn only_commands_that_are_known_not_to_write_do_not() {
        assert!(IoOpcode::WRITE.may_write() && IoOpcode::COPY.may_write());
        assert!(IoOpcode::DATASET_MANAGEMENT.may_write() && IoOpcode(0xfe).may_write());
        assert!(!IoOpcode::READ.may_write() && !IoOpcode::COMPARE.may_write());
    }
}
