//! Feeds arbitrary bytes to every Identify and log parser; none may panic.

use proptest::prelude::*;

use super::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    NamespaceList,
};
use super::ids::Nsid;
use super::log::{ChangedNamespaces, ErrorInfo, FirmwareSlotLog, SmartHealth};
use super::view::View;

fn read_identify(bytes: &[u8]) {
    if let Some(controller) = IdentifyController::view(bytes) {
        let _ =
            format!("{} {} {} {}", controller.sn, controller.mn, controller.fr, controller.subnqn);
        let _ = controller.max_transfer_bytes(4096);
        let _ = (0..=u8::MAX).map(|crd| controller.retry_delay_ms(crd)).max();
    }
    if let Some(namespace) = IdentifyNamespace::view(bytes) {
        let _ = namespace.lba_format().map(|format| format.lba_bytes());
        let _ = namespace.noiob();
    }
}

fn read_identify_lists(bytes: &[u8]) {
    if let Some(controller) = IdentifyNvmController::view(bytes) {
        let _ = (controller.verify_bytes_max(1 << 27), controller.write_zeroes_bytes_max(1 << 27));
    }
    if let Some(namespace) = IdentifyNvmNamespace::view(bytes) {
        let _ = (0..=u8::MAX).filter_map(|index| namespace.storage_tag_bits(index)).max();
    }
    if let Some(list) = NamespaceList::view(bytes) {
        assert!(list.iter(Nsid::NONE).count() <= 1024);
    }
}

fn read_logs(bytes: &[u8]) {
    if let Some(smart) = SmartHealth::view(bytes) {
        let _ = (smart.temperature_c(), smart.data_read_bytes(), smart.data_written_bytes());
        let _ = smart.sensors_c().count();
    }
    if let Some(error) = ErrorInfo::view(bytes) {
        let _ = (error.status(), error.parameter_byte(), error.parameter_bit());
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
}

proptest! {
    #[test]
    fn any_bytes_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 4096), cut in 0usize..=4096) {
        read_identify(&bytes);
        read_identify_lists(&bytes);
        read_logs(&bytes);
        read_identify(&bytes[..cut]);
        read_identify_lists(&bytes[..cut]);
        read_logs(&bytes[..cut]);
    }

    #[test]
    fn uniform_bytes_read_without_panic(byte: u8) {
        read_identify(&[byte; 4096]);
        read_identify_lists(&[byte; 4096]);
        read_logs(&[byte; 4096]);
    }
}
