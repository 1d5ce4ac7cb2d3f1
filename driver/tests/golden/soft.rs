//! The software controller with QEMU's recorded commands. The tables below give a reason for each known difference; any
//! other fails.
//!
//! Compares all statuses with their flags, dword 0, and the data of I/O commands. Identify data and logs may differ
//! freely.

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::{Options, Storage};
use adit_driver::spec::Status;
use adit_driver::{Controller, ControllerOptions, QueuePairOptions};

use crate::commands::{self, Queue};
use crate::recording::{Recording, field, status};
use crate::run;
use crate::text::Item;

const fn lasting(status: Status) -> Status {
    status.with_dnr(true)
}

const FUSED: &str = "QEMU leaves Do Not Retry clear, although fused commands never succeed";
const COPY: &str =
    "QEMU loses the status of what Copy finds out late; NVM 1.0 section 3.2.2 names this one";
const CQ_IDENTIFIER: &str =
    "Base 2.0 section 5.6: Invalid Queue Identifier for one that is not there or 0";
const SGL_TYPE: &str =
    "Base 2.0 section 4.1.2: SGL Descriptor Type Invalid for a type or sub type not supported";
const PROTECTION: &str = "NVM 1.0 section 3.1, Invalid Protection Information: PRINFO does not suit the format; QEMU ignores it";

/// Commands whose status differs from QEMU's: the software controller's status, and why it is right.
const STATUSES: &[(&str, Status, &str)] = &[
    (
        "identify all namespaces",
        Status::SUCCESS,
        "Base 2.0 section 5.17.2.1: common capabilities where there is namespace management",
    ),
    (
        "log 70",
        lasting(Status::INVALID_LOG_PAGE),
        "Base 2.0 section 5.16.2: Invalid Log Page for one that is not supported",
    ),
    (
        "create sq 5 on cq 0",
        lasting(Status::INVALID_QUEUE_IDENTIFIER),
        "Base 2.0 section 5.5, CQID: Invalid Queue Identifier for 0",
    ),
    (
        "create sq 5 on cq 300",
        lasting(Status::INVALID_QUEUE_IDENTIFIER),
        "Base 2.0 section 5.5, CQID: Invalid Queue Identifier out of the supported range",
    ),
    ("delete cq 5 again", lasting(Status::INVALID_QUEUE_IDENTIFIER), CQ_IDENTIFIER),
    ("delete cq 0", lasting(Status::INVALID_QUEUE_IDENTIFIER), CQ_IDENTIFIER),
    ("delete cq 300", lasting(Status::INVALID_QUEUE_IDENTIFIER), CQ_IDENTIFIER),
    ("identify, first of two fused", lasting(Status::INVALID_FIELD_IN_COMMAND), FUSED),
    ("read, first of two fused", lasting(Status::INVALID_FIELD_IN_COMMAND), FUSED),
    ("read, fused 11", lasting(Status::INVALID_FIELD_IN_COMMAND), FUSED),
    (
        "read with a prp list not qword aligned",
        lasting(Status::PRP_OFFSET_INVALID),
        "Base 2.0 section 4.1.1: a list pointer is qword aligned; QEMU does not look",
    ),
    ("read with pract", lasting(Status::INVALID_PROTECTION_INFORMATION), PROTECTION),
    ("read with prchk", lasting(Status::INVALID_PROTECTION_INFORMATION), PROTECTION),
    (
        "deallocate far",
        lasting(Status::LBA_OUT_OF_RANGE),
        "NVM 1.0 section 3.2.3: LBA Out of Range; QEMU passes over such ranges",
    ),
    ("copy of a range of 8192 lbas", lasting(Status::COMMAND_SIZE_LIMIT_EXCEEDED), COPY),
    ("copy from far", lasting(Status::LBA_OUT_OF_RANGE), COPY),
    ("copy to far", lasting(Status::LBA_OUT_OF_RANGE), COPY),
    (
        "read with an sgl block that is too long",
        lasting(Status::DATA_SGL_LENGTH_INVALID),
        "Base 2.0 section 5.17.2.1, SGLS bit 18 is clear: an SGL may not be longer than the data",
    ),
    ("read into a bit bucket", lasting(Status::SGL_DESCRIPTOR_TYPE_INVALID), SGL_TYPE),
    ("read with sgl type 8", lasting(Status::SGL_DESCRIPTOR_TYPE_INVALID), SGL_TYPE),
    ("read with sgl sub type 1", lasting(Status::SGL_DESCRIPTOR_TYPE_INVALID), SGL_TYPE),
    (
        "read with an sgl segment that ends in data",
        lasting(Status::INVALID_SGL_SEGMENT_DESCRIPTOR),
        "Base 2.0 section 4.1.2: only the last segment has no descriptor that leads on",
    ),
];

/// Commands that succeed on both with a different dword 0 or data, and why.
const RESULTS: &[(&str, &str)] = &[
    ("get arbitration", "the burst is the controller's recommendation"),
    ("get temperature threshold", "the default is the controller's warning temperature"),
    ("get default temperature threshold", "the default is the controller's warning temperature"),
    (
        "get asynchronous event configuration",
        "the driver asked for the firmware activation notices that OAES bit 9 offers and QEMU's does not",
    ),
    ("get interrupt vector configuration", "whether the admin queue's vector is coalesced is open"),
    (
        "read lbas 16 to 23 after deallocate",
        "Deallocate is a hint (NVM 1.0 section 3.2.3), which QEMU does not take for less than 4 KiB",
    ),
];

fn soft() -> Vec<Item> {
    let options = Options {
        lba_bytes: vec![512, 4096, 512],
        namespace_count: 3,
        // As QEMU's: a write cache, whose feature the commands read and set.
        vwc_bytes: 16 << 20,
        ..Options::over(Storage::Memory { bytes: 3 << 30 })
    };
    let bus = SoftBus::new(options, Drive::Manual).expect("a software controller");
    let controller = Controller::attach(bus, &ControllerOptions::default()).expect("it is ready");
    let mut queue = controller.create_queue_pair(QueuePairOptions::default()).expect("a queue");
    run::run(&controller, &mut queue).expect("it keeps answering").1
}

#[test]
fn statuses_are_qemus_or_have_a_reason() {
    let recording = Recording::of_qemu();
    for item in soft() {
        let (ours, theirs) = (status(&item), recording.status(&item.name));
        let known = STATUSES.iter().find(|(name, ..)| *name == item.name);
        let expected = known.map_or(theirs, |(_, status, _)| *status);
        let why = known.map_or("as QEMU", |(.., why)| why);
        assert_eq!(ours, expected, "{} ({why})", item.name);
        assert!(known.is_none() || ours != theirs, "{}: no difference any more", item.name);
    }
}

#[test]
fn results_are_qemus_or_have_a_reason() {
    let recording = Recording::of_qemu();
    let cases = commands::all(recording.arena());
    for (item, case) in soft().iter().zip(&cases) {
        let theirs = recording.item(case.name);
        if status(item) != status(theirs) {
            continue;
        }
        let differs = |name| field(item, name) != field(theirs, name);
        let differs = differs("dw0") || case.queue == Queue::Io && differs("data");
        let known = RESULTS.iter().any(|(name, _)| *name == case.name);
        assert_eq!(differs, known, "{}:\nsoft {item}\nqemu {theirs}", case.name);
    }
}

#[test]
fn every_difference_names_a_command() {
    let recording = Recording::of_qemu();
    let names = STATUSES.iter().map(|(name, ..)| name).chain(RESULTS.iter().map(|(name, _)| name));
    for name in names {
        let _ = recording.item(name);
    }
}
