//! QEMU's data, parsed by the wire types and serialized again.

use std::time::Duration;

use adit_driver::spec::feature::{AsyncEvent, AsyncEventConfig, NumberOfQueues, Timestamp};
use adit_driver::spec::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    NamespaceList, SglSupport,
};
use adit_driver::spec::log::{
    ChangedNamespaces, CriticalWarning, ErrorInfo, FirmwareSlotLog, SmartHealth,
};
use adit_driver::spec::register::{Aqa, Cap, Cc, Cmbloc, Cmbmsc, Cmbsz, Csts, Version};
use adit_driver::spec::{Iova, Lid, Nsid, QueueEntries, Status, View};
use zerocopy::IntoBytes;

use crate::recording::{Recording, bytes, field, number, status};

/// Returns the structure at the start of recorded data, after checking that it serializes to the same bytes.
fn view<'a, T: View + IntoBytes>(recording: &'a Recording, name: &str) -> &'a T {
    let data = recording.data(name);
    let parsed = T::view(data).unwrap_or_else(|| panic!("'{name}' is too short"));
    assert_eq!(parsed.as_bytes(), &data[..size_of::<T>()], "{name}");
    parsed
}

#[test]
fn registers() {
    let recording = Recording::of_qemu();
    let cap = Cap(recording.register("CAP"));
    assert_eq!((cap.mqes_z(), cap.dstrd(), cap.to()), (2047, 0, Duration::from_millis(7500)));
    assert!(cap.css_nvm() && cap.cmbs() && cap.cqr() && !cap.pmrs() && !cap.nssrs());
    assert_eq!((cap.page_size_min(), cap.page_size_max()), (4096, 65536));
    assert_eq!(Version::new(1, 4, 0).0, recording.register("VS") as u32);
    let cc = Cc(0).with_en(true).with_css(Cc::ALL_COMMAND_SETS).with_iosqes(6).with_iocqes(4);
    assert_eq!(cc, Cc(recording.register("CC") as u32));
    assert_eq!(Csts(0).with_rdy(true), Csts(recording.register("CSTS") as u32));
    let entries = QueueEntries::new(32).unwrap();
    assert_eq!(Aqa::new(entries, entries), Some(Aqa(recording.register("AQA") as u32)));
}

#[test]
fn controller_memory_buffer_registers() {
    let recording = Recording::of_qemu();
    let size = Cmbsz(recording.register("CMBSZ") as u32);
    assert_eq!((size.size_bytes(), size.unit_bytes()), (Some(16 << 20), Some(1 << 20)));
    assert!(size.sqs() && !size.cqs() && size.lists() && size.rds() && size.wds());
    let location = Cmbloc(recording.register("CMBLOC") as u32);
    assert_eq!((location.bir(), location.offset_bytes(size)), (2, Some(0)));
    let control = Cmbmsc(recording.register("CMBMSC"));
    assert_eq!(Cmbmsc::enabled_at(Iova(control.0 & !0xfff)), Some(control));
}

#[test]
fn identify_controller() {
    let recording = Recording::of_qemu();
    let identify: &IdentifyController = view(&recording, "identify controller");
    assert_eq!(identify.mn.to_string(), "QEMU NVMe Ctrl");
    assert_eq!(identify.sn.to_string(), "golden0001");
    assert!(identify.fr.to_string().starts_with("7.2"));
    assert_eq!((identify.vid.get(), identify.ssvid.get()), (0x1b36, 0x1af4));
    assert_eq!((identify.mdts, identify.max_transfer_bytes(4096)), (7, Some(512 << 10)));
    assert_eq!(
        (Version(identify.ver.get()), identify.nn.get(), identify.cntlid.get()),
        (Version::new(1, 4, 0), 256, 0)
    );
    assert_eq!((identify.acl(), identify.aerl(), identify.elpe()), (4, 4, 1));
    assert_eq!([identify.sqes_min(), identify.sqes_max()], [6; 2]);
    assert_eq!([identify.cqes_min(), identify.cqes_max()], [4; 2]);
    assert_eq!((identify.wctemp_k.get(), identify.cctemp_k.get()), (343, 373));
    assert_eq!(identify.sgls().support(), SglSupport::ByteAligned);
    assert_eq!(identify.subnqn.to_string(), "nqn.2019-08.org.qemu:golden0001");
}

