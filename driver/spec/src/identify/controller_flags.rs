//! Bit fields of Identify Controller, one type for each (Base 5.17.2.1).

use crate::bits::bit_flags;

bit_flags! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    Cmic(u8) {
        1 multiple_controllers, "The NVM subsystem may have more than one controller";
    }
}

bit_flags! {
    /// Optional Asynchronous Events Supported (OAES).
    Oaes(u32) {
        8 namespace_attribute with_namespace_attribute, "Namespace Attribute Notices";
        9 firmware_activation with_firmware_activation, "Firmware Activation Notices";
    }
}

bit_flags! {
    /// Controller Attributes (CTRATT).
    Ctratt(u32) {
        15 extended_lba_formats, "Extended LBA Formats";
        19 flexible_data_placement, "Flexible Data Placement";
    }
}

bit_flags! {
    /// Optional Admin Command Support (OACS).
    Oacs(u16) {
        0 security, "Security Send and Security Receive";
        2 firmware, "Firmware Commit and Firmware Image Download";
        3 namespace_management, "Namespace Management and Namespace Attachment";
        4 self_test, "Device Self-test";
        5 directives, "Directives";
        8 doorbell_buffer_config, "Doorbell Buffer Config";
    }
}

bit_flags! {
    /// Log Page Attributes (LPA).
    Lpa(u8) {
        0 smart_per_namespace, "SMART / Health Information log per namespace";
    }
}

bit_flags! {
    /// Optional NVM Command Support (ONCS).
    Oncs(u16) {
        0 compare, "Compare";
        1 write_uncorrectable, "Write Uncorrectable";
        2 dataset_management, "Dataset Management";
        3 write_zeroes, "Write Zeroes";
        5 reservations, "Reservations";
        6 timestamp, "Timestamp feature";
        7 verify, "Verify";
        8 copy, "Copy";
    }
}

bit_flags! {
    /// Volatile Write Cache (VWC).
    Vwc(u8) {
        0 present, "There is a volatile write cache";
    }
}

bit_flags! {
    /// SGL Support (SGLS); bits 1:0 are [`Sgls::support`].
    Sgls(u32) {
        20 offset, "Addresses that are offsets";
    }
}

/// SGL support and alignment (SGLS bits 1:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglSupport {
    /// 00b: not supported.
    None,
    /// 01b: any alignment and granularity.
    ByteAligned,
    /// 10b: data blocks need dword alignment and granularity.
    DwordAligned,
    /// 11b.
    Reserved,
}

impl Sgls {
    /// SGL support of the NVM command set, with its alignment.
    pub const fn support(self) -> SglSupport {
        match self.0 & 3 {
            0 => SglSupport::None,
            1 => SglSupport::ByteAligned,
            2 => SglSupport::DwordAligned,
            _ => SglSupport::Reserved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sgl_support_round_trips() {
        for support in [
            SglSupport::None,
            SglSupport::ByteAligned,
            SglSupport::DwordAligned,
            SglSupport::Reserved,
        ] {
            assert_eq!(Sgls(1 << 16 | support as u32).support(), support);
        }
    }

    #[test]
    fn flags_set_and_clear() {
        let flags = Oaes::default().with_namespace_attribute(true);
        assert_eq!(flags, Oaes(1 << 8));
        assert!(flags.namespace_attribute());
        assert!(!flags.with_namespace_attribute(false).namespace_attribute());
    }
}
