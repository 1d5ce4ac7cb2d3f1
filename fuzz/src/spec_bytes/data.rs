//! Data buffers written by a device: Identify structures and log pages.

use std::hint::black_box;

use adit_driver::spec::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    NamespaceList,
};
use adit_driver::spec::log::{ChangedNamespaces, ErrorInfo, FirmwareSlotLog, SmartHealth};
use adit_driver::spec::{Nsid, View};

use super::{look, show};

pub(super) fn identify_controller(bytes: &[u8]) {
    let Some(controller) = IdentifyController::view(bytes) else { return };
    show(controller, None);
    for text in [&controller.sn as &dyn std::fmt::Display, &controller.mn, &controller.fr] {
        show(&"", Some(text));
    }
    show(&controller.subnqn, Some(&controller.subnqn));
    look!(controller; cmic, oaes, ctratt, oacs, acl, aerl, elpe, lpa, sqes_min, sqes_max, cqes_min,
        cqes_max, oncs, vwc, sgls);
    show(&(controller.cmic(), controller.oaes(), controller.ctratt(), controller.oacs()), None);
    show(&(controller.lpa(), controller.oncs(), controller.vwc()), None);
    look!(controller.sgls(); support);
    for shift in [0, 12, 27, 63] {
        black_box(controller.max_transfer_bytes(1 << shift));
    }
    for any in 0..=u8::MAX {
        black_box(controller.retry_delay_ms(any));
    }
}

pub(super) fn identify_namespace(bytes: &[u8]) {
    let Some(namespace) = IdentifyNamespace::view(bytes) else { return };
    show(namespace, None);
    look!(namespace; is_active, format_index, lba_format, protection_type, noiob, is_write_protected);
    for format in &namespace.lbaf {
        show(format, None);
        assert!(format.lba_bytes().is_none_or(u32::is_power_of_two));
    }
}

pub(super) fn identify_nvm(bytes: &[u8]) {
    if let Some(controller) = IdentifyNvmController::view(bytes) {
        for shift in [0, 12, 27, 63] {
            black_box((
                controller.verify_bytes_max(1 << shift),
                controller.write_zeroes_bytes_max(1 << shift),
            ));
        }
    }
    if let Some(namespace) = IdentifyNvmNamespace::view(bytes) {
        for index in 0..=u8::MAX {
            black_box((namespace.protection_format(index), namespace.storage_tag_bits(index)));
        }
    }
}

pub(super) fn namespace_list(bytes: &[u8]) {
    let Some(list) = NamespaceList::view(bytes) else { return };
    for after in [Nsid::NONE, Nsid(1), Nsid(u32::MAX - 1), Nsid::ALL] {
        let mut last = after;
        for nsid in list.iter(after) {
            match nsid {
                Ok(nsid) => {
                    assert!(nsid > last && nsid.is_specific(), "a list ascends");
                    last = nsid;
                }
                Err(error) => show(&error, Some(&error)),
            }
        }
    }
}

pub(super) fn smart(bytes: &[u8]) {
    let Some(smart) = SmartHealth::view(bytes) else { return };
    show(smart, None);
    show(&smart.critical_warning(), None);
    show(&smart.critical_warning().names().collect::<Vec<_>>(), None);
    look!(smart; critical_warning, temperature_c, data_read_bytes, data_written_bytes);
    assert!(smart.sensors_c().count() <= 8);
}

pub(super) fn errors(bytes: &[u8]) {
    for entry in bytes.chunks_exact(size_of::<ErrorInfo>()) {
        let Some(error) = ErrorInfo::view(entry) else { continue };
        show(error, None);
        look!(error; is_valid, sqid, cid, status, lba, nsid, parameter_byte, parameter_bit);
    }
}

pub(super) fn firmware(bytes: &[u8]) {
    let Some(slots) = FirmwareSlotLog::view(bytes) else { return };
    show(slots, None);
    look!(slots; active_slot, next_slot);
    for slot in 0..=u8::MAX {
        let revision = slots.revision(slot);
        revision.inspect(|revision| show(revision, Some(revision)));
    }
    slots.active_revision().inspect(|revision| show(revision, Some(revision)));
}

pub(super) fn changed_namespaces(bytes: &[u8]) {
    let Some(changed) = ChangedNamespaces::view(bytes) else { return };
    look!(changed; overflowed);
    assert!(changed.iter().all(|nsid| nsid.is_specific()));
}