#[test]
fn identify_controller_flags() {
    let recording = Recording::of_qemu();
    let identify: &IdentifyController = view(&recording, "identify controller");
    let (admin, io) = (identify.oacs(), identify.oncs());
    assert!(admin.doorbell_buffer_config() && admin.namespace_management());
    assert!(!admin.firmware() && !admin.security());
    assert!(io.compare() && io.dataset_management() && io.write_zeroes());
    assert!(io.timestamp() && io.copy());
    // It executes Verify all the same.
    assert!(!io.verify() && recording.status("verify").is_success());
    assert!(!io.write_uncorrectable() && !io.reservations());
    assert!(identify.vwc().present());
    assert!(identify.oaes().namespace_attribute() && !identify.oaes().firmware_activation());
}

#[test]
fn identify_namespaces() {
    let recording = Recording::of_qemu();
    for (nsid, lba_bytes, index) in [(1, 512, 0), (2, 4096, 4), (9, 512, 0)] {
        let identify: &IdentifyNamespace = view(&recording, &format!("identify namespace {nsid}"));
        let format = identify.lba_format().unwrap();
        assert_eq!((format.lba_bytes(), format.ms_bytes.get()), (Some(lba_bytes), 0));
        assert_eq!(identify.format_index(), index);
        assert_eq!(identify.nsze_lbas.get() * u64::from(lba_bytes), 1 << 30);
        assert_eq!(identify.eui64, [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, nsid as u8]);
        assert_eq!((identify.mssrl_lbas.get(), identify.mcl_lbas.get()), (128, 128));
        assert_eq!((identify.protection_type(), identify.noiob()), (0, None));
        assert!(identify.is_active());
        let formats = &identify.lbaf[..=usize::from(identify.nlbaf_z)];
        let formats: Vec<_> = formats.iter().map(|f| (f.lba_bytes(), f.ms_bytes.get())).collect();
        let metadata = [0, 8, 16, 64];
        let expected = [512, 4096].map(|lba| metadata.map(|bytes| (Some(lba), bytes)));
        assert_eq!(formats, expected.concat());
    }
    let none: &IdentifyNamespace = view(&recording, "identify namespace 7, inactive");
    assert!(!none.is_active() && none.as_bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn namespace_lists() {
    let recording = Recording::of_qemu();
    let list = |name, after| -> Vec<u32> {
        let list: &NamespaceList = view(&recording, name);
        list.iter(after).map(|nsid| nsid.expect("ascending").0).collect()
    };
    assert_eq!(list("identify active namespaces", Nsid::NONE), [1, 2, 9]);
    assert_eq!(list("identify active namespaces after 1", Nsid(1)), [2, 9]);
}

#[test]
fn identify_of_the_nvm_command_set() {
    let recording = Recording::of_qemu();
    let limits: &IdentifyNvmController = view(&recording, "identify nvm controller");
    assert_eq!((limits.vsl, limits.wzsl, limits.wusl), (7, 0, 0));
    assert_eq!(limits.verify_bytes_max(4096), Some(512 << 10));
    assert_eq!(limits.write_zeroes_bytes_max(4096), None);
    let namespace: &IdentifyNvmNamespace = view(&recording, "identify nvm namespace 1");
    assert_eq!((namespace.lbstm.get(), namespace.pic), (0, 0));
}

#[test]
fn smart_log() {
    let recording = Recording::of_qemu();
    let log: &SmartHealth = view(&recording, "log smart");
    assert_eq!((log.composite_temperature_k.get(), log.temperature_c()), (323, Some(50)));
    assert_eq!((log.critical_warning(), log.percentage_used), (CriticalWarning(0), 0));
    assert_eq!(recording.data("log smart from 256"), &recording.data("log smart")[256..]);
    let later: &SmartHealth = view(&recording, "log smart at the end");
    assert!(later.host_reads.get() > log.host_reads.get());
    assert!(later.host_writes.get() > log.host_writes.get());
    assert!(later.data_read_bytes() >= later.data_written_bytes());
}

#[test]
fn other_logs() {
    let recording = Recording::of_qemu();
    let firmware: &FirmwareSlotLog = view(&recording, "log firmware slots");
    assert_eq!((firmware.active_slot(), firmware.next_slot()), (1, None));
    assert!(firmware.active_revision().unwrap().to_string().starts_with("1.0"));
    let changed: &ChangedNamespaces = view(&recording, "log changed namespaces");
    assert!(changed.iter().next().is_none() && !changed.overflowed());
    let errors = recording.data("log errors at the end");
    assert!(errors.chunks(64).all(|entry| !ErrorInfo::view(entry).unwrap().is_valid()));
}

#[test]
fn features() {
    let recording = Recording::of_qemu();
    let queues = NumberOfQueues(recording.dw0("get number of queues"));
    assert_eq!(NumberOfQueues::new(64, 64), Some(queues));
    assert_eq!(queues.pairs(), 64);
    let events = AsyncEventConfig(recording.dw0("get asynchronous event configuration"));
    assert_eq!(events.critical_warning(), CriticalWarning(0x1f));
    assert_eq!(recording.dw0("get write cache"), 1);
    assert_eq!(recording.dw0("get write cache that is off"), 0);
    let time: &Timestamp = view(&recording, "get timestamp");
    // Later than 2020: the driver set it when opening the controller.
    assert!(time.ms() > 1_577_836_800_000);
}

#[test]
fn temperature_event() {
    let recording = Recording::of_qemu();
    let item = recording.item("temperature event");
    let dw0 = number(item, "dw0") as u32;
    let event = AsyncEvent::from_dword(dw0);
    assert_eq!(event.0, dw0);
    assert_eq!(
        (event.event_type(), event.log_page()),
        (AsyncEvent::SMART_HEALTH, Lid::SMART_HEALTH)
    );
    let smart = SmartHealth::view(bytes(item, "smart")).unwrap();
    assert!(smart.critical_warning().temperature());
    let warnings: Vec<&str> = smart.critical_warning().names().collect();
    assert_eq!(warnings, ["A temperature is past its threshold"]);
}

#[test]
fn every_status_has_a_name() {
    let recording = Recording::of_qemu();
    for item in recording.items().iter().filter(|item| field(item, "status").is_some()) {
        let status = status(item);
        let is_known = Status::all_named().any(|named| named.is(status));
        assert!(is_known, "{}: {status}", item.name);
        assert_eq!(field(item, "dw0").is_some(), status.is_success(), "{}", item.name);
    }
}

#[test]
fn failures_have_the_expected_statuses() {
    let recording = Recording::of_qemu();
    let expected = [
        ("identify namespace 0", Status::INVALID_NAMESPACE_OR_FORMAT),
        ("identify cns FF", Status::INVALID_FIELD_IN_COMMAND),
        ("set number of queues with queues in use", Status::COMMAND_SEQUENCE_ERROR),
        ("set and save arbitration", Status::FEATURE_IDENTIFIER_NOT_SAVEABLE),
        ("create cq 300", Status::INVALID_QUEUE_IDENTIFIER),
        ("create cq 5 of 65536 entries", Status::INVALID_QUEUE_SIZE),
        ("create cq 5 with vector 5000", Status::INVALID_INTERRUPT_VECTOR),
        ("create cq 5 at an odd address", Status::PRP_OFFSET_INVALID),
        ("create sq 5 on cq 5, which there is not", Status::COMPLETION_QUEUE_INVALID),
        ("delete cq 5, which sq 5 uses", Status::INVALID_QUEUE_DELETION),
        ("admin opcode C3", Status::INVALID_COMMAND_OPCODE),
        ("compare with others", Status::COMPARE_FAILURE),
        ("read beyond mdts", Status::INVALID_FIELD_IN_COMMAND),
        ("read far", Status::LBA_OUT_OF_RANGE),
        ("write uncorrectable", Status::INVALID_COMMAND_OPCODE),
        ("copy of 256 ranges", Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        ("copy from far", Status::INTERNAL_ERROR),
        ("read with an sgl that is too short", Status::DATA_SGL_LENGTH_INVALID),
        ("read with an empty sgl segment", Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
        (
            "read with an sgl segment that leads on too early",
            Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS,
        ),
    ];
    for (name, status) in expected {
        assert!(recording.status(name).is(status), "{name}: {}", recording.status(name));
    }
    assert!(recording.status("read far").dnr() && !recording.status("compare with others").dnr());
    assert_eq!(recording.dw0("abort of no command") & 1, 1, "not aborted");
    assert_eq!(recording.arena().page_offset(4096), Iova(0).0);
}
