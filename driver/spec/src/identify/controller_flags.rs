//! Bit fields of Identify Controller, one type for each (Base 5.17.2.1).

use crate::bits::bit_flags;

bit_flags! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    Cmic(u8) {
        0 multiple_ports with_multiple_ports, "The NVM subsystem may have more than one port";
        1 multiple_controllers with_multiple_controllers, "The NVM subsystem may have more than one controller";
        2 sr_iov with_sr_iov, "The controller is an SR-IOV virtual function";
        3 ana_reporting with_ana_reporting, "Asymmetric Namespace Access is reported";
    }
}

bit_flags! {
    /// Optional Asynchronous Events Supported (OAES).
    Oaes(u32) {
        8 namespace_attribute with_namespace_attribute, "Namespace Attribute Notices";
        9 firmware_activation with_firmware_activation, "Firmware Activation Notices";
        11 ana_change with_ana_change, "Asymmetric Namespace Access Change Notices";
        12 predictable_latency with_predictable_latency, "Predictable Latency Event Aggregate Log Change Notices";
        13 lba_status with_lba_status, "LBA Status Information Notices";
        14 endurance_group with_endurance_group, "Endurance Group Event Aggregate Log Page Change Notices";
        15 subsystem_shutdown with_subsystem_shutdown, "Normal NVM Subsystem Shutdown";
    }
}

bit_flags! {
    /// Controller Attributes (CTRATT).
    Ctratt(u32) {
        0 host_identifier_128 with_host_identifier_128, "128-bit Host Identifier";
        1 non_operational_permissive with_non_operational_permissive, "Non-Operational Power State Permissive Mode";
        2 nvm_sets with_nvm_sets, "NVM Sets";
        3 read_recovery_levels with_read_recovery_levels, "Read Recovery Levels";
        4 endurance_groups with_endurance_groups, "Endurance Groups";
        5 predictable_latency with_predictable_latency, "Predictable Latency Mode";
        6 traffic_based_keep_alive with_traffic_based_keep_alive, "Traffic Based Keep Alive Support";
        7 namespace_granularity with_namespace_granularity, "Namespace Granularity";
        8 sq_associations with_sq_associations, "SQ Associations";
        9 uuid_list with_uuid_list, "UUID List";
        15 extended_lba_formats with_extended_lba_formats, "Extended LBA Formats";
    }
}

bit_flags! {
    /// Optional Admin Command Support (OACS).
    Oacs(u16) {
        0 security with_security, "Security Send and Security Receive";
        1 format_nvm with_format_nvm, "Format NVM";
        2 firmware with_firmware, "Firmware Commit and Firmware Image Download";
        3 namespace_management with_namespace_management, "Namespace Management and Namespace Attachment";
        4 self_test with_self_test, "Device Self-test";
        5 directives with_directives, "Directives";
        6 nvme_mi with_nvme_mi, "NVMe-MI Send and NVMe-MI Receive";
        7 virtualization with_virtualization, "Virtualization Management";
        8 doorbell_buffer_config with_doorbell_buffer_config, "Doorbell Buffer Config";
        9 get_lba_status with_get_lba_status, "Get LBA Status";
        10 lockdown with_lockdown, "Command and Feature Lockdown";
    }
}

bit_flags! {
    /// Log Page Attributes (LPA).
    Lpa(u8) {
        0 smart_per_namespace with_smart_per_namespace, "SMART / Health Information log per namespace";
        1 commands_supported with_commands_supported, "Commands Supported and Effects log";
        2 extended_data with_extended_data, "Get Log Page with offset and 32-bit length";
        3 telemetry with_telemetry, "Telemetry logs";
        4 persistent_event with_persistent_event, "Persistent Event log";
        5 supported_logs with_supported_logs, "Supported Log Pages log";
    }
}

bit_flags! {
    /// Optional NVM Command Support (ONCS).
    Oncs(u16) {
        0 compare with_compare, "Compare";
        1 write_uncorrectable with_write_uncorrectable, "Write Uncorrectable";
        2 dataset_management with_dataset_management, "Dataset Management";
        3 write_zeroes with_write_zeroes, "Write Zeroes";
        4 save_and_select with_save_and_select, "Save of Set Features and Select of Get Features";
        5 reservations with_reservations, "Reservations";
        6 timestamp with_timestamp, "Timestamp feature";
        7 verify with_verify, "Verify";
        8 copy with_copy, "Copy";
    }
}

bit_flags! {
    /// Format NVM Attributes (FNA).
    Fna(u8) {
        0 format_all with_format_all, "A format applies to all namespaces";
        1 erase_all with_erase_all, "A secure erase applies to all namespaces";
        2 cryptographic_erase with_cryptographic_erase, "Cryptographic erase";
        3 no_broadcast with_no_broadcast, "Format NVM does not take the broadcast namespace";
    }
}

bit_flags! {
    /// Volatile Write Cache (VWC).
    Vwc(u8) {
        0 present with_present, "There is a volatile write cache";
        1 flush_all with_flush_all, "Flush takes the broadcast namespace, if bit 2 is set as well";
        2 flush_all_reported with_flush_all_reported, "Bit 1 says whether Flush takes the broadcast namespace";
    }
}

impl Vwc {
    /// Whether the controller reports that it supports Flush with [`crate::spec::Nsid::ALL`].
    pub const fn flush_broadcast(self) -> bool {
        self.flush_all_reported() && self.flush_all()
    }
}

bit_flags! {
    /// SGL Support (SGLS); bits 1:0 are [`Sgls::support`].
    Sgls(u32) {
        2 keyed_data_block with_keyed_data_block, "Keyed SGL Data Block";
        16 bit_bucket with_bit_bucket, "SGL Bit Bucket";
        17 contiguous_metadata with_contiguous_metadata, "Byte aligned contiguous metadata buffer";
        18 longer_than_data with_longer_than_data, "An SGL may be longer than the data";
        19 metadata_sgl with_metadata_sgl, "Metadata pointer to an SGL segment";
        20 offset with_offset, "Addresses that are offsets";
        21 transport_data_block with_transport_data_block, "Transport SGL Data Block";
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

    /// Sets bits 1:0.
    pub const fn with_support(self, support: SglSupport) -> Sgls {
        Sgls(self.0 & !3 | support as u32)
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
            let sgls = Sgls(1 << 16).with_support(support);
            assert_eq!(sgls.support(), support);
            assert!(sgls.bit_bucket());
        }
    }

    #[test]
    fn flags_set_and_clear() {
        let flags = Oncs::default().with_compare(true).with_copy(true);
        assert_eq!(flags, Oncs(0x101));
        assert!(flags.compare() && !flags.with_compare(false).compare() && !flags.verify());
    }

    #[test]
    fn broadcast_flush_must_be_reported() {
        assert!(Vwc(0b111).flush_broadcast());
        assert!(
            !Vwc(0b101).flush_broadcast()
                && !Vwc(0b011).flush_broadcast()
                && !Vwc(0b001).flush_broadcast()
        );
    }
}
