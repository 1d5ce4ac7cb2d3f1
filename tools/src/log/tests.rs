//! Tests reports of logs with contents, which a fresh software controller does not have.

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::log::{FirmwareSlotLog, SmartHealth};
use adit_driver::spec::{Lba, Lid, View};
use adit_driver::{Buffer, QueuePair, QueuePairOptions};

use super::page::Row;
use super::*;

fn controller() -> Controller {
    let options = "mem=1M".parse().expect("options");
    let bus = SoftBus::new(options, Drive::Manual).expect("bus");
    Controller::attach(bus, &ControllerOptions::default()).expect("controller")
}

fn text(rows: &[Row]) -> String {
    rows.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

#[test]
fn errors_name_status_queue_namespace_and_lba() {
    let controller = controller();
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let options = QueuePairOptions::default();
    let mut queue: QueuePair<Buffer> = controller.create_queue_pair(options).expect("queue pair");
    let mut buffer = controller.allocate(4096).expect("memory");
    buffer.fill(1);
    queue.execute(namespace.compare(Lba(72), buffer)).expect_err("the medium holds zeros");
    controller.log_page(Lid(0xc5), Nsid::ALL, 64).expect_err("no such log");
    let report = ErrorReport::read(&controller).expect("a log");
    let lines = text(&report.rows());
    let expected = [
        "Kept: 2 of up to 64 entries",
        "Error 2: Invalid Log Page (SCT 1h SC 09h",
        "admin queue",
        "Error 1: Compare Failure (SCT 2h SC 85h",
        "I/O queue 1",
        "namespace 1, LBA 72",
    ];
    for part in expected {
        assert!(lines.contains(part), "{part} is missing:\n{lines}");
    }
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["entries"][1]["status_code"], 0x85);
    assert_eq!(json["entries"][1]["lba"], 72);
    assert_eq!(json["entries"][0]["queue"], 0);
}

#[test]
fn as_many_errors_are_asked_for_as_one_transfer_holds() {
    // 64 entries fill one page, the shortest possible MDTS.
    let options = "mem=1M,mdts=1".parse().expect("options");
    let bus = SoftBus::new(options, Drive::Manual).expect("bus");
    let controller = Controller::attach(bus, &ControllerOptions::default()).expect("controller");
    let report = ErrorReport::read(&controller).expect("a log");
    assert_eq!(text(&report.rows()), "Kept: 0 of up to 64 entries\n");
}

#[test]
fn an_error_that_is_not_about_a_command_says_so() {
    let mut entry = [0; 64];
    entry[0] = 9;
    // No queue, no command, Internal Error.
    entry[8..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0c, 0x00]);
    entry[14..16].copy_from_slice(&[0x28, 0x03]);
    entry[28] = 0xc1;
    let lines = text(&ErrorReport::of(1, &entry).rows());
    let expected =
        "Error 9: Internal Error (SCT 0h SC 06h), parameter at byte 40 bit 3, more in log page C1h";
    assert!(lines.contains(expected), "{lines}");
}

#[test]
fn health_has_its_units_and_its_warnings_their_names() {
    let mut page = [0u8; 512];
    page[0] = 0b1000_1011;
    page[1..3].copy_from_slice(&353u16.to_le_bytes());
    page[3..6].copy_from_slice(&[7, 10, 103]);
    page[32] = 3;
    page[80] = 5;
    page[112] = 9;
    page[200..202].copy_from_slice(&300u16.to_le_bytes());
    let report = SmartReport::of(SmartHealth::view(&page).expect("long enough"));
    let lines = text(&report.rows());
    let expected = [
        "Critical Warning: Available spare is below its threshold; A temperature is past its threshold; \
         All media are read only; reserved bit 7 (0x8b)",
        "Composite Temperature: 80 C",
        "Available Spare: 7 %",
        "Percentage Used: 103 %",
        "Data Units Read: 1536kB (1536000 bytes)",
        "Host Write Commands: 5",
        "Power Cycles: 9",
        "Temperature Sensor 1: 27 C",
    ];
    for part in expected {
        assert!(lines.contains(part), "{part} is missing:\n{lines}");
    }
    let unreported = SmartReport::of(SmartHealth::view(&[0; 512]).expect("long enough"));
    assert!(text(&unreported.rows()).contains("Composite Temperature: not reported"));
}

#[test]
fn firmware_slots_are_active_next_and_held() {
    let mut page = [0u8; 512];
    page[0] = 0x21;
    page[8..16].copy_from_slice(b"1.0     ");
    page[16..24].copy_from_slice(b"2.0\x1b[2J ");
    let report = FirmwareReport::of(FirmwareSlotLog::view(&page).expect("long enough"));
    let lines = text(&report.rows());
    assert_eq!(
        lines,
        "Active Firmware: slot 1, 1.0\nFirmware after the next reset: slot 2\n\
         Firmware Revision for Slot 1: 1.0\nFirmware Revision for Slot 2: 2.0?[2J\n"
    );
}
